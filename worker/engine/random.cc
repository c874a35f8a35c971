#include "worker/engine/random.h"

#include <cmath>
#include <numbers>

namespace fusion::worker::engine {

uint64_t HashText(absl::string_view text) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  }
  return hash;
}

uint64_t VariableKey(int64_t seed, absl::string_view tensor_name) {
  return Combine(static_cast<uint64_t>(seed), HashText(tensor_name));
}

int64_t OperatorKey(int64_t seed, int64_t step, int64_t micro_batch, absl::string_view operator_name) {
  uint64_t key = Combine(static_cast<uint64_t>(seed), static_cast<uint64_t>(step));
  key = Combine(key, static_cast<uint64_t>(micro_batch));
  return static_cast<int64_t>(Combine(key, HashText(operator_name)));
}

NormalPair Normals(uint64_t key, uint64_t first) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform(Bits(key, first))));
  const double angle = 2.0 * std::numbers::pi * Uniform(Bits(key, first + 1));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace fusion::worker::engine
