// Windows: memory of each rank that the others write to and read without its doing. Must not know
// how they reach it, and owns none of it.
#ifndef FERROCOMM_WINDOW_HPP
#define FERROCOMM_WINDOW_HPP

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "communicator.hpp"
#include "elements.hpp"
#include "error.hpp"
#include "options.hpp"
#include "work.hpp"

namespace ferrocomm {

namespace detail {

using OwnedWindow = Owned<fc_window, fc_window_destroy>;

}  // namespace detail

// `count` elements that a backend can share between the ranks of a machine, or register. They hold
// no values until they are written.
template <class T>
class SharedMemory {
  static_assert(std::is_trivial_v<T>, "nobody constructs or destroys the elements");

 public:
  explicit SharedMemory(std::size_t count, std::string backend = "host")
      : backend_(std::move(backend)), size_(count) {
    if (count > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
    void* memory = nullptr;
    detail::check(fc_mem_alloc(backend_.c_str(), count * sizeof(T), &memory));
    data_ = static_cast<T*>(memory);
  }
  SharedMemory(SharedMemory&& other) noexcept
      : backend_(std::move(other.backend_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~SharedMemory() {
    // Only memory that is not the allocator's is refused.
    if (data_ != nullptr) static_cast<void>(fc_mem_free(backend_.c_str(), data_));
  }

  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  T& operator[](std::size_t index) noexcept { return data_[index]; }
  const T& operator[](std::size_t index) const noexcept { return data_[index]; }

 private:
  std::string backend_;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// What one rank does to the window of another, once for both ways of calling it, as `Operations`.
// Offsets count elements from the begin of the other's window.
template <class Face, class Result>
class WindowOperations {
 public:
  Result put(const void* source, std::size_t count, fc_dtype dtype, std::int32_t dst,
             std::size_t offset = 0, const OpOptions& options = {}) {
    return call(options, [=](auto window, auto opts, auto work) {
      return fc_window_put(window, source, count, dtype, dst, offset, opts, work);
    });
  }
  template <class T>
  Result put(Span<T> source, std::int32_t dst, std::size_t offset = 0,
             const OpOptions& options = {}) {
    return put(source.data(), source.size(), dtype_of<T>, dst, offset, options);
  }

  // `put` and `signal` in one call.
  Result put_signal(const void* source, std::size_t count, fc_dtype dtype, std::int32_t dst,
                    std::size_t offset = 0, const OpOptions& options = {}) {
    return call(options, [=](auto window, auto opts, auto work) {
      return fc_window_put_signal(window, source, count, dtype, dst, offset, opts, work);
    });
  }
  template <class T>
  Result put_signal(Span<T> source, std::int32_t dst, std::size_t offset = 0,
                    const OpOptions& options = {}) {
    return put_signal(source.data(), source.size(), dtype_of<T>, dst, offset, options);
  }

  Result get(void* target, std::size_t count, fc_dtype dtype, std::int32_t src,
             std::size_t offset = 0, const OpOptions& options = {}) {
    return call(options, [=](auto window, auto opts, auto work) {
      return fc_window_get(window, target, count, dtype, src, offset, opts, work);
    });
  }
  template <class T>
  Result get(Span<T> target, std::int32_t src, std::size_t offset = 0,
             const OpOptions& options = {}) {
    return get(target.data(), target.size(), dtype_of<T>, src, offset, options);
  }

  // Gives rank `dst` a signal, behind what this rank put there.
  Result signal(std::int32_t dst, const OpOptions& options = {}) {
    return call(options, [=](auto window, auto opts, auto work) {
      return fc_window_signal(window, dst, opts, work);
    });
  }
  // Takes one signal of rank `src`.
  Result wait_signal(std::int32_t src, const OpOptions& options = {}) {
    return call(options, [=](auto window, auto opts, auto work) {
      return fc_window_wait_signal(window, src, opts, work);
    });
  }

 private:
  template <class Function>
  Result call(const OpOptions& options, Function function) {
    const detail::RawOpOptions raw(options);
    return static_cast<Face&>(*this).finish(
        [&](fc_window* window, fc_work** work) { return function(window, raw.get(), work); });
  }
};

// The same window, whose operations are only started. It borrows the window.
class AsyncWindow : public WindowOperations<AsyncWindow, Work> {
 public:
  explicit AsyncWindow(fc_window* window) noexcept : window_(window) {}

 private:
  friend class WindowOperations<AsyncWindow, Work>;

  template <class Function>
  Work finish(Function function) {
    fc_work* work = nullptr;
    detail::check(function(window_, &work));
    return Work(work);
  }

  fc_window* window_;
};

// A window. Its own operations run until they are over; `async()` starts them. It may outlive its
// communicator. Let go of without `deregister`, the memory must stay until the communicator ended.
class Window : public WindowOperations<Window, void> {
 public:
  // Every rank calls it, in order with its collectives; ranks may give different lengths.
  Window(const Communicator& comm, void* memory, std::size_t bytes, const OpOptions& options = {}) {
    const detail::RawOpOptions raw(options);
    fc_window* window = nullptr;
    detail::check(fc_window_create(comm.get(), memory, bytes, raw.get(), &window));
    handle_.reset(window);
  }
  template <class T>
  Window(const Communicator& comm, Span<T> memory, const OpOptions& options = {})
      : Window(comm, memory.data(), memory.size() * sizeof(T), options) {}

  // Takes over a handle.
  explicit Window(fc_window* handle) noexcept : handle_(handle) {}

  AsyncWindow async() noexcept { return AsyncWindow(handle()); }

  // Of the window of rank `rank`.
  std::size_t bytes(std::int32_t rank) const noexcept { return fc_window_bytes(handle(), rank); }
  // Whether `map` works for that rank.
  bool is_unified(std::int32_t rank) const {
    fc_window_access access = FC_WINDOW_SEPARATE;
    detail::check(fc_window_access_of(handle(), rank, &access));
    return access == FC_WINDOW_UNIFIED;
  }
  // The memory of that rank, not a copy. Valid as long as this.
  template <class T>
  Span<T> map(std::int32_t rank) {
    void* memory = nullptr;
    detail::check(fc_window_map(handle(), rank, &memory));
    return Span<T>(static_cast<T*>(memory), bytes(rank) / sizeof(T));
  }
  // Ends the window; every rank calls it, in order with its collectives.
  void deregister(const OpOptions& options = {}) {
    const detail::RawOpOptions raw(options);
    detail::check(fc_window_deregister(handle(), raw.get()));
  }

  fc_window* handle() const noexcept { return handle_.get(); }

 private:
  friend class WindowOperations<Window, void>;

  template <class Function>
  void finish(Function function) {
    detail::check(function(handle(), nullptr));
  }

  detail::OwnedWindow handle_;
};

}  // namespace ferrocomm

#endif  // FERROCOMM_WINDOW_HPP
