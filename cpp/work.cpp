// How operations end: waits, results, futures and failures. Must not know what an operation does.

#include "work.hpp"

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>

#include "hooks.hpp"
#include "python_runtime.hpp"
#include "run_later.hpp"
#include "time_limit.hpp"

namespace ferrocomm {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<uint64_t> next_key{1};

// One per watched state; the last part to complete frees it.
struct Watch {
  std::shared_ptr<OperationState> state;
  std::atomic<size_t> unfinished;
};

std::string failure_text(const fc_work* work) {
  fc_string* text = nullptr;
  if (fc_work_error(work, &text) != FC_OK) return fc_last_error();
  return take_string(text);
}

}  // namespace

OperationState::OperationState(CommHandle comm, at::Device device, Site site,
                               std::chrono::milliseconds timeout)
    : comm_(std::move(comm)), device_(device), site_(site), timeout_(timeout), key_(next_key++) {}

std::chrono::milliseconds OperationState::timeout() const {
  if (timeout_.count() > 0) return timeout_;
  int64_t nanoseconds = 0;
  check(fc_comm_timeout(comm_.get(), &nanoseconds));
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::nanoseconds(nanoseconds));
}

void OperationState::add_work(WorkHandle work) {
  if (parts_.empty()) sequence_ = fc_work_sequence(work.get());
  parts_.push_back(std::move(work));
}

void OperationState::publish(bool whole, bool on_stream) {
  whole_ = whole;
  if (has_streams(device_) && at_end_) std::exchange(at_end_, nullptr)();
  if (parts_.empty()) sequence_ = fc_comm_sequence(comm_.get());
  if (has_streams(device_) && !parts_.empty()) {
    captured_ = fc_work_is_captured(parts_.front().get()) != 0;
    if (captured_) keep_for_graph();
    if (on_stream) on_stream_ = current_stream(device_);
  }
  phase_.store(Phase::kPending, std::memory_order_release);
  if (parts_.empty()) {
    settle();
  } else if (reports_ || timed_) {
    // Nobody may ever wait, and the end is noticed when it happens, not when somebody looks.
    watch();
  }
  if (on_stream_) join_current_stream();
}

// The graph uses the tensors' memory whenever it is launched, until it is destroyed.
void OperationState::keep_for_graph() {
  auto* kept = new std::vector<at::Tensor>(holdings_.tensors);
  const auto let_go = [](void* context) {
    auto* tensors = static_cast<std::vector<at::Tensor>*>(context);
    run_later([tensors] { delete tensors; });
  };
  check(fc_work_keep(parts_.front().get(), let_go, kept));
}

void OperationState::synchronize(std::chrono::milliseconds timeout) {
  if (!has_streams(device_) || timeout.count() > 0) {
    wait(timeout);
    if (!has_streams(device_)) return;
  }
  require_published();
  join_current_stream();
}

void OperationState::join_current_stream() {
  const auto stream = current_stream(device_);
  // What is on the stream behind the operation itself waits for it anyway.
  if (!on_stream_ || *on_stream_ != stream) {
    for (const auto& part : parts_) {
      if (fc_work_wait_on(part.get(), driver_handle(stream)) == FC_OK) continue;
      const std::string text = fc_last_error();
      wait({});  // raises what the operation failed with
      throw_status(FC_ERR_STATE, text);
    }
  }
  if (joined_.load(std::memory_order_acquire)) return;
  Holdings dropped;
  {
    std::lock_guard<std::mutex> lock(joining_);
    if (joined_) return;
    holdings_.copy_back();
    if (!captured_) record_on(stream, holdings_.tensors);
    dropped = std::exchange(holdings_, {});
    joined_.store(true, std::memory_order_release);
  }
}

void OperationState::require_published() const {
  if (phase_.load(std::memory_order_acquire) != Phase::kBuilding) return;
  throw_status(FC_ERR_STATE,
               "wrong state: the operation belongs to a coalesced group that is not issued yet" +
                   to_string(site_) + "; end the coalescing first");
}

