#include "scheduler/simulator.h"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <tuple>

#include "scheduler/link_load.h"
#include "scheduler/quotient.h"

namespace fusion::scheduler {
namespace {

/// A long message is cut into no more pieces than this, so that a simulated step costs a bounded number of
/// events.
constexpr int64_t kMostPieces = 8;

enum class EventKind {
  kTaskDone,
  kStreamFree,
  kValueArrived,
  kGradientArrived,
  kCreditArrived,
  kLoanArrived,
  kReturnArrived
};

struct Event {
  double time;
  int64_t sequence;  ///< ties in the order of creation
  EventKind kind;
  int index;  ///< stage, stream, edge or loan
  bool operator>(const Event& other) const {
    return std::tie(time, sequence) > std::tie(other.time, other.sequence);
  }
};

/// A message that waits for its stream or is on it.
struct Message {
  int64_t micro_batch;  ///< counted over all steps; -1: of a shared variable, which goes first
  int64_t sequence;
  EventKind arrival;
  int index;
  double bytes;  ///< left
  double piece;
  bool operator>(const Message& other) const {
    return std::tie(micro_batch, sequence) > std::tie(other.micro_batch, other.sequence);
  }
};

template <typename T>
using MinHeap = std::priority_queue<T, std::vector<T>, std::greater<>>;

/// What one stage sends to another.
struct Stream {
  Way way;
  bool busy = false;
  MinHeap<Message> waiting;
};

enum class TaskKind { kNone, kForward, kBackward, kUpdate };

struct Stage {
  int64_t step = 0;  ///< updates done
  TaskKind running = TaskKind::kNone;
  int sub_dag = -1;           ///< of the running task
  int loans = 0;              ///< variables that it borrows
  int lent = 0;               ///< gradients that return to it in a step
  int64_t loans_there = 0;    ///< arrived in all
  int64_t returns_there = 0;  ///< arrived in all
  bool returned = false;      ///< gradients of borrowed variables were sent in this step
  double update_seconds = 0;
};

class Run {
 public:
  Run(const Problem& problem, const Partition& partition, const Quotient& quotient,
      const SimulationOptions& options)
      : problem_(problem),
        quotient_(quotient),
        options_(options),
        micro_batches_(problem.micro_batches),
        forwards_(quotient.sub_dags.size(), 0),
        backwards_(quotient.sub_dags.size(), 0),
        edges_(quotient.edges.size()),
        stages_(partition.stages.size()),
        free_at_(problem.network.resources.size(), 0),
        step_end_(options.steps, 0) {
    PrepareStages(partition);
    PrepareStreams(partition);
  }

  double StepSeconds() {
    for (size_t loan = 0; loan < quotient_.loans.size(); ++loan) SendLoan(static_cast<int>(loan), 0);
    for (size_t stage = 0; stage < stages_.size(); ++stage) StartTask(static_cast<int>(stage), 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      Handle(event);
    }
    for (const Stage& stage : stages_) {
      if (stage.step < options_.steps) return std::numeric_limits<double>::infinity();
    }
    return options_.steps == 1 ? step_end_[0] : step_end_[options_.steps - 1] - step_end_[options_.steps - 2];
  }

 private:
  struct EdgeState {
    int stream = -1;
    int back_stream = -1;
    double value_bytes = 0;
    double gradient_bytes = 0;
    int64_t values_there = 0;  ///< all counts run over all steps
    int64_t gradients_there = 0;
    int64_t credits = 0;  ///< values that the reader took
  };

  void PrepareStages(const Partition& partition) {
    for (size_t s = 0; s < stages_.size(); ++s) {
      stages_[s].update_seconds =
          problem_.nodes[partition.stages[s].node].update_seconds_per_parameter * quotient_.parameters[s];
      if (!problem_.training) stages_[s].update_seconds = 0;
    }
    for (const QuotientLoan& loan : quotient_.loans) {
      ++stages_[loan.user_stage].loans;
      if (loan.gradients > 0) ++stages_[loan.owner_stage].lent;
    }
  }

