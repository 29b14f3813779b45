// What the bridge knows of a c10d::Store: three calls that cannot throw.
//
// Compiled by cargo too, so it must not include torch: the store itself hides behind `Store`,
// which cpp/store_adapter.cpp defines.
#pragma once

#include <cstdint>
#include <memory>

#include "rust/cxx.h"

struct fc_store_table;  // ferrocomm.h; only pointers cross here

namespace ferrocomm {

struct StoreReply;  // shared with Rust, defined by the generated header

class StoreAdapter {
 public:
  class Store;

  explicit StoreAdapter(std::unique_ptr<Store> store) noexcept;
  ~StoreAdapter();

  /// Stores `value` under `key`.
  StoreReply set(rust::Slice<const uint8_t> key, rust::Slice<const uint8_t> value) const noexcept;
  /// Waits at most `timeout_ns` nanoseconds for `key` and answers with its value.
  StoreReply get(rust::Slice<const uint8_t> key, int64_t timeout_ns) const noexcept;
  /// Removes `key`.
  StoreReply remove(rust::Slice<const uint8_t> key) const noexcept;

 private:
  std::unique_ptr<Store> store_;
};

}  // namespace ferrocomm
