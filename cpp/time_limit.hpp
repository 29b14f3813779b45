// Time-outs as clients give them, cut to what can be counted. Must not know what they limit.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace ferrocomm {

/// 100 years. What is longer is as long: any clock and one more of these still fit into 64 bits of
/// nanoseconds.
inline constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 36500);

/// `timeout`, and no more than can be counted.
inline constexpr std::chrono::milliseconds within_limits(std::chrono::milliseconds timeout) {
  return std::clamp(timeout, -kLongest, kLongest);
}

/// For the engine, which refuses what is negative.
inline constexpr int64_t to_ns(std::chrono::milliseconds timeout) {
  return std::chrono::nanoseconds(within_limits(timeout)).count();
}

}  // namespace ferrocomm