  void PrepareStreams(const Partition& partition) {
    std::map<std::pair<int, int>, int> number;
    const auto stream = [&](int from, int to) {
      const auto [place, added] = number.emplace(std::pair(from, to), streams_.size());
      if (added) {
        streams_.emplace_back().way =
            problem_.network.Between(partition.stages[from].node, partition.stages[to].node);
      }
      return place->second;
    };
    for (size_t e = 0; e < edges_.size(); ++e) {
      const QuotientEdge& edge = quotient_.edges[e];
      const codec::Codec codec = CodecBetween(partition, edge.from_stage, edge.to_stage);
      EdgeState& state = edges_[e];
      state.stream = stream(edge.from_stage, edge.to_stage);
      state.back_stream = stream(edge.to_stage, edge.from_stage);
      state.value_bytes = static_cast<double>(ForwardBytes(problem_, edge, codec));
      state.gradient_bytes = static_cast<double>(BackwardBytes(problem_, edge, codec));
    }
    for (const QuotientLoan& loan : quotient_.loans) {
      loan_streams_.emplace_back(stream(loan.owner_stage, loan.user_stage),
                                 stream(loan.user_stage, loan.owner_stage));
    }
  }

  void Schedule(double time, EventKind kind, int index) { events_.push({time, sequence_++, kind, index}); }

  void Handle(const Event& event) {
    switch (event.kind) {
      case EventKind::kTaskDone:
        FinishTask(event.index, event.time);
        break;
      case EventKind::kStreamFree:
        streams_[event.index].busy = false;
        StartStream(event.index, event.time);
        break;
      case EventKind::kValueArrived:
        ++edges_[event.index].values_there;
        StartTask(quotient_.edges[event.index].to_stage, event.time);
        break;
      case EventKind::kGradientArrived:
        ++edges_[event.index].gradients_there;
        StartTask(quotient_.edges[event.index].from_stage, event.time);
        break;
      case EventKind::kCreditArrived:
        ++edges_[event.index].credits;
        StartTask(quotient_.edges[event.index].from_stage, event.time);
        break;
      case EventKind::kLoanArrived:
        ++stages_[quotient_.loans[event.index].user_stage].loans_there;
        StartTask(quotient_.loans[event.index].user_stage, event.time);
        break;
      case EventKind::kReturnArrived:
        ++stages_[quotient_.loans[event.index].owner_stage].returns_there;
        StartTask(quotient_.loans[event.index].owner_stage, event.time);
        break;
    }
  }

  // ------------------------------------------------------------------------------------- compute threads

  bool ForwardReady(const Stage& stage, int index) const {
    const QuotientSubDag& sub_dag = quotient_.sub_dags[index];
    const int64_t next = forwards_[index];
    if (next >= (stage.step + 1) * micro_batches_) return false;
    if (stage.loans_there < (stage.step + 1) * stage.loans) return false;
    if (!HasRoom(sub_dag, next, backwards_[index])) return false;
    for (const int edge : sub_dag.incoming) {
      if (edges_[edge].values_there <= next) return false;
    }
    for (const int source : sub_dag.reads_from) {
      if (forwards_[source] <= next) return false;
    }
    return true;
  }

  /// Whether one more micro-batch of the sub-DAG may be in flight: not yet back, or not yet taken by every
  /// reader.
  bool HasRoom(const QuotientSubDag& sub_dag, int64_t forwards, int64_t backwards) const {
    if (sub_dag.backward) return forwards - backwards < sub_dag.depth;
    for (const int reader : sub_dag.readers) {
      if (forwards - forwards_[reader] >= sub_dag.depth) return false;
    }
    for (const int edge : sub_dag.outgoing) {
      if (forwards - edges_[edge].credits >= sub_dag.depth) return false;
    }
    return true;
  }

  bool BackwardReady(const Stage& stage, int stage_index, int index) const {
    const QuotientSubDag& sub_dag = quotient_.sub_dags[index];
    const int64_t next = backwards_[index];
    if (!sub_dag.backward || forwards_[index] <= next) return false;
    if (problem_.gpipe) {
      for (int s = quotient_.first_sub_dag[stage_index]; s < quotient_.first_sub_dag[stage_index + 1]; ++s) {
        if (forwards_[s] < (stage.step + 1) * micro_batches_) return false;
      }
    }
    for (const int edge : sub_dag.outgoing) {
      if (quotient_.edges[edge].differentiable && edges_[edge].gradients_there <= next) return false;
    }
    for (const int other : sub_dag.waits_for) {
      if (backwards_[other] <= next) return false;
    }
    return true;
  }

  bool TasksDone(const Stage& stage, int stage_index) const {
    const int64_t goal = (stage.step + 1) * micro_batches_;
    for (int s = quotient_.first_sub_dag[stage_index]; s < quotient_.first_sub_dag[stage_index + 1]; ++s) {
      if (forwards_[s] < goal || (quotient_.sub_dags[s].backward && backwards_[s] < goal)) return false;
    }
    return true;
  }

