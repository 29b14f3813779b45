// Owners of the C ABI's handles. Must not know torch or Python.
#pragma once

#include <memory>
#include <string>

#include "ferrocomm.h"

namespace ferrocomm {

template <auto kDestroy>
struct Destroy {
  template <typename T>
  void operator()(T* handle) const noexcept {
    kDestroy(handle);
  }
};

using WorkHandle = std::unique_ptr<fc_work, Destroy<fc_work_destroy>>;
using BatchHandle = std::unique_ptr<fc_batch, Destroy<fc_batch_destroy>>;
using StringHandle = std::unique_ptr<fc_string, Destroy<fc_string_destroy>>;

/// Shared, because works keep their communicator alive. Made by `own_comm` in comm.cpp alone.
using CommHandle = std::shared_ptr<fc_comm>;

/// Takes over `text` and returns its content; empty for NULL.
inline std::string take_string(fc_string* text) {
  StringHandle owner(text);
  return text ? std::string(fc_string_data(text), fc_string_len(text)) : std::string();
}

}  // namespace ferrocomm
