#include "operator/store/object_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "operator/object.h"
#include "operator/store/apply.h"
#include "operator/store/object_files.h"

namespace fusion::op {
namespace {

using nlohmann::json;

// Field manager of Create and Update, which name none.
constexpr char kWriter[] = "update";
constexpr char kVersionFile[] = "/resource-version";

bool IsDnsLabel(const std::string& name) {
  const auto alphanumeric = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= 63 && alphanumeric(name.front()) && alphanumeric(name.back()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return c == '-' || alphanumeric(c); });
}

absl::Status CheckIdentity(const Resource& resource, const json& object) {
  if (!object.is_object()) return absl::InvalidArgumentError("an object must be a JSON object");
  if (StringAt(object, {"kind"}) != resource.kind ||
      StringAt(object, {"apiVersion"}) != ApiVersionOf(resource)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kind and apiVersion must be ", resource.kind, " and ", ApiVersionOf(resource), ", not '",
        StringAt(object, {"kind"}), "' and '", StringAt(object, {"apiVersion"}), "'"));
  }
  const ObjectKey key = KeyOf(object);
  if (!IsDnsLabel(key.name)) {
    return absl::InvalidArgumentError(absl::StrCat("metadata.name: '", key.name, "' is not a DNS label"));
  }
  if (resource.namespaced ? !IsDnsLabel(key.namespace_name) : !key.namespace_name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata.namespace: '", key.namespace_name, "' ",
                     resource.namespaced ? "is not a DNS label" : "must be empty for a cluster-scoped kind"));
  }
  return absl::OkStatus();
}

// A version or uid that the caller gives is a precondition.
absl::Status CheckPreconditions(const Resource& resource, const json& live, const std::string& version,
                                const std::string& uid) {
  const std::string who = absl::StrCat(resource.kind, " ", KeyOf(live).ToString());
  if (!version.empty() && version != ResourceVersionOf(live)) {
    return absl::AbortedError(absl::StrCat(who, " has resourceVersion ", ResourceVersionOf(live), ", not ",
                                           version, ": read it again"));
  }
  if (!uid.empty() && uid != UidOf(live)) {
    return absl::AbortedError(
        absl::StrCat(who, " has uid ", UidOf(live), ", not ", uid, ": it is another object"));
  }
  return absl::OkStatus();
}

std::string NewUid() {
  absl::BitGen random;
  const uint64_t high = absl::Uniform<uint64_t>(random);
  const uint64_t low = absl::Uniform<uint64_t>(random);
  return absl::StrFormat("%08x-%04x-4%03x-%04x-%012x", high >> 32, (high >> 16) & 0xffff, high & 0xfff,
                         0x8000 | ((low >> 48) & 0x3fff), low & 0xffffffffffff);
}

bool HasFinalizers(const json& object) {
  const json* finalizers = Find(object, {"metadata", "finalizers"});
  return finalizers != nullptr && !finalizers->empty();
}

bool InNamespace(const json& object, const std::string& namespace_name) {
  return namespace_name.empty() || StringAt(object, {"metadata", "namespace"}) == namespace_name;
}

// Everything but metadata and status: what generation counts.
bool SameSpec(const json& a, const json& b) {
  const auto specification = [](json object) {
    object.erase("metadata");
    object.erase("status");
    return object;
  };
  return specification(a) == specification(b);
}

}  // namespace

/// Holds an exclusive lock on the folder for as long as it lives.
class ObjectStore::FolderLock {
 public:
  static absl::StatusOr<std::unique_ptr<FolderLock>> Acquire(const std::string& folder) {
    const std::string path = folder + "/lock";
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
    auto lock = std::unique_ptr<FolderLock>(new FolderLock(file));
    if (flock(file, LOCK_EX | LOCK_NB) != 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          folder, " is in use by another run; wait for its end or ", "use another working folder"));
    }
    return lock;
  }
  ~FolderLock() { close(file_); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  explicit FolderLock(int file) : file_(file) {}
  const int file_;
};

