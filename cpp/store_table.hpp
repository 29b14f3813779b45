// A c10d::Store for the engine. Must not know what is kept in it.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ferrocomm.h"

namespace ferrocomm {

/// A table over `store`, which it keeps alive until the engine calls `release`. Null gives a table
/// whose calls fail, for a communicator of one rank, which makes none.
fc_store_table store_table(const c10::intrusive_ptr<c10d::Store>& store);

}  // namespace ferrocomm
