/* What this machine can do at best, to hold the engine against.
 *
 *     floors CORES [flag]   such as `0,1`; with `flag` that alone
 *
 * Prints `flag NANOSECONDS`: one way of a flag between the first two cores, each spinning on a
 * cache line the other writes; and `copy THREADS BYTES GIGABYTES`: bytes copied per second (10^9),
 * by each of THREADS threads that copy at the same time, every one between buffers of its own. */
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_CORES = 8, ROUNDS = 7, FLAG_ROUNDS = 101, EXCHANGES = 500 };

/* Tells the answering thread to end. */
#define LEAVE UINT_MAX

typedef struct {
  _Alignas(128) atomic_uint ping;
  _Alignas(128) atomic_uint pong;
} flags;

typedef struct {
  pthread_barrier_t* together;
  size_t bytes;
  int core;
  double best;
} copier;

static flags shared;
static int cores[MAX_CORES];
static int core_count;

static double seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void stay_on(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)core, &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof set, &set) != 0) perror("setaffinity");
}

static void* answer(void* unused) {
  (void)unused;
  stay_on(cores[1]);
  for (unsigned i = 1;; i++) {
    unsigned seen;
    do {
      seen = atomic_load_explicit(&shared.ping, memory_order_acquire);
    } while (seen != i && seen != LEAVE);
    if (seen == LEAVE) return NULL;
    atomic_store_explicit(&shared.pong, i, memory_order_release);
  }
}

static int by_value(const void* a, const void* b) {
  double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

/* Median over short rounds: the least would be a moment of luck of the clock's frequency. Where
 * others use the cores a round may take seconds, so the whole is limited. */
static void flag_exchange(void) {
  pthread_t other;
  if (pthread_create(&other, NULL, answer, NULL) != 0) return;
  stay_on(cores[0]);
  double times[FLAG_ROUNDS];
  int rounds = 0;
  unsigned next = 0;
  for (double begin = seconds(); rounds < FLAG_ROUNDS && seconds() < begin + 1; rounds++) {
    double start = seconds();
    for (int i = 0; i < EXCHANGES; i++) {
      atomic_store_explicit(&shared.ping, ++next, memory_order_release);
      while (atomic_load_explicit(&shared.pong, memory_order_acquire) != next) {
      }
    }
    times[rounds] = (seconds() - start) / EXCHANGES / 2;
  }
  atomic_store_explicit(&shared.ping, LEAVE, memory_order_release);
  pthread_join(other, NULL);
  qsort(times, (size_t)rounds, sizeof *times, by_value);
  printf("flag %.1f\n", times[rounds / 2] * 1e9);
}

static void* copy(void* argument) {
  copier* mine = argument;
  stay_on(mine->core);
  char *from = NULL, *to = NULL;
  int there = posix_memalign((void**)&from, 4096, mine->bytes) == 0 &&
              posix_memalign((void**)&to, 4096, mine->bytes) == 0;
  if (there) {
    memset(from, 1, mine->bytes);
    memset(to, 2, mine->bytes);
  }
  long times = 1 + (long)((64u << 20) / mine->bytes);
  for (int round = 0; round < ROUNDS; round++) {
    pthread_barrier_wait(mine->together);
    double start = seconds();
    for (long i = 0; there && i < times; i++) {
      memcpy(to, from, mine->bytes);
      /* the compiler may not drop a copy nobody reads */
      __asm__ volatile("" : : "r"(to) : "memory");
    }
    double rate = (double)mine->bytes * (double)times / (seconds() - start) / 1e9;
    if (there && rate > mine->best) mine->best = rate;
  }
  free(from);
  free(to);
  return NULL;
}

static void copy_together(int threads, size_t bytes) {
  pthread_t started[MAX_CORES];
  copier copiers[MAX_CORES];
  pthread_barrier_t together;
  pthread_barrier_init(&together, NULL, (unsigned)threads);
  for (int i = 0; i < threads; i++) {
    copiers[i] = (copier){&together, bytes, cores[i], 0};
    if (pthread_create(&started[i], NULL, copy, &copiers[i]) != 0) exit(1);
  }
  double total = 0;
  for (int i = 0; i < threads; i++) {
    pthread_join(started[i], NULL);
    total += copiers[i].best;
  }
  pthread_barrier_destroy(&together);
  printf("copy %d %zu %.2f\n", threads, bytes, total / threads);
}

int main(int argc, char** argv) {
  int all = argc == 2;
  char* at = all || (argc == 3 && strcmp(argv[2], "flag") == 0) ? argv[1] : "";
  while (*at != '\0' && core_count < MAX_CORES) {
    cores[core_count++] = (int)strtol(at, &at, 10);
    if (*at == ',') at++;
  }
  if (core_count == 0) {
    fprintf(stderr, "usage: floors CORES [flag]\n");
    return 2;
  }
  if (core_count > 1) flag_exchange();
  if (!all) return 0;
  for (size_t bytes = 4096; bytes <= 64u << 20; bytes *= 8) copy_together(core_count, bytes);
  copy_together(core_count, 64u << 20);
  return 0;
}
