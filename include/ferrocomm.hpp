// ferrocomm.hpp: the C ABI as C++17 values. Header-only; no torch.
//
// Owning classes are move-only and give their handle back when they go. A failure is an exception
// of class Error with its status. What the C header says about threads, buffers and order holds
// here too. This header must not know what it is used for.
#ifndef FERROCOMM_HPP
#define FERROCOMM_HPP

#include <cstddef>
#include <string>

#include "ferrocomm/batch.hpp"
#include "ferrocomm/communicator.hpp"
#include "ferrocomm/elements.hpp"
#include "ferrocomm/error.hpp"
#include "ferrocomm/options.hpp"
#include "ferrocomm/store.hpp"
#include "ferrocomm/window.hpp"
#include "ferrocomm/work.hpp"

namespace ferrocomm {

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
