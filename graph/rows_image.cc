// Operators over images, [samples, channels, height, width].
#include <array>

#include "absl/strings/str_cat.h"
#include "graph/operator_row.h"
#include "graph/shapes.h"

namespace fusion::graph {
namespace {

using Specs = absl::StatusOr<std::vector<v1::TensorSpec>>;

/// Height and width of a setting that is given for both or once.
using Pair = std::array<int64_t, 2>;

absl::StatusOr<Pair> ReadPair(const Call& call, absl::string_view name, int64_t low) {
  const std::vector<v1::AffineInt> sizes = call.Sizes(name);
  if (sizes.size() != 1 && sizes.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("argument '", name, "' must have 1 or 2 numbers, not ", sizes.size()));
  }
  for (const v1::AffineInt& size : sizes) {
    if (size.times_batch() != 0 || size.value() < low || size.value() > kMaxElements) {
      return absl::InvalidArgumentError(absl::StrCat("argument '", name, "' must be constants from ", low,
                                                     " to ", kMaxElements, ", not ", size.value(), " + ",
                                                     size.times_batch(), " x batch"));
    }
  }
  return Pair{sizes.front().value(), sizes.back().value()};
}

/// Checks that an argument is [samples, channels, height, width] and that only samples follow the batch.
absl::Status CheckImages(const Call& call, absl::string_view argument) {
  const v1::TensorSpec& spec = call.Tensor(argument);
  if (IsFloating(spec.dtype()) && spec.shape_size() == 4 && spec.shape(1) > 0 && spec.shape(2) > 0 &&
      spec.shape(3) > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("argument '", argument,
                   "' must be floating [samples, channels, height, width] with constant channels, height and "
                   "width, not ",
                   SpecText(spec)));
}

struct Window {
  Pair kernel;
  Pair stride;
  Pair padding;
  Pair dilation;
};

absl::StatusOr<Window> ReadWindow(const Call& call, const Pair& kernel, const Pair& default_stride) {
  Window window{kernel, default_stride, {}, {}};
  if (!call.Sizes("stride").empty()) {
    auto stride = ReadPair(call, "stride", 1);
    if (!stride.ok()) return stride.status();
    window.stride = *stride;
  }
  auto padding = ReadPair(call, "padding", 0);
  if (!padding.ok()) return padding.status();
  auto dilation = ReadPair(call, "dilation", 1);
  if (!dilation.ok()) return dilation.status();
  window.padding = *padding;
  window.dilation = *dilation;
  return window;
}

/// How many places a window has along a side of `size`. In `ceil_mode` the last one may hang over, if it
/// begins inside the image or its left padding.
absl::StatusOr<int64_t> Places(const Window& window, size_t side, int64_t size, bool ceil_mode) {
  int64_t reach = 0;
  const int64_t stride = window.stride[side];
  const bool overflow = __builtin_mul_overflow(window.dilation[side], window.kernel[side] - 1, &reach);
  const int64_t room = overflow ? -1 : size + 2 * window.padding[side] - reach - 1;
  if (room < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a window of ", window.kernel[side], " (dilation ",
                                                   window.dilation[side], ") does not fit into ", size,
                                                   " with padding ", window.padding[side]));
  }
  int64_t places = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  if (ceil_mode && (places - 1) * stride >= size + window.padding[side]) --places;
  return places;
}

/// `images` with other channels and with height and width of the window's places.
Specs Slid(const v1::TensorSpec& images, int64_t channels, const Window& window, bool ceil_mode) {
  Shape shape = {images.shape(0), channels};
  for (size_t side = 0; side < 2; ++side) {
    auto places = Places(window, side, images.shape(2 + static_cast<int>(side)), ceil_mode);
    if (!places.ok()) return places.status();
    shape.push_back(*places);
  }
  return std::vector<v1::TensorSpec>{MakeSpec(images.dtype(), shape)};
}

