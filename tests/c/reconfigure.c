/* Communicators whose members change. */
#include <stdio.h>
#include <string.h>

#include "check.h"

enum { LONGEST = 4096, MOST = 64 };

static int64_t sum_of_ranks(fc_comm* comm) {
  int64_t sum = fc_comm_rank(comm);
  CHECK_OK(fc_comm_all_reduce(comm, &sum, &sum, 1, FC_DTYPE_INT64, FC_REDUCE_SUM, NULL, NULL));
  return sum;
}

/* The handles of all ranks, through a communicator that they share already. */
static void exchange(fc_comm* comm, fc_comm* elastic, char handles[][LONGEST]) {
  char own[LONGEST] = "";
  fc_string* text = NULL;
  if (CHECK_OK(fc_comm_init_handle(elastic, &text))) {
    CHECK(fc_string_len(text) < LONGEST, "length of a handle");
    snprintf(own, sizeof own, "%s", fc_string_data(text));
  }
  fc_string_destroy(text);
  CHECK_OK(fc_comm_all_gather(comm, own, handles, LONGEST, FC_DTYPE_UINT8, NULL, NULL));
}

static void members_change(fc_comm* comm, fc_comm* elastic) {
  static char handles[MOST][LONGEST];
  const char* members[MOST];
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  exchange(comm, elastic, handles);
  fc_reconfigure_options options;
  fc_reconfigure_options_init(&options);
  CHECK(options.size == sizeof options && options.ordered == 1, "defaults");

  /* All, backwards. */
  for (int i = 0; i < size; i++) {
    members[i] = handles[size - 1 - i];
  }
  options.uuid = 1;
  options.handles = members;
  options.handle_count = (size_t)size;
  CHECK_OK(fc_comm_reconfigure(elastic, &options, NULL));
  CHECK(fc_comm_rank(elastic) == size - 1 - rank, "the rank is the position");
  CHECK(fc_comm_size(elastic) == size, "size");
  CHECK(sum_of_ranks(elastic) == (int64_t)size * (size - 1) / 2, "the group works");
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_reconfigure(elastic, &options, NULL));
  CHECK_TEXT("uuid");
  CHECK(sum_of_ranks(elastic) == (int64_t)size * (size - 1) / 2, "the group works still");

  /* All but the last rank, which goes on alone; with a work, and as a set. */
  int last = size - 1;
  if (size > 1) {
    options.uuid = 2;
    options.handles = rank == last ? members : members + 1;
    options.handle_count = rank == last ? 1 : (size_t)last;
    options.ordered = 0;
    fc_work* work = NULL;
    CHECK_OK(fc_comm_reconfigure(elastic, &options, &work));
    CHECK_OK(fc_work_wait(work, 0));
    CHECK_OK(fc_work_status(work));
    fc_work_destroy(work);
    CHECK(fc_comm_size(elastic) == (rank == last ? 1 : last), "size of the part");
    sum_of_ranks(elastic);
  }
}

static void refused(fc_comm* comm, fc_comm* elastic) {
  fc_string* text = NULL;
  fc_reconfigure_options options;
  fc_reconfigure_options_init(&options);
  CHECK_STATUS(FC_ERR_STATE, fc_comm_init_handle(comm, &text));
  CHECK_TEXT("fixed");
  CHECK_STATUS(FC_ERR_STATE, fc_comm_reconfigure(comm, &options, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_reconfigure(elastic, NULL, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_reconfigure(elastic, &options, NULL));
  CHECK_TEXT("handles");
  options.handle_count = 1;
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_reconfigure(elastic, &options, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_init_handle(elastic, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_init_handle(NULL, &text));
  CHECK_STATUS(FC_ERR_STATE, fc_comm_barrier(elastic, NULL, NULL));
  CHECK_TEXT("no members yet");
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_create_unconfigured(NULL, &elastic));
  fc_reconfigure_options_init(NULL);
}

void test_reconfigure(fc_comm* comm) {
  fc_comm_options options;
  fc_comm_options_init(&options);
  options.name = "elastic";
  options.rank = fc_comm_rank(comm);
  options.comm_size = fc_comm_size(comm);
  fc_comm* elastic = NULL;
  if (!CHECK_OK(fc_comm_create_unconfigured(&options, &elastic))) {
    return;
  }
  const char* state = "";
  CHECK_OK(fc_comm_state(elastic, &state));
  CHECK(strcmp(state, "unconfigured") == 0, "state");
  refused(comm, elastic);
  members_change(comm, elastic);
  CHECK_OK(fc_comm_finalize(elastic));
  CHECK_OK(fc_comm_barrier(comm, NULL, NULL));
  fc_comm_destroy(elastic);
}
