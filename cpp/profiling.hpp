// What torch's profiler sees of an operation: the record `record_param_comms` around the call, with
// the arguments that stock backends give it, and a span from the call to the operation's end.
//
// Without a profiler it is a look at a thread-local each. Must not know the engine.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class Backend;
}

namespace ferrocomm {

class TorchComm;

/// Whether somebody records operations on this thread.
inline bool is_profiled() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
}

/// What a record says beside the communicator's own facts.
struct ProfiledCall {
  const char* operation;
  at::ArrayRef<at::Tensor> inputs = {};
  at::ArrayRef<at::Tensor> outputs = {};
  /// root, peer, or -1 for this rank
  int rank = -1;
  /// parts of the tensors, where the caller named them
  at::ArrayRef<int64_t> input_splits = {};
  at::ArrayRef<int64_t> output_splits = {};
  bool async = true;
  /// the process group's names; null: the communicator's
  const c10d::Backend* backend = nullptr;
};

/// A record that ends with its owner, on the thread that made it.
class ProfiledRecord {
 public:
  ProfiledRecord(const TorchComm& comm, const ProfiledCall& call);
  ~ProfiledRecord();
  ProfiledRecord(const ProfiledRecord&) = delete;
  ProfiledRecord& operator=(const ProfiledRecord&) = delete;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Starts a span called `title` and gives what ends it, on any thread; empty without a profiler.
std::function<void()> start_span(const std::string& title, at::ArrayRef<at::Tensor> tensors);

}  // namespace ferrocomm
