// What a client wants to be told about a communicator's operations, and what tells it.
//
// No lock is held while a hook runs: it may register and remove hooks and call operations. Must not
// know Python: bind_hooks.cpp makes hooks of its functions.
#pragma once

#include <Python.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <unordered_map>
#include <vector>

#include "work.hpp"

namespace ferrocomm {

class TorchComm;
struct CallOptions;

/// In the order of `torchcomms.OpName`.
enum class OpName : uint8_t {
  kSend,
  kRecv,
  kBroadcast,
  kAllReduce,
  kReduce,
  kAllGather,
  kAllGatherV,
  kAllGatherSingle,
  kReduceScatter,
  kReduceScatterV,
  kReduceScatterSingle,
  kAllToAllSingle,
  kAllToAllVSingle,
  kAllToAll,
  kBarrier,
  kScatter,
  kGather,
  kGatherSingle,
  kSplit,
  kNewWindow,
  kFinalize,
};

/// An operation as it was called. What an operation does not have is empty.
struct OpArgs {
  OpName name;
  bool async = false;
  /// what it reads; of an operation in place, its tensor
  std::vector<at::Tensor> inputs = {};
  /// what it writes apart from that
  std::vector<at::Tensor> outputs = {};
  /// root of a rooted collective, other side of a send or receive
  int root = -1;
  std::optional<c10d::ReduceOp> op = std::nullopt;
  std::vector<int64_t> output_splits = {};
  std::vector<int64_t> input_splits = {};
  /// of a split
  std::vector<int> ranks = {};
  std::string label = {};
};

/// What came of it.
struct OpResult {
  WorkPtr work = nullptr;
  /// of a split; null on a rank outside
  std::shared_ptr<TorchComm> comm = nullptr;
  /// makes a new reference to what else there is for Python (a window); called under the GIL
  std::function<PyObject*()> product = nullptr;
};

/// How many watch the operations of a communicator, whatever they are: the one thing that a call
/// looks at to find out that nobody does.
class Watchers {
 public:
  /// A relaxed load.
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
  void come() { count_.fetch_add(1, std::memory_order_relaxed); }
  void go(size_t number = 1) { count_.fetch_sub(number, std::memory_order_relaxed); }

 private:
  std::atomic<size_t> count_{0};
};

/// Functions that are called in the order of registration. A copy is taken to call them, so that
/// they may register and remove; what is removed is not called any more.
template <typename F>
class HookList {
 public:
  HookList() = default;
  /// One whose functions are counted in `watchers`, too.
  explicit HookList(Watchers& watchers) : watchers_(&watchers) {}

  /// Whether there is any. A relaxed load.
  bool any() const { return size_.load(std::memory_order_relaxed) != 0; }

  uint64_t add(F call) {
    auto entry = std::make_shared<Entry>(std::move(call));
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.emplace_back(++last_, std::move(entry));
    size_ = entries_.size();
    if (watchers_ != nullptr) watchers_->come();
    return last_;
  }

  /// Whether it was there.
  bool remove(uint64_t id) {
    std::shared_ptr<Entry> gone;  // let go with no lock held: it may hold what wants the GIL
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->first != id) continue;
      gone = std::move(it->second);
      gone->live = false;
      entries_.erase(it);
      size_ = entries_.size();
      if (watchers_ != nullptr) watchers_->go();
      return true;
    }
    return false;
  }

  void clear() {
    Entries gone;
    std::lock_guard<std::mutex> lock(mutex_);
    gone.swap(entries_);
    for (const auto& [id, entry] : gone) entry->live = false;
    size_ = 0;
    if (watchers_ != nullptr) watchers_->go(gone.size());
  }

  /// Calls them; the exception of one keeps the rest from being called.
  template <typename... Args>
  void run(const Args&... args) const {
    each([&](const F& call) { call(args...); });
  }

  /// `visit(call)` for each.
  template <typename Visit>
  void each(Visit&& visit) const {
    Entries entries;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      entries = entries_;
    }
    for (const auto& [id, entry] : entries) {
      if (entry->live.load()) visit(entry->call);
    }
  }

 private:
  struct Entry {
    explicit Entry(F c) : call(std::move(c)) {}
    const F call;
    std::atomic<bool> live{true};
  };
  using Entries = std::vector<std::pair<uint64_t, std::shared_ptr<Entry>>>;

  mutable std::mutex mutex_;
  Entries entries_;
  uint64_t last_ = 0;
  std::atomic<size_t> size_{0};
  Watchers* const watchers_ = nullptr;
};