  void StartTask(int stage_index, double now) {
    Stage& stage = stages_[stage_index];
    if (stage.running != TaskKind::kNone || stage.step >= options_.steps) return;
    const int first = quotient_.first_sub_dag[stage_index];
    const int end = quotient_.first_sub_dag[stage_index + 1];
    int best = -1;
    for (int s = end - 1; s >= first; --s) {
      if (BackwardReady(stage, stage_index, s) && (best < 0 || backwards_[s] < backwards_[best])) best = s;
    }
    if (best >= 0)
      return Begin(stage_index, TaskKind::kBackward, best, quotient_.sub_dags[best].backward_seconds, now);
    for (int s = first; s < end; ++s) {
      if (ForwardReady(stage, s) && (best < 0 || forwards_[s] < forwards_[best])) best = s;
    }
    if (best >= 0)
      return Begin(stage_index, TaskKind::kForward, best, quotient_.sub_dags[best].forward_seconds, now);
    if (!TasksDone(stage, stage_index)) return;
    if (!stage.returned) ReturnLoans(stage_index, now);
    if (stage.returns_there >= (stage.step + 1) * stage.lent) {
      Begin(stage_index, TaskKind::kUpdate, -1, stage.update_seconds, now);
    }
  }

  void Begin(int stage_index, TaskKind kind, int sub_dag, double seconds, double now) {
    stages_[stage_index].running = kind;
    stages_[stage_index].sub_dag = sub_dag;
    Schedule(now + seconds, EventKind::kTaskDone, stage_index);
  }

  void FinishTask(int stage_index, double now) {
    Stage& stage = stages_[stage_index];
    const TaskKind kind = stage.running;
    stage.running = TaskKind::kNone;
    if (kind == TaskKind::kForward) {
      FinishForward(stage.sub_dag, now);
    } else if (kind == TaskKind::kBackward) {
      const int64_t micro_batch = backwards_[stage.sub_dag]++;
      for (const int edge : quotient_.sub_dags[stage.sub_dag].first_read) {
        Send(edges_[edge].back_stream, micro_batch, EventKind::kGradientArrived, edge,
             edges_[edge].gradient_bytes, now);
      }
    } else {
      step_end_[stage.step] = std::max(step_end_[stage.step], now);
      ++stage.step;
      stage.returned = false;
      for (size_t loan = 0; loan < quotient_.loans.size(); ++loan) {
        const bool mine = quotient_.loans[loan].owner_stage == stage_index;
        if (mine && stage.step < options_.steps) SendLoan(static_cast<int>(loan), now);
      }
    }
    StartTask(stage_index, now);
  }

  void FinishForward(int sub_dag, double now) {
    const int64_t micro_batch = forwards_[sub_dag]++;
    for (const int edge : quotient_.sub_dags[sub_dag].outgoing) {
      Send(edges_[edge].stream, micro_batch, EventKind::kValueArrived, edge, edges_[edge].value_bytes, now);
    }
    for (const int index : quotient_.sub_dags[sub_dag].incoming) {
      const QuotientEdge& edge = quotient_.edges[index];
      // The depth of a producer with a backward is bounded by its gradients, which come later.
      if (quotient_.sub_dags[edge.from_sub_dag].backward) continue;
      const bool taken = std::all_of(edge.to_sub_dags.begin(), edge.to_sub_dags.end(),
                                     [&](int reader) { return forwards_[reader] > micro_batch; });
      const double latency = streams_[edges_[index].back_stream].way.latency_seconds;
      if (taken) Schedule(now + latency, EventKind::kCreditArrived, index);
    }
  }

  // ------------------------------------------------------------------------------------- links

  void SendLoan(int loan, double now) {
    const SharedValue& shared = problem_.shared[quotient_.loans[loan].shared];
    Send(loan_streams_[loan].first, -1, EventKind::kLoanArrived, loan, static_cast<double>(shared.bytes),
         now);
  }

  void ReturnLoans(int stage_index, double now) {
    stages_[stage_index].returned = true;
    for (size_t loan = 0; loan < quotient_.loans.size(); ++loan) {
      const QuotientLoan& lent = quotient_.loans[loan];
      if (lent.user_stage != stage_index || lent.gradients == 0) continue;
      const double bytes = static_cast<double>(problem_.shared[lent.shared].bytes) * lent.gradients;
      Send(loan_streams_[loan].second, -1, EventKind::kReturnArrived, static_cast<int>(loan), bytes, now);
    }
  }

