// Drives ferrocomm.hpp: one rank, two processes over a store in a folder, a forked child, and
// stores that fail.
// clang-format off: it would drop the second one
#include <ferrocomm.hpp>
#include <ferrocomm.hpp>
// clang-format on
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <mutex>
#include <thread>
#include <type_traits>

#include "check.hpp"

std::string info_from_second_unit();

namespace fs = std::filesystem;
using ferrocomm::Batch;
using ferrocomm::Communicator;
using ferrocomm::Error;
using ferrocomm::Nanoseconds;
using ferrocomm::OpOptions;
using ferrocomm::Options;
using ferrocomm::SharedMemory;
using ferrocomm::Span;
using ferrocomm::Window;
using ferrocomm::Work;
using std::chrono::milliseconds;
using std::chrono::seconds;

Tally& tally() {
  static Tally all;
  return all;
}

namespace {

static_assert(!std::is_copy_constructible_v<Communicator> && !std::is_copy_assignable_v<Work> &&
              !std::is_copy_constructible_v<Batch> && !std::is_copy_constructible_v<Window> &&
              !std::is_copy_constructible_v<SharedMemory<int>>);
static_assert(std::is_nothrow_move_constructible_v<Communicator> &&
              std::is_nothrow_move_assignable_v<Work> &&
              std::is_nothrow_move_constructible_v<Batch> &&
              std::is_nothrow_move_constructible_v<Window> &&
              std::is_nothrow_move_constructible_v<SharedMemory<int>>);

// One file per key, put in place by a rename.
class FolderStore final : public ferrocomm::Store {
 public:
  explicit FolderStore(fs::path folder) : folder_(std::move(folder)) {}

  void set(std::string_view key, Span<const std::uint8_t> value) override {
    const fs::path fresh = path_of(key).concat("~" + std::to_string(getpid()));
    std::ofstream(fresh, std::ios::binary)
        .write(reinterpret_cast<const char*>(value.data()),
               static_cast<std::streamsize>(value.size()));
    fs::rename(fresh, path_of(key));
  }

