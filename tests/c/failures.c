/* What breaks a communicator, and that it breaks nothing else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* A communicator of all ranks to break. */
static fc_comm* whole(fc_comm* comm, const char* name) {
  int32_t ranks[64];
  for (int i = 0; i < fc_comm_size(comm); i++) {
    ranks[i] = i;
  }
  fc_comm* child = NULL;
  CHECK_OK(fc_comm_split(comm, ranks, (size_t)fc_comm_size(comm), name, 0, &child));
  return child;
}

static int is_in_state(fc_comm* comm, const char* expected) {
  const char* state = "";
  CHECK_OK(fc_comm_state(comm, &state));
  return CHECK(strcmp(state, expected) == 0, "%s is %s, not %s", fc_comm_name(comm), state,
               expected);
}

/* Rank 0 reduces more elements than the others. */
static void mismatch(fc_comm* comm) {
  fc_comm* child = whole(comm, "mismatch");
  if (child == NULL) {
    return;
  }
  int64_t data[8] = {0};
  size_t count = fc_comm_rank(comm) == 0 ? 8 : 4;
  fc_status status =
      fc_comm_all_reduce(child, data, data, count, FC_DTYPE_INT64, FC_REDUCE_SUM, NULL, NULL);
  CHECK(status == FC_ERR_MISMATCH, "%s: %s", fc_status_name(status), fc_last_error());
  is_in_state(child, "failed");
  fc_string* cause = NULL;
  CHECK_OK(fc_comm_error(child, &cause));
  CHECK(strstr(fc_string_data(cause), "mismatch") != NULL, "%s", fc_string_data(cause));
  fc_string_destroy(cause);
  CHECK_STATUS(status, fc_comm_barrier(child, NULL, NULL));
  CHECK_OK(fc_comm_finalize(child));
  is_in_state(child, "finalized");
  fc_comm_destroy(child);
}

typedef fc_status (*rooted_call)(fc_comm* comm, float* own, float* all, size_t count, int32_t root,
                                 const fc_op_options* options);

static fc_status call_broadcast(fc_comm* comm, float* own, float* all, size_t count, int32_t root,
                                const fc_op_options* options) {
  (void)all;
  return fc_comm_broadcast(comm, own, count, FC_DTYPE_FLOAT32, root, options, NULL);
}

static fc_status call_reduce(fc_comm* comm, float* own, float* all, size_t count, int32_t root,
                             const fc_op_options* options) {
  return fc_comm_reduce(comm, own, all, count, FC_DTYPE_FLOAT32, FC_REDUCE_SUM, root, options,
                        NULL);
}

static void parts(fc_comm* comm, float* all, size_t count, float** each) {
  for (int i = 0; i < fc_comm_size(comm); i++) {
    each[i] = all + (size_t)i * count;
  }
}

static fc_status call_gather(fc_comm* comm, float* own, float* all, size_t count, int32_t root,
                             const fc_op_options* options) {
  float* each[64];
  parts(comm, all, count, each);
  return fc_comm_gather(comm, own, count, (void* const*)each, FC_DTYPE_FLOAT32, root, options,
                        NULL);
}

static fc_status call_scatter(fc_comm* comm, float* own, float* all, size_t count, int32_t root,
                              const fc_op_options* options) {
  float* each[64];
  parts(comm, all, count, each);
  return fc_comm_scatter(comm, (const void* const*)each, own, count, FC_DTYPE_FLOAT32, root,
                         options, NULL);
}

/* Ranks that take different ones for the root, so that in some cases all wait and nobody sends. A
 * rank whose part is over before it hears of it is told with its next call. */
static void root_mismatch(fc_comm* comm, const char* name, rooted_call call, size_t count,
                          int is_own) {
  fc_comm* child = whole(comm, name);
  int size = fc_comm_size(comm), last = fc_comm_rank(comm) == size - 1;
  float* memory = calloc(count * (size_t)(size + 1), sizeof *memory);
  if (!CHECK(child != NULL && memory != NULL, "no memory")) {
    free(memory);
    return;
  }
  fc_op_options options;
  fc_op_options_init(&options);
  options.timeout_ns = 10000000000;
  int32_t root = last == is_own ? size - 1 : 0;
  fc_status status = call(child, memory, memory + count, count, root, &options);
  if (status == FC_OK) {
    status = fc_comm_barrier(child, &options, NULL);
  }
  CHECK(status == FC_ERR_MISMATCH, "%s of %zu: %s: %s", name, count, fc_status_name(status),
        fc_last_error());
  char expected[32];
  snprintf(expected, sizeof expected, "root %d", size - 1);
  CHECK_TEXT("root 0");
  CHECK_TEXT(expected);
  fc_comm_destroy(child);
  free(memory);
}

