// A job may run a user's future callback, and that may block on another collective whose completion
// is a job too. So a job never waits for another: when no thread is idle, one more is started. Must
// not know what a job does.

#include "run_later.hpp"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <thread>

namespace ferrocomm {
namespace {

using Job = std::function<void()>;

class Crew {
 public:
  static Crew& get();

  void post(Job job) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (closed_) {
      lock.unlock();
      // Dropping it may need the GIL of an interpreter that is gone.
      static_cast<void>(new Job(std::move(job)));
      return;
    }
    jobs_.push_back(std::move(job));
    if (jobs_.size() > idle_) start_thread();
    wake_.notify_one();
  }

  void close() {
    std::unique_lock<std::mutex> lock(mutex_);
    closed_ = true;
    wake_.notify_all();
    done_.wait_for(lock, kCloseLimit, [this] { return threads_ == 0; });
  }

 private:
  static constexpr std::chrono::seconds kIdleLimit{10};
  static constexpr std::chrono::seconds kCloseLimit{2};

  // Needs the lock. Signals stay with the threads that Python and the user know.
  void start_thread() {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread(&Crew::work, this).detach();
      ++threads_;
    } catch (const std::system_error& error) {
      // With a thread left the job only waits longer; without one nothing would ever complete.
      if (threads_ == 0) {
        std::fprintf(stderr, "ferrocomm: no thread for completions: %s\n", error.what());
        std::terminate();
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      ++idle_;
      const bool woken =
          wake_.wait_for(lock, kIdleLimit, [this] { return closed_ || !jobs_.empty(); });
      --idle_;
      if (jobs_.empty() && (closed_ || !woken)) break;
      if (jobs_.empty()) continue;
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      job = nullptr;  // what it held is dropped before the lock is taken
      lock.lock();
    }
    --threads_;
    done_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::deque<Job> jobs_;
  size_t idle_ = 0;
  size_t threads_ = 0;
  bool closed_ = false;
};

Crew* crew = nullptr;

// A child has none of its parent's threads, and the lock may be held by one of them.
void renew_in_child() { crew = new Crew; }

Crew& Crew::get() {
  static const bool made = [] {
    crew = new Crew;  // never freed: engine threads may outlive static destruction
    pthread_atfork(nullptr, nullptr, renew_in_child);
    return true;
  }();
  static_cast<void>(made);
  return *crew;
}

}  // namespace

void run_later(std::function<void()> job) { Crew::get().post(std::move(job)); }

void stop_running_later() { Crew::get().close(); }

}  // namespace ferrocomm
