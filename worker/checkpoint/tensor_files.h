// Tensors of one or several safetensors files as one set.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/checkpoint/safetensors.h"

namespace fusion::worker {

inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kModelIndexFile[] = "model.safetensors.index.json";

/// Views into mapped files. Thread-safe.
class TensorFiles {
 public:
  /// `path` is a safetensors file; an index (NAME.index.json) with its shards beside it; or a folder with
  /// model.safetensors or model.safetensors.index.json. Errors carry the path: NOT_FOUND, DATA_LOSS for a
  /// file or an index that is damaged, a tensor that is not in its shard, a tensor in two shards.
  static absl::StatusOr<TensorFiles> Open(const std::string& path);

  const std::string& path() const { return path_; }  ///< of the file or the index
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }

 private:
  static absl::StatusOr<TensorFiles> OpenIndex(const std::string& path);

  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace fusion::worker