void OperationState::wait(std::chrono::milliseconds timeout) {
  require_published();
  if (!settled()) {
    GilReleased released;
    wait_for_parts(timeout);
    settle();
    rethrow_interrupt();
  }
  complete_future();
  if (error_) std::rethrow_exception(error_);
}

void OperationState::wait_for_parts(std::chrono::milliseconds timeout) {
  const bool bounded = timeout.count() > 0;
  const auto deadline = Clock::now() + within_limits(timeout);
  for (auto& part : parts_) {
    int64_t left = 0;
    if (bounded) {
      left = std::chrono::nanoseconds(deadline - Clock::now()).count();
      if (left <= 0) left = 1;
    }
    const fc_status status = fc_work_wait(part.get(), left);
    // A part that failed is done; the others use its tensors until they are done too.
    if (status == FC_ERR_INTERRUPTED || status == FC_ERR_FORKED) {
      throw_status(status, fc_last_error());
    }
  }
}

bool OperationState::is_complete() {
  if (settled()) return true;
  if (phase_.load(std::memory_order_acquire) != Phase::kPending) return false;
  for (const auto& part : parts_) {
    if (fc_work_status(part.get()) == FC_IN_PROGRESS) return false;
  }
  settle();
  return true;
}

std::exception_ptr OperationState::failure() const { return settled() ? error_ : nullptr; }

fc_status OperationState::status() { return is_complete() ? status_ : FC_IN_PROGRESS; }

bool OperationState::has_begun() const {
  if (phase_.load(std::memory_order_acquire) == Phase::kBuilding) return false;
  if (settled() || parts_.empty()) return true;
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const auto& part) { return fc_work_has_begun(part.get()) != 0; });
}

void OperationState::cancel() {
  require_published();
  for (auto& part : parts_) {
    if (fc_work_status(part.get()) == FC_IN_PROGRESS) check(fc_work_cancel(part.get()));
  }
}

void OperationState::keep_time() {
  timed_ = true;
  began_ = Clock::now();
}

void OperationState::report_to(std::shared_ptr<Completions> hooks, c10d::OpType type) {
  hooks->expect();
  reports_ = std::move(hooks);
  type_ = type;
  began_ = Clock::now();
}

void OperationState::report() {
  if (!reports_) return;
  if (status_ == FC_OK) reports_->run({key_, sequence_, type_, began_, Clock::now()});
  reports_->came();
}

void OperationState::take_time() {
  if (!timed_) return;
  int64_t unknown = -1;
  took_ns_.compare_exchange_strong(unknown,
                                   std::chrono::nanoseconds(Clock::now() - began_).count());
}

float OperationState::duration() const {
  const int64_t took = took_ns_.load();
  if (took >= 0) return static_cast<float>(took) / 1e6F;
  throw_status(FC_ERR_STATE,
               std::string("wrong state: ") +
                   (timed_ ? "the operation has not ended" : "times are not taken") +
                   to_string(site_) + "; " +
                   (timed_ ? "wait for it" : "enable the timing of collectives before it"));
}

void OperationState::settle() {
  Phase seen = Phase::kPending;
  if (!phase_.compare_exchange_strong(seen, Phase::kSettling)) {
    while (seen == Phase::kSettling) {
      phase_.wait(Phase::kSettling);
      seen = phase_.load();
    }
    return;
  }
  fc_status status = FC_OK;
  std::string text;
  for (const auto& part : parts_) {
    const fc_status own = fc_work_status(part.get());
    source_.store(fc_work_source(part.get()));
    if (own == FC_OK || status != FC_OK) continue;
    status = own;
    text = failure_text(part.get());
  }
  if (status == FC_OK && !whole_) {
    status = FC_ERR_STATE;
    text = "wrong state: the operation was given up before it was issued" + to_string(site_);
  }
  if (status != FC_OK) {
    error_ = to_exception(status, text);
  } else if (!has_streams(device_)) {
    try {
      holdings_.copy_back();
    } catch (...) {
      status = FC_ERR_STATE;
      error_ = std::current_exception();
    }
  }
  status_ = status;
  take_time();
  if (at_end_) std::exchange(at_end_, nullptr)();
  if (status == FC_OK && succeeded_) succeeded_();
  succeeded_ = nullptr;
  // Dropped after the phase is out: a tensor may need the GIL, which a waiter of ours may hold.
  Holdings dropped;
  {
    std::lock_guard<std::mutex> lock(joining_);
    // Copies back go to the stream of whoever waits, who then sees them; so they wait for that.
    if (!has_streams(device_) || status != FC_OK || holdings_.copy_backs.empty()) {
      dropped = std::exchange(holdings_, {});
    }
  }
  phase_.store(Phase::kSettled, std::memory_order_release);
  phase_.notify_all();
  report();
}

