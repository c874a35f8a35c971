#include <algorithm>
#include <cmath>
#include <exception>
#include <istream>
#include <optional>
#include <streambuf>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/field_error.h"
#include "proto/utf8.h"
#include "proto/yaml.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/parser.h"

namespace fusion::api {
namespace {

using nlohmann::json;

constexpr absl::string_view kTagPrefix = "tag:yaml.org,2002:";

/// Thrown through yaml-cpp's parser and caught in ParseYaml.
class Refusal : public std::exception {
 public:
  explicit Refusal(YamlError error) : error_(std::move(error)) {}
  const char* what() const noexcept override { return error_.message.c_str(); }
  const YamlError& error() const { return error_; }

 private:
  YamlError error_;
};

/// Builds one JSON value from the parser's events. Its own stack, no recursion.
class Builder : public YAML::EventHandler {
 public:
  explicit Builder(int document, size_t* nodes) : nodes_(*nodes) { out_.index = document; }

  YamlDocument& document() { return out_; }

  void OnDocumentStart(const YAML::Mark& mark) override { out_.line = mark.line + 1; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { Add(nullptr, "null", mark, anchor); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    Add(Scalar(tag, text, mark), text, mark, anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) Refuse(mark, "an alias stands inside of what it names");
    Count(found->second.nodes, mark);
    json copy = found->second.value;
    const std::string text = copy.is_string() ? copy.get<std::string>()
                                              : copy.dump(-1, ' ', false, json::error_handler_t::replace);
    Add(std::move(copy), text, mark, YAML::NullAnchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    CheckCollectionTag(tag, "seq", mark);
    Open(json::array(), mark, anchor);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    CheckCollectionTag(tag, "map", mark);
    Open(json::object(), mark, anchor);
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Frame {
    json value;
    std::string path;
    YAML::Mark mark;
    YAML::anchor_t anchor = YAML::NullAnchor;
    size_t nodes_before = 0;
    std::optional<std::string> key;  ///< of a map: read, its value not yet
    bool merge = false;              ///< the key is <<
    std::vector<json> merges;
  };
  struct Anchored {
    json value;
    size_t nodes = 0;
  };

  [[noreturn]] void Refuse(const YAML::Mark& mark, std::string message, std::string field = "") const {
    throw Refusal({out_.index, mark.line + 1, std::move(field), std::move(message)});
  }
  void Count(size_t nodes, const YAML::Mark& mark) {
    nodes_ += nodes;
    if (nodes_ > kMaxYamlNodes) {
      Refuse(mark,
             absl::StrCat("has more than ", kMaxYamlNodes, " values, aliases expanded; split the file"));
    }
  }
  void CheckCollectionTag(const std::string& tag, absl::string_view expected, const YAML::Mark& mark) const {
    if (tag.empty() || tag == "?" || tag == "!" || tag == absl::StrCat(kTagPrefix, expected)) return;
    Refuse(mark, absl::StrCat("the tag ", tag, " is not supported; leave it out"));
  }
  json Scalar(const std::string& tag, const std::string& text, const YAML::Mark& mark) const;

  bool AwaitsKey() const { return !stack_.empty() && stack_.back().value.is_object() && !stack_.back().key; }
  std::string ChildPath() const;
  void NoteLine(const std::string& path, const YAML::Mark& mark) { out_.lines.emplace(path, mark.line + 1); }
  void AddKey(const json& value, const std::string& text, const YAML::Mark& mark);
  void Add(json value, const std::string& text, const YAML::Mark& mark, YAML::anchor_t anchor);
  void Open(json value, const YAML::Mark& mark, YAML::anchor_t anchor);
  void Close();
  void Place(json value, const YAML::Mark& mark);
  void Remember(YAML::anchor_t anchor, const json& value, size_t nodes, const YAML::Mark& mark);
  static void Merge(const json& source, json* target);

  YamlDocument out_;
  std::vector<Frame> stack_;
  std::map<YAML::anchor_t, Anchored> anchors_;
  size_t& nodes_;
};

json Builder::Scalar(const std::string& tag, const std::string& text, const YAML::Mark& mark) const {
  if (tag == "?") return ResolvePlainScalar(text);
  absl::string_view name = tag;
  if (tag == "!" || tag.empty()) return text;
  if (!absl::ConsumePrefix(&name, kTagPrefix))
    Refuse(mark, absl::StrCat("the tag ", tag, " is not supported"));
  if (name == "str") return text;
  json value = ResolvePlainScalar(text);
  const bool fits = (name == "int" && value.is_number_integer()) || (name == "float" && value.is_number()) ||
                    (name == "bool" && value.is_boolean()) || (name == "null" && value.is_null());
  if (!fits)
    Refuse(mark, absl::StrCat("\"", text, "\" is not a value of the tag !!", name, "; leave the tag out"));
  return value;
}

std::string Builder::ChildPath() const {
  if (stack_.empty()) return "";
  const Frame& top = stack_.back();
  return top.value.is_array() ? ItemPath(top.path, top.value.size())
                              : MemberPath(top.path, top.key.value_or(""));
}

void Builder::AddKey(const json& value, const std::string& text, const YAML::Mark& mark) {
  Frame& top = stack_.back();
  if (value.is_string()) {
    top.key = value.get<std::string>();
  } else if (value.is_number() || value.is_boolean()) {
    top.key = value.dump();
  } else {
    Refuse(mark, absl::StrCat("\"", text, "\" cannot be a key; write a string"));
  }
  const std::string path = MemberPath(top.path, *top.key);
  if (top.value.contains(*top.key)) Refuse(mark, "the key is given twice; remove one of them", path);
  if (!top.merge) NoteLine(path, mark);
}

void Builder::Add(json value, const std::string& text, const YAML::Mark& mark, YAML::anchor_t anchor) {
  Count(1, mark);
  if (AwaitsKey()) {
    stack_.back().merge = text == "<<" && value.is_string();
    if (value.is_structured()) Refuse(mark, "a list or map cannot be a key; write a string");
    AddKey(value, text, mark);
    return;
  }
  Remember(anchor, value, 1, mark);
  Place(std::move(value), mark);
}

void Builder::Open(json value, const YAML::Mark& mark, YAML::anchor_t anchor) {
  if (AwaitsKey()) Refuse(mark, "a list or map cannot be a key; write a string");
  if (stack_.size() >= kMaxYamlDepth)
    Refuse(mark, absl::StrCat("nests deeper than ", kMaxYamlDepth, " levels"));
  Count(1, mark);
  Frame frame;
  frame.value = std::move(value);
  frame.path = ChildPath();
  frame.mark = mark;
  frame.anchor = anchor;
  frame.nodes_before = nodes_;
  stack_.push_back(std::move(frame));
}

void Builder::Close() {
  Frame frame = std::move(stack_.back());
  stack_.pop_back();
  for (const json& source : frame.merges) Merge(source, &frame.value);
  Remember(frame.anchor, frame.value, nodes_ - frame.nodes_before + 1, frame.mark);
  Place(std::move(frame.value), frame.mark);
}

void Builder::Remember(YAML::anchor_t anchor, const json& value, size_t nodes, const YAML::Mark& mark) {
  if (anchor == YAML::NullAnchor) return;
  Count(nodes, mark);  // the copy, so that nested anchors cannot multiply memory
  anchors_[anchor] = {value, nodes};
}

void Builder::Place(json value, const YAML::Mark& mark) {
  if (stack_.empty()) {
    NoteLine("", mark);
    out_.value = std::move(value);
    return;
  }
  Frame& top = stack_.back();
  if (top.value.is_array()) {
    NoteLine(ChildPath(), mark);
    top.value.push_back(std::move(value));
    return;
  }
  if (top.merge) {
    const bool list = value.is_array() &&
                      std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_object(); });
    if (!value.is_object() && !list) Refuse(mark, "<< needs a map or a list of maps");
    top.merges.push_back(std::move(value));
  } else {
    top.value[*top.key] = std::move(value);
  }
  top.key.reset();
  top.merge = false;
}

void Builder::Merge(const json& source, json* target) {
  if (source.is_array()) {
    for (const json& item : source) Merge(item, target);
    return;
  }
  for (const auto& [key, value] : source.items()) {
    if (!target->contains(key)) (*target)[key] = value;
  }
}

/// Reads from memory without a copy.
class ViewBuffer : public std::streambuf {
 public:
  explicit ViewBuffer(absl::string_view text) {
    char* begin = const_cast<char*>(text.data());  // setg wants it; nothing is written
    setg(begin, begin, begin + text.size());
  }
};

std::optional<YamlError> CheckText(absl::string_view text) {
  if (text.size() > kMaxYamlBytes) {
    return YamlError{1, 1, "", absl::StrCat("is larger than ", kMaxYamlBytes >> 20, " MiB; split the file")};
  }
  const size_t valid = ValidTextPrefix(text);
  if (valid == text.size()) return std::nullopt;
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(valid), '\n');
  return YamlError{1, static_cast<int>(line), "", "is not a text in UTF-8; give a YAML or JSON file"};
}

}  // namespace

int YamlDocument::LineOf(absl::string_view field) const {
  while (true) {
    const auto found = lines.find(std::string(field));
    if (found != lines.end()) return found->second;
    if (field.empty()) return line;
    const size_t cut = field.find_last_of(".[");
    field = cut == absl::string_view::npos ? absl::string_view() : field.substr(0, cut);
  }
}

YamlStream ParseYaml(absl::string_view text) {
  YamlStream stream;
  absl::ConsumePrefix(&text, "\xEF\xBB\xBF");
  if (std::optional<YamlError> error = CheckText(text)) {
    stream.errors.push_back(*std::move(error));
    return stream;
  }
  int index = 1;
  try {
    ViewBuffer buffer(text);
    std::istream input(&buffer);
    YAML::Parser parser(input);
    size_t nodes = 0;
    for (;; ++index) {
      Builder builder(index, &nodes);
      if (!parser.HandleNextDocument(builder)) break;
      if (!builder.document().value.is_null()) stream.documents.push_back(std::move(builder.document()));
    }
  } catch (const Refusal& refusal) {
    stream.errors.push_back(refusal.error());
  } catch (const YAML::Exception& error) {
    stream.errors.push_back(
        {index, std::max(error.mark.line, 0) + 1, "", absl::StrCat("is not YAML: ", error.msg)});
  } catch (const std::exception& error) {
    stream.errors.push_back({index, 1, "", absl::StrCat("cannot be read as YAML: ", error.what())});
  }
  return stream;
}

}  // namespace fusion::api
