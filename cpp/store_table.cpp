// The calls of a c10d::Store that the bridge makes, with every failure as a value.
//
// The type of an exception does not say what happened: a time-out is a DistStoreError from TCPStore
// and HashStore, a plain c10::Error from FileStore, and whatever a store written in Python raises.
// Must not know what is kept there.

#include "store_table.hpp"

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <string>
#include <thread>

#include "ferrocomm-torch-bridge/src/lib.rs.h"
#include "python_runtime.hpp"
#include "store_adapter.hpp"

namespace py = pybind11;

namespace ferrocomm {

class StoreAdapter::Store {
 public:
  explicit Store(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  c10d::Store& get() const {
    TORCH_CHECK(store_.defined(), "the communicator was made without a store");
    return *store_;
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

StoreAdapter::StoreAdapter(std::unique_ptr<Store> store) noexcept : store_(std::move(store)) {}
StoreAdapter::~StoreAdapter() = default;

namespace {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kShortestPause{200};
constexpr Milliseconds kLongestPause{100};

StoreReply failed(fc_status status, const std::string& text) {
  StoreReply reply{};
  reply.kind = status;
  reply.message = rust::String::lossy(text);  // other constructors throw on invalid UTF-8
  return reply;
}

bool speaks_of_timeout(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text.find("timeout") != std::string::npos || text.find("timed out") != std::string::npos ||
         text.find("time-out") != std::string::npos;
}

StoreReply classified(const std::string& text) {
  return failed(speaks_of_timeout(text) ? FC_ERR_STORE_TIMEOUT : FC_ERR_STORE, text);
}

// Text of any object, whatever its __str__ does and whatever characters it holds.
std::string printable(py::handle object) {
  const auto text = py::reinterpret_steal<py::object>(PyObject_Str(object.ptr()));
  const auto bytes = py::reinterpret_steal<py::object>(
      text ? PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace") : nullptr);
  if (!bytes) {
    PyErr_Clear();
    return "(text that cannot be shown)";
  }
  return std::string(PyBytes_AS_STRING(bytes.ptr()),
                     static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr())));
}

// The exception must not outlive the GIL taken here, so it is consumed.
StoreReply python_failure(py::error_already_set&& raised) {
  py::gil_scoped_acquire gil;
  const py::error_already_set error(std::move(raised));
  const std::string text =
      printable(error.type().attr("__name__")) + ": " + printable(error.value());
  if (!PyErr_GivenExceptionMatches(error.type().ptr(), PyExc_Exception)) {
    set_interrupt(std::make_exception_ptr(error));  // KeyboardInterrupt, SystemExit
    return failed(FC_ERR_STORE, text);
  }
  if (error.matches(PyExc_TimeoutError)) return failed(FC_ERR_STORE_TIMEOUT, text);
  if (error.matches(PyExc_ConnectionError) || text.rfind("DistNetworkError", 0) == 0) {
    return failed(FC_ERR_STORE_DISCONNECTED, text);
  }
  return classified(text);
}

template <typename F>
StoreReply guarded(F&& call) noexcept {
  try {
    return call();
  } catch (py::error_already_set& error) {
    return python_failure(std::move(error));
  } catch (const c10::DistNetworkError& error) {
    return failed(FC_ERR_STORE_DISCONNECTED, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return classified(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return classified(error.what());
  }
}

std::string to_string(rust::Slice<const uint8_t> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

StoreReply value_of(c10d::Store& store, const std::string& key) {
  StoreReply reply{};
  const auto value = store.get(key);
  reply.value.reserve(value.size());
  for (const uint8_t byte : value) reply.value.push_back(byte);
  return reply;
}

// A store written in Python may leave a call out.
bool left_out(const StoreReply& reply) {
  return reply.kind == FC_ERR_STORE &&
         std::string(reply.message).find("pure virtual function") != std::string::npos;
}

// For a store without `check`; one without `wait` too waits in its `get`.
StoreReply wait_once(c10d::Store& store, const std::string& key, Clock::duration limit) {
  StoreReply reply = guarded([&] {
    store.wait({key}, std::chrono::ceil<Milliseconds>(limit));
    return StoreReply{};
  });
  return left_out(reply) ? StoreReply{} : reply;
}

// Asks again and again, because the store's own wait holds its connection to the end: another
// thread's `set`, which the awaited peer may itself be waiting for, could not pass, nor could
// Ctrl-C; and TCPStore prints warnings when a short wait ends.
StoreReply wait_for(c10d::Store& store, const std::string& key, Clock::duration limit) {
  const auto start = Clock::now();
  for (;;) {
    bool there = false;
    StoreReply reply = guarded([&] {
      there = store.check({key});
      return StoreReply{};
    });
    if (left_out(reply)) return wait_once(store, key, limit);
    if (there || reply.kind != FC_OK) return reply;
    if (interrupted()) return failed(FC_ERR_STORE, "interrupted while waiting for the store");
    const auto waited = Clock::now() - start;
    if (waited >= limit) {
      const auto shown = std::chrono::ceil<Milliseconds>(limit).count();
      return failed(FC_ERR_STORE_TIMEOUT,
                    "the store had no key " + key + " within " + std::to_string(shown) + " ms");
    }
    // An eighth of the time so far: little is added to a wait of any length.
    const auto pause = std::clamp<Clock::duration>(waited / 8, kShortestPause, kLongestPause);
    std::this_thread::sleep_for(std::min(pause, limit - waited));
  }
}

}  // namespace

StoreReply StoreAdapter::set(rust::Slice<const uint8_t> key,
                             rust::Slice<const uint8_t> value) const noexcept {
  return guarded([&] {
    store_->get().set(to_string(key), std::vector<uint8_t>(value.begin(), value.end()));
    return StoreReply{};
  });
}

StoreReply StoreAdapter::get(rust::Slice<const uint8_t> key, int64_t timeout_ns) const noexcept {
  return guarded([&] {
    const std::chrono::nanoseconds limit(timeout_ns);
    const std::string name = to_string(key);
    StoreReply waited = wait_for(store_->get(), name, limit);
    if (waited.kind != FC_OK) return waited;
    return value_of(store_->get(), name);
  });
}

StoreReply StoreAdapter::remove(rust::Slice<const uint8_t> key) const noexcept {
  return guarded([&] {
    store_->get().deleteKey(to_string(key));
    return StoreReply{};
  });
}

fc_store_table store_table(const c10::intrusive_ptr<c10d::Store>& store) {
  auto held = std::make_unique<StoreAdapter::Store>(store);
  fc_store_table table{};
  fill_store_table(std::make_unique<StoreAdapter>(std::move(held)), &table);
  return table;
}

}  // namespace ferrocomm
