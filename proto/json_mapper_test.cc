#include "proto/json_mapper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/graph/v1/plan.pb.h"
#include "fusion/v1alpha1/api.pb.h"
#include "google/protobuf/util/message_differencer.h"
#include "nlohmann/json.hpp"
#include "proto/field_rules.h"

namespace fusion::api {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::MessageDifferencer;
using nlohmann::json;
using testing::HasSubstr;
using v1alpha1::FusionJob;

json Job() {
  return json::parse(R"({
    "apiVersion": "fusion.dev/v1alpha1", "kind": "FusionJob", "metadata": {"name": "a"},
    "spec": {"model": {"family": "mlp", "config": {"inputs": 10, "outputs": 1}},
             "data": {"kind": "table", "uri": "a.csv"},
             "training": {"steps": 1, "batch": {"global": 4, "micro": 2}, "optimizer": {"type": "SGD"}}}})");
}

struct BadValue {
  const char* pointer;  ///< JSON pointer in Job()
  json value;
  const char* field;
  const char* message;
};

TEST(ReadJson, StrictAsTheSchema) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<BadValue> cases = {
      {"/spec/training/steps", "8", "spec.training.steps", "must be an integer, not the string \"8\""},
      {"/spec/training/steps", 1.5, "spec.training.steps", "must be an integer, not the number 1.5"},
      {"/spec/training/steps", true, "spec.training.steps", "must be an integer, not true"},
      {"/spec/training/steps", nullptr, "spec.training.steps", "must be an integer, not null"},
      {"/spec/training/steps", json::array(), "spec.training.steps", "must be an integer, not a list"},
      {"/spec/training/steps", 0, "spec.training.steps", "is 0; must be at least 1"},
      {"/spec/training/steps", 1e30, "spec.training.steps", "is out of range"},
      {"/spec/training/steps", std::numeric_limits<uint64_t>::max(), "spec.training.steps",
       "is out of range"},
      {"/spec/training/steps", nan, "spec.training.steps", "must be an integer, not NaN"},
      {"/spec/training/optimizer/learningRate", nan, "spec.training.optimizer.learningRate",
       "finite number, not NaN"},
      {"/spec/training/optimizer/learningRate", -1, "spec.training.optimizer.learningRate",
       "is -1; must be at least 0"},
      {"/spec/training/optimizer/learningRate", "1", "spec.training.optimizer.learningRate",
       "must be a number"},
      {"/spec/training/optimizer/learning_rate", 1, "spec.training.optimizer.learning_rate",
       "did you mean learningRate?"},
      {"/spec/training/optimizer/nesterov", 1, "spec.training.optimizer.nesterov",
       "must be true or false, not the number 1"},
      {"/spec/training/optimizer/type", "sgd", "spec.training.optimizer.type",
       "must be one of SGD, Adam, AdamW, not the string \"sgd\""},
      {"/spec/training/optimizer/type", "UNSPECIFIED", "spec.training.optimizer.type",
       "must be one of SGD, Adam, AdamW"},
      {"/spec/training/optimizer/type", 1, "spec.training.optimizer.type",
       "must be one of SGD, Adam, AdamW, not the number 1"},
      {"/spec/model/family", "gpt3", "spec.model.family", "must be one of gpt2, bert, mlp, resnet"},
      {"/spec/model/config/hidden", json::array({1, "x", 2}), "spec.model.config.hidden[1]",
       "must be an integer"},
      {"/spec/model/config/hidden", json::array({0}), "spec.model.config.hidden[0]",
       "is 0; must be at least 1"},
      {"/spec/model/config/hidden", json(std::vector<int>(257, 1)), "spec.model.config.hidden",
       "has 257 items; at most 256"},
      {"/spec/model/config/hidden", 5, "spec.model.config.hidden", "must be a list, not the number 5"},
      {"/spec/model", "mlp", "spec.model", "must be an object, not the string \"mlp\""},
      {"/spec/data/uri", "", "spec.data.uri", "must not be empty"},
      {"/spec/data/uri", std::string(1025, 'a'), "spec.data.uri", "has 1025 characters; at most 1024"},
      {"/spec/data/uri", 5, "spec.data.uri", "must be a string, not the number 5"},
      {"/metadata/name", "Not_A_Label", "metadata.name", "is not a DNS label"},
      {"/metadata/name", std::string(64, 'a'), "metadata.name", "has 64 characters; at most 63"},
      {"/metadata/labels",
       {{"a.b/c", 5}},
       "metadata.labels[\"a.b/c\"]",
       "must be a string, not the number 5"},
      {"/metadata/labels", {{"a", std::string(300, 'x')}}, "metadata.labels.a", "has 300 characters"},
      {"/specs", 1, "specs", "did you mean spec?"},
      {"/spec/zzz", 1, "spec.zzz", "unknown field; known are task, suspend"},
  };
  for (const BadValue& bad : cases) {
    json job = Job();
    job[json::json_pointer(bad.pointer)] = bad.value;
    FusionJob message;
    const FieldErrors errors = ReadJson(job, Mode::kStrict, &message);
    ASSERT_EQ(errors.size(), 1U) << bad.pointer << ": " << ToStatus(errors);
    EXPECT_EQ(errors[0].field, bad.field);
    EXPECT_THAT(errors[0].message, HasSubstr(bad.message)) << bad.field;
  }
}

