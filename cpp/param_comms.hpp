// The record `record_param_comms`, which stock backends leave around every call for torch's
// profiler, with the call's arguments.
//
// Without a profiler it is a look at a thread-local. Must not know the engine.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <memory>

namespace c10d {
class Backend;
}

namespace ferrocomm {

class TorchComm;

/// Whether somebody records operations on this thread.
inline bool is_recorded() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
}

/// What a record says beside the communicator's own facts.
struct RecordedCall {
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
class CommsRecord {
 public:
  CommsRecord(const TorchComm& comm, const RecordedCall& call);
  ~CommsRecord();
  CommsRecord(const CommsRecord&) = delete;
  CommsRecord& operator=(const CommsRecord&) = delete;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace ferrocomm
