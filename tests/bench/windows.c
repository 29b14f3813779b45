/* Times windows between two ranks of this machine, in the engine.
 *
 *     bench_windows [CORES]      the cores of the two ranks, `0,1` unless given, `-` for none
 *
 * Prints, each the best of some batches: what a put of 8 bytes and its signal cost the rank that
 * calls them; half a round trip of put, signal and wait; and puts of 1 MB beside a plain copy of
 * the same bytes between the same places. Into memory that this process cannot map, where the
 * kernel copies, also beside process_vm_writev by itself: nothing that writes there on one rank's
 * behalf alone can be faster. */
#define _GNU_SOURCE
#include <ferrocomm.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../c/file_store.h"

enum { BATCHES = 50, SMALL = 1000, LONG = 20, MEBI = 1 << 20 };

static void must(fc_status status, const char* what) {
  if (status != FC_OK) {
    fprintf(stderr, "%s: %s\n", what, fc_last_error());
    exit(1);
  }
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void barrier(fc_comm* comm) { must(fc_comm_barrier(comm, NULL, NULL), "barrier"); }

static void put(fc_window* window, const void* from, size_t bytes, int to) {
  must(fc_window_put(window, from, bytes, FC_DTYPE_BYTE, to, 0, NULL, NULL), "put");
}

static void signal_to(fc_window* window, int to) {
  must(fc_window_signal(window, to, NULL, NULL), "signal");
}

static void wait_for(fc_window* window, int from) {
  must(fc_window_wait_signal(window, from, NULL, NULL), "wait_signal");
}

/* Nanoseconds of one call pair on rank 0; rank 1 takes the signals between two batches. */
static double one_way(fc_comm* comm, fc_window* window, int rank) {
  double best = 1e18;
  for (int batch = 0; batch < BATCHES; batch++) {
    barrier(comm);
    double begin = now();
    for (int i = 0; i < SMALL && rank == 0; i++) {
      uint64_t value = (uint64_t)i;
      put(window, &value, sizeof value, 1);
      signal_to(window, 1);
    }
    double each = (now() - begin) / SMALL;
    best = each < best ? each : best;
    barrier(comm);
    for (int i = 0; i < SMALL && rank == 1; i++) {
      wait_for(window, 0);
    }
  }
  return best;
}

/* Nanoseconds of put, signal and wait there, and the same back, halved. */
static double there_and_back(fc_comm* comm, fc_window* window, int rank) {
  double best = 1e18;
  for (int batch = 0; batch < BATCHES; batch++) {
    barrier(comm);
    double begin = now();
    for (int i = 0; i < SMALL; i++) {
      uint64_t value = (uint64_t)i;
      if (rank == 1) {
        wait_for(window, 0);
      }
      put(window, &value, sizeof value, 1 - rank);
      signal_to(window, 1 - rank);
      if (rank == 0) {
        wait_for(window, 1);
      }
    }
    double each = (now() - begin) / SMALL / 2;
    best = each < best ? each : best;
  }
  return best;
}

/* A way to bring 1 MB from `from` to rank 1. */
typedef struct {
  void (*copy)(const void* how, const char* from);
  const void* how;
} way;

static void by_put(const void* window, const char* from) {
  put((fc_window*)(uintptr_t)window, from, MEBI, 1);
}

static void by_memcpy(const void* to, const char* from) {
  memcpy((void*)(uintptr_t)to, from, MEBI);
  /* So that no copy is left out. */
  __asm__ volatile("" : : "r"(to) : "memory");
}

/* Where memory of another process lies. */
typedef struct {
  uint64_t pid;
  uint64_t address;
} place;

static void by_kernel(const void* how, const char* from) {
  const place* to = how;
  struct iovec local = {(void*)(uintptr_t)from, MEBI};
  struct iovec remote = {(void*)(uintptr_t)to->address, MEBI};
  if (process_vm_writev((pid_t)to->pid, &local, 1, &remote, 1, 0) != MEBI) {
    perror("process_vm_writev");
    exit(1);
  }
}

/* Bytes per nanosecond of 1 MB at a time. */
static double rate(fc_comm* comm, int rank, const char* from, way by) {
  double best = 0;
  for (int batch = 0; batch < BATCHES; batch++) {
    barrier(comm);
    double begin = now();
    for (int i = 0; i < LONG && rank == 0; i++) {
      by.copy(by.how, from);
    }
    double bytes = (double)LONG * MEBI / (now() - begin);
    best = bytes > best ? bytes : best;
  }
  return best;
}

static void measure(fc_comm* comm, int rank, const char* kind, char* memory) {
  fc_window* window = NULL;
  char* from = malloc(MEBI);
  if (from == NULL) {
    exit(1);
  }
  memset(from, 3, MEBI);
  memset(memory, 0, MEBI);
  must(fc_window_create(comm, memory, MEBI, NULL, &window), "fc_window_create");
  double one = one_way(comm, window, rank);
  double back = there_and_back(comm, window, rank);
  double puts = rate(comm, rank, from, (way){by_put, window});
  void* plain = NULL;
  const int mapped = fc_window_map(window, 1 - rank, &plain) == FC_OK;
  double copies = rate(comm, rank, from, (way){by_memcpy, mapped ? plain : memory});
  place there = {(uint64_t)getpid(), (uint64_t)(uintptr_t)memory};
  must(fc_comm_broadcast(comm, &there, sizeof there, FC_DTYPE_BYTE, 1, NULL, NULL), "broadcast");
  double kernel = mapped ? 0 : rate(comm, rank, from, (way){by_kernel, &there});
  if (rank == 0) {
    printf(
        "%-9s put+signal 8 B %6.0f ns   put+signal+wait, one way %6.0f ns   put 1 MB %5.1f GB/s"
        ", %3.0f %% of a plain copy",
        kind, one, back, puts, 100 * puts / copies);
    if (!mapped) printf(", %3.0f %% of process_vm_writev alone", 100 * puts / kernel);
    printf("\n");
    fflush(stdout);
  }
  must(fc_window_deregister(window, NULL), "fc_window_deregister");
  fc_window_destroy(window);
  free(from);
}

static void run(const char* folder, int rank, int core) {
  if (core >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
      perror("sched_setaffinity");
    }
  }
  fc_store_table store;
  if (!file_store_open(folder, &store)) {
    exit(1);
  }
  fc_comm_options options;
  fc_comm_options_init(&options);
  options.name = "bench";
  options.rank = rank;
  options.comm_size = 2;
  fc_comm* comm = NULL;
  must(fc_comm_create(&options, &store, &comm), "fc_comm_create");
  void* shared = NULL;
  must(fc_mem_alloc("host", MEBI, &shared), "fc_mem_alloc");
  measure(comm, rank, "allocator", shared);
  char* plain = malloc(MEBI);
  if (plain != NULL) {
    measure(comm, rank, "plain", plain);
  }
  free(plain);
  must(fc_mem_free("host", shared), "fc_mem_free");
  must(fc_comm_finalize(comm), "fc_comm_finalize");
  fc_comm_destroy(comm);
}

int main(int argc, char** argv) {
  int cores[2] = {0, 1};
  if (argc > 1 && sscanf(argv[1], "%d,%d", &cores[0], &cores[1]) != 2) {
    cores[0] = cores[1] = -1;
  }
  const char* temporary = getenv("TMPDIR");
  char folder[4096];
  snprintf(folder, sizeof folder, "%s/ferrocomm-bench-XXXXXX", temporary ? temporary : "/tmp");
  if (mkdtemp(folder) == NULL) {
    perror("mkdtemp");
    return 1;
  }
  pid_t child = fork();
  if (child == 0) {
    run(folder, 1, cores[1]);
    _exit(0);
  }
  run(folder, 0, cores[0]);
  int status = 1;
  waitpid(child, &status, 0);
  char command[sizeof folder + 16];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command) != 0 || status != 0;
}
