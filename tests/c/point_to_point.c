/* Sends and receives: matching, any source, self, batches. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { LARGE = 300000 };

static void ring(fc_comm* comm, size_t count) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  int32_t *out = calloc(count + 1, sizeof *out), *in = calloc(count + 1, sizeof *in);
  if (out == NULL || in == NULL) {
    abort();
  }
  for (size_t i = 0; i < count; i++) {
    out[i] = rank * 1000000 + (int32_t)i;
  }
  fc_work* work = NULL;
  CHECK_OK(fc_comm_send(comm, out, count, FC_DTYPE_INT32, next, 5, NULL, &work));
  CHECK_OK(fc_comm_recv(comm, in, count, FC_DTYPE_INT32, previous, 5, NULL, NULL));
  CHECK_OK(done(FC_OK, &work));
  int right = 1;
  for (size_t i = 0; i < count; i++) {
    right &= in[i] == previous * 1000000 + (int32_t)i;
  }
  CHECK(right, "ring of %zu elements", count);
  free(out);
  free(in);
}

/* Rank 0 sends three messages under two tags; rank 1 takes the tags in the other order. */
static void tags_and_order(fc_comm* comm) {
  int rank = fc_comm_rank(comm);
  if (fc_comm_size(comm) == 1) {
    return;
  }
  if (rank == 0) {
    int32_t data[3] = {10, 11, 12};
    fc_work* works[3] = {NULL};
    for (int i = 0; i < 3; i++) {
      CHECK_OK(fc_comm_send(comm, &data[i], 1, FC_DTYPE_INT32, 1, i == 1 ? 8 : 7, NULL, &works[i]));
    }
    for (int i = 0; i < 3; i++) {
      CHECK_OK(done(FC_OK, &works[i]));
    }
  } else if (rank == 1) {
    static const struct {
      uint32_t tag;
      int32_t expected;
    } order[] = {{8, 11}, {7, 10}, {7, 12}};
    for (int i = 0; i < 3; i++) {
      int32_t data = -1;
      CHECK_OK(fc_comm_recv(comm, &data, 1, FC_DTYPE_INT32, 0, order[i].tag, NULL, NULL));
      CHECK(data == order[i].expected, "tag %u brings %d", order[i].tag, data);
    }
  }
}

static void any_source(fc_comm* comm) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  if (rank != 0) {
    int64_t data = rank * 11;
    CHECK_OK(fc_comm_send(comm, &data, 1, FC_DTYPE_INT64, 0, 9, NULL, NULL));
    return;
  }
  int seen[64] = {0};
  for (int i = 1; i < size; i++) {
    int64_t data = -1;
    fc_work* work = NULL;
    CHECK_OK(fc_comm_recv(comm, &data, 1, FC_DTYPE_INT64, FC_ANY_SOURCE, 9, NULL, &work));
    if (work == NULL) {
      return;
    }
    CHECK_OK(fc_work_wait(work, 0));
    int source = fc_work_source(work);
    if (CHECK(source > 0 && source < size, "source %d", source)) {
      CHECK(data == source * 11, "rank %d sent %lld", source, (long long)data);
      seen[source]++;
    }
    fc_work_destroy(work);
  }
  for (int from = 1; from < size; from++) {
    CHECK(seen[from] == 1, "rank %d was heard %d times", from, seen[from]);
  }
}

static void to_itself(fc_comm* comm) {
  int rank = fc_comm_rank(comm);
  int32_t out[3] = {rank, 2, 3}, in[3] = {0};
  fc_work* work = NULL;
  CHECK_OK(fc_comm_send(comm, out, 3, FC_DTYPE_INT32, rank, 1, NULL, &work));
  CHECK_OK(fc_comm_recv(comm, in, 3, FC_DTYPE_INT32, rank, 1, NULL, NULL));
  CHECK_OK(done(FC_OK, &work));
  CHECK(memcmp(out, in, sizeof in) == 0, "a message to itself");
}

/* Everybody sends to and receives from everybody, itself too, as one unit. */
static void batch_with_everybody(fc_comm* comm, call_mode mode) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  int32_t out[64], in[64];
  fc_batch* batch = NULL;
  CHECK_OK(fc_batch_create(comm, &batch));
  for (int peer = 0; peer < size; peer++) {
    out[peer] = rank * 100 + peer;
    in[peer] = -1;
    CHECK_OK(fc_batch_recv(batch, &in[peer], 1, FC_DTYPE_INT32, peer, 2));
    CHECK_OK(fc_batch_send(batch, &out[peer], 1, FC_DTYPE_INT32, peer, 2));
  }
  fc_work* work;
  CHECK_OK(done(fc_batch_issue(batch, NULL, slot(mode, &work)), &work));
  for (int peer = 0; peer < size; peer++) {
    CHECK(in[peer] == peer * 100 + rank, "batch: rank %d sent %d", peer, in[peer]);
  }
  CHECK_OK(done(fc_batch_issue(batch, NULL, slot(mode, &work)), &work));
  fc_batch_destroy(batch);
}

/* Rank 0 sends what the last rank never takes: the time-out names that rank, the message is gone,
 * and the next receive gets the next message. */
static void too_late(fc_comm* comm, int batched) {
  int rank = fc_comm_rank(comm), last = fc_comm_size(comm) - 1;
  int32_t* data = calloc(LARGE, sizeof *data);
  if (data == NULL) {
    abort();
  }
  if (rank == 0) {
    fc_op_options options;
    fc_op_options_init(&options);
    options.timeout_ns = 300000000;
    fc_batch* batch = NULL;
    if (batched) {
      CHECK_OK(fc_batch_create(comm, &batch));
      CHECK_OK(fc_batch_send(batch, data, LARGE, FC_DTYPE_INT32, last, 3));
      CHECK_STATUS(FC_ERR_TIMEOUT, fc_batch_issue(batch, &options, NULL));
    } else {
      CHECK_STATUS(FC_ERR_TIMEOUT,
                   fc_comm_send(comm, data, LARGE, FC_DTYPE_INT32, last, 3, &options, NULL));
    }
    char expected[32];
    snprintf(expected, sizeof expected, "peer %d,", last);
    CHECK_TEXT(expected);
    fc_batch_destroy(batch);
    data[0] = 41;
    CHECK_OK(fc_comm_send(comm, data, 3, FC_DTYPE_INT32, last, 3, NULL, NULL));
    CHECK_OK(fc_comm_send(comm, data, 1, FC_DTYPE_INT32, last, 4, NULL, NULL));
  }
  CHECK_OK(fc_comm_barrier(comm, NULL, NULL));
  if (rank == last) {
    /* What follows word of the end on the same way: the barrier may have come by way of others. */
    CHECK_OK(fc_comm_recv(comm, data, 1, FC_DTYPE_INT32, 0, 4, NULL, NULL));
    CHECK_OK(fc_comm_recv(comm, data, 3, FC_DTYPE_INT32, 0, 3, NULL, NULL));
    CHECK(data[0] == 41, "the next message brings %d", data[0]);
  }
  free(data);
}

void test_point_to_point(fc_comm* comm) {
  ring(comm, 0);
  ring(comm, 1);
  ring(comm, LARGE);
  tags_and_order(comm);
  any_source(comm);
  to_itself(comm);
  batch_with_everybody(comm, SYNC);
  batch_with_everybody(comm, ASYNC);
  if (fc_comm_size(comm) > 1) {
    too_late(comm, 0);
    too_late(comm, 1);
  }
}
