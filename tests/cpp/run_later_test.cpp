// The threads that complete works: no job waits for another, forks get their own, and the end is
// bounded. Needs neither torch nor Python.

#include "run_later.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <vector>

namespace {

using ferrocomm::run_later;
using ferrocomm::stop_running_later;

constexpr std::chrono::seconds kLimit{30};

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

template <typename T>
void require_ready(std::future<T>& future, const char* what) {
  require(future.wait_for(kLimit) == std::future_status::ready, what);
}

// As a future callback that waits for the next collective's future.
void nested(int depth, std::shared_ptr<std::promise<void>> done) {
  if (depth == 0) {
    done->set_value();
    return;
  }
  auto inner = std::make_shared<std::promise<void>>();
  auto inner_done = inner->get_future();
  run_later([depth, inner] { nested(depth - 1, inner); });
  inner_done.wait();
  done->set_value();
}

void jobs_may_wait_for_jobs() {
  auto done = std::make_shared<std::promise<void>>();
  auto finished = done->get_future();
  run_later([done] { nested(20, done); });
  require_ready(finished, "a job that waits for a job, 20 deep, ends");
}

void every_job_runs_once() {
  constexpr int kJobs = 2000;
  auto count = std::make_shared<std::atomic<int>>(0);
  auto done = std::make_shared<std::promise<void>>();
  auto finished = done->get_future();
  for (int i = 0; i < kJobs; ++i) {
    run_later([count, done] {
      if (count->fetch_add(1) + 1 == kJobs) done->set_value();
    });
  }
  require_ready(finished, "every job runs");
  require(count->load() == kJobs, "no job runs twice");
}

void a_child_has_threads_of_its_own() {
  const pid_t child = fork();
  require(child >= 0, "fork");
  if (child == 0) {
    auto done = std::make_shared<std::promise<void>>();
    auto finished = done->get_future();
    run_later([done] { done->set_value(); });
    _exit(finished.wait_for(kLimit) == std::future_status::ready ? 0 : 1);
  }
  int status = 0;
  require(waitpid(child, &status, 0) == child, "waitpid");
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a job runs in a forked child");
}

// Last: it ends this process's crew.
void the_end_is_bounded_and_final() {
  auto release = std::make_shared<std::promise<void>>();
  auto blocked = std::make_shared<std::promise<void>>();
  auto is_blocked = blocked->get_future();
  run_later([release, blocked] {
    blocked->set_value();
    release->get_future().wait();
  });
  require_ready(is_blocked, "the blocking job starts");
  auto stopped = std::async(std::launch::async, stop_running_later);
  require_ready(stopped, "stopping does not wait for a blocked job");
  auto ran = std::make_shared<std::atomic<bool>>(false);
  run_later([ran] { ran->store(true); });
  release->set_value();
  stop_running_later();
  require(!ran->load(), "nothing runs after the end");
}

}  // namespace

int main() {
  jobs_may_wait_for_jobs();
  every_job_runs_once();
  a_child_has_threads_of_its_own();
  the_end_is_bounded_and_final();
  std::printf("run_later_test: 4 passed, 0 failed\n");
  return 0;
}
