#include "graph/resnet.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/builder.h"
#include "graph/model_config.h"

namespace fusion::graph {
namespace {

constexpr double kEpsilon = 1e-5;  // of torch.nn.BatchNorm2d, as the momentum
constexpr double kMomentum = 0.1;
constexpr int64_t kExpansion = 4;  // of a bottleneck block
constexpr int kMaxStages = 10;     // each but the first doubles the width

struct Dimensions {
  std::vector<int64_t> blocks;
  bool bottleneck = false;
  int64_t width = 64;
  int64_t classes = 0;
  int64_t image_size = 224;
  int64_t channels = 3;
  bool small_stem = false;
};

struct Published {
  int64_t depth;
  std::vector<int64_t> blocks;
  bool bottleneck;
};

const std::vector<Published>& PublishedDepths() {
  static const auto* const depths = new std::vector<Published>{{18, {2, 2, 2, 2}, false},
                                                               {34, {3, 4, 6, 3}, false},
                                                               {50, {3, 4, 6, 3}, true},
                                                               {101, {3, 4, 23, 3}, true},
                                                               {152, {3, 8, 36, 3}, true}};
  return *depths;
}

absl::Status ReadBlocks(const v1alpha1::ModelConfig& config, Dimensions& sizes) {
  if (config.has_depth() == (config.blocks_size() > 0)) {
    return absl::InvalidArgumentError(
        config.has_depth()
            ? "spec.model.config.blocks: depth is given too; leave one of them out"
            : "spec.model.config.depth: required for family resnet, or blocks instead (18 is 2, 2, 2, 2)");
  }
  if (config.has_depth()) {
    if (config.has_bottleneck()) {
      return absl::InvalidArgumentError(
          "spec.model.config.bottleneck: belongs to blocks; depth says it (from 50 on)");
    }
    for (const Published& published : PublishedDepths()) {
      if (published.depth != config.depth()) continue;
      sizes.blocks = published.blocks;
      sizes.bottleneck = published.bottleneck;
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("spec.model.config.depth: must be 18, 34, 50, 101 or 152, not ", config.depth(),
                     "; else give blocks"));
  }
  if (config.blocks_size() > kMaxStages) {
    return absl::InvalidArgumentError(absl::StrCat("spec.model.config.blocks: at most ", kMaxStages,
                                                   " stages, not ", config.blocks_size()));
  }
  absl::Status status;
  for (int i = 0; i < config.blocks_size(); ++i) {
    status.Update(CheckRange(absl::StrCat("spec.model.config.blocks[", i, "]"), config.blocks(i), 1, 1000));
  }
  sizes.blocks.assign(config.blocks().begin(), config.blocks().end());
  sizes.bottleneck = config.bottleneck();
  return status;
}

absl::StatusOr<Dimensions> ReadSizes(const v1alpha1::Model& model) {
  auto status = CheckFields(model, {"classes"},
                            {"depth", "blocks", "bottleneck", "width", "image_size", "channels", "stem"});
  if (!status.ok()) return status;
  const v1alpha1::ModelConfig& config = model.config();
  Dimensions sizes;
  status.Update(ReadBlocks(config, sizes));
  if (config.has_width()) sizes.width = config.width();
  if (config.has_image_size()) sizes.image_size = config.image_size();
  if (config.has_channels()) sizes.channels = config.channels();
  sizes.classes = config.classes();
  sizes.small_stem = config.stem() == v1alpha1::ModelConfig::small;
  status.Update(CheckRange("spec.model.config.width", sizes.width, 1, 65536));
  status.Update(CheckRange("spec.model.config.classes", sizes.classes, 2, 10'000'000));
  status.Update(CheckRange("spec.model.config.imageSize", sizes.image_size, 1, 16384));
  status.Update(CheckRange("spec.model.config.channels", sizes.channels, 1, 1024));
  if (model.loss().has_type() && model.loss().type() != v1alpha1::Loss::CrossEntropy) {
    status.Update(absl::InvalidArgumentError("spec.model.loss.type: family resnet has CrossEntropy only"));
  }
  if (!status.ok()) return status;
  return sizes;
}

class Resnet {
 public:
  explicit Resnet(Dimensions sizes) : sizes_(std::move(sizes)), graph_("resnet") {}

  absl::StatusOr<v1::Graph> Build() {
    v1::ValueRef x = Stem();
    int64_t channels = sizes_.width;
    for (size_t stage = 0; stage < sizes_.blocks.size(); ++stage) {
      const int64_t width = sizes_.width << stage;
      for (int64_t block = 0; block < sizes_.blocks[stage]; ++block) {
        const int64_t stride = stage > 0 && block == 0 ? 2 : 1;
        x = Block(absl::StrCat("layer", stage + 1, ".", block), x, channels, width, stride);
        channels = sizes_.bottleneck ? kExpansion * width : width;
      }
    }
    x = graph_.Add("avgpool", "aten.adaptive_avg_pool2d", {Read(x), Sizes({1, 1})});
    x = graph_.Add("flatten", "aten.flatten.using_ints", {Read(x), Int(1)});
    const double bound = 1 / std::sqrt(static_cast<double>(channels));  // torch.nn.Linear.reset_parameters
    const v1::ValueRef weight =
        graph_.Variable("fc.weight", {sizes_.classes, channels}, Uniform(-bound, bound));
    const v1::ValueRef bias = graph_.Variable("fc.bias", {sizes_.classes}, Uniform(-bound, bound));
    const v1::ValueRef scores = graph_.Add("fc", "aten.linear", {Read(x), Read(weight), Read(bias)});
    const v1::ValueRef label = graph_.Placeholder("label", v1::INT64, {Batch()});
    return graph_.Finish(graph_.Add("loss", "aten.cross_entropy_loss", {Read(scores), Read(label)}));
  }

