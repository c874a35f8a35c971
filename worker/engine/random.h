// Counter-based random numbers: element i of a stream is a function of (key, i), so that any part of a tensor
// can be made anywhere, in any order, with the same bits. Used for initial values and for dropout masks.
//
//   Mix(x)        the finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
//   generators",
//                 OOPSLA 2014, with Stafford's variant 13 of the constants)
//   Bits(key, i)  Mix(key + (i + 1) * kGamma): the i-th output of SplitMix64 seeded with `key`
//   Uniform(b)    (b >> 11) * 2^-53, in [0, 1)
//   Normal(key,i) Box-Muller in double over elements 2k and 2k+1 of the stream, k = i / 2:
//                 r = sqrt(-2 ln(1 - u0)), angle = 2 pi u1; r cos(angle) for even i, r sin(angle) for odd i
//   Combine(k,x)  Mix(k ^ Mix(x + kGamma)), to make a key of several numbers
//   HashText(t)   FNV-1a, 64 bits
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace fusion::worker::engine {

inline constexpr uint64_t kGamma = 0x9E3779B97F4A7C15;

constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

constexpr uint64_t Combine(uint64_t key, uint64_t number) { return Mix(key ^ Mix(number + kGamma)); }

constexpr uint64_t Bits(uint64_t key, uint64_t index) { return Mix(key + (index + 1) * kGamma); }

constexpr double Uniform(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

uint64_t HashText(absl::string_view text);

/// Key of a variable's initial values: Combine(seed, HashText(tensor_name)).
uint64_t VariableKey(int64_t seed, absl::string_view tensor_name);

/// The integer that an operator gets for `random_key`: the bits of Combine over seed, step, micro-batch and
/// HashText(operator name), in this order.
int64_t OperatorKey(int64_t seed, int64_t step, int64_t micro_batch, absl::string_view operator_name);

/// Standard normal numbers `first` and `first + 1` of the stream; `first` is even.
struct NormalPair {
  double even;
  double odd;
};
NormalPair Normals(uint64_t key, uint64_t first);

}  // namespace fusion::worker::engine
