// Time-outs that are longer for a while: c10d's addEphemeralTimeout.
//
// An extension holds for every operation that is called after it was added, until the first of
// those has ended. Several add up, and each ends by itself.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

namespace ferrocomm {

class OperationState;
class TorchComm;

class TimeoutExtensions {
 public:
  void add(std::chrono::milliseconds extension);

  /// Lengthens the time-out of an operation of `comm` by what holds now; zero stands for the
  /// communicator's. `state` is the operation's.
  void apply(const TorchComm& comm, const std::shared_ptr<OperationState>& state,
             std::chrono::milliseconds& timeout) {
    if (any_.load(std::memory_order_relaxed)) lengthen(comm, state, timeout);
  }

 private:
  struct Extension {
    std::chrono::milliseconds by;
    /// the first operation that it lengthened
    std::shared_ptr<OperationState> first;
  };

  void lengthen(const TorchComm& comm, const std::shared_ptr<OperationState>& state,
                std::chrono::milliseconds& timeout);
  std::vector<Extension> take_ended();

  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::vector<Extension> extensions_;
};

}  // namespace ferrocomm
