// Feeds a receiving end with arbitrary frames: after an honest Hello (or not), each a length byte and so many
// bytes.
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "worker/transport/receiving_end.h"

namespace {

using namespace fusion::worker;  // NOLINT(google-build-using-namespace)

class IgnoredReplies : public ReplyWriter {
 public:
  void Write(const fusion::wire::v1::FrameHeader&) override {}
  void End() override {}
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  TransportOptions options;
  options.job = "fuzz";
  options.memory_limit_bytes = 1 << 16;
  const auto side = std::make_shared<ReceivingSide>(options);
  side->gate().Open({.receive =
                         [](int, const EncodedTensor& tensor) {
                           if (tensor.bytes > (1 << 16) || (tensor.bytes > 0 && tensor.data == nullptr))
                             std::abort();
                         },
                     .granted = nullptr,
                     .error = nullptr});
  const auto end = std::make_shared<ReceivingEnd>(side, std::make_shared<IgnoredReplies>());
  if (data[0] % 2 == 0) {
    fusion::wire::v1::FrameHeader hello;
    hello.mutable_hello()->set_min_version(kMinTensorVersion);
    hello.mutable_hello()->set_max_version(kMaxTensorVersion);
    hello.mutable_hello()->set_job(options.job);
    const std::string bytes = FramePrefix(hello);
    if (!end->OnFrame({{reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}}).ok()) std::abort();
  }
  for (size_t at = 1; at < size;) {
    const size_t length = std::min<size_t>(data[at], size - at - 1);
    const absl::Span<const std::byte> frame(reinterpret_cast<const std::byte*>(data + at + 1), length);
    if (!end->OnFrame({frame.first(length / 2), frame.subspan(length / 2)}).ok()) break;
    at += 1 + length;
  }
  return 0;
}
