/* What breaks a communicator, and that it breaks nothing else. */
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
    time_out(comm);
    aborts(comm);
  }
  use_after_finalize(comm);
  is_in_state(comm, "ready");
  CHECK_OK(fc_comm_barrier(comm, NULL, NULL));
}
