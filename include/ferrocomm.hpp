// ferrocomm.hpp: the C ABI as C++17 values. Header-only; no torch.
//
// Owning classes are move-only and give their handle back when they go. A failure is an exception
// of class Error with its status. What the C header says about threads, buffers and order holds
// here too. This header must not know what it is used for.
#ifndef FERROCOMM_HPP
#define FERROCOMM_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ferrocomm.h"

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

// Elements that somebody else owns. Made from anything with data() and size().
template <class T>
class Span {
 public:
  Span() noexcept = default;
  Span(T* data, std::size_t size) noexcept : data_(data), size_(size) {}
  template <class Container, class = decltype(std::declval<Container&>().data())>
  Span(Container& container) noexcept : data_(container.data()), size_(container.size()) {}

  T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// The dtype of a C++ type; types without one do not compile.
template <class T>
struct DtypeOf;
template <>
struct DtypeOf<std::uint8_t> {
  static constexpr fc_dtype value = FC_DTYPE_UINT8;
};
template <>
struct DtypeOf<std::int8_t> {
  static constexpr fc_dtype value = FC_DTYPE_INT8;
};
template <>
struct DtypeOf<std::uint16_t> {
  static constexpr fc_dtype value = FC_DTYPE_UINT16;
};
template <>
struct DtypeOf<std::int16_t> {
  static constexpr fc_dtype value = FC_DTYPE_INT16;
};
template <>
struct DtypeOf<std::uint32_t> {
  static constexpr fc_dtype value = FC_DTYPE_UINT32;
};
template <>
struct DtypeOf<std::int32_t> {
  static constexpr fc_dtype value = FC_DTYPE_INT32;
};
template <>
struct DtypeOf<std::uint64_t> {
  static constexpr fc_dtype value = FC_DTYPE_UINT64;
};
template <>
struct DtypeOf<std::int64_t> {
  static constexpr fc_dtype value = FC_DTYPE_INT64;
};
template <>
struct DtypeOf<float> {
  static constexpr fc_dtype value = FC_DTYPE_FLOAT32;
};
template <>
struct DtypeOf<double> {
  static constexpr fc_dtype value = FC_DTYPE_FLOAT64;
};
template <>
struct DtypeOf<bool> {
  static constexpr fc_dtype value = FC_DTYPE_BOOL;
};

template <class T>
inline constexpr fc_dtype dtype_of = DtypeOf<std::remove_cv_t<T>>::value;

// How a communicator is made. A time-out of zero means the default.
struct Options {
  std::string name;
  std::int32_t rank = 0;
  std::int32_t size = 1;
  std::string backend = "host";
  Nanoseconds timeout{0};
  std::vector<std::pair<std::string, std::string>> hints;
};

// What the next group of a communicator is to be; the same on all members.
struct ReconfigureOptions {
  // never used before on this communicator
  std::int64_t uuid = 0;
  // what `init_handle` of each member says
  std::vector<std::string> handles;
  // whether the rank is the position; otherwise the engine chooses
  bool ordered = true;
  Nanoseconds timeout{0};
  std::vector<std::pair<std::string, std::string>> hints;
};

// Optional arguments of one operation.
struct OpOptions {
  Nanoseconds timeout{0};
  double premul_factor = 1.0;

  fc_op_options raw() const noexcept {
    fc_op_options options;
    fc_op_options_init(&options);
    options.timeout_ns = timeout.count();
    options.premul_factor = premul_factor;
    return options;
  }
};

// A key-value store through which ranks find one another. Calls come from one thread at a time.
// A failure is thrown: Error with FC_ERR_STORE_TIMEOUT or FC_ERR_STORE_DISCONNECTED where that is
// what happened, anything else counts as FC_ERR_STORE.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(std::string_view key, Span<const std::uint8_t> value) = 0;
  // Waits for the key, at most `timeout`.
  virtual std::vector<std::uint8_t> get(std::string_view key, Nanoseconds timeout) = 0;
  virtual void remove(std::string_view key) = 0;
};

