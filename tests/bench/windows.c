/* Times windows between two ranks of this machine, in the engine.
 *
 *     bench_windows [CORES]      the cores of the two ranks, `0,1` unless given, `-` for none
 *
 * Prints, each the best of some batches: what a put of 8 bytes and its signal cost the rank that
 * calls them; half a round trip of put, signal and wait; and puts of 1 MB beside a plain copy of
 * the same bytes between the same places. */
#define _GNU_SOURCE
#include <ferrocomm.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* Bytes per nanosecond of puts of 1 MB, or of plain copies to the same place. */
static double rate(fc_comm* comm, fc_window* window, int rank, const char* from, void* plain) {
  double best = 0;
  for (int batch = 0; batch < BATCHES; batch++) {
    barrier(comm);
    double begin = now();
    for (int i = 0; i < LONG && rank == 0; i++) {
      if (plain != NULL) {
        memcpy(plain, from, MEBI);
        /* So that no copy is left out. */
        __asm__ volatile("" : : "r"(plain) : "memory");
      } else {
        put(window, from, MEBI, 1);
      }
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
  double way = one_way(comm, window, rank);
  double back = there_and_back(comm, window, rank);
  double puts = rate(comm, window, rank, from, NULL);
  void* plain = NULL;
  if (fc_window_map(window, 1, &plain) != FC_OK) {
    plain = memory;
  }
  double copies = rate(comm, window, rank, from, plain);
  if (rank == 0) {
    printf(
        "%-9s put+signal 8 B %6.0f ns   put+signal+wait, one way %6.0f ns   put 1 MB %5.1f GB/s"
        ", %3.0f %% of a plain copy\n",
        kind, way, back, puts, 100 * puts / copies);
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
