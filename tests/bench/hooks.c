/* How long an operation takes on a communicator of one rank, which waits for nobody: what is left
 * is the engine's own cost.
 *
 *     hooks FOLDER CALLS ROUNDS [readout]
 *
 * prints nanoseconds per all_reduce of 8 bytes, the least of the rounds; with `readout` a second
 * thread reads the flight recorder all the while. */
#include <ferrocomm.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "side.h"

static atomic_int over;

static void* read_out(void* unused) {
  while (!atomic_load(&over)) {
    fc_string* json = NULL;
    if (fc_recorder_dump(0, 0, &json) == FC_OK) fc_string_destroy(json);
    const struct timespec pause = {0, 10 * 1000 * 1000};
    nanosleep(&pause, NULL);
  }
  return unused;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static operation all_reduce(void) {
  for (const named_operation* it = operations; it->name != NULL; it++) {
    if (strcmp(it->name, "all_reduce") == 0) return it->run;
  }
  return NULL;
}

int main(int count, char** words) {
  if (count < 4 || side_open(0, 1, words[1]) != 0) {
    fprintf(stderr, "hooks: %s\n", count < 4 ? "FOLDER CALLS ROUNDS [readout]" : side_error());
    return 1;
  }
  const long calls = atol(words[2]), rounds = atol(words[3]);
  pthread_t reader;
  const int reads = count > 4 && pthread_create(&reader, NULL, read_out, NULL) == 0;
  const operation run = all_reduce();
  float data[2] = {1, 2};
  const call what = {data, data, 2, F32, 0};
  double least = 1e18;
  for (long round = 0; round < rounds; round++) {
    const double start = now();
    for (long i = 0; i < calls; i++) {
      if (run(&what) != 0) return 1;
    }
    const double each = (now() - start) / (double)calls;
    if (each < least) least = each;
  }
  atomic_store(&over, 1);
  if (reads) pthread_join(reader, NULL);
  printf("%.1f\n", least);
  side_close();
  return 0;
}
