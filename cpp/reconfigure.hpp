// Communicators whose members change: handles, uuids and lists as torch and Python have them. Must
// not know how members meet.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "comm.hpp"

namespace ferrocomm {

/// A list: the rank is the position. A set: the engine chooses.
using InitHandles = std::variant<std::unordered_set<std::string>, std::vector<std::string>>;

/// What the next group of a communicator is to be; the same on all members.
struct ReconfigureOptions {
  /// never used before on this communicator
  int64_t uuid = 0;
  InitHandles init_handles;
  /// unset: the communicator's
  std::optional<std::chrono::milliseconds> timeout;
  std::optional<std::unordered_map<std::string, std::string>> hints;
};

/// A communicator without members. Talks to nobody; rank and size of `spec` are the launcher's.
std::shared_ptr<TorchComm> create_unconfigured(const CommSpec& spec);

/// By what the others reach this communicator.
std::string init_handle(const TorchComm& comm);

/// Starts to meet the members of the next group. `configured` runs once the work is seen to have
/// succeeded, on the thread that sees it.
WorkPtr reconfigure(TorchComm& comm, const ReconfigureOptions& options,
                    std::function<void()> configured = {});

}  // namespace ferrocomm
