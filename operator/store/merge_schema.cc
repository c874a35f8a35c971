#include "operator/store/merge_schema.h"

#include "fusion/options/options.pb.h"
#include "fusion/v1alpha1/api.pb.h"
#include "google/protobuf/descriptor.h"
#include "nlohmann/json.hpp"

namespace fusion::op {
namespace {

const google::protobuf::FieldDescriptor* FieldByJsonName(const google::protobuf::Descriptor& message,
                                                         absl::string_view name) {
  for (int i = 0; i < message.field_count(); ++i) {
    if (absl::string_view(message.field(i)->json_name()) == name) return message.field(i);
  }
  return nullptr;
}

}  // namespace

MergeSchema MergeSchema::Of(const Resource& resource) {
  MergeSchema schema;
  schema.message_ = v1alpha1::FusionJob::descriptor()->file()->FindMessageTypeByName(resource.kind);
  return schema;
}

MergeSchema MergeSchema::Member(absl::string_view name) const {
  MergeSchema member;
  if (message_ == nullptr) return member;
  const google::protobuf::FieldDescriptor* field = FieldByJsonName(*message_, name);
  if (field == nullptr) return member;
  if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE && !field->is_map()) {
    member.message_ = field->message_type();
  }
  if (!field->is_repeated() || field->is_map()) return member;
  if (message_ == v1alpha1::ObjectMeta::descriptor() && field->name() == "finalizers") {
    member.list_type_ = ListType::kSet;
    return member;
  }
  for (const std::string& key : field->options().GetExtension(options::field).list_map_keys()) {
    member.list_type_ = ListType::kMap;
    member.keys_.push_back(key);
    const google::protobuf::FieldDescriptor* key_field = FieldByJsonName(*member.message_, key);
    if (key_field == nullptr) continue;
    const options::Field& key_options = key_field->options().GetExtension(options::field);
    if (key_options.has_default_value()) member.defaults_[key] = key_options.default_value();
  }
  return member;
}

std::string MergeSchema::ItemElement(const nlohmann::json& item) const {
  nlohmann::json keys = nlohmann::json::object();
  for (const std::string& key : keys_) {
    if (item.is_object() && item.contains(key)) {
      keys[key] = item[key];
    } else if (const auto found = defaults_.find(key); found != defaults_.end()) {
      keys[key] = nlohmann::json::parse(found->second, nullptr, false);
    }
  }
  return "k:" + keys.dump();
}

}  // namespace fusion::op
