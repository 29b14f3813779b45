/* Times the operations of one communication library in loops of the form of the OSU benchmarks.
 *
 *     PROGRAM SOCKET RANK SIZE FOLDER CORE
 *
 * One rank. Connects to the Unix socket SOCKET, says `hello RANK`, then obeys lines until `quit`:
 *     time OPERATION BYTES TYPE WARMUP ITERATIONS    answers `ok NANOSECONDS`, of all iterations
 *     check OPERATION BYTES TYPE                     answers `ok WRONG`, elements that are wrong
 * or `error TEXT`. BYTES is the larger buffer of a rank. Between two lines a rank sleeps in read(),
 * so that it takes nothing from whoever is being measured. RANK `-`: as the launcher says. CORE:
 * the core of this rank is the RANK-th of the list (`0,1`), or `-` to leave it where it is. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "side.h"

typedef enum { WHOLE, FROM_PARTS, TO_PARTS, BOTH_PARTS } shape;

typedef struct {
  int rank;
  int size;
} place;

/* Buffers of one request. */
typedef struct {
  call what;
  shape parts;
  size_t inputs;
  size_t outputs;
  size_t width;
} request;

static shape shape_of(const char* name) {
  if (strcmp(name, "all_gather") == 0 || strcmp(name, "gather") == 0) return TO_PARTS;
  if (strcmp(name, "reduce_scatter") == 0 || strcmp(name, "scatter") == 0) return FROM_PARTS;
  if (strcmp(name, "all_to_all") == 0) return BOTH_PARTS;
  return WHOLE;
}

static operation find(const char* name) {
  for (const named_operation* known = operations; known->name != NULL; known++) {
    if (strcmp(known->name, name) == 0) return known->run;
  }
  return NULL;
}

static void put(void* buffer, element type, size_t index, float value) {
  if (type == F32) {
    ((float*)buffer)[index] = value;
    return;
  }
  /* The values used here are small integers, exact in the upper half of a float. */
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  ((uint16_t*)buffer)[index] = (uint16_t)(bits >> 16);
}

