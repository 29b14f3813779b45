// What a communicator holds beside its operations: registered memory, memory that it can give up
// for a while, and what the library below knows it under. Must not know pools or Python.

#include "comm.hpp"

namespace ferrocomm {

void TorchComm::register_memory(uintptr_t address, size_t bytes, std::shared_ptr<void> owner) {
  require_engine("register_mem_pool");
  GilReleased released;
  std::lock_guard<std::mutex> lock(memory_mutex_);
  if (registered_.contains(address)) return;
  check(fc_comm_register(handle(), reinterpret_cast<const void*>(address), bytes));
  registered_.emplace(address, Registered{{}, std::move(owner)});
}

size_t TorchComm::deregister_memory(const std::function<bool(void* owner)>& belongs) {
  std::vector<std::shared_ptr<void>> dropped;  // with no lock held: an owner may want the GIL
  GilReleased released;
  std::lock_guard<std::mutex> lock(memory_mutex_);
  for (auto known = registered_.begin(); known != registered_.end();) {
    if (!known->second.owner || !belongs(known->second.owner.get())) {
      ++known;
      continue;
    }
    check(fc_comm_deregister(handle(), reinterpret_cast<const void*>(known->first)));
    dropped.push_back(std::move(known->second.owner));
    known = registered_.erase(known);
  }
  return dropped.size();
}

void TorchComm::forget_memory() {
  std::unordered_map<uintptr_t, Registered> dropped;
  std::lock_guard<std::mutex> lock(memory_mutex_);
  std::swap(dropped, registered_);
}

void TorchComm::suspend() {
  require_engine("suspend");
  check(without_gil([this] { return fc_comm_suspend(handle()); }));
}

void TorchComm::resume() {
  require_engine("resume");
  check(without_gil([this] { return fc_comm_resume(handle()); }));
}

std::unordered_map<std::string, uint64_t> TorchComm::memory_stats() const {
  require_engine("memory_stats");
  fc_memory_use use{};
  use.size = sizeof(use);
  check(without_gil([&] { return fc_comm_memory_use(handle(), &use); }));
  return {{"suspend", use.suspendable},
          {"suspended", use.suspended},
          {"persist", use.persistent},
          {"total", use.total}};
}

uintptr_t TorchComm::native() const {
  require_engine("get_nccl_comm_ptr");
  void* native = nullptr;
  check(fc_comm_native(handle(), &native));
  return reinterpret_cast<uintptr_t>(native);
}

}  // namespace ferrocomm
