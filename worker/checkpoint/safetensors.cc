#include "worker/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/durable_file.h"

namespace fusion::worker {
namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kAlignment = 8;                 // of the first tensor
constexpr char kMetadata[] = "__metadata__";

struct DtypeName {
  DataType dtype;
  const char* name;
};
constexpr DtypeName kDtypeNames[] = {{graph::v1::FLOAT32, "F32"},   {graph::v1::FLOAT16, "F16"},
                                     {graph::v1::BFLOAT16, "BF16"}, {graph::v1::FLOAT64, "F64"},
                                     {graph::v1::INT64, "I64"},     {graph::v1::INT32, "I32"},
                                     {graph::v1::BOOL, "BOOL"},     {graph::v1::UINT8, "U8"}};

absl::StatusOr<DataType> DtypeOf(const std::string& name) {
  for (const DtypeName& known : kDtypeNames) {
    if (name == known.name) {
      return known.dtype;
    }
  }
  return absl::DataLossError(absl::StrCat("dtype '", name, "' is not supported"));
}

absl::StatusOr<json> ParseHeader(absl::string_view text) {
  std::set<std::string> names;
  std::string twice;
  const json header = json::parse(
      text.begin(), text.end(),
      [&](int depth, json::parse_event_t event, json& value) {
        if (depth == 1 && event == json::parse_event_t::key &&
            !names.insert(value.get<std::string>()).second) {
          twice = value.get<std::string>();
        }
        return true;
      },
      /*allow_exceptions=*/false);
  if (!header.is_object()) {
    return absl::DataLossError("the header is not a JSON object");
  }
  if (!twice.empty()) {
    return absl::DataLossError(absl::StrCat("'", twice, "' is there twice"));
  }
  return header;
}

// A list of non-negative integers, or nothing.
absl::StatusOr<std::vector<int64_t>> Integers(const json& entry, const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_array()) {
    return absl::DataLossError(absl::StrCat(key, " is not a list"));
  }
  std::vector<int64_t> values;
  for (const json& item : *found) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      return absl::DataLossError(absl::StrCat(key, " holds ", item.dump().substr(0, 40), ", not a size"));
    }
    values.push_back(item.get<int64_t>());
  }
  return values;
}

absl::StatusOr<int64_t> ByteCount(DataType dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = ElementBytes(dtype);
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return absl::DataLossError(absl::StrCat("shape ", ShapeText(shape), " overflows"));
    }
  }
  return bytes;
}

absl::StatusOr<TensorView> ParseEntry(const json& entry, absl::Span<const std::byte> data) {
  const auto dtype_name = entry.is_object() ? entry.find("dtype") : entry.end();
  if (!entry.is_object() || dtype_name == entry.end() || !dtype_name->is_string()) {
    return absl::DataLossError("no dtype");
  }
  const auto dtype = DtypeOf(dtype_name->get<std::string>());
  if (!dtype.ok()) {
    return dtype.status();
  }
  auto shape = Integers(entry, "shape");
  if (!shape.ok()) {
    return shape.status();
  }
  const auto offsets = Integers(entry, "data_offsets");
  if (!offsets.ok()) {
    return offsets.status();
  }
  if (offsets->size() != 2 || (*offsets)[0] > (*offsets)[1] ||
      static_cast<uint64_t>((*offsets)[1]) > data.size()) {
    return absl::DataLossError(
        absl::StrCat("data_offsets ", ShapeText(*offsets), " do not lie in ", data.size(), " bytes of data"));
  }
  const auto bytes = ByteCount(*dtype, *shape);
  if (!bytes.ok()) {
    return bytes.status();
  }
  const int64_t length = (*offsets)[1] - (*offsets)[0];
  if (*bytes != length) {
    return absl::DataLossError(
        absl::StrCat("shape ", ShapeText(*shape), " needs ", *bytes, " bytes, the offsets give ", length));
  }
  return TensorView{.dtype = *dtype,
                    .shape = *std::move(shape),
                    .bytes = data.subspan(static_cast<size_t>((*offsets)[0]), static_cast<size_t>(length))};
}

