#include "worker/transport/inbox.h"

#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/tensor.h"

namespace fusion::worker {
namespace {

/// More dimensions than any tensor has.
constexpr int kMaxDimensions = 64;

/// -1 where the product of the extents does not fit.
int64_t Elements(const EncodedTensor& tensor) {
  int64_t elements = 1;
  for (const int64_t extent : tensor.shape) {
    if (extent < 0 || (extent > 0 && elements > std::numeric_limits<int64_t>::max() / 16 / extent)) return -1;
    elements *= extent;
  }
  return elements;
}

absl::Status Check(const EncodedTensor& tensor) {
  if (!wire::v1::Direction_IsValid(tensor.key.direction) ||
      tensor.key.direction == wire::v1::DIRECTION_UNSPECIFIED) {
    return absl::InvalidArgumentError("a tensor without direction");
  }
  if (tensor.absent) {
    if (tensor.bytes != 0) return absl::InvalidArgumentError("an absent gradient with bytes");
    return absl::OkStatus();
  }
  const int64_t element_bytes = graph::v1::DataType_IsValid(tensor.dtype) ? ElementBytes(tensor.dtype) : 0;
  const int64_t elements = tensor.shape.size() <= kMaxDimensions ? Elements(tensor) : -1;
  if (element_bytes == 0 || elements < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor of data type ", tensor.dtype, " with ",
                                                   tensor.shape.size(), " dimensions is not one"));
  }
  const bool as_it_is = tensor.codec == "fp32" && tensor.dtype == graph::v1::FLOAT32;
  if (as_it_is && tensor.bytes != elements * element_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.bytes, " bytes for ", elements,
                                                   " elements of a tensor sent as it is, which take ",
                                                   elements * element_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

std::string DescribeKey(const TensorKey& key) {
  const std::string direction = wire::v1::Direction_IsValid(key.direction)
                                    ? wire::v1::Direction_Name(key.direction)
                                    : absl::StrCat("direction ", key.direction);
  return absl::StrCat("step ", key.step, ", micro-batch ", key.micro_batch, ", edge ", key.edge, " ",
                      direction);
}

absl::StatusOr<std::optional<EncodedTensor>> Inbox::Take(const ReceivedFrame& frame) {
  if (frame.header.has_tensor()) return Begin(frame);
  if (frame.header.has_data()) return Continue(frame);
  return absl::InvalidArgumentError("a frame that is neither a descriptor nor data");
}

absl::StatusOr<std::optional<EncodedTensor>> Inbox::Begin(const ReceivedFrame& frame) {
  const wire::v1::TensorDescriptor& descriptor = frame.header.tensor();
  EncodedTensor tensor{
      .key = {.step = descriptor.step(),
              .micro_batch = descriptor.micro_batch(),
              .edge = descriptor.edge(),
              .direction = descriptor.direction(),
              .consumer = descriptor.consumer()},
      .codec = descriptor.codec(),
      .dtype = descriptor.dtype(),
      .shape = {descriptor.shape().begin(), descriptor.shape().end()},
      .absent = descriptor.absent(),
      .data = nullptr,
      .bytes = static_cast<int64_t>(descriptor.bytes()),
  };
  const auto error = [&](absl::StatusCode code, absl::string_view what) {
    return absl::Status(code, absl::StrCat(DescribeKey(tensor.key), ": ", what));
  };
  if (descriptor.tensor() != begun_ + 1) {
    return error(
        absl::StatusCode::kDataLoss,
        absl::StrCat("tensor ", descriptor.tensor(), " of the stream is described after tensor ", begun_));
  }
  if (frame.payload_bytes != 0) {
    return error(absl::StatusCode::kInvalidArgument, "a descriptor with a payload");
  }
  if (tensor.bytes < 0 || tensor.bytes > memory_limit_ - partial_bytes_) {
    return error(absl::StatusCode::kResourceExhausted,
                 absl::StrCat(descriptor.bytes(), " bytes, beside ", partial_bytes_,
                              " under way, are above the limit of ", memory_limit_));
  }
  if (absl::Status status = Check(tensor); !status.ok()) return error(status.code(), status.message());
  try {
    tensor.data = tensor.absent ? nullptr : AllocateTensor(graph::v1::UINT8, {tensor.bytes}).data;
  } catch (const std::bad_alloc&) {
    return error(absl::StatusCode::kResourceExhausted,
                 absl::StrCat("no memory for ", tensor.bytes, " bytes"));
  }
  ++begun_;
  Partial partial;
  partial.tensor = std::move(tensor);
  partial.checksum = descriptor.checksum();
  partial.hash.reset(XXH3_createState());
  XXH3_64bits_reset(partial.hash.get());
  if (partial.tensor.bytes == 0) return Complete(std::move(partial));
  partial_bytes_ += partial.tensor.bytes;
  partial_.emplace(begun_, std::move(partial));
  return std::nullopt;
}

absl::StatusOr<std::optional<EncodedTensor>> Inbox::Continue(const ReceivedFrame& frame) {
  const wire::v1::Data& data = frame.header.data();
  const auto found = partial_.find(data.tensor());
  if (found == partial_.end()) {
    return absl::DataLossError(absl::StrCat("data of tensor ", data.tensor(), ", which is not under way"));
  }
  Partial& partial = found->second;
  EncodedTensor& tensor = partial.tensor;
  if (data.offset() != static_cast<uint64_t>(partial.received) || frame.payload_bytes == 0 ||
      frame.payload_bytes > tensor.bytes - partial.received) {
    return absl::DataLossError(absl::StrCat(DescribeKey(tensor.key), ": ", frame.payload_bytes,
                                            " bytes at offset ", data.offset(), " after ", partial.received,
                                            " of ", tensor.bytes));
  }
  for (const auto& piece : frame.payload) {
    std::memcpy(tensor.data.get() + partial.received, piece.data(), piece.size());
    XXH3_64bits_update(partial.hash.get(), piece.data(), piece.size());
    partial.received += static_cast<int64_t>(piece.size());
  }
  if (partial.received < tensor.bytes) return std::nullopt;
  partial_bytes_ -= tensor.bytes;
  return Complete(std::move(partial_.extract(found).mapped()));
}

absl::StatusOr<std::optional<EncodedTensor>> Inbox::Complete(Partial partial) {
  const uint64_t checksum = XXH3_64bits_digest(partial.hash.get());
  if (checksum != partial.checksum) {
    return absl::DataLossError(absl::StrCat(DescribeKey(partial.tensor.key), ": checksum ",
                                            absl::Hex(checksum), " of ", partial.tensor.bytes,
                                            " bytes, the sender's is ", absl::Hex(partial.checksum)));
  }
  ++tensors_;
  return std::move(partial.tensor);
}

}  // namespace fusion::worker
