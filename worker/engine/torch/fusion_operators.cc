// Operators of our own, known to the dispatcher like any other.
//
//   fusion::dropout_mask(int[] shape, float p, int key, bool training) -> Tensor
//     float32. Element i is 0 where Uniform(Bits(key, i)) < p, else 1 / (1 - p) (engine/random.h); all ones
//     unless training. Dropout is a multiplication by it.
//   fusion::codec(Tensor value, str codec, bool per_sample=False) -> Tensor
//     What arrives when it is sent with a codec: decode(encode(value)), in rows as codec::LayoutOf has them.
//     Its gradient is what arrives of the gradient, with the value's mask where the codec reuses it. bfloat16
//     is coded as float32 and rounded on arrival.

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "codec/codec.h"
#include "worker/engine/random.h"

namespace fusion::worker::engine {
namespace {

at::Tensor DropoutMask(at::IntArrayRef shape, double p, int64_t key, bool training) {
  TORCH_CHECK(p >= 0 && p < 1, "the probability of dropping must be in [0, 1), it is ", p);
  if (!training || p == 0) {
    return at::ones(shape, at::TensorOptions().dtype(at::kFloat));
  }
  at::Tensor mask = at::empty(shape, at::TensorOptions().dtype(at::kFloat));
  auto* data = mask.mutable_data_ptr<float>();
  const int64_t count = mask.numel();
  const auto kept = static_cast<float>(1 / (1 - p));
  for (int64_t i = 0; i < count; ++i) {
    data[i] = Uniform(Bits(static_cast<uint64_t>(key), static_cast<uint64_t>(i))) < p ? 0.0F : kept;
  }
  return mask;
}

void Check(const absl::Status& status, const std::string& name) {
  TORCH_CHECK(status.ok(), "codec ", name, ": ", std::string(status.message()));
}

codec::Codec Parse(const std::string& name) {
  const absl::StatusOr<codec::Codec> parsed = codec::ParseCodec(name);
  Check(parsed.status(), name);
  TORCH_CHECK(!parsed->error_feedback, "codec ", name,
              ": error feedback belongs to an edge; an operator has no state");
  return *parsed;
}

codec::Layout LayoutOf(const at::Tensor& tensor, bool per_sample) {
  return codec::LayoutOf({tensor.sizes().data(), tensor.sizes().size()}, per_sample);
}

absl::Span<const float> Values(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), static_cast<size_t>(tensor.numel())};
}

absl::Span<float> MutableValues(at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<float>(), static_cast<size_t>(tensor.numel())};
}

class CodecFunction : public torch::autograd::Function<CodecFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& given,
                            const std::string& name, bool per_sample) {
    TORCH_CHECK(given.scalar_type() == at::kFloat || given.scalar_type() == at::kBFloat16, "codec ", name,
                ": the value must be float32 or bfloat16, it is ", given.scalar_type());
    const codec::Codec codec = Parse(name);
    const at::Tensor value = given.to(at::kFloat).contiguous();
    const codec::Layout layout = LayoutOf(value, per_sample);
    std::vector<std::byte> message(static_cast<size_t>(codec::ValueBytes(codec, layout)));
    codec::Mask mask;
    Check(codec::EncodeValue(codec, layout, Values(value), absl::MakeSpan(message), &mask), name);
    at::Tensor arrived = at::empty_like(value);
    codec::Mask received;
    Check(codec::DecodeValue(codec, layout, message, MutableValues(arrived), &received), name);
    context->saved_data["name"] = name;
    context->saved_data["per_sample"] = per_sample;
    context->saved_data["kept"] = mask.kept_per_row;
    at::Tensor columns =
        at::empty({static_cast<int64_t>(mask.columns.size())}, at::TensorOptions().dtype(at::kInt));
    std::copy(mask.columns.begin(), mask.columns.end(), columns.mutable_data_ptr<int32_t>());
    context->saved_data["columns"] = columns;
    return arrived.to(given.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const std::string name = context->saved_data["name"].toStringRef();
    const codec::Codec codec = Parse(name);
    const at::Tensor columns = context->saved_data["columns"].toTensor();
    codec::Mask mask;
    mask.kept_per_row = context->saved_data["kept"].toInt();
    const auto* first = columns.const_data_ptr<int32_t>();
    mask.columns.assign(first, first + columns.numel());
    const at::Tensor gradient = gradients[0].to(at::kFloat).contiguous();
    const codec::Layout layout = LayoutOf(gradient, context->saved_data["per_sample"].toBool());
    std::vector<std::byte> message(static_cast<size_t>(codec::GradientBytes(codec, layout)));
    Check(codec::EncodeGradient(codec, layout, Values(gradient), mask, absl::MakeSpan(message)), name);
    at::Tensor arrived = at::empty_like(gradient);
    Check(codec::DecodeGradient(codec, layout, message, mask, MutableValues(arrived)), name);
    return {arrived.to(gradients[0].scalar_type()), at::Tensor(), at::Tensor()};
  }
};

at::Tensor ThroughCodec(const at::Tensor& value, std::string_view codec, bool per_sample) {
  return CodecFunction::apply(value, std::string(codec), per_sample);
}

}  // namespace
}  // namespace fusion::worker::engine

TORCH_LIBRARY(fusion, library) {
  library.def("dropout_mask(int[] shape, float p, int key, bool training) -> Tensor");
  library.def("codec(Tensor value, str codec, bool per_sample=False) -> Tensor");
}

TORCH_LIBRARY_IMPL(fusion, CompositeExplicitAutograd, library) {
  library.impl("dropout_mask", &fusion::worker::engine::DropoutMask);
}

TORCH_LIBRARY_IMPL(fusion, CompositeImplicitAutograd, library) {
  library.impl("codec", &fusion::worker::engine::ThroughCodec);
}
