// Randomness without state: a number depends on (seed, stream, counter) only, so that any worker draws the
// same batch for the same step, whatever it drew before.
#pragma once

#include <cstdint>

namespace fusion::worker {

/// 64 well-mixed bits of (seed, stream, counter): three rounds of the SplitMix64 finaliser (Steele, Lea and
/// Flood, "Fast splittable pseudorandom number generators", 2014).
uint64_t CounterRandom(uint64_t seed, uint64_t stream, uint64_t counter);

/// Uniform in [0, bound). REQUIRES: bound > 0.
uint64_t RandomBelow(uint64_t bound, uint64_t seed, uint64_t stream, uint64_t counter);

/// The image of `index` under a permutation of [0, size) chosen by (seed, stream): a four-round Feistel
/// network over the next power of four, walked until it falls inside. REQUIRES: index < size.
uint64_t Permute(uint64_t index, uint64_t size, uint64_t seed, uint64_t stream);

/// Item `index` of `count` that are spread evenly over [0, size): floor(index x size / count). Repeats where
/// count > size. REQUIRES: 0 <= index < count, size > 0.
uint64_t EvenlySpread(uint64_t index, uint64_t count, uint64_t size);

}  // namespace fusion::worker