static float get(const void* buffer, element type, size_t index) {
  if (type == F32) return ((const float*)buffer)[index];
  uint32_t bits = (uint32_t)((const uint16_t*)buffer)[index] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static int prepare(request* made, const char* name, size_t bytes, const char* type, place me) {
  made->what.type = strcmp(type, "bf16") == 0 ? BF16 : F32;
  made->parts = shape_of(name);
  made->width = made->what.type == F32 ? 4 : 2;
  size_t all = bytes / made->width;
  size_t part = all / (size_t)me.size;
  made->inputs = made->parts == TO_PARTS ? part : all;
  made->outputs = made->parts == FROM_PARTS ? part : all;
  made->what.count = made->parts == WHOLE ? all : part;
  made->what.root = 0;
  void *input = NULL, *output = NULL;
  if (posix_memalign(&input, 4096, made->inputs * made->width + 64) != 0) return ENOMEM;
  if (posix_memalign(&output, 4096, made->outputs * made->width + 64) != 0) {
    free(input);
    return ENOMEM;
  }
  memset(input, 0, made->inputs * made->width);
  memset(output, 0, made->outputs * made->width);
  made->what.input = input;
  made->what.output = output;
  return 0;
}

static void release(request* made) {
  free((void*)made->what.input);
  free(made->what.output);
}

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* The root goes round, so that no rank can run ahead of those that wait for it. */
static int repeat(operation run, request* made, int size, long iterations) {
  for (long i = 0; i < iterations; i++) {
    int status = run(&made->what);
    if (status != 0) return status;
    if (++made->what.root == size) made->what.root = 0;
  }
  return 0;
}

static int measure(operation run, request* made, place me, long warmup, long iterations,
                   int64_t* elapsed) {
  int status = repeat(run, made, me.size, warmup);
  if (status == 0) status = side_barrier();
  made->what.root = 0;
  int64_t start = now();
  if (status == 0) status = repeat(run, made, me.size, iterations);
  *elapsed = now() - start;
  return status;
}

/* What rank gives at an index: small enough to be exact as bf16. */
static float moved(int rank, size_t index) { return (float)(index % 29 + 29 * (size_t)(rank % 8)); }
static float summand(int rank, size_t index) { return (float)(index % 8 + (size_t)rank % 8); }

static int reduces(const char* name) { return strstr(name, "reduce") != NULL; }

static float sum(int size, size_t index) {
  float total = 0;
  for (int rank = 0; rank < size; rank++) total += summand(rank, index);
  return total;
}

static float expected(const char* name, const request* made, place me, size_t i) {
  size_t part = made->what.count;
  size_t mine = (size_t)me.rank * part;
  if (strcmp(name, "reduce_scatter") == 0) return sum(me.size, mine + i);
  if (reduces(name)) return sum(me.size, i);
  if (strcmp(name, "send_recv") == 0) return moved(1 - me.rank, i);
  if (strcmp(name, "all_to_all") == 0) return moved((int)(i / part), mine + i % part);
  if (made->parts == TO_PARTS) return moved((int)(i / part), i % part);
  return moved(made->what.root, strcmp(name, "scatter") == 0 ? mine + i : i);
}

static int receives(const char* name, const request* made, place me) {
  if (strcmp(name, "barrier") == 0) return 0;
  if (strcmp(name, "reduce") == 0 || strcmp(name, "gather") == 0) return me.rank == made->what.root;
  if (strcmp(name, "send_recv") == 0) return me.rank < 2;
  return 1;
}

static int check(const char* name, operation run, request* made, place me, size_t* wrong) {
  for (size_t i = 0; i < made->inputs; i++) {
    put((void*)made->what.input, made->what.type, i,
        reduces(name) ? summand(me.rank, i) : moved(me.rank, i));
  }
  made->what.root = 1 % me.size;
  memset(made->what.output, 0xff, made->outputs * made->width);
  if (strcmp(name, "broadcast") == 0 && me.rank == made->what.root) {
    memcpy(made->what.output, made->what.input, made->inputs * made->width);
  }
  int status = run(&made->what);
  *wrong = 0;
  if (status != 0 || !receives(name, made, me)) return status;
  for (size_t i = 0; i < made->outputs; i++) {
    *wrong += get(made->what.output, made->what.type, i) != expected(name, made, me, i);
  }
  return 0;
}

static void obey(FILE* out, const char* line, place me) {
  char verb[16], name[32], type[8];
  size_t bytes, wrong = 0;
  long warmup = 0, iterations = 1;
  int read =
      sscanf(line, "%15s %31s %zu %7s %ld %ld", verb, name, &bytes, type, &warmup, &iterations);
  operation run = read >= 4 ? find(name) : NULL;
  request made;
  if (run == NULL || !side_has(strcmp(type, "bf16") == 0 ? BF16 : F32)) {
    fprintf(out, "error this library has no %s of %s\n", name, type);
    return;
  }
  if (prepare(&made, name, bytes, type, me) != 0) {
    fprintf(out, "error no memory for two buffers of %zu bytes\n", bytes);
    return;
  }
  int64_t elapsed = 0;
  int timed = strcmp(verb, "time") == 0;
  int status = timed ? measure(run, &made, me, warmup, iterations, &elapsed)
                     : check(name, run, &made, me, &wrong);
  if (status != 0) {
    fprintf(out, "error %s\n", side_error());
  } else if (timed) {
    fprintf(out, "ok %lld\n", (long long)elapsed);
  } else {
    fprintf(out, "ok %zu\n", wrong);
  }
  release(&made);
}

static int connect_to(const char* path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) return -1;
  strcpy(address.sun_path, path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  return fd >= 0 && connect(fd, (struct sockaddr*)&address, sizeof address) == 0 ? fd : -1;
}

/* The RANK-th core of a list such as `0,1`. */
static void stay_on_core(const char* cores, int rank) {
  char* end = (char*)cores;
  for (int i = 0; *end != '\0' && *end != '-'; i++) {
    long core = strtol(end, &end, 10);
    if (i == rank) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET((size_t)core, &set);
      if (sched_setaffinity(0, sizeof set, &set) != 0) perror("sched_setaffinity");
      return;
    }
    if (*end == ',') end++;
  }
}

int main(int argc, char** argv) {
  if (argc != 6) {
    fprintf(stderr, "usage: %s SOCKET RANK SIZE FOLDER CORES\n", argv[0]);
    return 2;
  }
  /* A rank that spins for a peer must not outlive its launcher. */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  place me = {side_rank(argv[2]), atoi(argv[3])};
  stay_on_core(argv[5], me.rank);
  int fd = connect_to(argv[1]);
  FILE* commands = fd < 0 ? NULL : fdopen(fd, "r");
  FILE* answers = fd < 0 ? NULL : fdopen(dup(fd), "w");
  if (commands == NULL || answers == NULL || me.rank < 0) {
    fprintf(stderr, "%s, rank %d: %s\n", argv[1], me.rank, strerror(errno));
    return 1;
  }
  setvbuf(answers, NULL, _IOLBF, 0);
  if (side_open(me.rank, me.size, argv[4]) != 0) {
    fprintf(answers, "error %s\n", side_error());
    return 1;
  }
  fprintf(answers, "hello %d\n", me.rank);
  char line[128];
  while (fgets(line, sizeof line, commands) != NULL && strncmp(line, "quit", 4) != 0) {
    obey(answers, line, me);
  }
  side_close();
  return 0;
}