namespace detail {

// They borrow the texts of `hints`.
inline std::vector<fc_hint> to_hints(
    const std::vector<std::pair<std::string, std::string>>& hints) {
  std::vector<fc_hint> raw;
  for (const auto& [key, value] : hints) raw.push_back({key.c_str(), value.c_str()});
  return raw;
}

// They borrow both.
inline fc_comm_options to_raw(const Options& options, const std::vector<fc_hint>& hints) {
  fc_comm_options raw;
  fc_comm_options_init(&raw);
  raw.backend = options.backend.c_str();
  raw.name = options.name.c_str();
  raw.rank = options.rank;
  raw.comm_size = options.size;
  raw.timeout_ns = options.timeout.count();
  raw.hints = hints.data();
  raw.hint_count = hints.size();
  return raw;
}

// Runs `body` where nothing may be thrown and hands its failure to the sink.
template <class Body>
fc_status answer(fc_store_sink sink, void* sink_ctx, Body body) noexcept {
  const auto fail = [&](fc_status status, std::string_view text) {
    sink(sink_ctx, nullptr, 0, text.data(), text.size());
    return status;
  };
  try {
    body();
    return FC_OK;
  } catch (const Error& error) {
    return fail(error.status(), error.what());
  } catch (const std::exception& error) {
    return fail(FC_ERR_STORE, error.what());
  } catch (...) {
    return fail(FC_ERR_STORE, "the store threw something that is not a std::exception");
  }
}

inline fc_status store_set(void* ctx, const char* key, std::size_t key_len,
                           const std::uint8_t* value, std::size_t value_len, fc_store_sink sink,
                           void* sink_ctx) noexcept {
  return answer(sink, sink_ctx,
                [&] { static_cast<Store*>(ctx)->set({key, key_len}, {value, value_len}); });
}

inline fc_status store_get(void* ctx, const char* key, std::size_t key_len, std::int64_t timeout_ns,
                           fc_store_sink sink, void* sink_ctx) noexcept {
  return answer(sink, sink_ctx, [&] {
    const auto value = static_cast<Store*>(ctx)->get({key, key_len}, Nanoseconds(timeout_ns));
    sink(sink_ctx, value.data(), value.size(), nullptr, 0);
  });
}

inline fc_status store_remove(void* ctx, const char* key, std::size_t key_len, fc_store_sink sink,
                              void* sink_ctx) noexcept {
  return answer(sink, sink_ctx, [&] { static_cast<Store*>(ctx)->remove({key, key_len}); });
}

// A table that borrows `store`.
inline fc_store_table table_of(Store& store) noexcept {
  fc_store_table table{};
  table.size = sizeof table;
  table.ctx = &store;
  table.set = &store_set;
  table.get = &store_get;
  table.remove = &store_remove;
  return table;
}

}  // namespace detail

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

// The operations, once for both ways of calling them: `Face` says on which communicator and what
// becomes of a call. `Result` is void (runs and throws) or Work (starts).
template <class Face, class Result>
class Operations {
 public:
  Result broadcast(void* buffer, std::size_t count, fc_dtype dtype, std::int32_t root,
                   const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_broadcast(comm, buffer, count, dtype, root, opts, work);
    });
  }
  template <class T>
  Result broadcast(Span<T> buffer, std::int32_t root, const OpOptions& options = {}) {
    return broadcast(buffer.data(), buffer.size(), dtype_of<T>, root, options);
  }

  Result all_reduce(const void* input, void* output, std::size_t count, fc_dtype dtype,
                    fc_reduce_op op, const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_all_reduce(comm, input, output, count, dtype, op, opts, work);
    });
  }
  // In place.
  template <class T>
  Result all_reduce(Span<T> buffer, fc_reduce_op op, const OpOptions& options = {}) {
    return all_reduce(buffer.data(), buffer.data(), buffer.size(), dtype_of<T>, op, options);
  }

  Result reduce(const void* input, void* output, std::size_t count, fc_dtype dtype, fc_reduce_op op,
                std::int32_t root, const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_reduce(comm, input, output, count, dtype, op, root, opts, work);
    });
  }

  Result all_gather(const void* input, void* output, std::size_t count, fc_dtype dtype,
                    const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_all_gather(comm, input, output, count, dtype, opts, work);
    });
  }
  // `output` holds one `input` per rank.
  template <class T>
  Result all_gather(Span<const T> input, Span<T> output, const OpOptions& options = {}) {
    require(output.size() == input.size() * ranks(), "output is not one input per rank");
    return all_gather(input.data(), output.data(), input.size(), dtype_of<T>, options);
  }

  // Lists hold one entry per rank.
  Result all_gather_v(const void* input, Span<void* const> outputs, Span<const std::size_t> counts,
                      fc_dtype dtype, const OpOptions& options = {}) {
    require(outputs.size() == ranks() && counts.size() == ranks(), kLists);
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_all_gather_v(comm, input, outputs.data(), counts.data(), dtype, opts, work);
    });
  }

  Result reduce_scatter(const void* input, void* output, std::size_t count, fc_dtype dtype,
                        fc_reduce_op op, const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_reduce_scatter(comm, input, output, count, dtype, op, opts, work);
    });
  }

  // Lists hold one entry per rank.
  Result reduce_scatter_v(Span<const void* const> inputs, Span<const std::size_t> counts,
                          void* output, fc_dtype dtype, fc_reduce_op op,
                          const OpOptions& options = {}) {
    require(inputs.size() == ranks() && counts.size() == ranks(), kLists);
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_reduce_scatter_v(comm, inputs.data(), counts.data(), output, dtype, op, opts,
                                      work);
    });
  }

  Result all_to_all(const void* input, void* output, std::size_t count, fc_dtype dtype,
                    const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_all_to_all(comm, input, output, count, dtype, opts, work);
    });
  }

  // Lists hold one entry per rank.
  Result all_to_all_v(Span<const void* const> inputs, Span<const std::size_t> input_counts,
                      Span<void* const> outputs, Span<const std::size_t> output_counts,
                      fc_dtype dtype, const OpOptions& options = {}) {
    require(inputs.size() == ranks() && input_counts.size() == ranks() &&
                outputs.size() == ranks() && output_counts.size() == ranks(),
            kLists);
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_all_to_all_v(comm, inputs.data(), input_counts.data(), outputs.data(),
                                  output_counts.data(), dtype, opts, work);
    });
  }

  // `outputs` holds one entry per rank on the root and is empty elsewhere.
  Result gather(const void* input, std::size_t count, Span<void* const> outputs, fc_dtype dtype,
                std::int32_t root, const OpOptions& options = {}) {
    require(outputs.size() == (rank() == root ? ranks() : 0), kRootList);
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_gather(comm, input, count, outputs.data(), dtype, root, opts, work);
    });
  }

  // `inputs` holds one entry per rank on the root and is empty elsewhere.
  Result scatter(Span<const void* const> inputs, void* output, std::size_t count, fc_dtype dtype,
                 std::int32_t root, const OpOptions& options = {}) {
    require(inputs.size() == (rank() == root ? ranks() : 0), kRootList);
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_scatter(comm, inputs.data(), output, count, dtype, root, opts, work);
    });
  }

  Result send(const void* buffer, std::size_t count, fc_dtype dtype, std::int32_t dst,
              std::uint32_t tag = 0, const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_send(comm, buffer, count, dtype, dst, tag, opts, work);
    });
  }
  template <class T>
  Result send(Span<T> buffer, std::int32_t dst, std::uint32_t tag = 0,
              const OpOptions& options = {}) {
    return send(buffer.data(), buffer.size(), dtype_of<T>, dst, tag, options);
  }

  Result recv(void* buffer, std::size_t count, fc_dtype dtype, std::int32_t src,
              std::uint32_t tag = 0, const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_recv(comm, buffer, count, dtype, src, tag, opts, work);
    });
  }
  template <class T>
  Result recv(Span<T> buffer, std::int32_t src, std::uint32_t tag = 0,
              const OpOptions& options = {}) {
    return recv(buffer.data(), buffer.size(), dtype_of<T>, src, tag, options);
  }

  Result barrier(const OpOptions& options = {}) {
    return call(options,
                [](auto comm, auto opts, auto work) { return fc_comm_barrier(comm, opts, work); });
  }

 private:
  static constexpr const char* kLists = "a list does not have one entry per rank";
  static constexpr const char* kRootList = "the root gives one entry per rank, others give none";

  Face& face() noexcept { return static_cast<Face&>(*this); }
  std::int32_t rank() noexcept { return fc_comm_rank(face().get()); }
  std::size_t ranks() noexcept { return static_cast<std::size_t>(fc_comm_size(face().get())); }

  // The C ABI cannot see how long a list is, so this border does.
  static void require(bool holds, const char* text) {
    if (!holds) throw Error(FC_ERR_INVALID_ARGUMENT, text);
  }

  template <class Function>
  Result call(const OpOptions& options, Function function) {
    const fc_op_options raw = options.raw();
    return face().finish([&](fc_comm* comm, fc_work** work) { return function(comm, &raw, work); });
  }
};

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

