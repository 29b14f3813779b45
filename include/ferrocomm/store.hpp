// The store through which ranks find one another, written by the client. Must not know what the
// engine keeps in it.
#ifndef FERROCOMM_STORE_HPP
#define FERROCOMM_STORE_HPP

#include <cstdint>
#include <exception>
#include <string_view>
#include <vector>

#include "elements.hpp"
#include "error.hpp"

namespace ferrocomm {

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

}  // namespace ferrocomm

#endif  // FERROCOMM_STORE_HPP