  std::vector<std::uint8_t> get(std::string_view key, Nanoseconds timeout) override {
    const auto end = std::chrono::steady_clock::now() + timeout;
    while (!fs::exists(path_of(key))) {
      if (std::chrono::steady_clock::now() >= end) {
        throw Error(FC_ERR_STORE_TIMEOUT, "no such key yet");
      }
      // A folder has no portable event for a new file.
      std::this_thread::sleep_for(milliseconds(1));
    }
    std::ifstream file(path_of(key), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  void remove(std::string_view key) override { fs::remove(path_of(key)); }

 private:
  fs::path path_of(std::string_view key) const {
    std::string name;
    for (const char c : key) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    return folder_ / name;
  }

  fs::path folder_;
};

// A store that fails as it is told.
class BrokenStore final : public ferrocomm::Store {
 public:
  explicit BrokenStore(std::function<void()> fail) : fail_(std::move(fail)) {}
  void set(std::string_view, Span<const std::uint8_t>) override { fail_(); }
  std::vector<std::uint8_t> get(std::string_view, Nanoseconds) override {
    fail_();
    return {};
  }
  void remove(std::string_view) override { fail_(); }

 private:
  std::function<void()> fail_;
};

Options options_of(const std::string& name, int rank, int size) {
  Options options;
  options.name = name;
  options.rank = rank;
  options.size = size;
  options.timeout = seconds(60);
  return options;
}

void collectives(Communicator& comm) {
  const int rank = comm.rank();
  const auto size = static_cast<std::size_t>(comm.size());

  std::vector<std::int64_t> values(1000, rank + 1);
  comm.all_reduce(Span<std::int64_t>(values), FC_REDUCE_SUM);
  const auto total = static_cast<std::int64_t>(size * (size + 1) / 2);
  CHECK(values == std::vector<std::int64_t>(1000, total));

  std::vector<float> root(3, rank == 0 ? 7.0F : 0.0F);
  Work work = comm.async().broadcast(Span<float>(root), 0);
  work.wait();
  CHECK(work.done() && work.status() == FC_OK && work.error().empty());
  CHECK(root == std::vector<float>(3, 7.0F));

  const std::vector<int> own{rank, rank * 10};
  std::vector<int> all(2 * size, -1);
  comm.all_gather(Span<const int>(own), Span<int>(all));
  for (std::size_t from = 0; from < size; from++) {
    CHECK(all[2 * from] == static_cast<int>(from));
    CHECK(all[2 * from + 1] == static_cast<int>(from) * 10);
  }
  CHECK_THROWS(FC_ERR_INVALID_ARGUMENT, "one input per rank",
               comm.all_gather(Span<const int>(own), Span<int>(all.data(), 1)));

  std::vector<void*> places;
  for (std::size_t from = 0; from < size; from++) places.push_back(&all[2 * from]);
  comm.gather(own.data(), 2, rank == 0 ? Span<void* const>(places) : Span<void* const>(),
              FC_DTYPE_INT32, 0);
  CHECK_THROWS(
      FC_ERR_INVALID_ARGUMENT, "root",
      comm.gather(own.data(), 2, Span<void* const>(places.data(), size + 1), FC_DTYPE_INT32, 0));
  comm.barrier();
}

void works(Communicator& comm) {
  std::promise<fc_status> told;
  Work work = comm.async().barrier();
  work.on_complete([&](fc_status status, const char*) { told.set_value(status); });
  auto answer = told.get_future();
  CHECK(answer.wait_for(seconds(20)) == std::future_status::ready && answer.get() == FC_OK);
  CHECK(work.begun());

  int value = 0;
  Work receive = comm.async().recv(Span<int>(&value, 1), comm.rank(), 4);
  CHECK(!receive.done() && receive.source() == -1);
  Work moved = std::move(receive);
  moved.cancel();
  CHECK_THROWS(FC_ERR_CANCELLED, "recv", moved.wait());

  OpOptions brief;
  brief.timeout = milliseconds(50);
  CHECK_THROWS(FC_ERR_TIMEOUT, "recv", comm.recv(Span<int>(&value, 1), comm.rank(), 4, brief));
}

// What the engine has logged.
struct Heard {
  std::mutex lock;
  std::vector<std::string> messages;

  bool names(const std::string& hint) {
    const std::lock_guard<std::mutex> held(lock);
    return std::any_of(messages.begin(), messages.end(), [&](const std::string& message) {
      return message.find(hint) != std::string::npos;
    });
  }
};

// Each way of calling hands the engine its hints, which names those that it does not know.
void hints(Communicator& comm) {
  static Heard heard;
  const auto hear = [](void*, fc_log_level, const char*, const char* message) noexcept {
    const std::lock_guard<std::mutex> held(heard.lock);
    heard.messages.emplace_back(message);
  };
  CHECK(fc_set_log_callback(hear, nullptr, FC_LOG_WARN) == FC_OK);
  const auto wish = [&](const char* way) {
    OpOptions options;
    options.hints = {{comm.name() + "-" + way, "blue"}};
    return options;
  };
  comm.barrier(wish("run"));
  comm.async().barrier(wish("started")).wait();
  Batch batch(comm);
  batch.run(wish("batch"));
  batch.start(wish("started-batch")).wait();
  std::int32_t memory[4] = {};
  Window window(comm, Span<std::int32_t>(memory, 4), wish("window"));
  window.signal(comm.rank(), wish("signal"));
  window.wait_signal(comm.rank());
  window.deregister(wish("deregister"));
  for (const char* way :
       {"run", "started", "batch", "started-batch", "window", "signal", "deregister"}) {
    CHECK(heard.names(comm.name() + "-" + way));
  }
  CHECK(fc_set_log_callback(nullptr, nullptr, 0) == FC_OK);
}

void batches(Communicator& comm) {
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  const int out = 40 + comm.rank();
  int in = 0;
  Batch batch(comm);
  batch.send(Span<const int>(&out, 1), next).recv(Span<int>(&in, 1), previous);
  Work work = batch.start();
  work.wait();
  CHECK(in == 40 + previous);
  batch.run();
}

void groups(Communicator& comm) {
  const std::vector<std::int32_t> first{0};
  Communicator alone = comm.split(Span<const std::int32_t>(first), "alone");
  CHECK(static_cast<bool>(alone) == (comm.rank() == 0));
  if (alone) {
    CHECK(alone.size() == 1 && alone.name() == "alone" && alone.state() == "ready");
    alone.barrier();
    alone.finalize();
    CHECK(alone.state() == "finalized");
    CHECK_THROWS(FC_ERR_STATE, "finalized", alone.barrier());
  }
  ferrocomm::Options wishes;
  wishes.name = "wishes";
  wishes.timeout = std::chrono::seconds(7);
  wishes.hints = {{"eager", "1"}};
  Communicator part = comm.split(Span<const std::int32_t>(first), wishes);
  CHECK(static_cast<bool>(part) == (comm.rank() == 0));
  if (part) {
    CHECK(part.name() == "wishes" && part.timeout() == std::chrono::seconds(7));
    part.finalize();
  }
  wishes.hints = {{"eager", "maybe"}};
  CHECK_THROWS(FC_ERR_INVALID_ARGUMENT, "true or false",
               comm.split(Span<const std::int32_t>(first), wishes));
}

// Each rank writes to the next one's `memory`, of 64 elements, and reads it back.
void one_sided(Communicator& comm, Span<std::int32_t> memory, bool shared) {
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  Window made(comm, memory);
  Window window = std::move(made);
  CHECK(made.handle() == nullptr && window.bytes(next) == 64 * sizeof(std::int32_t));
  const std::vector<std::int32_t> values{comm.rank(), comm.rank() + 10};
  for (std::size_t round = 0; round < 3; round++) {
    window.put(Span<const std::int32_t>(values), next, 2 * round);
    window.signal(next);
    window.wait_signal(previous);
    CHECK(memory.data()[2 * round] == previous && memory.data()[2 * round + 1] == previous + 10);
  }
  Work given = window.async().put_signal(Span<const std::int32_t>(values), next, 62);
  given.wait();
  window.async().wait_signal(previous).wait();
  CHECK(memory.data()[63] == previous + 10);
  std::vector<std::int32_t> back(2);
  window.get(Span<std::int32_t>(back), next, 62);
  CHECK(back == values);

  CHECK(window.is_unified(comm.rank()) && window.map<std::int32_t>(comm.rank()).size() == 64);
  if (shared || comm.size() == 1) {
    CHECK(window.is_unified(next) && window.map<std::int32_t>(next).data()[63] == values[1]);
  } else {
    CHECK(!window.is_unified(next));
    CHECK_THROWS(FC_ERR_UNSUPPORTED, "no address", window.map<std::int32_t>(next));
  }
  CHECK_THROWS(FC_ERR_INVALID_ARGUMENT, "window",
               window.put(Span<const std::int32_t>(values), next, 63));
  OpOptions brief;
  brief.timeout = milliseconds(50);
  CHECK_THROWS(FC_ERR_TIMEOUT, "wait_signal", window.wait_signal(previous, brief));
  window.deregister();
  CHECK_THROWS(FC_ERR_STATE, "window", window.signal(next));
}

void windows(Communicator& comm) {
  std::vector<std::int32_t> plain(64);
  one_sided(comm, Span<std::int32_t>(plain), false);
  SharedMemory<std::int32_t> first(64);
  SharedMemory<std::int32_t> memory(1);
  memory = std::move(first);
  CHECK(memory.size() == 64);
  one_sided(comm, Span<std::int32_t>(memory), true);
  CHECK_THROWS(FC_ERR_UNSUPPORTED, "no engine", SharedMemory<int>(1, "none"));
}

void members_change() {
  Options options;
  options.name = "elastic";
  Communicator elastic = Communicator::unconfigured(options);
  CHECK(elastic.state() == "unconfigured");
  CHECK_THROWS(FC_ERR_STATE, "no members yet", elastic.barrier());
  ferrocomm::ReconfigureOptions members;
  members.uuid = 1;
  members.handles = {elastic.init_handle()};
  elastic.reconfigure(members);
  CHECK(elastic.state() == "ready" && elastic.rank() == 0 && elastic.size() == 1);
  elastic.barrier();
  CHECK_THROWS(FC_ERR_INVALID_ARGUMENT, "uuid", elastic.reconfigure(members));
  members.uuid = 2;
  members.ordered = false;
  elastic.reconfigure_async(members).wait();
  elastic.barrier();
  elastic.finalize();
}

void run_rank(const fs::path& folder, const std::string& name, int rank, int size) {
  FolderStore store(folder);
  Communicator comm = Communicator::create(options_of(name, rank, size), store);
  CHECK(comm.rank() == rank && comm.size() == size && comm.backend() == "host");
  comm.set_timeout(seconds(50));
  CHECK(comm.timeout() == seconds(50));
  collectives(comm);
  works(comm);
  hints(comm);
  batches(comm);
  groups(comm);
  windows(comm);
  members_change();
  CHECK_THROWS(FC_ERR_INVALID_ARGUMENT, "root", comm.broadcast(Span<int>(), size));
  CHECK(comm.error().empty() && comm.sequence() > 0);
  CHECK(comm.info().find(name) != std::string::npos);
  CHECK(ferrocomm::recorder_dump().find("ferrocomm:all_gather") != std::string::npos);
  comm.finalize();
}

// Runs `body` in a forked child, whose checks come back as its exit status.
template <class Body>
pid_t in_child(Body body) {
  const pid_t child = fork();
  if (child != 0) return child;
  alarm(60);
  tally().passed = tally().failed = 0;
  try {
    body();
  } catch (const std::exception& error) {
    check_at(__FILE__, __LINE__, false, error.what());
  }
  _exit(tally().failed == 0 && tally().passed > 0 ? 0 : 1);
}

void check_child(pid_t child) {
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// A parent that made a communicator and a child that inherits it.
void inherited(const fs::path& folder) {
  FolderStore store(folder);
  Communicator comm = Communicator::create(options_of("parent", 0, 1), store);
  check_child(in_child([&] {
    CHECK_THROWS(FC_ERR_FORKED, "fork", comm.barrier());
    CHECK_THROWS(FC_ERR_FORKED, "fork", comm.finalize());
    {
      Communicator gone = std::move(comm);
    }
    run_rank(folder, "child", 0, 1);
  }));
  comm.barrier();
  comm.finalize();
}

void stores_that_fail() {
  // Two ranks, so that the store is needed.
  const Options options = options_of("failing", 0, 2);
  BrokenStore lost([] { throw Error(FC_ERR_STORE_DISCONNECTED, "the cable is out"); });
  CHECK_THROWS(FC_ERR_STORE_DISCONNECTED, "the cable is out", Communicator::create(options, lost));
  BrokenStore odd([] { throw std::runtime_error("out of paper"); });
  CHECK_THROWS(FC_ERR_STORE, "out of paper", Communicator::create(options, odd));
}

void pair_of_processes(const fs::path& folder) {
  const pid_t child = in_child([&] { run_rank(folder, "pair", 1, 2); });
  run_rank(folder, "pair", 0, 2);
  check_child(child);
}

}  // namespace

int main() {
  alarm(120);
  std::string pattern = (fs::temp_directory_path() / "ferrocomm-cpp-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    std::perror("mkdtemp");
    return 1;
  }
  const fs::path folder = pattern;
  try {
    CHECK(info_from_second_unit().find("\"host\"") != std::string::npos);
    pair_of_processes(folder);
    run_rank(folder, "single", 0, 1);
    inherited(folder);
    stores_that_fail();
  } catch (const std::exception& error) {
    check_at(__FILE__, __LINE__, false, error.what());
  }
  fs::remove_all(folder);
  std::printf("c++ tests: %d passed, %d failed\n", tally().passed.load(), tally().failed.load());
  return tally().failed == 0 && tally().passed > 0 ? 0 : 1;
}
