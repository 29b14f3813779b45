// One call of the C ABI and its work. Must not know how members meet.

#include "reconfigure.hpp"

namespace ferrocomm {
namespace {

std::vector<const char*> texts_of(const InitHandles& handles) {
  std::vector<const char*> texts;
  const auto add = [&texts](const auto& list) {
    texts.reserve(list.size());
    for (const auto& handle : list) texts.push_back(handle.c_str());
  };
  std::visit(add, handles);
  return texts;
}

}  // namespace

std::string init_handle(const TorchComm& comm) {
  comm.require_engine("get_init_handle");
  fc_string* handle = nullptr;
  check(fc_comm_init_handle(comm.handle(), &handle));
  return take_string(handle);
}

WorkPtr reconfigure(TorchComm& comm, const ReconfigureOptions& options,
                    std::function<void()> configured) {
  comm.require_engine("reconfigure");
  fc_reconfigure_options wishes;
  fc_reconfigure_options_init(&wishes);
  const auto handles = texts_of(options.init_handles);
  wishes.uuid = options.uuid;
  wishes.handles = handles.data();
  wishes.handle_count = handles.size();
  wishes.ordered = std::holds_alternative<std::vector<std::string>>(options.init_handles) ? 1 : 0;
  const auto timeout = options.timeout.value_or(std::chrono::milliseconds(0));
  const Site site = comm.site("reconfigure");
  if (options.timeout && timeout.count() <= 0) throw_not_positive(site, timeout);
  wishes.timeout_ns = to_ns(timeout);
  std::vector<fc_hint> hints;
  if (options.hints) {
    static_cast<void>(wants_shared_memory(site, *options.hints));
    for (const auto& [key, value] : *options.hints) hints.push_back({key.c_str(), value.c_str()});
  }
  wishes.hints = hints.data();
  wishes.hint_count = hints.size();

  fc_work* work = nullptr;
  check(without_gil([&] { return fc_comm_reconfigure(comm.handle(), &wishes, &work); }));
  // From here on they count, also for what is split off later.
  if (options.hints) comm.set_hints(*options.hints);
  // Whatever the communicator's device: members are met on the host.
  auto state = std::make_shared<OperationState>(comm.shared_handle(), at::kCPU, site, timeout);
  state->when_succeeded(std::move(configured));
  state->add_work(WorkHandle(work));
  state->publish(true, false);
  return c10::make_intrusive<CommWork>(site.rank, c10d::OpType::UNKNOWN, std::move(state));
}

}  // namespace ferrocomm
