#include "worker/checkpoint/convert.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace fusion::worker {
namespace {

using namespace graph::v1;  // NOLINT: the names of DataType

template <typename T>
T ReadAt(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void WriteAt(std::byte* data, int64_t index, T value) {
  std::memcpy(data + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

bool IsFloating(DataType dtype) {
  return dtype == FLOAT16 || dtype == BFLOAT16 || dtype == FLOAT32 || dtype == FLOAT64;
}

// Every half is a double; `mantissa` and `exponent` are the format's numbers of bits.
double SmallToDouble(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  double magnitude = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    magnitude =
        mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    magnitude = std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  return (bits >> 15) != 0 ? -magnitude : magnitude;
}

uint16_t DoubleToSmall(double value, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const uint16_t infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  if (std::isnan(value)) {
    return sign | infinity | 1;
  }
  if (std::isinf(value)) {
    return sign | infinity;
  }
  // Multiples of the smallest step of the value's binade, which nearbyint rounds to nearest even; a mantissa
  // that overflows carries into the exponent by itself.
  const int exponent = value == 0 ? 1 - bias : std::max(std::ilogb(value), 1 - bias);
  const double steps = std::nearbyint(std::ldexp(std::fabs(value), mantissa_bits - exponent));
  const int64_t bits =
      static_cast<int64_t>(steps) + (static_cast<int64_t>(exponent + bias - 1) << mantissa_bits);
  return sign | (bits >= infinity ? infinity : static_cast<uint16_t>(bits));
}

double FloatAt(DataType dtype, const std::byte* data, int64_t index) {
  switch (dtype) {
    case FLOAT16:
      return SmallToDouble(ReadAt<uint16_t>(data, index), 5, 10);
    case BFLOAT16:
      return SmallToDouble(ReadAt<uint16_t>(data, index), 8, 7);
    case FLOAT32:
      return ReadAt<float>(data, index);
    default:
      return ReadAt<double>(data, index);
  }
}

void SetFloat(DataType dtype, std::byte* data, int64_t index, double value) {
  switch (dtype) {
    case FLOAT16:
      return WriteAt(data, index, DoubleToSmall(value, 5, 10));
    case BFLOAT16:
      return WriteAt(data, index, DoubleToSmall(value, 8, 7));
    case FLOAT32:
      return WriteAt(data, index, static_cast<float>(value));
    default:
      return WriteAt(data, index, value);
  }
}

int64_t IntegerAt(DataType dtype, const std::byte* data, int64_t index) {
  return dtype == INT32 ? ReadAt<int32_t>(data, index) : ReadAt<uint8_t>(data, index);
}

}  // namespace

bool CanConvert(DataType from, DataType to) {
  return from == to || (IsFloating(from) && IsFloating(to)) ||
         (to == INT64 && (from == INT32 || from == UINT8)) || (to == INT32 && from == UINT8);
}

Tensor Convert(const TensorView& view, DataType to) {
  if (view.dtype == to) {
    return CopyTensor(view);
  }
  Tensor tensor = AllocateTensor(to, view.shape);
  const int64_t count = tensor.elements();
  for (int64_t i = 0; i < count; ++i) {
    if (IsFloating(to)) {
      SetFloat(to, tensor.data.get(), i, FloatAt(view.dtype, view.bytes.data(), i));
    } else if (to == INT64) {
      WriteAt<int64_t>(tensor.data.get(), i, IntegerAt(view.dtype, view.bytes.data(), i));
    } else {
      WriteAt(tensor.data.get(), i, static_cast<int32_t>(IntegerAt(view.dtype, view.bytes.data(), i)));
    }
  }
  return tensor;
}

}  // namespace fusion::worker
