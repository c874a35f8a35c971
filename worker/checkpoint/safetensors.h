// The safetensors format: 8 bytes little-endian length of the header, a JSON header {NAME: {dtype, shape,
// data_offsets}}, then the tensors' bytes without holes (https://huggingface.co/docs/safetensors).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/mapped_file.h"
#include "worker/tensor.h"

namespace fusion::worker {

/// A tensor in somebody's memory. The bytes need not be aligned.
struct TensorView {
  DataType dtype = graph::v1::FLOAT32;
  std::vector<int64_t> shape = {};
  absl::Span<const std::byte> bytes = {};
};

std::string ShapeText(absl::Span<const int64_t> shape);  ///< "[128, 256]"

/// The format's header and tensors as views into `bytes`. Any bytes are safe to pass: DATA_LOSS says what is
/// wrong (the header does not fit, is not JSON or names a tensor twice; a dtype is unknown; offsets overlap,
/// leave holes or exceed the file; a shape does not give the bytes). Keys of __metadata__ are dropped.
absl::StatusOr<std::map<std::string, TensorView>> ParseSafetensors(absl::Span<const std::byte> bytes);

/// An opened file. Thread-safe.
class SafetensorsFile {
 public:
  /// Errors carry the path.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }  ///< into the mapping

 private:
  MappedFile file_;
  std::map<std::string, TensorView> tensors_;
};

/// A copy in aligned storage.
Tensor CopyTensor(const TensorView& view);
TensorView ViewOf(const Tensor& tensor);

/// Writes a new file in the order of names and syncs it to disk. Removes it again on an error, which says the
/// path and the system's reason.
absl::Status WriteSafetensors(const std::string& path, const std::map<std::string, TensorView>& tensors);

}  // namespace fusion::worker
