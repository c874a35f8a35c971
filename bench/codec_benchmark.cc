// Speed of every codec on the tensors of a pipeline edge, in bytes of fp32 a second, with the bytes that it
// sends.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "codec/codec.h"

namespace {

using namespace fusion::codec;  // NOLINT(google-build-using-namespace)

constexpr const char* kCodecs[] = {"fp32",
                                   "bf16",
                                   "fp16",
                                   "int8",
                                   "int4",
                                   "topk-0.2-int4",
                                   "topk-0.1-int4",
                                   "topk-0.03-int4",
                                   "topk-0.1-fp32",
                                   "topk-0.01-fp16",
                                   "topk-0.1-int4-independent"};

/// Tokens x width of a small GPT's micro-batch, of GPT-2 XL's, and two samples of an image network.
constexpr Layout kLayouts[] = {
    {.rows = 256, .columns = 128}, {.rows = 1024, .columns = 1600}, {.rows = 2, .columns = 401'408}};

std::vector<float> RandomValues(int64_t count) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

void Count(benchmark::State& state, const Codec& codec, const Layout& layout) {
  const auto dense = static_cast<double>(4 * layout.elements());
  state.SetBytesProcessed(state.iterations() * 4 * layout.elements());
  state.counters["value_ratio"] = dense / static_cast<double>(ValueBytes(codec, layout));
  state.counters["gradient_ratio"] = dense / static_cast<double>(GradientBytes(codec, layout));
}

void Encode(benchmark::State& state, const Codec& codec, const Layout& layout) {
  const std::vector<float> value = RandomValues(layout.elements());
  std::vector<std::byte> message(ValueBytes(codec, layout));
  Mask mask;
  for (auto _ : state) {
    if (!EncodeValue(codec, layout, value, absl::MakeSpan(message), &mask).ok())
      state.SkipWithError("encode");
    benchmark::DoNotOptimize(message.data());
  }
  Count(state, codec, layout);
}

void Decode(benchmark::State& state, const Codec& codec, const Layout& layout) {
  std::vector<float> value = RandomValues(layout.elements());
  std::vector<std::byte> message(ValueBytes(codec, layout));
  Mask mask;
  if (!EncodeValue(codec, layout, value, absl::MakeSpan(message), &mask).ok()) state.SkipWithError("encode");
  for (auto _ : state) {
    if (!DecodeValue(codec, layout, message, absl::MakeSpan(value), &mask).ok())
      state.SkipWithError("decode");
    benchmark::DoNotOptimize(value.data());
  }
  Count(state, codec, layout);
}

const int kRegistered = [] {
  for (const char* name : kCodecs) {
    const Codec codec = ParseCodec(name).value();
    for (const Layout& layout : kLayouts) {
      const std::string shape = "/" + std::to_string(layout.rows) + "x" + std::to_string(layout.columns);
      benchmark::RegisterBenchmark(("encode/" + std::string(name) + shape).c_str(), Encode, codec, layout);
      benchmark::RegisterBenchmark(("decode/" + std::string(name) + shape).c_str(), Decode, codec, layout);
    }
  }
  return 0;
}();

}  // namespace