Specs ConvolutionShapes(const Call& call) {
  if (auto status = CheckImages(call, "input"); !status.ok()) return status;
  if (auto status = CheckImages(call, "weight"); !status.ok()) return status;
  if (auto status = CheckSameType(call, "input", "weight"); !status.ok()) return status;
  const v1::TensorSpec& input = call.Tensor("input");
  const v1::TensorSpec& weight = call.Tensor("weight");
  const v1::AffineInt groups = call.Size("groups");
  if (groups.times_batch() != 0 || groups.value() < 1 || weight.shape(0) < 1 ||
      weight.shape(0) % groups.value() != 0 || input.shape(1) % groups.value() != 0 ||
      weight.shape(1) != input.shape(1) / groups.value()) {
    return absl::InvalidArgumentError(absl::StrCat("arguments 'input' ", SpecText(input), " and 'weight' ",
                                                   SpecText(weight), " do not fit with ", groups.value(),
                                                   " groups"));
  }
  if (call.Has("bias")) {
    if (auto status = CheckSameType(call, "weight", "bias"); !status.ok()) return status;
    if (ShapeFrom(call.Tensor("bias")) != Shape{weight.shape(0)}) return Mismatch(call, "weight", "bias");
  }
  auto window = ReadWindow(call, {weight.shape(2), weight.shape(3)}, {1, 1});
  if (!window.ok()) return window.status();
  return Slid(input, weight.shape(0), *window, false);
}

OperatorCost ConvolutionCost(const Execution& e) {
  OperatorCost cost;
  const double weights = e.Dimension("weight", 1) * e.Dimension("weight", 2) * e.Dimension("weight", 3);
  const double product = 2 * e.OutputElements() * weights;
  const double bias = e.call.Has("bias") ? e.OutputElements() : 0;
  const double tensors = e.Bytes("input") + e.Bytes("weight") + e.OutputBytes();
  cost.output_bytes = e.OutputBytes();
  cost.forward_flops = product + bias;
  cost.forward_bytes = tensors + e.Bytes("bias");
  for (const char* argument : {"input", "weight"}) {
    if (!e.Gradient(argument)) continue;
    cost.backward_flops += product;
    cost.backward_bytes += tensors;
  }
  if (e.Gradient("bias")) {
    cost.backward_flops += bias;
    cost.backward_bytes += cost.output_bytes + e.Bytes("bias");
  }
  return cost;
}

Specs MaxPoolShapes(const Call& call) {
  if (auto status = CheckImages(call, "self"); !status.ok()) return status;
  auto kernel = ReadPair(call, "kernel_size", 1);
  if (!kernel.ok()) return kernel.status();
  auto window = ReadWindow(call, *kernel, *kernel);
  if (!window.ok()) return window.status();
  for (size_t side = 0; side < 2; ++side) {
    if (window->padding[side] > window->kernel[side] / 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          "padding ", window->padding[side], " is more than half of the window of ", window->kernel[side]));
    }
  }
  return Slid(call.Tensor("self"), call.Tensor("self").shape(1), *window, call.Bool("ceil_mode"));
}

OperatorCost MaxPoolCost(const Execution& e) {
  OperatorCost cost;
  const std::vector<v1::AffineInt> kernel = e.call.Sizes("kernel_size");
  const double window =
      static_cast<double>(kernel.front().value()) * static_cast<double>(kernel.back().value());
  constexpr double kIndexBytes = 8;  // of the place that was chosen
  cost.output_bytes = e.OutputBytes();
  cost.forward_flops = window * e.OutputElements();
  cost.forward_bytes = e.Bytes("self") + cost.output_bytes + kIndexBytes * e.OutputElements();
  if (e.Gradient("self")) {
    cost.saved_bytes = kIndexBytes * e.OutputElements();
    cost.backward_flops = e.OutputElements();
    cost.backward_bytes = e.Bytes("self") + cost.output_bytes + kIndexBytes * e.OutputElements();
  }
  return cost;
}

Specs AveragePoolShapes(const Call& call) {
  if (auto status = CheckImages(call, "self"); !status.ok()) return status;
  auto size = ReadPair(call, "output_size", 1);
  if (!size.ok()) return size.status();
  const v1::TensorSpec& self = call.Tensor("self");
  return std::vector<v1::TensorSpec>{
      MakeSpec(self.dtype(), {self.shape(0), self.shape(1), (*size)[0], (*size)[1]})};
}

OperatorCost AveragePoolCost(const Execution& e) {
  OperatorCost cost;
  cost.output_bytes = e.OutputBytes();
  cost.forward_flops = e.Elements("self");
  cost.forward_bytes = e.Bytes("self") + cost.output_bytes;
  if (e.Gradient("self")) {
    cost.backward_flops = e.Elements("self");
    cost.backward_bytes = e.Bytes("self") + cost.output_bytes;
  }
  return cost;
}

/// An average over whole images is a mean, which saves nothing.
SavedValues SavedByAveragePool(const Execution& e) {
  for (const v1::AffineInt& size : e.call.Sizes("output_size")) {
    if (size.value() != 1 && e.Gradient("self")) return {.arguments = {"self"}};
  }
  return {};
}