 private:
  /// imagenet: 7 x 7 with stride 2, then a pool. small (CIFAR's): 3 x 3 that keeps the size, no pool.
  v1::ValueRef Stem() {
    v1::ValueRef x = graph_.Placeholder("input", v1::FLOAT32,
                                        {Batch(), sizes_.channels, sizes_.image_size, sizes_.image_size});
    x = sizes_.small_stem ? Convolution("conv1", x, sizes_.channels, sizes_.width, 3, 1)
                          : Convolution("conv1", x, sizes_.channels, sizes_.width, 7, 2);
    x = Relu("relu", BatchNorm("bn1", x, sizes_.width));
    if (sizes_.small_stem) return x;
    return graph_.Add("maxpool", "aten.max_pool2d", {Read(x), Sizes({3, 3}), Sizes({2, 2}), Sizes({1, 1})});
  }

  /// torchvision's BasicBlock and Bottleneck, which has its stride in the 3 x 3 convolution.
  v1::ValueRef Block(const std::string& name, const v1::ValueRef& x, int64_t in, int64_t width,
                     int64_t stride) {
    const int64_t out = sizes_.bottleneck ? kExpansion * width : width;
    v1::ValueRef y = sizes_.bottleneck ? Convolution(name + ".conv1", x, in, width, 1, 1)
                                       : Convolution(name + ".conv1", x, in, width, 3, stride);
    y = Relu(name + ".relu", BatchNorm(name + ".bn1", y, width));
    y = Convolution(name + ".conv2", y, width, width, 3, sizes_.bottleneck ? stride : 1);
    y = BatchNorm(name + ".bn2", y, width);
    if (sizes_.bottleneck) {
      y = Convolution(name + ".conv3", Relu(name + ".relu.1", y), width, out, 1, 1);
      y = BatchNorm(name + ".bn3", y, out);
    }
    v1::ValueRef identity = x;
    if (stride != 1 || in != out) {
      identity = Convolution(name + ".downsample.0", x, in, out, 1, stride);
      identity = BatchNorm(name + ".downsample.1", identity, out);
    }
    const v1::ValueRef sum = graph_.Add(name + ".add", "aten.add.Tensor", {Read(y), Read(identity)});
    return Relu(name + (sizes_.bottleneck ? ".relu.2" : ".relu.1"), sum);
  }

  /// Without bias; padding keeps the size at stride 1. Initial values are kaiming_normal_'s with fan_out and
  /// the gain of relu.
  v1::ValueRef Convolution(const std::string& name, const v1::ValueRef& x, int64_t in, int64_t out,
                           int64_t kernel, int64_t stride) {
    const double fan_out = static_cast<double>(out) * static_cast<double>(kernel * kernel);
    const v1::ValueRef weight =
        graph_.Variable(name + ".weight", {out, in, kernel, kernel}, Normal(std::sqrt(2 / fan_out)));
    const int64_t padding = kernel / 2;
    return graph_.Add(
        name, "aten.conv2d",
        {Read(x), Read(weight), None(), Sizes({stride, stride}), Sizes({padding, padding}), Sizes({1, 1})});
  }

  v1::ValueRef BatchNorm(const std::string& name, const v1::ValueRef& x, int64_t channels) {
    const v1::ValueRef weight = graph_.Variable(name + ".weight", {channels}, Ones());
    const v1::ValueRef bias = graph_.Variable(name + ".bias", {channels}, Zeros());
    const v1::ValueRef mean = graph_.Buffer(name + ".running_mean", v1::FLOAT32, {channels}, Zeros());
    const v1::ValueRef variance = graph_.Buffer(name + ".running_var", v1::FLOAT32, {channels}, Ones());
    const v1::ValueRef counter = graph_.Buffer(name + ".num_batches_tracked", v1::INT64, {}, Zeros());
    const v1::ValueRef normal = graph_.Add(name, "aten.batch_norm",
                                           {Read(x), Read(weight), Read(bias), Read(mean), Read(variance),
                                            Training(), Double(kMomentum), Double(kEpsilon), Bool(true)});
    graph_.CountPasses(counter);
    return normal;
  }

  v1::ValueRef Relu(const std::string& name, const v1::ValueRef& x) {
    return graph_.Add(name, "aten.relu", {Read(x)});
  }

  const Dimensions sizes_;
  GraphBuilder graph_;
};

}  // namespace

absl::StatusOr<v1::Graph> BuildResnet(const v1alpha1::Model& model) {
  auto sizes = ReadSizes(model);
  if (!sizes.ok()) return sizes.status();
  return Resnet(*std::move(sizes)).Build();
}

absl::StatusOr<std::string> ResnetConfigJson(const v1alpha1::Model& model) {
  auto sizes = ReadSizes(model);
  if (!sizes.ok()) return sizes.status();
  return absl::StrCat("{\n  \"model_type\": \"torchvision_resnet\",\n  \"block\": \"",
                      sizes->bottleneck ? "Bottleneck" : "BasicBlock", "\",\n  \"layers\": [",
                      absl::StrJoin(sizes->blocks, ", "), "],\n  \"width\": ", sizes->width,
                      ",\n  \"num_classes\": ", sizes->classes, ",\n  \"image_size\": ", sizes->image_size,
                      ",\n  \"num_channels\": ", sizes->channels, ",\n  \"stem\": \"",
                      sizes->small_stem ? "small" : "imagenet", "\"\n}\n");
}

}  // namespace fusion::graph
