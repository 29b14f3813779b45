// Operations as torch's profiler sees them: the record `record_param_comms` around the call, with
// the arguments that stock backends give it, and an event from the call to the operation's end,
// with the name and shapes that torch's own backends give it.
//
// It knows nothing of the engine. Costs a look at a thread-local each when no profiler runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
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

/// Whether a profiler of this thread wants events.
bool profiled() noexcept;

/// `backend:operation` as torch's backends say it.
std::string profiled_title(const std::string& backend, c10d::OpType type, const char* operation);

/// Begins an event of this thread; calling what is returned, once and from any thread, ends it.
std::function<void()> begin_event(std::string title, const std::vector<at::Tensor>& inputs);

}  // namespace ferrocomm
