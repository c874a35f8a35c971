#include "graph/graph_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/unknown_field_set.h"
#include "graph/registry.h"
#include "nlohmann/json.hpp"
#include "proto/field_error.h"
#include "proto/json_mapper.h"

namespace fusion::graph {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using nlohmann::json;

constexpr size_t kMaxErrors = 10;

/// Refuses a key that an object has twice, of which the parser would keep the last.
class DuplicateKeys {
 public:
  bool operator()(int /*depth*/, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        open_.emplace_back();
        break;
      case json::parse_event_t::object_end:
        if (!open_.empty()) open_.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!open_.empty() && !open_.back().insert(key).second && duplicate_.empty()) duplicate_ = key;
        break;
      }
      default:
        break;
    }
    return true;
  }
  const std::string& duplicate() const { return duplicate_; }

 private:
  std::vector<std::set<std::string>> open_;
  std::string duplicate_;
};

absl::StatusOr<v1::Graph> ParseJson(absl::string_view text) {
  DuplicateKeys keys;
  json value;
  try {
    value = json::parse(text.begin(), text.end(), std::ref(keys));
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("is not JSON: ", error.what()));
  }
  if (!keys.duplicate().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("an object has the key \"", keys.duplicate(), "\" twice"));
  }
  v1::Graph graph;
  api::FieldErrors errors = api::ReadJson(value, api::Mode::kStrict, &graph);
  if (errors.empty()) return graph;
  const size_t all = errors.size();
  errors.resize(std::min(all, kMaxErrors));
  const std::string more = all > kMaxErrors ? absl::StrCat("; and ", all - kMaxErrors, " more") : "";
  return absl::InvalidArgumentError(absl::StrCat(api::ToStatus(errors).message(), more));
}

/// The first field of a number that graph.proto does not have; empty: none.
std::string UnknownField(const Message& message, const std::string& path) {
  const auto* reflection = message.GetReflection();
  const auto& unknown = reflection->GetUnknownFields(message);
  if (!unknown.empty()) return absl::StrCat(path, path.empty() ? "" : ".", unknown.field(0).number());
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string member = api::MemberPath(path, field->json_name());
    const int count = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const Message& child = field->is_repeated() ? reflection->GetRepeatedMessage(message, field, i)
                                                  : reflection->GetMessage(message, field);
      std::string found =
          UnknownField(child, field->is_repeated() ? api::ItemPath(member, static_cast<size_t>(i)) : member);
      if (!found.empty()) return found;
    }
  }
  return "";
}

absl::StatusOr<v1::Graph> ParseBinary(absl::string_view bytes) {
  v1::Graph graph;
  if (!graph.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(
        "is neither JSON nor a binary fusion.graph.v1.Graph: it is damaged, cut off, or something else");
  }
  if (const std::string field = UnknownField(graph, ""); !field.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": is a field number that this version does not know"));
  }
  return graph;
}

absl::Status CheckPlaceholders(const v1::Graph& graph) {
  bool input = false;
  for (int i = 0; i < graph.operators_size(); ++i) {
    const v1::Operator& op = graph.operators(i);
    if (op.kind() != v1::Operator::PLACEHOLDER) continue;
    const std::string path = absl::StrCat("operators[", i, "]");
    if (op.name() != "input" && op.name() != "label") {
      return absl::InvalidArgumentError(absl::StrCat(path, ".name: placeholder '", op.name(),
                                                     "' gets no data; a job feeds 'input' and 'label'"));
    }
    if (op.outputs_size() == 1 && (op.outputs(0).shape_size() == 0 || op.outputs(0).shape(0) != -1)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ".outputs[0].shape: the first dimension of '",
                                                     op.name(),
                                                     "' must be -1, the samples of the micro-batch"));
    }
    input = input || op.name() == "input";
  }
  if (input || graph.operators().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("operators: none is the placeholder 'input'");
}

}  // namespace

absl::StatusOr<v1::Graph> ParseGraph(absl::string_view bytes) {
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(bytes);
  if (text.empty()) return absl::InvalidArgumentError("is empty");
  absl::StatusOr<v1::Graph> graph = text.front() == '{' ? ParseJson(text) : ParseBinary(bytes);
  if (!graph.ok()) return graph;
  absl::Status status = CheckPlaceholders(*graph);
  if (status.ok()) status = ValidateGraph(*graph);
  if (!status.ok()) return status;
  return graph;
}

absl::StatusOr<v1::Graph> ReadGraph(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, " is a folder; give the graph's file"));
  }
  const auto size = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path, " cannot be read: ", error.message()));
  if (size > static_cast<uintmax_t>(kMaxGraphBytes)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has ", size, " bytes; a graph may have ",
                                                   kMaxGraphBytes, ": keep values in ",
                                                   StoredValuesUri(path)));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file) return absl::NotFoundError(absl::StrCat(path, " cannot be read: ", std::strerror(errno)));
  absl::StatusOr<v1::Graph> graph = ParseGraph(bytes);
  if (graph.ok()) return graph;
  return absl::Status(graph.status().code(), absl::StrCat(path, ": ", graph.status().message()));
}

bool HasStoredValues(const v1::Graph& graph) {
  return std::any_of(graph.operators().begin(), graph.operators().end(), [](const v1::Operator& op) {
    return op.kind() == v1::Operator::VARIABLE && op.variable().init().kind() == v1::Init::STORED;
  });
}

std::string StoredValuesUri(absl::string_view graph_uri) {
  const size_t slash = graph_uri.rfind('/');
  const size_t dot = graph_uri.rfind('.');
  const bool extension =
      dot != absl::string_view::npos && (slash == absl::string_view::npos || dot > slash + 1);
  return absl::StrCat(extension ? graph_uri.substr(0, dot) : graph_uri, ".safetensors");
}

}  // namespace fusion::graph
