// Asynchronous operations: waited for, asked, cancelled. Must not know which operation it is; who
// started it keeps its memory.
#ifndef FERROCOMM_WORK_HPP
#define FERROCOMM_WORK_HPP

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "error.hpp"

namespace ferrocomm {

// An asynchronous operation. Letting go of it leaves the operation running.
class Work {
 public:
  // Takes over a handle.
  explicit Work(fc_work* handle) noexcept : handle_(handle) {}

  // Waits until it is over; throws how it failed. A positive `timeout` that passes first fails it.
  void wait(Nanoseconds timeout = Nanoseconds(0)) {
    detail::check(fc_work_wait(get(), timeout.count()));
  }
  // FC_IN_PROGRESS, FC_OK or the failure.
  fc_status status() const noexcept { return fc_work_status(get()); }
  bool done() const noexcept { return status() != FC_IN_PROGRESS; }
  // Whether it no longer waits behind another operation of its communicator.
  bool begun() const noexcept { return fc_work_has_begun(get()) != 0; }
  std::string error() const {
    return detail::text([&](fc_string** out) { return fc_work_error(get(), out); });
  }
  // The rank a receive was matched with, -1 before that.
  std::int32_t source() const noexcept { return fc_work_source(get()); }
  std::uint64_t sequence() const noexcept { return fc_work_sequence(get()); }
  void cancel() { detail::check(fc_work_cancel(get())); }

  // Called once with status and text of the failure, at once when it is over already. It must not
  // throw.
  using Callback = std::function<void(fc_status, const char*)>;
  void on_complete(Callback callback) {
    auto owned = std::make_unique<Callback>(std::move(callback));
    const auto call = [](void* ctx, fc_status status, const char* message) noexcept {
      std::unique_ptr<Callback> callback(static_cast<Callback*>(ctx));
      (*callback)(status, message);
    };
    detail::check(fc_work_on_complete(get(), call, owned.get()));
    // From here on the callback, which has run or will run, owns itself.
    static_cast<void>(owned.release());
  }

  fc_work* get() const noexcept { return handle_.get(); }

 private:
  detail::OwnedWork handle_;
};

}  // namespace ferrocomm

#endif  // FERROCOMM_WORK_HPP