/// Who is told of works that are over, and how many works have yet to be told of.
class Completions {
 public:
  using Hook = std::function<void(const Completion&)>;

  /// Its hooks are counted in `watchers`, too.
  explicit Completions(Watchers& watchers) : hooks_(watchers) {}

  /// Whether anybody wants to know. A relaxed load.
  bool any() const { return hooks_.any(); }
  uint64_t add(Hook hook) { return hooks_.add(std::move(hook)); }
  bool remove(uint64_t id) { return hooks_.remove(id); }
  void clear() { hooks_.clear(); }
  /// Calls the hooks. What one raises reaches no caller, as whoever ends a work did not ask for it.
  void run(const Completion& completion) const noexcept;

  /// A work will be told of, or come to nothing.
  void expect() { expected_.fetch_add(1); }
  /// That has happened.
  void came() {
    if (expected_.fetch_sub(1) == 1) expected_.notify_all();
  }
  /// Waits until all have.
  void wait() const;

 private:
  HookList<Hook> hooks_;
  std::atomic<size_t> expected_{0};
};

/// A communicator's hooks.
struct Hooks {
  using Pre = std::function<void(uint64_t op_id, const OpArgs& args)>;
  using Post = std::function<void(uint64_t op_id, const OpArgs& args, const OpResult& result)>;
  using Abort = std::function<void()>;

  /// all but abort hooks, and whoever else wants to see operations: first, as they count in it
  Watchers watchers;
  /// before an operation; its exception keeps the operation from being issued
  HookList<Pre> pre{watchers};
  /// after it was issued
  HookList<Post> post{watchers};
  /// before the communicator or the process is given up; may run more than once
  HookList<Abort> abort;
  /// short, without the GIL
  Completions completions{watchers};

  void clear();
  /// Runs all abort hooks, whatever they raise; returns the first exception.
  std::exception_ptr run_abort() const noexcept;
};

/// Makes the engine tell `hooks` of the communicator's failures. Once per communicator.
void watch_failures(fc_comm* comm, const std::shared_ptr<Hooks>& hooks);

/// A backend that is written elsewhere and serves a communicator in the engine's place.
class ForeignBackend {
 public:
  virtual ~ForeignBackend() = default;
  /// One work for all of them.
  virtual WorkPtr issue(const std::vector<OpArgs>& operations, const CallOptions& call) = 0;
  virtual std::shared_ptr<TorchComm> split(
      const std::vector<int>& ranks, const std::string& name, std::chrono::milliseconds timeout,
      const std::unordered_map<std::string, std::string>& hints) = 0;
  virtual std::string state() = 0;
  virtual std::chrono::milliseconds timeout() = 0;
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  virtual std::string version() = 0;
  virtual void finalize() = 0;
  virtual void abort() = 0;
  /// A new reference to the object behind it; called under the GIL.
  virtual PyObject* implementation() = 0;
};

/// One operation with the hooks around it. Costs a load and a branch where nobody watches:
///
///     Hooked hooked(comm, [&] { return OpArgs{OpName::kNewWindow, false, {tensor}}; });
///     ...
///     hooked.done({.product = ...});
class Hooked {
 public:
  /// Runs the pre-hooks. `describe` returns one OpArgs or a vector of them.
  template <typename F>
  Hooked(const TorchComm& comm, F&& describe);
  /// As above, for an operation that a foreign backend may serve.
  template <typename F>
  Hooked(const TorchComm& comm, const CallOptions& call, F&& describe);
  Hooked(const Hooked&) = delete;
  Hooked& operator=(const Hooked&) = delete;

  /// The work of the foreign backend that served the operation; null where there is none.
  const WorkPtr& elsewhere() const { return elsewhere_; }

  /// Runs the post-hooks.
  WorkPtr done(WorkPtr work) {
    if (running_) [[unlikely]]
      end({work});
    return work;
  }
  void done(const OpResult& result) {
    if (running_) [[unlikely]]
      end(result);
  }

 private:
  struct Running;
  struct Delete {
    void operator()(Running* running) const;
  };
  void begin(const TorchComm& comm, std::vector<OpArgs> operations);
  void serve(const TorchComm& comm, const CallOptions& call);
  void end(const OpResult& result);
  static std::vector<OpArgs> list(OpArgs args) {
    std::vector<OpArgs> all;
    all.push_back(std::move(args));
    return all;
  }
  static std::vector<OpArgs> list(std::vector<OpArgs> all) { return all; }

  std::unique_ptr<Running, Delete> running_;
  WorkPtr elsewhere_;
};

}  // namespace ferrocomm