// The format forbids holes and overlaps.
absl::Status CheckLayout(const std::map<std::string, TensorView>& tensors, absl::Span<const std::byte> data) {
  std::vector<std::pair<size_t, size_t>> ranges;  // begin, end
  for (const auto& [name, view] : tensors) {
    const auto begin = static_cast<size_t>(view.bytes.data() - data.data());
    ranges.emplace_back(begin, begin + view.bytes.size());
  }
  std::sort(ranges.begin(), ranges.end());
  size_t end = 0;
  for (const auto& range : ranges) {
    if (range.first != end) {
      return absl::DataLossError(
          absl::StrCat("tensors overlap or leave a hole at byte ", end, " of the data"));
    }
    end = range.second;
  }
  if (end != data.size()) {
    return absl::DataLossError(absl::StrCat(data.size() - end, " bytes after the last tensor"));
  }
  return absl::OkStatus();
}

json HeaderOf(const std::map<std::string, TensorView>& tensors) {
  json header = json::object();
  header[kMetadata] = {{"format", "pt"}};  // what transformers asks for
  size_t offset = 0;
  for (const auto& [name, view] : tensors) {
    const auto* known = std::find_if(std::begin(kDtypeNames), std::end(kDtypeNames),
                                     [&view = view](const DtypeName& n) { return n.dtype == view.dtype; });
    header[name] = {{"dtype", known->name},
                    {"shape", view.shape},
                    {"data_offsets", {offset, offset + view.bytes.size()}}};
    offset += view.bytes.size();
  }
  return header;
}

}  // namespace

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<std::map<std::string, TensorView>> ParseSafetensors(absl::Span<const std::byte> bytes) {
  if (bytes.size() < kLengthBytes) {
    return absl::DataLossError(absl::StrCat(bytes.size(), " bytes are too few for a safetensors file"));
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > kMaxHeaderBytes || length > bytes.size() - kLengthBytes) {
    return absl::DataLossError(absl::StrCat("a header of ", length, " bytes does not fit into ", bytes.size(),
                                            "; not a safetensors file, or cut off"));
  }
  const auto header = ParseHeader({reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length});
  if (!header.ok()) {
    return header.status();
  }
  const absl::Span<const std::byte> data = bytes.subspan(kLengthBytes + length);
  std::map<std::string, TensorView> tensors;
  for (const auto& [name, entry] : header->items()) {
    if (name == kMetadata) {
      continue;
    }
    auto view = ParseEntry(entry, data);
    if (!view.ok()) {
      return absl::Status(view.status().code(),
                          absl::StrCat("tensor '", name, "': ", view.status().message()));
    }
    tensors.emplace(name, *std::move(view));
  }
  const absl::Status layout = CheckLayout(tensors, data);
  if (!layout.ok()) {
    return layout;
  }
  return tensors;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile result;
  auto file = MappedFile::Open(path);
  if (!file.ok()) {
    return file.status();
  }
  result.file_ = *std::move(file);
  auto tensors = ParseSafetensors(result.file_.bytes());
  if (!tensors.ok()) {
    return absl::Status(tensors.status().code(), absl::StrCat(path, ": ", tensors.status().message()));
  }
  result.tensors_ = *std::move(tensors);
  return result;
}

Tensor CopyTensor(const TensorView& view) {
  Tensor tensor = AllocateTensor(view.dtype, view.shape);
  if (!view.bytes.empty()) {
    std::memcpy(tensor.data.get(), view.bytes.data(), view.bytes.size());
  }
  return tensor;
}

TensorView ViewOf(const Tensor& tensor) {
  return {.dtype = tensor.dtype,
          .shape = tensor.shape,
          .bytes = {tensor.data.get(), static_cast<size_t>(tensor.bytes())}};
}

absl::Status WriteSafetensors(const std::string& path, const std::map<std::string, TensorView>& tensors) {
  std::string header = HeaderOf(tensors).dump();
  header.append((kAlignment - header.size() % kAlignment) % kAlignment, ' ');
  const uint64_t length = header.size();
  char length_bytes[kLengthBytes];
  std::memcpy(length_bytes, &length, kLengthBytes);

  auto file = DurableFile::Create(path);
  if (!file.ok()) {
    return file.status();
  }
  absl::Status status = file->Write({length_bytes, kLengthBytes});
  if (status.ok()) {
    status = file->Write(header);
  }
  for (auto tensor = tensors.begin(); status.ok() && tensor != tensors.end(); ++tensor) {
    const absl::Span<const std::byte> bytes = tensor->second.bytes;
    status = file->Write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  return status.ok() ? file->Finish() : status;
}

}  // namespace fusion::worker