/// A reader of the history with its own position and thread. One that falls behind the history gets
/// OUT_OF_RANGE, so that slow readers cost no memory.
class ObjectStore::StoreWatch : public Watch {
 public:
  StoreWatch(ObjectStore& store, const Resource& resource, std::string namespace_name, int64_t after,
             std::function<void(const WatchEvent&)> on_event, std::function<void(absl::Status)> on_end)
      : store_(store),
        plural_(resource.plural),
        namespace_name_(std::move(namespace_name)),
        on_event_(std::move(on_event)),
        on_end_(std::move(on_end)),
        seen_(after),
        thread_([this] { Run(); }) {}

  ~StoreWatch() override {
    {
      absl::MutexLock lock(&store_.mutex_);
      stopped_ = true;
    }
    thread_.join();
  }

 private:
  void Run() {
    while (true) {
      std::vector<Record> batch;
      {
        absl::MutexLock lock(&store_.mutex_);
        store_.mutex_.Await(absl::Condition(this, &StoreWatch::HasWork));
        if (stopped_) return;
        if (seen_ < store_.forgotten_) break;
        auto record = std::upper_bound(store_.history_.begin(), store_.history_.end(), seen_,
                                       [](int64_t seen, const Record& r) { return seen < r.version; });
        for (; record != store_.history_.end(); ++record) {
          if (record->plural == plural_ && InNamespace(*record->object, namespace_name_))
            batch.push_back(*record);
        }
        seen_ = store_.version_;
      }
      for (const Record& record : batch) {
        {
          absl::MutexLock lock(&store_.mutex_);
          if (stopped_) return;
        }
        on_event_({record.type, *record.object});
      }
    }
    on_end_(absl::OutOfRangeError("the watch fell behind the store's history: list again"));
  }

  bool HasWork() const {
    store_.mutex_.AssertReaderHeld();
    return stopped_ || seen_ < store_.version_;
  }

  ObjectStore& store_;
  const std::string plural_;
  const std::string namespace_name_;
  const std::function<void(const WatchEvent&)> on_event_;
  const std::function<void(absl::Status)> on_end_;
  int64_t seen_;          ///< used by the thread, and read under the store's mutex
  bool stopped_ = false;  ///< guarded by the store's mutex
  std::thread thread_;
};

ObjectStore::ObjectStore(ObjectStoreOptions options) : options_(std::move(options)) {}
ObjectStore::~ObjectStore() = default;

absl::StatusOr<std::unique_ptr<ObjectStore>> ObjectStore::Open(ObjectStoreOptions options,
                                                               const std::vector<Resource>& resources) {
  auto store = std::unique_ptr<ObjectStore>(new ObjectStore(std::move(options)));
  if (absl::Status status = store->Load(resources); !status.ok()) return status;
  return store;
}

absl::Status ObjectStore::Load(const std::vector<Resource>& resources) {
  absl::MutexLock lock(&mutex_);
  for (const Resource& resource : resources) objects_[resource.plural];
  if (options_.folder.empty()) return absl::OkStatus();

  std::error_code error;
  for (const Resource& resource : resources) {
    std::filesystem::create_directories(options_.folder + "/" + resource.plural, error);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("cannot make the folder ", options_.folder, ": ", error.message()));
    }
  }
  absl::StatusOr<std::unique_ptr<FolderLock>> folder_lock = FolderLock::Acquire(options_.folder);
  if (!folder_lock.ok()) return folder_lock.status();
  folder_lock_ = *std::move(folder_lock);

  if (absl::StatusOr<std::string> text = ReadFile(options_.folder + kVersionFile); text.ok()) {
    if (!absl::SimpleAtoi(*text, &version_)) {
      return absl::DataLossError(absl::StrCat(options_.folder, kVersionFile, ": not a number"));
    }
  }
  for (const Resource& resource : resources) {
    absl::StatusOr<std::vector<json>> stored = ReadStoredObjects(options_.folder, resource);
    if (!stored.ok()) return stored.status();
    for (const json& object : *stored) {
      int64_t version = 0;
      if (!absl::SimpleAtoi(ResourceVersionOf(object), &version)) {
        return absl::DataLossError(absl::StrCat(options_.folder, "/", resource.plural, ": ",
                                                KeyOf(object).ToString(), " has no resourceVersion"));
      }
      version_ = std::max(version_, version);
      objects_[resource.plural].emplace(KeyOf(object), object);
    }
  }
  forgotten_ = version_;
  return absl::OkStatus();
}