// Sends and receives issued as one unit; one thread at a time.
class Batch {
 public:
  explicit Batch(const Communicator& comm) {
    fc_batch* batch = nullptr;
    detail::check(fc_batch_create(comm.get(), &batch));
    handle_.reset(batch);
  }

  template <class T>
  Batch& send(Span<T> buffer, std::int32_t dst, std::uint32_t tag = 0) {
    detail::check(fc_batch_send(get(), buffer.data(), buffer.size(), dtype_of<T>, dst, tag));
    return *this;
  }
  template <class T>
  Batch& recv(Span<T> buffer, std::int32_t src, std::uint32_t tag = 0) {
    detail::check(fc_batch_recv(get(), buffer.data(), buffer.size(), dtype_of<T>, src, tag));
    return *this;
  }

  // Issues what was added, waits for it, and empties the batch.
  void run(const OpOptions& options = {}) {
    const fc_op_options raw = options.raw();
    detail::check(fc_batch_issue(get(), &raw, nullptr));
  }
  // Issues what was added and empties the batch.
  Work start(const OpOptions& options = {}) {
    const fc_op_options raw = options.raw();
    fc_work* work = nullptr;
    detail::check(fc_batch_issue(get(), &raw, &work));
    return Work(work);
  }

  fc_batch* get() const noexcept { return handle_.get(); }

 private:
  detail::OwnedBatch handle_;
};

// What the library is, as JSON.
inline std::string engine_info() {
  return detail::text([](fc_string** out) { return fc_engine_info(out); });
}

// The flight recorder of this process, as JSON.
inline std::string recorder_dump(std::size_t max_entries = 0, bool only_active = false) {
  return detail::text(
      [&](fc_string** out) { return fc_recorder_dump(max_entries, only_active ? 1 : 0, out); });
}

}  // namespace ferrocomm

#endif  // FERROCOMM_HPP
