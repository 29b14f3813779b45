/* Collectives whose parts differ in length, some of them empty, at places all over memory. */
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { MOST_RANKS = 64 };

/* How many elements rank `from` has for rank `to`; zero for some pairs. */
static size_t length(int from, int to) { return (size_t)((from * 5 + to * 3) % 7) * 41; }

static int32_t value(int from, int to, size_t i) { return from * 100000 + to * 1000 + (int32_t)i; }

/* Memory for a part, never of length zero, so that every part has an address of its own. */
static int32_t* part(size_t count) {
  int32_t* data = malloc((count + 1) * sizeof *data);
  if (data == NULL) {
    abort();
  }
  memset(data, 0xee, (count + 1) * sizeof *data);
  return data;
}

static void free_parts(void* const* parts, int count) {
  for (int i = 0; i < count; i++) {
    free(parts[i]);
  }
}

static int holds(const int32_t* data, int from, int to, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (data[i] != value(from, to, i)) {
      return 0;
    }
  }
  return 1;
}

static void all_gather_v(fc_comm* comm, call_mode mode) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  size_t counts[MOST_RANKS];
  void* outputs[MOST_RANKS];
  for (int from = 0; from < size; from++) {
    counts[from] = length(from, 0);
    outputs[from] = part(counts[from]);
  }
  int32_t* input = part(counts[rank]);
  for (size_t i = 0; i < counts[rank]; i++) {
    input[i] = value(rank, 0, i);
  }
  fc_work* work;
  CHECK_OK(done(
      fc_comm_all_gather_v(comm, input, outputs, counts, FC_DTYPE_INT32, NULL, slot(mode, &work)),
      &work));
  for (int from = 0; from < size; from++) {
    CHECK(holds(outputs[from], from, 0, counts[from]), "all_gather_v from rank %d", from);
  }
  free(input);
  free_parts(outputs, size);
}

static void reduce_scatter_v(fc_comm* comm, call_mode mode) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  size_t counts[MOST_RANKS];
  void* owned[MOST_RANKS];
  const void* inputs[MOST_RANKS];
  for (int to = 0; to < size; to++) {
    counts[to] = length(0, to);
    int32_t* data = part(counts[to]);
    for (size_t i = 0; i < counts[to]; i++) {
      data[i] = value(rank, to, i);
    }
    inputs[to] = owned[to] = data;
  }
  int32_t* output = part(counts[rank]);
  fc_work* work;
  CHECK_OK(done(fc_comm_reduce_scatter_v(comm, inputs, counts, output, FC_DTYPE_INT32,
                                         FC_REDUCE_MAX, NULL, slot(mode, &work)),
                &work));
  CHECK(holds(output, size - 1, rank, counts[rank]), "reduce_scatter_v keeps the largest");
  free(output);
  free_parts(owned, size);
}

static void all_to_all_v(fc_comm* comm, call_mode mode) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  size_t gives[MOST_RANKS], takes[MOST_RANKS];
  void *owned[MOST_RANKS], *outputs[MOST_RANKS];
  const void* inputs[MOST_RANKS];
  for (int peer = 0; peer < size; peer++) {
    gives[peer] = length(rank, peer);
    takes[peer] = length(peer, rank);
    int32_t* data = part(gives[peer]);
    for (size_t i = 0; i < gives[peer]; i++) {
      data[i] = value(rank, peer, i);
    }
    inputs[peer] = owned[peer] = data;
    outputs[peer] = part(takes[peer]);
  }
  fc_work* work;
  CHECK_OK(done(fc_comm_all_to_all_v(comm, inputs, gives, outputs, takes, FC_DTYPE_INT32, NULL,
                                     slot(mode, &work)),
                &work));
  for (int from = 0; from < size; from++) {
    CHECK(holds(outputs[from], from, rank, takes[from]), "all_to_all_v from rank %d", from);
  }
  free_parts(owned, size);
  free_parts(outputs, size);
}

void test_uneven(fc_comm* comm) {
  for (int mode = SYNC; mode <= ASYNC; mode++) {
    all_gather_v(comm, (call_mode)mode);
    reduce_scatter_v(comm, (call_mode)mode);
    all_to_all_v(comm, (call_mode)mode);
  }
}
