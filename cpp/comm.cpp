#include "comm.hpp"

#include <algorithm>
#include <mutex>

#include "store_table.hpp"

namespace ferrocomm {
namespace {

// Handles that live, for the end of the process alone.
struct Living {
  std::mutex mutex;
  std::vector<std::weak_ptr<fc_comm>> comms;
};

Living& living() {
  static auto* instance = new Living;
  return *instance;
}

CommHandle own_comm(fc_comm* comm) {
  // Destroying joins nothing of Python's, but what is aborted may complete futures that want it.
  CommHandle handle(comm, [](fc_comm* last) { without_gil([last] { fc_comm_destroy(last); }); });
  auto& all = living();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::erase_if(all.comms, [](const auto& weak) { return weak.expired(); });
  all.comms.push_back(handle);
  return handle;
}

std::vector<fc_hint> to_hints(const CommSpec& spec) {
  std::vector<fc_hint> hints;
  hints.reserve(spec.hints.size());
  for (const auto& [key, value] : spec.hints) hints.push_back({key.c_str(), value.c_str()});
  return hints;
}

int64_t to_ns(std::chrono::milliseconds timeout) {
  return std::max<int64_t>(0, std::chrono::nanoseconds(timeout).count());
}

}  // namespace

void abort_all_comms() noexcept {
  std::vector<CommHandle> comms;
  {
    auto& all = living();
    std::lock_guard<std::mutex> lock(all.mutex);
    for (const auto& weak : all.comms) {
      if (auto comm = weak.lock()) comms.push_back(std::move(comm));
    }
  }
  // Aborting what is finalized or aborted already is no error; another one has nobody to hear it.
  for (const auto& comm : comms) static_cast<void>(fc_comm_abort(comm.get()));
}

std::shared_ptr<TorchComm> TorchComm::create(const CommSpec& spec,
                                             const c10::intrusive_ptr<c10d::Store>& store) {
  fc_comm_options options;
  fc_comm_options_init(&options);
  const auto hints = to_hints(spec);
  options.backend = spec.backend.c_str();
  options.name = spec.name.c_str();
  options.rank = spec.rank;
  options.comm_size = spec.size;
  options.timeout_ns = to_ns(spec.timeout);
  options.hints = hints.data();
  options.hint_count = hints.size();
  options.device = spec.device.has_index() ? spec.device.index() : 0;
  fc_store_table table = store_table(store);
  fc_comm* comm = nullptr;
  check(without_gil([&] { return fc_comm_create(&options, &table, &comm); }));
  return std::make_shared<TorchComm>(own_comm(comm), spec.backend, spec.device);
}

TorchComm::TorchComm(CommHandle handle, std::string backend, at::Device device)
    : handle_(std::move(handle)),
      backend_(std::move(backend)),
      device_(device),
      name_(fc_comm_name(handle_.get())),
      rank_(fc_comm_rank(handle_.get())),
      size_(fc_comm_size(handle_.get())) {}

void TorchComm::keep(const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(kept_mutex_);
  kept_.push_back(tensor);
}

std::string TorchComm::state() const {
  const char* state = nullptr;
  check(fc_comm_state(handle(), &state));
  return state;
}

std::string TorchComm::error() const {
  fc_string* text = nullptr;
  check(fc_comm_error(handle(), &text));
  return take_string(text);
}

std::string TorchComm::info() const {
  fc_string* json = nullptr;
  check(fc_comm_info(handle(), &json));
  return take_string(json);
}

uint64_t TorchComm::sequence() const { return fc_comm_sequence(handle()); }

std::chrono::milliseconds TorchComm::timeout() const {
  int64_t nanoseconds = 0;
  check(fc_comm_timeout(handle(), &nanoseconds));
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::nanoseconds(nanoseconds));
}

void TorchComm::set_timeout(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) {
    throw_invalid(site("set_timeout"), {"the time-out is not positive",
                                        std::to_string(timeout.count()) + " ms", "", ""});
  }
  check(fc_comm_set_timeout(handle(), to_ns(timeout)));
}

void TorchComm::finalize() {
  check(without_gil([this] { return fc_comm_finalize(handle()); }));
  forget_memory();
}

void TorchComm::abort() {
  check(without_gil([this] { return fc_comm_abort(handle()); }));
  forget_memory();
}

std::shared_ptr<TorchComm> TorchComm::split(const std::vector<int>& ranks, const std::string& name,
                                            std::chrono::milliseconds timeout) {
  // Counted on every rank alike, so the made-up name agrees.
  const uint64_t count = splits_++;
  const std::string own = name.empty() ? name_ + ".split" + std::to_string(count) : name;
  const std::vector<int32_t> members(ranks.begin(), ranks.end());
  fc_comm* comm = nullptr;
  check(without_gil([&] {
    return fc_comm_split(handle(), members.data(), members.size(), own.c_str(), to_ns(timeout),
                         &comm);
  }));
  if (comm == nullptr) return nullptr;
  return std::make_shared<TorchComm>(own_comm(comm), backend_, device_);
}

}  // namespace ferrocomm
