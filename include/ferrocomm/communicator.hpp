// Communicators: made, split, reconfigured, asked and ended. Must not know what a store is made of.
#ifndef FERROCOMM_COMMUNICATOR_HPP
#define FERROCOMM_COMMUNICATOR_HPP

#include <cstdint>
#include <string>
#include <vector>

#include "elements.hpp"
#include "operations.hpp"
#include "options.hpp"
#include "store.hpp"
#include "work.hpp"

namespace ferrocomm {

// The same communicator, whose operations are only started. It borrows the communicator.
class AsyncFace : public Operations<AsyncFace, Work> {
 public:
  explicit AsyncFace(fc_comm* comm) noexcept : comm_(comm) {}

 private:
  friend class Operations<AsyncFace, Work>;
  fc_comm* get() const noexcept { return comm_; }

  template <class Function>
  Work finish(Function function) {
    fc_work* work = nullptr;
    detail::check(function(comm_, &work));
    return Work(work);
  }

  fc_comm* comm_;
};

// A communicator. Its own operations run until they are over; `async()` starts them.
class Communicator : public Operations<Communicator, void> {
 public:
  // Joins; every rank calls it. `store` is used until this returns.
  static Communicator create(const Options& options, Store& store) {
    if (fc_abi_version() != FC_ABI_VERSION) {
      throw Error(FC_ERR_UNSUPPORTED, "libferrocomm speaks another ABI than this header");
    }
    const auto hints = detail::to_hints(options.hints);
    const fc_comm_options raw = detail::to_raw(options, hints);
    const fc_store_table table = detail::table_of(store);
    fc_comm* comm = nullptr;
    detail::check(fc_comm_create(&raw, &table, &comm));
    return Communicator(comm);
  }

  // One without members, which `reconfigure` gives it. Talks to nobody.
  static Communicator unconfigured(const Options& options) {
    const auto hints = detail::to_hints(options.hints);
    const fc_comm_options raw = detail::to_raw(options, hints);
    fc_comm* comm = nullptr;
    detail::check(fc_comm_create_unconfigured(&raw, &comm));
    return Communicator(comm);
  }

  // By what the members of the next group reach this communicator.
  std::string init_handle() const {
    return detail::text([&](fc_string** out) { return fc_comm_init_handle(get(), out); });
  }
  // Meets them; returns when all have come, and throws on all that have when some do not.
  void reconfigure(const ReconfigureOptions& options) { start_reconfigure(options, nullptr); }
  // Begins to.
  Work reconfigure_async(const ReconfigureOptions& options) {
    fc_work* work = nullptr;
    start_reconfigure(options, &work);
    return Work(work);
  }

  // Takes over a handle.
  explicit Communicator(fc_comm* handle) noexcept : handle_(handle) {}

  // The communicator of `ranks`; holds none (see `operator bool`) on a rank that is not among them.
  Communicator split(Span<const std::int32_t> ranks, const std::string& name,
                     Nanoseconds timeout = Nanoseconds(0)) {
    fc_comm* child = nullptr;
    detail::check(
        fc_comm_split(get(), ranks.data(), ranks.size(), name.c_str(), timeout.count(), &child));
    return Communicator(child);
  }

  // As above, with the name, the time-out and the hints of `options`; nothing else of them is read.
  Communicator split(Span<const std::int32_t> ranks, const Options& options) {
    const auto hints = detail::to_hints(options.hints);
    const fc_comm_options raw = detail::to_raw(options, hints);
    fc_comm* child = nullptr;
    detail::check(fc_comm_split_with(get(), ranks.data(), ranks.size(), &raw, &child));
    return Communicator(child);
  }

  AsyncFace async() noexcept { return AsyncFace(get()); }

  explicit operator bool() const noexcept { return handle_ != nullptr; }
  std::int32_t rank() const noexcept { return fc_comm_rank(get()); }
  std::int32_t size() const noexcept { return fc_comm_size(get()); }
  std::string name() const { return fc_comm_name(get()); }
  std::string backend() const { return fc_comm_backend(get()); }
  std::string state() const {
    const char* state = nullptr;
    detail::check(fc_comm_state(get(), &state));
    return state;
  }
  // Why it has failed; empty when it has not.
  std::string error() const {
    return detail::text([&](fc_string** out) { return fc_comm_error(get(), out); });
  }
  // As JSON.
  std::string info() const {
    return detail::text([&](fc_string** out) { return fc_comm_info(get(), out); });
  }
  std::uint64_t sequence() const noexcept { return fc_comm_sequence(get()); }
  Nanoseconds timeout() const {
    std::int64_t nanoseconds = 0;
    detail::check(fc_comm_timeout(get(), &nanoseconds));
    return Nanoseconds(nanoseconds);
  }
  void set_timeout(Nanoseconds timeout) {
    detail::check(fc_comm_set_timeout(get(), timeout.count()));
  }
  // Until what was started asynchronously is over, whatever came of it.
  void wait_pending() { detail::check(fc_comm_wait_pending(get())); }
  void finalize() { detail::check(fc_comm_finalize(get())); }
  void abort() { detail::check(fc_comm_abort(get())); }

  fc_comm* get() const noexcept { return handle_.get(); }

 private:
  friend class Operations<Communicator, void>;

  void start_reconfigure(const ReconfigureOptions& options, fc_work** work) {
    std::vector<const char*> handles;
    for (const auto& handle : options.handles) handles.push_back(handle.c_str());
    const auto hints = detail::to_hints(options.hints);
    fc_reconfigure_options raw;
    fc_reconfigure_options_init(&raw);
    raw.uuid = options.uuid;
    raw.handles = handles.data();
    raw.handle_count = handles.size();
    raw.ordered = options.ordered ? 1 : 0;
    raw.timeout_ns = options.timeout.count();
    raw.hints = hints.data();
    raw.hint_count = hints.size();
    detail::check(fc_comm_reconfigure(get(), &raw, work));
  }

  template <class Function>
  void finish(Function function) {
    detail::check(function(get(), nullptr));
  }

  detail::OwnedComm handle_;
};

}  // namespace ferrocomm

#endif  // FERROCOMM_COMMUNICATOR_HPP