absl::StatusOr<json*> ObjectStore::FindLocked(const Resource& resource, const ObjectKey& key) {
  Objects& objects = objects_[resource.plural];
  const auto found = objects.find(key);
  if (found == objects.end()) {
    return absl::NotFoundError(absl::StrCat(resource.kind, " ", key.ToString(), " does not exist"));
  }
  return &found->second;
}

void ObjectStore::RecordLocked(const Resource& resource, EventType type, const json& object) {
  history_.push_back({version_, resource.plural, type, std::make_shared<const json>(object)});
  while (history_.size() > options_.history) {
    forgotten_ = history_.front().version;
    history_.pop_front();
  }
}

absl::StatusOr<json> ObjectStore::InsertLocked(const Resource& resource, json object) {
  json& metadata = object["metadata"];
  metadata["uid"] = NewUid();
  metadata["creationTimestamp"] = KubernetesTime(options_.now());
  metadata["generation"] = 1;
  metadata["resourceVersion"] = absl::StrCat(version_ + 1);
  if (!options_.folder.empty()) {
    if (absl::Status status = WriteObjectFile(options_.folder, resource, object); !status.ok()) return status;
  }
  ++version_;
  objects_[resource.plural][KeyOf(object)] = object;
  RecordLocked(resource, EventType::kAdded, object);
  return object;
}

absl::StatusOr<json> ObjectStore::CommitLocked(const Resource& resource, const json& live, json next) {
  if (next == live) return live;
  if (IsDeleting(next) && !HasFinalizers(next)) return RemoveLocked(resource, std::move(next));
  json& metadata = next["metadata"];
  if (!SameSpec(live, next)) metadata["generation"] = IntAt(live, {"metadata", "generation"}) + 1;
  metadata["resourceVersion"] = absl::StrCat(version_ + 1);
  if (!options_.folder.empty()) {
    if (absl::Status status = WriteObjectFile(options_.folder, resource, next); !status.ok()) return status;
  }
  ++version_;
  objects_[resource.plural][KeyOf(next)] = next;
  RecordLocked(resource, EventType::kModified, next);
  return next;
}

absl::StatusOr<json> ObjectStore::RemoveLocked(const Resource& resource, json object) {
  object["metadata"]["resourceVersion"] = absl::StrCat(version_ + 1);
  if (!options_.folder.empty()) {
    // The highest version may leave with the object: it is kept apart, so that versions never repeat.
    absl::Status status = WriteFileAtomically(options_.folder + kVersionFile, ResourceVersionOf(object));
    if (status.ok()) status = RemoveObjectFile(options_.folder, resource, KeyOf(object));
    if (!status.ok()) return status;
  }
  ++version_;
  objects_[resource.plural].erase(KeyOf(object));
  RecordLocked(resource, EventType::kDeleted, object);
  return object;
}

absl::StatusOr<json> ObjectStore::Create(const Resource& resource, const json& object) {
  if (absl::Status status = CheckIdentity(resource, object); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  if (FindLocked(resource, KeyOf(object)).ok()) {
    return absl::AlreadyExistsError(absl::StrCat(resource.kind, " ", KeyOf(object).ToString(), " exists"));
  }
  json next = object;
  next.erase("status");
  next["metadata"].erase("deletionTimestamp");
  const json nothing = {{"metadata", json::object()}};
  return InsertLocked(resource, TrackWrite(resource, nothing, std::move(next), kWriter, options_.now()));
}

absl::StatusOr<json> ObjectStore::Get(const Resource& resource, const ObjectKey& key) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<json*> live = FindLocked(resource, key);
  if (!live.ok()) return live.status();
  return **live;
}

absl::StatusOr<ObjectList> ObjectStore::List(const Resource& resource, const std::string& namespace_name) {
  absl::MutexLock lock(&mutex_);
  ObjectList list;
  list.resource_version = absl::StrCat(version_);
  for (const auto& [key, object] : objects_[resource.plural]) {
    if (InNamespace(object, namespace_name)) list.items.push_back(object);
  }
  return list;
}

