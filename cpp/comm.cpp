// The life of a communicator: made, split, asked, ended. Its operations are in collectives.cpp and
// point_to_point.cpp. Must not know how ranks meet.

#include "comm.hpp"

#include <algorithm>
#include <mutex>

#include "reconfigure.hpp"
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

// Raises where the shim itself would find a hint wrong, though nobody makes a window yet.
void check_hints(const Site& site, const HintMap& hints) {
  static_cast<void>(wants_shared_memory(site, hints));
}

// Valid as long as `spec` and `hints`.
fc_comm_options to_options(const CommSpec& spec, const std::vector<fc_hint>& hints) {
  fc_comm_options options;
  fc_comm_options_init(&options);
  options.backend = spec.backend.c_str();
  options.name = spec.name.c_str();
  options.rank = spec.rank;
  options.comm_size = spec.size;
  options.timeout_ns = to_ns(spec.timeout);
  options.hints = hints.data();
  options.hint_count = hints.size();
  options.device = spec.device.has_index() ? spec.device.index() : 0;
  return options;
}

}  // namespace

std::vector<CommHandle> living_comms() {
  std::vector<CommHandle> comms;
  auto& all = living();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& weak : all.comms) {
    if (auto comm = weak.lock()) comms.push_back(std::move(comm));
  }
  return comms;
}

void abort_all_comms() noexcept {
  const auto comms = living_comms();
  // Aborting what is finalized or aborted already is no error; another one has nobody to hear it.
  for (const auto& comm : comms) static_cast<void>(fc_comm_abort(comm.get()));
}

std::shared_ptr<TorchComm> TorchComm::create(const CommSpec& spec,
                                             const c10::intrusive_ptr<c10d::Store>& store) {
  check_hints({spec.name, spec.rank, "join"}, spec.hints);
  const auto hints = to_hints(spec);
  const fc_comm_options options = to_options(spec, hints);
  fc_store_table table = store_table(store);
  fc_comm* comm = nullptr;
  check(without_gil([&] { return fc_comm_create(&options, &table, &comm); }));
  auto made = std::make_shared<TorchComm>(own_comm(comm), spec);
  made->store_ = store;
  return made;
}

std::shared_ptr<TorchComm> create_unconfigured(const CommSpec& spec) {
  check_hints({spec.name, spec.rank, "join"}, spec.hints);
  const auto hints = to_hints(spec);
  const fc_comm_options options = to_options(spec, hints);
  fc_comm* comm = nullptr;
  check(without_gil([&] { return fc_comm_create_unconfigured(&options, &comm); }));
  return std::make_shared<TorchComm>(own_comm(comm), spec, TorchComm::Members::kChanging);
}

TorchComm::TorchComm(CommHandle handle, CommSpec spec, Members members)
    : handle_(std::move(handle)),
      backend_(std::move(spec.backend)),
      device_(spec.device),
      name_(fc_comm_name(handle_.get())),
      members_(members),
      rank_(fc_comm_rank(handle_.get())),
      size_(fc_comm_size(handle_.get())),
      hints_(std::move(spec.hints)) {}

TorchComm::TorchComm(std::shared_ptr<ForeignBackend> foreign, CommSpec spec)
    : foreign_(std::move(foreign)),
      backend_(std::move(spec.backend)),
      device_(spec.device),
      name_(std::move(spec.name)),
      members_(Members::kFixed),
      rank_(spec.rank),
      size_(spec.size),
      hints_(std::move(spec.hints)) {
  // It is to see every operation.
  hooks_->watchers.come();
}

void TorchComm::keep(const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(kept_mutex_);
  kept_.push_back(tensor);
}

std::string TorchComm::state() const {
  if (foreign_) return foreign_->state();
  const char* state = nullptr;
  check(fc_comm_state(handle(), &state));
  return state;
}

std::string TorchComm::error() const {
  if (foreign_) return {};
  fc_string* text = nullptr;
  check(fc_comm_error(handle(), &text));
  return take_string(text);
}

void TorchComm::require_engine(const char* operation) const {
  if (!foreign_) return;
  throw_status(FC_ERR_UNSUPPORTED, "not supported: backend " + backend_ +
                                       " is written in Python, and only the engine can do this" +
                                       to_string(site(operation)) + "; use gloo or nccl");
}

std::string TorchComm::info() const {
  require_engine("info");
  fc_string* json = nullptr;
  check(fc_comm_info(handle(), &json));
  return take_string(json);
}

uint64_t TorchComm::sequence() const { return fc_comm_sequence(handle()); }

std::chrono::milliseconds TorchComm::timeout() const {
  if (foreign_) return foreign_->timeout();
  int64_t nanoseconds = 0;
  check(fc_comm_timeout(handle(), &nanoseconds));
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::nanoseconds(nanoseconds));
}

void TorchComm::set_timeout(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) throw_not_positive(site("set_timeout"), timeout);
  if (foreign_) return foreign_->set_timeout(within_limits(timeout));
  check(fc_comm_set_timeout(handle(), to_ns(timeout)));
}

void TorchComm::wait_pending() {
  if (foreign_) {
    throw_status(FC_ERR_UNSUPPORTED,
                 "not supported: a backend in Python keeps no list of its works" +
                     to_string(site("wait_pending")));
  }
  without_gil([this] {
    check(fc_comm_wait_pending(handle()));
    hooks_->completions.wait();
  });
}