void OperationState::on_complete(void* context, fc_status, const char*) {
  auto* watch = static_cast<Watch*>(context);
  if (watch->unfinished.fetch_sub(1) != 1) return;
  watch->state->take_time();
  auto state = std::move(watch->state);
  delete watch;
  run_later([state = std::move(state)] {
    state->settle();
    state->complete_future();
  });
}

void OperationState::watch() {
  if (phase_.load(std::memory_order_acquire) != Phase::kPending) return;
  if (watched_.exchange(true)) return;
  auto* watch = new Watch{shared_from_this(), parts_.size()};
  for (const auto& part : parts_) {
    // A handle that cannot be watched (inherited across a fork) will never complete either.
    if (fc_work_on_complete(part.get(), on_complete, watch) != FC_OK) {
      on_complete(watch, FC_ERR_STATE, "");
    }
  }
}

c10::intrusive_ptr<c10::ivalue::Future> OperationState::future() {
  require_published();
  std::vector<c10::Device> devices;
  if (has_streams(device_)) devices.push_back(device_);
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool fresh = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!future_) {
      future_ = c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()), devices);
      fresh = true;
      // On streams whoever made it completes it.
      if (has_streams(device_)) future_completed_ = true;
    }
    future = future_;
  }
  if (has_streams(device_)) {
    if (fresh) complete_on_stream(future);
    return future;
  }
  if (is_complete()) {
    complete_future();
  } else {
    watch();
  }
  return future;
}

// Complete at once: whoever waits for the future waits on a stream, as with the work itself.
void OperationState::complete_on_stream(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  try {
    const bool beside = !on_stream_ && !captured_ && holdings_.copy_backs.empty();
    std::optional<c10::StreamGuard> guard;
    if (beside) {
      guard.emplace(spare_stream(device_));
      for (const auto& part : parts_) {
        check(fc_work_wait_on(part.get(), driver_handle(current_stream(device_))));
      }
    } else {
      join_current_stream();
    }
    future->markCompleted(c10::IValue(outputs_));
  } catch (...) {
    future->setError(std::current_exception());
  }
  if (holds()) watch();
}

c10::intrusive_ptr<c10::ivalue::Future> OperationState::result_future() {
  require_published();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!result_future_)
      result_future_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
    future = result_future_;
  }
  if (is_complete()) {
    complete_future();
  } else {
    watch();
  }
  return future;
}

void OperationState::complete_future() {
  c10::intrusive_ptr<c10::ivalue::Future> result;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    result = std::exchange(result_future_, nullptr);
  }
  if (result) {
    const auto verdict = error_ ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS;
    result->markCompleted(c10::IValue(static_cast<int64_t>(verdict)));
  }

  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!future_ || std::exchange(future_completed_, true)) return;
    future = future_;
  }
  if (error_) {
    future->setError(error_);
  } else {
    future->markCompleted(c10::IValue(outputs_));
  }
}

CommWork::~CommWork() {
  if (state_->holds() && state_->status() == FC_IN_PROGRESS) state_->watch();
}

bool CommWork::wait(std::chrono::milliseconds timeout) {
  state_->synchronize(timeout);
  return true;
}

// Without streams it only looks: c10d calls it on what is complete.
void CommWork::synchronize() {
  if (state_->has_device_streams()) {
    state_->synchronize(kNoTimeout);
  } else {
    state_->is_complete();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> CommWork::getFutureResult() {
  return state_->result_future();
}

}  // namespace ferrocomm