TEST(ReadJson, CollectsEveryError) {
  json job = Job();
  job["spec"]["training"]["steps"] = "x";
  job["spec"]["data"].erase("kind");
  job["metadata"].erase("name");
  FusionJob message;
  const FieldErrors errors = ReadJson(job, Mode::kStrict, &message);
  std::vector<std::string> fields;
  for (const FieldError& error : errors) fields.push_back(error.field);
  EXPECT_THAT(fields, testing::ElementsAre("metadata.name", "spec.data.kind", "spec.training.steps"));
  EXPECT_EQ(ToStatus(errors).code(), absl::StatusCode::kInvalidArgument);
}

TEST(ReadJson, TakesWholeFloatsForIntegers) {
  json job = Job();
  job["spec"]["training"]["steps"] = 1000.0;
  FusionJob message;
  ASSERT_TRUE(FromJson(job, Mode::kStrict, &message).ok());
  EXPECT_EQ(message.spec().training().steps(), 1000);
}

TEST(ReadJson, NullWhereADefaultStandsReadyIsAbsent) {
  json job = Job();
  job["spec"]["task"] = nullptr;
  FusionJob message;
  ASSERT_TRUE(FromJson(job, Mode::kStrict, &message).ok());
  EXPECT_FALSE(message.spec().has_task());
}

TEST(ReadJson, ListMapKeysAreUnique) {
  v1alpha1::CompnodeSpec spec;
  const json twice = json::parse(R"({"cluster": "a", "links": [
      {"peer": "b", "bandwidth": "1Mbps", "latency": "1ms"},
      {"peerKind": "Compnode", "peer": "b", "bandwidth": "1Mbps", "latency": "1ms"},
      {"peerKind": "Cluster", "peer": "b", "bandwidth": "2Mbps", "latency": "1ms"}]})");
  const FieldErrors errors = ReadJson(twice, Mode::kStrict, &spec);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].field, "links[2]");
  EXPECT_THAT(errors[0].message, HasSubstr("same peerKind, peer (Cluster, b) as item 0"));
}

TEST(ReadJson, QuantitiesAreIntegersOrStrings) {
  v1alpha1::CompnodeSpec spec;
  ASSERT_TRUE(
      FromJson({{"cluster", "a"}, {"hostMemory", 1024}, {"disk", "10Gi"}}, Mode::kStrict, &spec).ok());
  EXPECT_EQ(ToJson(spec).dump(), R"({"cluster":"a","disk":"10Gi","hostMemory":1024})");
  EXPECT_FALSE(FromJson({{"cluster", "a"}, {"disk", 1.5}}, Mode::kStrict, &spec).ok());
  EXPECT_FALSE(FromJson({{"cluster", "a"}, {"disk", -1}}, Mode::kStrict, &spec).ok());
}

TEST(ReadJson, LenientPassesOverWhatIsNewer) {
  json job = Job();
  job["spec"]["fromTheFuture"] = {{"a", 1}};
  job["spec"]["placement"] = {{"policy", "Clairvoyant"}};
  job["spec"]["training"]["steps"] = -5;
  job["spec"]["suspend"] = nullptr;
  job["metadata"].erase("name");
  FusionJob message;
  ASSERT_TRUE(FromJson(job, Mode::kLenient, &message).ok());
  EXPECT_FALSE(message.spec().placement().has_policy());
  EXPECT_EQ(message.spec().training().steps(), -5);
  job["spec"]["training"]["steps"] = "5";
  EXPECT_FALSE(FromJson(job, Mode::kLenient, &message).ok());
}