  void Send(int stream_index, int64_t micro_batch, EventKind arrival, int index, double bytes, double now) {
    Stream& stream = streams_[stream_index];
    if (options_.free_links || stream.way.resources.empty()) {
      Schedule(now + stream.way.latency_seconds, arrival, index);
      return;
    }
    const double rate = stream.way.bytes_per_second;
    const auto total = static_cast<double>(MessageBytes(static_cast<int64_t>(bytes), rate));
    const double piece = std::max(static_cast<double>(FrameBytes(rate)), total / kMostPieces);
    stream.waiting.push({micro_batch, sequence_++, arrival, index, total, piece});
    StartStream(stream_index, now);
  }

  /// Reserves the next piece of the message that goes first; the stream may reserve again when the piece has
  /// left.
  void StartStream(int stream_index, double now) {
    Stream& stream = streams_[stream_index];
    if (stream.busy || stream.waiting.empty()) return;
    Message message = stream.waiting.top();
    stream.waiting.pop();
    const double bytes = std::min(message.bytes, message.piece);
    double start = now;
    for (const int resource : stream.way.resources) start = std::max(start, free_at_[resource]);
    for (const int resource : stream.way.resources) {
      free_at_[resource] = start + bytes / problem_.network.resources[resource].bytes_per_second;
    }
    const double left = start + bytes / stream.way.bytes_per_second;
    message.bytes -= bytes;
    if (message.bytes > 0) {
      stream.waiting.push(message);
    } else {
      Schedule(left + stream.way.latency_seconds, message.arrival, message.index);
    }
    stream.busy = true;
    Schedule(left, EventKind::kStreamFree, stream_index);
  }

  const Problem& problem_;
  const Quotient& quotient_;
  const SimulationOptions options_;
  const int64_t micro_batches_;
  int64_t sequence_ = 0;
  MinHeap<Event> events_;
  std::vector<int64_t> forwards_;  ///< done, by sub-DAG, over all steps
  std::vector<int64_t> backwards_;
  std::vector<EdgeState> edges_;
  std::vector<Stage> stages_;
  std::vector<Stream> streams_;
  std::vector<std::pair<int, int>> loan_streams_;  ///< to the user, to the owner
  std::vector<double> free_at_;                    ///< by resource
  std::vector<double> step_end_;
};

void FillStages(const Problem& problem, const Partition& partition, const Quotient& quotient,
                Simulation& result) {
  result.stages.resize(partition.stages.size());
  for (const QuotientSubDag& sub_dag : quotient.sub_dags) {
    result.stages[sub_dag.stage].forward_seconds += sub_dag.forward_seconds;
    result.stages[sub_dag.stage].backward_seconds += sub_dag.backward_seconds;
  }
  double busiest = 0;
  for (size_t s = 0; s < result.stages.size(); ++s) {
    SimulatedStage& stage = result.stages[s];
    const Node& node = problem.nodes[partition.stages[s].node];
    stage.busy_seconds = (stage.forward_seconds + stage.backward_seconds) * problem.micro_batches;
    if (problem.training) stage.busy_seconds += node.update_seconds_per_parameter * quotient.parameters[s];
    busiest = std::max(busiest, stage.busy_seconds);
  }
  result.bubble_fraction = result.step_seconds > 0 ? std::max(0.0, 1 - busiest / result.step_seconds) : 0;
}

}  // namespace

int64_t FrameBytes(double bytes_per_second) {
  return static_cast<int64_t>(std::clamp(bytes_per_second * 0.020, 4.0 * 1024, 1024.0 * 1024));
}

int64_t MessageBytes(int64_t bytes, double bytes_per_second) {
  const int64_t frame = FrameBytes(bytes_per_second);
  return bytes + kDescriptorBytes + kFrameHeaderBytes * ((bytes + frame - 1) / frame);
}

double SimulateStepSeconds(const Problem& problem, const Partition& partition,
                           const SimulationOptions& options) {
  return Run(problem, partition, MakeQuotient(problem, partition), options).StepSeconds();
}

Simulation Simulate(const Problem& problem, const Partition& partition, const SimulationOptions& options) {
  const Quotient quotient = MakeQuotient(problem, partition);
  Simulation result;
  result.step_seconds = Run(problem, partition, quotient, options).StepSeconds();
  FillStages(problem, partition, quotient, result);
  result.links = LinkLoads(problem, partition, quotient);
  result.resource_seconds = ResourceSeconds(problem, partition, quotient);
  return result;
}

}  // namespace fusion::scheduler
