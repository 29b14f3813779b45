// Hints that the shim itself understands. Must not know those of the engine, which checks its own.
#pragma once

#include <string>
#include <unordered_map>

#include "errors.hpp"

namespace ferrocomm {

using HintMap = std::unordered_map<std::string, std::string>;

/// Windows move their tensors to memory that the ranks of a machine share.
inline constexpr const char* kShareMemory = "share_memory";

/// Whether `hints` have kShareMemory, and want it. Raises ValueError for a value that is none.
bool wants_shared_memory(const Site& site, const HintMap& hints);

}  // namespace ferrocomm
