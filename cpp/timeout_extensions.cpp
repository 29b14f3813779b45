// Who has which extension, and until when. Must not know clocks.

#include "timeout_extensions.hpp"

#include <algorithm>

#include "comm.hpp"
#include "time_limit.hpp"

namespace ferrocomm {

void TimeoutExtensions::add(std::chrono::milliseconds extension) {
  if (extension.count() <= 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  extensions_.push_back({within_limits(extension), nullptr});
  watchers_.come();
}

void TimeoutExtensions::apply(const TorchComm& comm, const std::shared_ptr<OperationState>& state,
                              std::chrono::milliseconds& timeout) {
  const auto usual = comm.timeout();
  const auto ended = take_ended();  // dropped after the lock: its tensors may want the GIL
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& extension : extensions_) {
    if (timeout.count() <= 0) timeout = usual;
    timeout = within_limits(timeout) + extension.by;
    if (!extension.first) extension.first = state;
  }
}

std::vector<TimeoutExtensions::Extension> TimeoutExtensions::take_ended() {
  std::vector<std::shared_ptr<OperationState>> firsts;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& extension : extensions_) firsts.push_back(extension.first);
  }
  // Looking at an operation may finish it, which nothing may be locked for.
  std::erase_if(firsts, [](const auto& first) { return !first || !first->is_complete(); });
  std::vector<Extension> ended;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto is_over = [&](const Extension& extension) {
    return std::find(firsts.begin(), firsts.end(), extension.first) != firsts.end();
  };
  std::copy_if(extensions_.begin(), extensions_.end(), std::back_inserter(ended), is_over);
  std::erase_if(extensions_, is_over);
  watchers_.go(ended.size());
  return ended;
}

}  // namespace ferrocomm