absl::StatusOr<json> ObjectStore::Update(const Resource& resource, const json& object) {
  if (absl::Status status = CheckIdentity(resource, object); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<json*> found = FindLocked(resource, KeyOf(object));
  if (!found.ok()) return found.status();
  const json live = **found;
  absl::Status status = CheckPreconditions(resource, live, ResourceVersionOf(object), UidOf(object));
  if (!status.ok()) return status;

  json next = object;
  next.erase("status");
  if (const json* live_status = Find(live, {"status"})) next["status"] = *live_status;
  for (const char* name : {"uid", "generation", "resourceVersion", "creationTimestamp", "deletionTimestamp",
                           "deletionGracePeriodSeconds", "managedFields"}) {
    next["metadata"].erase(name);
    if (const json* value = Find(live, {"metadata", name})) next["metadata"][name] = *value;
  }
  return CommitLocked(resource, live, TrackWrite(resource, live, std::move(next), kWriter, options_.now()));
}

absl::StatusOr<json> ObjectStore::Apply(const Resource& resource, const json& patch,
                                        const std::string& field_manager, bool force, bool status) {
  if (absl::Status valid = CheckIdentity(resource, patch); !valid.ok()) return valid;
  if (field_manager.empty()) return absl::InvalidArgumentError("apply needs a field manager");
  if (Find(patch, {"metadata", "managedFields"}) != nullptr) {
    return absl::InvalidArgumentError("metadata.managedFields must be absent in an applied object");
  }
  const ApplyOptions options{field_manager, force, status, options_.now()};
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<json*> found = FindLocked(resource, KeyOf(patch));
  if (!found.ok()) {
    const bool precondition = !ResourceVersionOf(patch).empty() || !UidOf(patch).empty();
    if (status || precondition) return found.status();
    json fresh = {{"apiVersion", patch["apiVersion"]}, {"kind", patch["kind"]}};
    fresh["metadata"]["name"] = patch["metadata"]["name"];
    if (resource.namespaced) fresh["metadata"]["namespace"] = patch["metadata"]["namespace"];
    absl::StatusOr<json> next = ApplyPatch(resource, fresh, patch, options);
    if (!next.ok()) return next.status();
    return InsertLocked(resource, *std::move(next));
  }
  const json live = **found;
  absl::Status met = CheckPreconditions(resource, live, ResourceVersionOf(patch), UidOf(patch));
  if (!met.ok()) return met;
  absl::StatusOr<json> next = ApplyPatch(resource, live, patch, options);
  if (!next.ok()) return next.status();
  return CommitLocked(resource, live, *std::move(next));
}

absl::Status ObjectStore::Delete(const Resource& resource, const ObjectKey& key, const std::string& uid) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<json*> found = FindLocked(resource, key);
  if (!found.ok()) return found.status();
  const json live = **found;
  if (absl::Status status = CheckPreconditions(resource, live, "", uid); !status.ok()) return status;
  if (!HasFinalizers(live)) return RemoveLocked(resource, live).status();
  if (IsDeleting(live)) return absl::OkStatus();
  json next = live;
  next["metadata"]["deletionTimestamp"] = KubernetesTime(options_.now());
  return CommitLocked(resource, live, std::move(next)).status();
}

absl::StatusOr<std::unique_ptr<Watch>> ObjectStore::StartWatch(
    const Resource& resource, const std::string& namespace_name, const std::string& resource_version,
    std::function<void(const WatchEvent&)> on_event, std::function<void(absl::Status)> on_end) {
  int64_t after = 0;
  if (!absl::SimpleAtoi(resource_version, &after) || after < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("resourceVersion '", resource_version, "' is not a number"));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (after < forgotten_ || after > version_) {
      return absl::OutOfRangeError(absl::StrCat("resourceVersion ", after, " is not in the history (",
                                                forgotten_, "..", version_, "): list again"));
    }
  }
  return std::make_unique<StoreWatch>(*this, resource, namespace_name, after, std::move(on_event),
                                      std::move(on_end));
}

void ObjectStore::ForgetHistory() {
  absl::MutexLock lock(&mutex_);
  forgotten_ = version_;
  history_.clear();
}

}  // namespace fusion::op
