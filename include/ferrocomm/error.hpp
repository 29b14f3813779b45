// What every other header stands on: failures, and owners of handles. Must not know what a handle
// is for.
#ifndef FERROCOMM_ERROR_HPP
#define FERROCOMM_ERROR_HPP

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>

#include "../ferrocomm.h"

namespace ferrocomm {

using Nanoseconds = std::chrono::nanoseconds;

// A failed call: its status, and as what() the full text.
class Error : public std::runtime_error {
 public:
  Error(fc_status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  fc_status status() const noexcept { return status_; }

 private:
  fc_status status_;
};

namespace detail {

inline void check(fc_status status) {
  if (status != FC_OK) throw Error(status, fc_last_error());
}

template <class Handle, void (*destroy)(Handle*)>
struct Deleter {
  void operator()(Handle* handle) const noexcept { destroy(handle); }
};

template <class Handle, void (*destroy)(Handle*)>
using Owned = std::unique_ptr<Handle, Deleter<Handle, destroy>>;

using OwnedComm = Owned<fc_comm, fc_comm_destroy>;
using OwnedWork = Owned<fc_work, fc_work_destroy>;
using OwnedBatch = Owned<fc_batch, fc_batch_destroy>;
using OwnedString = Owned<fc_string, fc_string_destroy>;

// Calls `get`, which fills an owned string, and copies its text.
template <class Get>
std::string text(Get get) {
  fc_string* raw = nullptr;
  check(get(&raw));
  OwnedString owned(raw);
  return std::string(fc_string_data(raw), fc_string_len(raw));
}

}  // namespace detail

}  // namespace ferrocomm

#endif  // FERROCOMM_ERROR_HPP