static void root_mismatches(fc_comm* comm) {
  static const struct {
    const char* name;
    rooted_call call;
  } calls[] = {{"broadcast", call_broadcast},
               {"reduce", call_reduce},
               {"gather", call_gather},
               {"scatter", call_scatter}};
  static const size_t counts[] = {10, 1 << 19};
  for (size_t i = 0; i < 4; i++) {
    for (size_t j = 0; j < 2; j++) {
      root_mismatch(comm, calls[i].name, calls[i].call, counts[j], 0);
      root_mismatch(comm, calls[i].name, calls[i].call, counts[j], 1);
    }
  }
}

/* Only rank 0 comes to the barrier. */
static void time_out(fc_comm* comm) {
  fc_comm* child = whole(comm, "late");
  if (child != NULL && fc_comm_rank(comm) == 0) {
    fc_op_options options;
    fc_op_options_init(&options);
    options.timeout_ns = 300000000;
    CHECK_STATUS(FC_ERR_TIMEOUT, fc_comm_barrier(child, &options, NULL));
    CHECK_TEXT("barrier");
    CHECK_TEXT("peer");
    is_in_state(child, "failed");
    CHECK_STATUS(FC_ERR_TIMEOUT, fc_comm_barrier(child, NULL, NULL));
  }
  CHECK_OK(fc_comm_barrier(comm, NULL, NULL));
  fc_comm_destroy(child);
}

/* All but one rank come to the barrier: whomever they wait for, each names that one alone. */
static void held_up(fc_comm* comm, int absent) {
  fc_comm* child = whole(comm, "held up");
  if (child != NULL && fc_comm_rank(comm) != absent) {
    fc_op_options options;
    fc_op_options_init(&options);
    options.timeout_ns = 1000000000;
    CHECK_STATUS(FC_ERR_TIMEOUT, fc_comm_barrier(child, &options, NULL));
    char expected[32];
    snprintf(expected, sizeof expected, ", peer %d, operation", absent);
    CHECK_TEXT(expected);
  }
  CHECK_OK(fc_comm_barrier(comm, NULL, NULL));
  fc_comm_destroy(child);
}

/* Rank 0 starts a barrier that nobody else comes to, and aborts. */
static void aborts(fc_comm* comm) {
  fc_comm* child = whole(comm, "aborted");
  if (child != NULL && fc_comm_rank(comm) == 0) {
    fc_work* work = NULL;
    CHECK_OK(fc_comm_barrier(child, NULL, &work));
    CHECK_OK(fc_comm_abort(child));
    CHECK_OK(fc_comm_abort(child));
    CHECK_STATUS(FC_ERR_ABORTED, fc_work_wait(work, 0));
    is_in_state(child, "aborted");
    CHECK_STATUS(FC_ERR_ABORTED, fc_comm_barrier(child, NULL, NULL));
    CHECK_OK(fc_comm_finalize(child));
    fc_work_destroy(work);
  }
  CHECK_OK(fc_comm_barrier(comm, NULL, NULL));
  fc_comm_destroy(child);
}

static void use_after_finalize(fc_comm* comm) {
  fc_comm* child = whole(comm, "finalized");
  if (child == NULL) {
    return;
  }
  fc_work* work = NULL;
  int64_t one = 1;
  CHECK_OK(fc_comm_all_reduce(child, &one, &one, 1, FC_DTYPE_INT64, FC_REDUCE_SUM, NULL, &work));
  CHECK_OK(fc_comm_finalize(child));
  CHECK(fc_work_status(work) == FC_OK, "finalize waits for what is pending");
  CHECK(one == fc_comm_size(comm), "the result is there");
  CHECK_OK(fc_comm_finalize(child));
  CHECK_STATUS(FC_ERR_STATE, fc_comm_barrier(child, NULL, NULL));
  CHECK_TEXT("finalized");
  CHECK_STATUS(FC_ERR_STATE, fc_comm_split(child, NULL, 0, "late", 0, &child));
  fc_comm_destroy(child);
  CHECK_OK(fc_work_wait(work, 0));
  fc_work_destroy(work);
}

void test_failures(fc_comm* comm) {
  if (fc_comm_size(comm) > 1) {
    mismatch(comm);
    root_mismatches(comm);
    time_out(comm);
    for (int absent = 0; absent < fc_comm_size(comm); absent++) {
      held_up(comm, absent);
    }
    aborts(comm);
  }
  use_after_finalize(comm);
  is_in_state(comm, "ready");
  CHECK_OK(fc_comm_barrier(comm, NULL, NULL));
}