void TorchComm::finalize() {
  Hooked hooked(*this, [] { return OpArgs{OpName::kFinalize}; });
  try {
    if (foreign_) {
      foreign_->finalize();
    } else {
      check(without_gil([this] { return fc_comm_finalize(handle()); }));
    }
    hooked.done(OpResult{});
  } catch (...) {
    if (state() == "finalized") let_go();
    throw;
  }
  let_go();
}

// Nothing will run any more; a hook that refers to the communicator would keep it for ever.
void TorchComm::let_go() {
  hooks_->clear();
  forget_memory();
  c10::intrusive_ptr<c10d::Store> left;  // with no lock held
  std::lock_guard<std::mutex> lock(mutex_);
  left.swap(store_);
}

// The hooks' failure is raised last: whoever aborts must be rid of the communicator.
void TorchComm::abort() {
  std::exception_ptr failure;
  if (hooks_->abort.any()) {
    const std::string before = state();
    if (before != "aborted" && before != "finalized") failure = hooks_->run_abort();
  }
  if (foreign_) {
    foreign_->abort();
  } else {
    check(without_gil([this] { return fc_comm_abort(handle()); }));
    // One that follows in the place takes over what is registered.
    if (!is_reconfigurable()) forget_memory();
  }
  if (failure) std::rethrow_exception(failure);
}

uint64_t TorchComm::add_abort_hook(Hooks::Abort hook) {
  // The engine tells only those that want to know.
  if (!foreign_) std::call_once(watches_failures_, [this] { watch_failures(handle(), hooks_); });
  return hooks_->abort.add(std::move(hook));
}

HintMap TorchComm::hints() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return hints_;
}

void TorchComm::set_hints(HintMap hints) {
  // A backend in Python has names of its own.
  if (!foreign_) check_hints(site("set_hints"), hints);
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [key, value] : hints) hints_[key] = std::move(value);
}

void TorchComm::tensor_register(const at::Tensor& tensor) {
  const Site where = site("tensor_register");
  if (!tensor.defined() || tensor.device() != device_) {
    throw_invalid(where,
                  {"the tensor is on another device",
                   tensor.defined() ? tensor.device().str() : "no tensor", device_.str(), ""});
  }
  if (!tensor.is_contiguous()) {
    throw_invalid(where, {"the tensor is not contiguous", "", "", "register its whole storage"});
  }
  if (foreign_) return;
  GilReleased released;
  std::lock_guard<std::mutex> lock(memory_mutex_);
  const void* data = tensor.const_data_ptr();
  check(fc_comm_register(handle(), data, tensor.nbytes()));
  registered_.emplace(reinterpret_cast<uintptr_t>(data), Registered{tensor, nullptr});
}

void TorchComm::tensor_deregister(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    throw_invalid(site("tensor_deregister"), {"there is no tensor", "", "", ""});
  }
  if (foreign_) return;
  const void* data = tensor.const_data_ptr();
  Registered dropped;  // with no lock held: it may want the GIL
  GilReleased released;
  std::lock_guard<std::mutex> lock(memory_mutex_);
  check(fc_comm_deregister(handle(), data));
  const auto known = registered_.find(reinterpret_cast<uintptr_t>(data));
  if (known == registered_.end()) return;
  dropped = std::move(known->second);
  registered_.erase(known);
}

std::shared_ptr<TorchComm> TorchComm::split(const std::vector<int>& ranks, const std::string& name,
                                            std::chrono::milliseconds timeout,
                                            const HintMap& hints) {
  Hooked hooked(*this, [&] {
    OpArgs args{OpName::kSplit};
    args.ranks = ranks;
    args.label = name;
    return args;
  });
  // Counted on every rank alike, so the made-up name agrees.
  const uint64_t count = splits_++;
  const std::string own = name.empty() ? name_ + ".split" + std::to_string(count) : name;
  HintMap wishes = hints;
  wishes.merge(this->hints());  // what is there stays
  auto part = foreign_ ? foreign_->split(ranks, own, timeout, wishes)
                       : split_engine(ranks, own, timeout, std::move(wishes));
  OpResult result;
  result.comm = part;
  hooked.done(result);
  return part;
}

std::shared_ptr<TorchComm> TorchComm::split_engine(const std::vector<int>& ranks,
                                                   const std::string& own,
                                                   std::chrono::milliseconds timeout,
                                                   HintMap wishes) {
  check_hints(site("split"), wishes);
  const std::vector<int32_t> members(ranks.begin(), ranks.end());
  CommSpec spec;
  spec.backend = backend_;
  spec.device = device_;
  spec.name = own;
  spec.timeout = timeout;
  spec.hints = std::move(wishes);
  const auto hints = to_hints(spec);
  const fc_comm_options options = to_options(spec, hints);
  fc_comm* comm = nullptr;
  check(without_gil([&] {
    return fc_comm_split_with(handle(), members.data(), members.size(), &options, &comm);
  }));
  if (comm == nullptr) return nullptr;
  auto part = std::make_shared<TorchComm>(own_comm(comm), std::move(spec));
  part->store_ = store();
  return part;
}

}  // namespace ferrocomm
