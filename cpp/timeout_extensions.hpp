// Time-outs that are longer for a while: c10d's addEphemeralTimeout.
//
// An extension holds for every operation that is called after it was added, until the first of
// those has ended. Several add up, and each ends by itself. Must not know what the operations do.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

namespace ferrocomm {

class OperationState;
class TorchComm;
class Watchers;

class TimeoutExtensions {
 public:
  /// `watchers` counts those that hold.
  explicit TimeoutExtensions(Watchers& watchers) : watchers_(watchers) {}

  void add(std::chrono::milliseconds extension);

  /// Lengthens the time-out of an operation of `comm` by what holds now; zero stands for the
  /// communicator's. `state` is the operation's.
  void apply(const TorchComm& comm, const std::shared_ptr<OperationState>& state,
             std::chrono::milliseconds& timeout);

 private:
  struct Extension {
    std::chrono::milliseconds by;
    /// the first operation that it lengthened
    std::shared_ptr<OperationState> first;
  };

  std::vector<Extension> take_ended();

  Watchers& watchers_;
  std::mutex mutex_;
  std::vector<Extension> extensions_;
};

}  // namespace ferrocomm
