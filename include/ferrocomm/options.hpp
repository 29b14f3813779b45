// What is optional when a communicator is made or an operation called. Plain values; must not know
// handles.
#ifndef FERROCOMM_OPTIONS_HPP
#define FERROCOMM_OPTIONS_HPP

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"

namespace ferrocomm {

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
  std::vector<std::pair<std::string, std::string>> hints;
};

namespace detail {

// They borrow the texts of `hints`.
inline std::vector<fc_hint> to_hints(
    const std::vector<std::pair<std::string, std::string>>& hints) {
  std::vector<fc_hint> raw;
  for (const auto& [key, value] : hints) raw.push_back({key.c_str(), value.c_str()});
  return raw;
}

// What the C ABI takes for one operation. Borrows `options`.
class RawOpOptions {
 public:
  explicit RawOpOptions(const OpOptions& options) : hints_(to_hints(options.hints)) {
    fc_op_options_init(&raw_);
    raw_.timeout_ns = options.timeout.count();
    raw_.premul_factor = options.premul_factor;
    raw_.hints = hints_.data();
    raw_.hint_count = hints_.size();
  }
  RawOpOptions(const RawOpOptions&) = delete;
  RawOpOptions& operator=(const RawOpOptions&) = delete;

  const fc_op_options* get() const noexcept { return &raw_; }

 private:
  std::vector<fc_hint> hints_;
  fc_op_options raw_;
};

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

}  // namespace detail

}  // namespace ferrocomm

#endif  // FERROCOMM_OPTIONS_HPP
