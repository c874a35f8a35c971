#include "worker/data/sampling.h"

#include <bit>

namespace fusion::worker {
namespace {

using Wide = unsigned __int128;

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t CounterRandom(uint64_t seed, uint64_t stream, uint64_t counter) {
  return Mix(Mix(Mix(seed) ^ stream) ^ counter);
}

uint64_t RandomBelow(uint64_t bound, uint64_t seed, uint64_t stream, uint64_t counter) {
  return static_cast<uint64_t>((static_cast<Wide>(CounterRandom(seed, stream, counter)) * bound) >> 64);
}

uint64_t Permute(uint64_t index, uint64_t size, uint64_t seed, uint64_t stream) {
  const int half_bits = (std::bit_width(size - 1) + 1) / 2;
  const uint64_t half_mask = (1ULL << half_bits) - 1;
  do {
    uint64_t left = index >> half_bits;
    uint64_t right = index & half_mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t key = CounterRandom(seed, stream, round);
      const uint64_t next = left ^ (Mix(key ^ right) & half_mask);
      left = right;
      right = next;
    }
    index = (left << half_bits) | right;
  } while (index >= size);
  return index;
}

uint64_t EvenlySpread(uint64_t index, uint64_t count, uint64_t size) {
  return static_cast<uint64_t>(static_cast<Wide>(index) * size / count);
}

}  // namespace fusion::worker