TEST(ToJson, PrintsZerosAndLeavesOutWhatIsAbsentOrNotFinite) {
  v1alpha1::RunPolicy policy;
  policy.set_backoff_limit(0);
  EXPECT_EQ(ToJson(policy).dump(), R"({"backoffLimit":0})");
  v1alpha1::Progress progress;
  progress.set_loss(std::numeric_limits<double>::quiet_NaN());
  progress.set_validation_loss(0.1);
  progress.set_samples_per_second(1.0 / 3);
  EXPECT_EQ(ToJson(progress).dump(), R"({"samplesPerSecond":0.3333333333333333,"validationLoss":0.1})");
}

TEST(ToJson, PrintsAllOfMessagesWithoutPresence) {
  graph::v1::PlannedLink link;
  link.set_direction(graph::v1::PlannedLink::Forward);
  link.set_bytes(int64_t{1} << 53);
  EXPECT_EQ(
      ToJson(link).dump(),
      R"({"bytes":9007199254740992,"codec":"","denseBytes":0,"direction":"Forward","from":0,"phases":[],"ratio":0.0,"seconds":0.0,"to":0})");
  graph::v1::StageProgram program;
  (*program.mutable_positions())["h.0"] = 7;
  const json printed = ToJson(program);
  EXPECT_EQ(printed["positions"].dump(), R"({"h.0":7})");
  EXPECT_EQ(printed["subDags"].dump(), "[]");
}

TEST(ArgumentForm, OneShapePerKind) {
  const std::vector<std::string> forms = {
      R"({"index":2,"value":"h.0.ln_1"})",
      R"({"int":-4,"timesBatch":1})",
      R"({"double":0.5})",
      R"({"double":"-inf"})",
      R"({"double":"nan"})",
      R"({"bool":false})",
      R"({"string":"mean"})",
      R"({"ints":[{"int":1,"timesBatch":0},{"int":0,"timesBatch":-1}]})",
      R"({"ints":[]})",
      R"({"dtype":"INT64"})",
      R"({"none":true})",
      R"({"values":[{"index":0,"value":"a"}]})",
      R"({"randomKey":true})",
      R"({"training":true})",
  };
  for (const std::string& form : forms) {
    graph::v1::Argument argument;
    ASSERT_TRUE(FromJson(json::parse(form), Mode::kStrict, &argument).ok()) << form;
    EXPECT_EQ(ToJson(argument).dump(), form);
  }
  graph::v1::Argument short_form;
  ASSERT_TRUE(FromJson(json::parse(R"({"value":"a"})"), Mode::kStrict, &short_form).ok());
  EXPECT_EQ(short_form.value().index(), 0);
}

TEST(ArgumentForm, RefusesWithThePath) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"args":[5]})", "args[0]"},
      {R"({"args":[{}]})", "args[0]"},
      {R"({"args":[{"int":1,"double":2}]})", "args[0].double"},
      {R"({"args":[{"value":1}]})", "args[0].value"},
      {R"({"args":[{"value":"a","index":-1}]})", "args[0].index"},
      {R"({"args":[{"int":1.5}]})", "args[0].int"},
      {R"({"args":[{"int":18446744073709551615}]})", "args[0].int"},
      {R"({"args":[{"ints":[{"int":1},3]}]})", "args[0].ints[1]"},
      {R"({"args":[{"dtype":"FLOAT"}]})", "args[0].dtype"},
      {R"({"args":[{"none":null}]})", "args[0].none"},
      {R"({"args":[{"tensor":1}]})", "args[0].tensor"},
      {R"({"args":[{"double":"5"}]})", "args[0].double"},
      {R"({"kwargs":[{"name":"a","argument":{"bool":1}}]})", "kwargs[0].argument.bool"},
  };
  for (const auto& [text, field] : cases) {
    graph::v1::Operator op;
    const FieldErrors errors = ReadJson(json::parse(text), Mode::kStrict, &op);
    ASSERT_EQ(errors.size(), 1U) << text;
    EXPECT_EQ(errors[0].field, field);
  }
}

