// What a worker does with its assignment, from loading to the last report: the compute thread's life.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "fusion/wire/v1/broker.pb.h"
#include "worker/checkpoint/restore.h"
#include "worker/data/dataset.h"
#include "worker/engine/engine.h"
#include "worker/pipeline/serial_queue.h"
#include "worker/pipeline/stage_runner.h"
#include "worker/transport/transport.h"

namespace fusion::worker {

/// Environment variable with the bytes above which a checkpoint's model file is split, instead of 5 GB.
inline constexpr char kShardBytesVariable[] = "FUSION_CHECKPOINT_SHARD_BYTES";

/// Run on one thread, the compute thread; the other methods from any. Checkpoint files are written on a
/// thread of their own.
class StageJob {
 public:
  using Reporter = std::function<void(wire::v1::WorkerMessage)>;
  using EngineFactory = std::function<absl::StatusOr<std::unique_ptr<Engine>>()>;

  /// The transport must outlive the job and be closed before it is destroyed. `report` is thread-safe.
  StageJob(wire::v1::Assignment assignment, EngineFactory make_engine, Transport& transport, Reporter report);
  ~StageJob();

  /// Loads, waits for Peers, connects, says Ready, waits for Start, trains or evaluates, says Finished.
  /// Returns the first error.
  absl::Status Run();

  void OnPeers(const wire::v1::Peers& peers);
  void OnStart(const wire::v1::Start& start);
  /// Answers with CheckpointDone, after the parts of this stage that were asked for before.
  void OnAssemble(const wire::v1::AssembleCheckpoint& request);
  /// Run returns `why`, at the latest when the current task ends.
  void Cancel(const absl::Status& why);

 private:
  absl::Status Load();
  absl::Status Initialize();
  /// Of stage 0: which checkpoint the job goes on from, for Ready.
  absl::Status ChooseCheckpoint();
  absl::Status ChooseOwnCheckpoint();
  absl::Status ChooseGivenCheckpoint();
  absl::Status Restore(const std::string& checkpoint);
  absl::Status OpenData();
  absl::Status MakeRunner();
  absl::Status Connect(const wire::v1::Peers& peers);
  absl::Status Train(int64_t first_step);
  absl::Status Evaluate();
  absl::Status Validate(int64_t step);
  absl::Status SaveCheckpoint(int64_t step);
  absl::StatusOr<Tensor> Feed(const std::string& placeholder, bool training, int64_t batch, int64_t first,
                              int64_t count) const;

  /// Blocks until it is there or the job is cancelled.
  template <typename Message>
  absl::StatusOr<Message> Await(const std::optional<Message>& message);

  const wire::v1::Assignment assignment_;
  const EngineFactory make_engine_;
  Transport& transport_;
  const Reporter report_;

  // Of the compute thread.
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Dataset> data_;
  std::map<std::string, graph::v1::TensorSpec> placeholders_;  ///< that this stage hosts
  std::optional<FoundCheckpoint> chosen_;                      ///< of stage 0
  std::vector<std::string> notes_;                             ///< for Ready

  absl::Mutex mutex_;
  std::optional<wire::v1::Peers> peers_ ABSL_GUARDED_BY(mutex_);
  std::optional<wire::v1::Start> start_ ABSL_GUARDED_BY(mutex_);
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<StageRunner> runner_ ABSL_GUARDED_BY(mutex_);  ///< set once; used by the compute thread

  SerialQueue disk_;  // last: its work uses what is above
};

}  // namespace fusion::worker
