// Calling hooks, and waiting until those that tell of ends have been called. Must not know what a
// hook does.

#include "hooks.hpp"

#include <condition_variable>

#include "comm.hpp"
#include "run_later.hpp"

namespace ferrocomm {
namespace {

// How long a process that a failure ends waits for its abort hooks.
constexpr std::chrono::seconds kLastWords{10};

std::atomic<uint64_t> next_operation{1};

// Whether the hooks of a process that ends have run; outlives whoever gives up waiting.
struct Told {
  std::mutex mutex;
  std::condition_variable changed;
  bool told = false;
};

using Watcher = std::weak_ptr<Hooks>;

void run_in_background(const std::shared_ptr<Hooks>& hooks) {
  if (const auto failure = hooks->run_abort()) report_unraisable(failure, "torchcomms abort hook");
}

// On an engine thread, which must never wait for the GIL; but where the process ends there is
// nothing left that could need this thread.
void on_failure(void* context, const char*, int32_t process_ends) {
  const auto hooks = static_cast<Watcher*>(context)->lock();
  if (!hooks || !hooks->abort.any()) return;
  if (process_ends == 0) {
    run_later([hooks] { run_in_background(hooks); });
    return;
  }
  auto last = std::make_shared<Told>();
  run_later([hooks, last] {
    run_in_background(hooks);
    std::lock_guard<std::mutex> lock(last->mutex);
    last->told = true;
    last->changed.notify_all();
  });
  without_gil([&] {
    std::unique_lock<std::mutex> lock(last->mutex);
    last->changed.wait_for(lock, kLastWords, [&] { return last->told; });
  });
}

void forget(void* context) { delete static_cast<Watcher*>(context); }

}  // namespace

void Hooks::clear() {
  pre.clear();
  post.clear();
  abort.clear();
  completions.clear();
}

void Completions::run(const Completion& completion) const noexcept {
  hooks_.each([&](const Hook& call) {
    try {
      call(completion);
    } catch (...) {
      report_unraisable(std::current_exception(), "torchcomms completion hook");
    }
  });
}

void Completions::wait() const {
  for (size_t left = expected_.load(); left != 0; left = expected_.load()) expected_.wait(left);
}

std::exception_ptr Hooks::run_abort() const noexcept {
  std::exception_ptr first;
  abort.each([&](const Abort& call) {
    try {
      call();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  });
  return first;
}

void watch_failures(fc_comm* comm, const std::shared_ptr<Hooks>& hooks) {
  check(fc_comm_set_abort_callback(comm, on_failure, new Watcher(hooks), forget));
}

// ---- one operation

struct Hooked::Running {
  std::shared_ptr<Hooks> hooks;
  std::vector<OpArgs> operations;
  uint64_t first_id;
};

void Hooked::Delete::operator()(Running* running) const { delete running; }

void Hooked::begin(const TorchComm& comm, std::vector<OpArgs> operations) {
  const uint64_t first = next_operation.fetch_add(operations.size());
  running_.reset(new Running{comm.hooks(), std::move(operations), first});
  uint64_t id = first;
  for (const auto& args : running_->operations) running_->hooks->pre.run(id++, args);
}

void Hooked::serve(const TorchComm& comm, const CallOptions& call) {
  elsewhere_ = comm.foreign()->issue(running_->operations, call);
  end({elsewhere_});
}

void Hooked::end(const OpResult& result) {
  const auto running = std::move(running_);
  uint64_t id = running->first_id;
  for (const auto& args : running->operations) running->hooks->post.run(id++, args, result);
}

}  // namespace ferrocomm