TEST(ApplyDefaults, AsAnApiserverDoes) {
  FusionJob job;
  ASSERT_TRUE(FromJson(Job(), Mode::kStrict, &job).ok());
  ApplyDefaults(&job);
  EXPECT_EQ(job.spec().task(), v1alpha1::FusionJobSpec::Train);
  EXPECT_EQ(job.spec().placement().policy(), v1alpha1::Placement::OpFence);
  EXPECT_EQ(job.spec().communication().compression().type(), v1alpha1::Compression::Need);
  EXPECT_EQ(job.spec().checkpoint().keep(), 3);
  EXPECT_EQ(job.spec().training().pipeline().schedule(), v1alpha1::Pipeline::OneForwardOneBackward);
  EXPECT_TRUE(job.spec().run_policy().has_backoff_limit());
  EXPECT_FALSE(job.spec().training().has_validation());
  FusionJob again = job;
  ApplyDefaults(&again);
  EXPECT_TRUE(MessageDifferencer::Equals(job, again));
  EXPECT_TRUE(CheckSupported(job).empty()) << ToStatus(CheckSupported(job));
}

TEST(CheckSupported, NamesWhatComesLater) {
  json job = Job();
  job["spec"]["suspend"] = true;
  job["spec"]["placement"] = {{"backups", 0}};
  job["spec"]["communication"] = {{"expose", "PodIP"}, {"adaptive", true}};
  FusionJob message;
  ASSERT_TRUE(FromJson(job, Mode::kStrict, &message).ok());
  std::vector<std::string> fields;
  for (const FieldError& error : CheckSupported(message)) {
    fields.push_back(error.field);
    EXPECT_THAT(error.message, HasSubstr("not supported yet: "));
  }
  EXPECT_THAT(fields, testing::ElementsAre("spec.suspend", "spec.communication.adaptive",
                                           "spec.communication.expose"));
}

/// Visits every message type below `descriptor`, once.
void VisitFields(const google::protobuf::Descriptor& descriptor, std::set<std::string>* seen,
                 const std::function<void(const FieldDescriptor&)>& visit) {
  if (!seen->insert(descriptor.full_name()).second) return;
  for (int i = 0; i < descriptor.field_count(); ++i) {
    visit(*descriptor.field(i));
    if (descriptor.field(i)->message_type() != nullptr && !descriptor.field(i)->is_map()) {
      VisitFields(*descriptor.field(i)->message_type(), seen, visit);
    }
  }
}

// The apiserver estimates the cost of rules from the bounds.
TEST(Resources, EveryStringListAndMapIsBounded) {
  std::set<std::string> seen;
  const auto visit = [](const FieldDescriptor& field) {
    if (field.name() == "api_version" || field.name() == "kind") return;
    if (field.is_repeated()) {
      EXPECT_TRUE(OptionsOf(field).has_max_items()) << field.full_name();
    } else {
      EXPECT_TRUE(field.has_presence()) << field.full_name();
    }
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      EXPECT_GT(MaxLength(field), 0) << field.full_name();
    }
  };
  for (const auto* descriptor :
       {FusionJob::descriptor(), v1alpha1::Compnode::descriptor(), v1alpha1::FusionCluster::descriptor()}) {
    VisitFields(*descriptor, &seen, visit);
  }
}

TEST(Resources, EveryDefaultIsAValueOfItsField) {
  std::set<std::string> seen;
  const auto visit = [](const FieldDescriptor& field) {
    if (!OptionsOf(field).has_default_value()) return;
    const json value = json::parse(OptionsOf(field).default_value(), nullptr, false);
    ASSERT_FALSE(value.is_discarded()) << field.full_name();
    std::unique_ptr<Message> parent(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(field.containing_type())->New());
    for (const FieldError& error : ReadJson({{field.json_name(), value}}, Mode::kStrict, parent.get())) {
      EXPECT_EQ(error.message, "is required") << field.full_name();
    }
    EXPECT_TRUE(parent->GetReflection()->HasField(*parent, &field)) << field.full_name();
  };
  VisitFields(*FusionJob::descriptor(), &seen, visit);
  VisitFields(*v1alpha1::Compnode::descriptor(), &seen, visit);
}