Specs BatchNormShapes(const Call& call) {
  if (auto status = CheckFloating(call, "input", 2); !status.ok()) return status;
  const v1::TensorSpec& input = call.Tensor("input");
  for (int axis = 1; axis < input.shape_size(); ++axis) {
    if (input.shape(axis) < 0) {
      return absl::InvalidArgumentError(absl::StrCat("dimension ", axis, " of argument 'input' ",
                                                     SpecText(input), " depends on the batch"));
    }
  }
  for (const char* name : {"weight", "bias", "running_mean", "running_var"}) {
    if (!call.Has(name)) continue;
    // Weights and statistics of lower images may be float32.
    const bool mixed = input.dtype() == v1::BFLOAT16 && call.Tensor(name).dtype() == v1::FLOAT32;
    if (auto status = CheckSameType(call, "input", name); !mixed && !status.ok()) return status;
    if (ShapeFrom(call.Tensor(name)) != Shape{input.shape(1)}) return Mismatch(call, "input", name);
    for (const char* other : {"weight", "running_mean"}) {
      if (!call.Has(other)) continue;
      if (auto status = CheckSameType(call, other, name); !status.ok()) return status;
    }
  }
  if (call.Has("running_mean") != call.Has("running_var")) {
    return absl::InvalidArgumentError("one of 'running_mean' and 'running_var' is given without the other");
  }
  if (!call.Bool("training") && !call.Has("running_mean")) {
    return absl::InvalidArgumentError("without training, 'running_mean' and 'running_var' must be given");
  }
  return std::vector<v1::TensorSpec>{input};
}

OperatorCost BatchNormCost(const Execution& e) {
  OperatorCost cost;
  const double elements = e.OutputElements();
  cost.output_bytes = e.OutputBytes();
  cost.forward_flops = 8 * elements;
  cost.forward_bytes = 2 * e.Bytes("input") + cost.output_bytes;
  if (e.Gradient("input") || e.Gradient("weight") || e.Gradient("bias")) {
    // Mean and 1 / standard deviation of each channel.
    cost.saved_bytes = e.call.Bool("training") ? 2 * e.Dimension("input", 1) * 4 : 0;
    cost.backward_flops = 14 * elements;
    cost.backward_bytes = 5 * e.Bytes("input");
  }
  return cost;
}

absl::Status BatchNormTrains(const Execution& e) {
  if (!e.call.Bool("training") || e.OutputElements() > e.Dimension("input", 1)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "normalises each channel over one value, which has no variance; use a larger training.batch.micro or "
      "larger "
      "images");
}

constexpr OperatorRow kRows[] = {
    {.schema = "conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] "
               "padding=0, SymInt[2] dilation=1, SymInt groups=1) -> Tensor",
     .summary = "correlation of images with kernels, + bias",
     .kind = OperatorClass::kConvolution,
     .images = true,
     .shapes = ConvolutionShapes,
     .cost = ConvolutionCost,
     .saves =
         [](const Execution& e) {
           SavedValues saved;
           if (!e.Gradient("input") && !e.Gradient("weight")) return saved;
           saved.arguments = {"input", "weight"};  // one formula for both gradients
           return saved;
         }},
    {.schema = "max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] "
               "dilation=1, bool ceil_mode=False) -> Tensor",
     .summary = "the largest value of each window",
     .kind = OperatorClass::kReduction,
     .images = true,
     .shapes = MaxPoolShapes,
     .cost = MaxPoolCost,
     .saves =
         [](const Execution& e) {
           return e.Gradient("self") ? SavedValues{.arguments = {"self"}} : SavedValues();
         }},
    {.schema = "adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor",
     .summary = "averages that make images of output_size",
     .kind = OperatorClass::kReduction,
     .images = true,
     .shapes = AveragePoolShapes,
     .cost = AveragePoolCost,
     .saves = SavedByAveragePool},
    {.schema = "batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? "
               "running_var, bool training, float momentum, float eps, bool cudnn_enabled) -> Tensor",
     .summary =
         "normalises each channel over the micro-batch, and moves running_mean and running_var towards "
         "its statistics; without training by these",
     .kind = OperatorClass::kReduction,
     .images = true,
     .updates = {"running_mean", "running_var"},
     .shapes = BatchNormShapes,
     .cost = BatchNormCost,
     .saves =
         [](const Execution& e) {
           const bool any = e.Gradient("input") || e.Gradient("weight") || e.Gradient("bias");
           return any ? SavedValues{.arguments = {"input"}} : SavedValues();
         },
     .trains = BatchNormTrains},
};

}  // namespace

absl::Span<const OperatorRow> ImageRows() { return kRows; }

}  // namespace fusion::graph