void FillValueRef(graph::v1::ValueRef* out) {
  out->set_operator_(absl::StrCat("s", *rc::gen::arbitrary<uint16_t>()));
  out->set_index(*rc::gen::inRange(0, 100));
}

void FillArgument(graph::v1::Argument* out) {
  switch (*rc::gen::inRange(0, 5)) {
    case 0:
      return FillValueRef(out->mutable_value());
    case 1:
      return out->mutable_int_()->set_times_batch(*rc::gen::arbitrary<int64_t>());
    case 2:
      return out->set_double_(*rc::gen::arbitrary<double>());
    case 3:
      return out->mutable_ints()->add_items()->set_value(*rc::gen::arbitrary<int64_t>());
    default:
      return FillValueRef(out->mutable_values()->add_items());
  }
}

/// A message with random fields that keep no bounds: for the lenient reader.
void Fill(Message* message, int depth) {
  if (auto* argument = google::protobuf::DynamicCastToGenerated<graph::v1::Argument>(message)) {
    return FillArgument(argument);
  }
  if (auto* value = google::protobuf::DynamicCastToGenerated<graph::v1::ValueRef>(message))
    return FillValueRef(value);
  const auto& descriptor = *message->GetDescriptor();
  const auto& reflection = *message->GetReflection();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (!*rc::gen::arbitrary<bool>()) continue;
    const int count = field.is_repeated() ? *rc::gen::inRange(1, 3) : 1;
    for (int k = 0; k < count; ++k) {
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        if (depth == 0 || field.is_map()) continue;
        Fill(field.is_repeated() ? reflection.AddMessage(message, &field)
                                 : reflection.MutableMessage(message, &field),
             depth - 1);
        continue;
      }
      const auto set = [&](auto setter, auto adder, auto value) {
        field.is_repeated() ? (reflection.*adder)(message, &field, value)
                            : (reflection.*setter)(message, &field, value);
      };
      using R = google::protobuf::Reflection;
      switch (field.cpp_type()) {
        case FieldDescriptor::CPPTYPE_INT64:
          set(&R::SetInt64, &R::AddInt64, *rc::gen::arbitrary<int64_t>());
          break;
        case FieldDescriptor::CPPTYPE_INT32:
          set(&R::SetInt32, &R::AddInt32, *rc::gen::arbitrary<int32_t>());
          break;
        case FieldDescriptor::CPPTYPE_BOOL:
          set(&R::SetBool, &R::AddBool, *rc::gen::arbitrary<bool>());
          break;
        case FieldDescriptor::CPPTYPE_DOUBLE: {
          const double value =
              std::ldexp(static_cast<double>(*rc::gen::arbitrary<int64_t>()), *rc::gen::inRange(-900, 900));
          set(&R::SetDouble, &R::AddDouble, value);
          break;
        }
        case FieldDescriptor::CPPTYPE_ENUM: {
          const int index = *rc::gen::inRange(1, field.enum_type()->value_count());
          set(&R::SetEnumValue, &R::AddEnumValue, field.enum_type()->value(index)->number());
          break;
        }
        default: {
          const auto text = absl::StrCat("s", *rc::gen::arbitrary<uint16_t>());
          field.is_repeated() ? reflection.AddString(message, &field, text)
                              : reflection.SetString(message, &field, text);
        }
      }
    }
  }
}

template <typename T>
void RoundTrip() {
  T message;
  Fill(&message, 6);
  const std::string text = ToJson(message).dump();
  T read;
  const absl::Status status = FromJson(json::parse(text), Mode::kLenient, &read);
  RC_ASSERT(status.ok());
  RC_ASSERT(MessageDifferencer::Equals(message, read));
  RC_ASSERT(ToJson(read).dump() == text);
}

RC_GTEST_PROP(RoundTrip, FusionJob, ()) { RoundTrip<FusionJob>(); }
RC_GTEST_PROP(RoundTrip, Compnode, ()) { RoundTrip<v1alpha1::Compnode>(); }
RC_GTEST_PROP(RoundTrip, Plan, ()) { RoundTrip<graph::v1::Plan>(); }
RC_GTEST_PROP(RoundTrip, Graph, ()) { RoundTrip<graph::v1::Graph>(); }

}  // namespace
}  // namespace fusion::api
