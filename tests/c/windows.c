/* Windows: put, signal, wait and get on memory of every kind, and what is refused.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { COUNT = 50000, ROUNDS = 50 };

static void refused(fc_comm* comm, fc_window* window, int64_t* memory) {
  int size = fc_comm_size(comm);
  fc_window* none = NULL;
  fc_window_access access = 77;
  void* mapped = NULL;
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_window_create(NULL, memory, 8, NULL, &none));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_window_create(comm, memory, 8, NULL, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_window_create(comm, NULL, 8, NULL, &none));
  CHECK(none == NULL, "no window");
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT,
               fc_window_put(window, memory, 2, FC_DTYPE_INT64, size, 0, NULL, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT,
               fc_window_put(window, memory, 2, FC_DTYPE_INT64, 0, COUNT - 1, NULL, NULL));
  CHECK_TEXT("do not lie within");
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT,
               fc_window_put(window, memory, 1, FC_DTYPE_INT64, 0, SIZE_MAX / 2, NULL, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT,
               fc_window_put(window, NULL, 1, FC_DTYPE_INT64, 0, 0, NULL, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT,
               fc_window_get(window, memory, 1, FC_DTYPE_INT64, 0, COUNT, NULL, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_window_signal(window, -1, NULL, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_window_wait_signal(window, size, NULL, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_window_wait_signal(NULL, 0, NULL, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_window_access_of(window, size, &access));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_window_map(window, 0, NULL));
  CHECK(fc_window_bytes(window, size) == 0, "no such rank");
  CHECK(access == 77 && mapped == NULL, "outputs are left alone on failure");
}

/* Every rank has what the one before it put, in every round. */
static void run(fc_window* window, int rank, int size, const int64_t* memory, call_mode mode) {
  int next = (rank + 1) % size, last = (rank + size - 1) % size;
  int64_t* values = malloc(COUNT * sizeof *values);
  if (!CHECK(values != NULL, "memory")) {
    return;
  }
  for (int round = 0; round < ROUNDS; round++) {
    fc_work* work = NULL;
    size_t count = round % 5 == 0 ? COUNT : 3;
    for (size_t i = 0; i < count; i++) {
      values[i] = (int64_t)i * (rank + 1) + round;
    }
    CHECK_OK(done(fc_window_put(window, values, count, FC_DTYPE_INT64, next, COUNT - count, NULL,
                                slot(mode, &work)),
                  &work));
    CHECK_OK(done(fc_window_signal(window, next, NULL, slot(mode, &work)), &work));
    CHECK_OK(done(fc_window_wait_signal(window, last, NULL, slot(mode, &work)), &work));
    int same = 1;
    for (size_t i = 0; i < count; i++) {
      same &= memory[COUNT - count + i] == (int64_t)i * (last + 1) + round;
    }
    CHECK(same, "round %d of %d elements", round, (int)count);
    CHECK_OK(done(fc_window_get(window, values, count, FC_DTYPE_INT64, next, COUNT - count, NULL,
                                slot(mode, &work)),
                  &work));
    CHECK(values[count - 1] == (int64_t)(count - 1) * (rank + 1) + round, "what was put");
    CHECK_OK(fc_window_signal(window, last, NULL, NULL));
    CHECK_OK(fc_window_wait_signal(window, next, NULL, NULL));
  }
  free(values);
}

static void on(fc_comm* comm, int64_t* memory) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm), next = (rank + 1) % size;
  fc_window* window = NULL;
  memset(memory, 0, COUNT * sizeof *memory);
  if (!CHECK_OK(fc_window_create(comm, memory, COUNT * sizeof *memory, NULL, &window))) {
    return;
  }
  refused(comm, window, memory);
  CHECK(fc_window_bytes(window, next) == COUNT * sizeof *memory, "bytes of a peer");
  run(window, rank, size, memory, SYNC);
  run(window, rank, size, memory, ASYNC);
  void* mapped = NULL;
  CHECK_OK(fc_window_map(window, rank, &mapped));
  CHECK(mapped == memory, "the own memory");
  fc_window_access access = FC_WINDOW_SEPARATE;
  CHECK_OK(fc_window_access_of(window, next, &access));
  if (access == FC_WINDOW_UNIFIED) {
    CHECK_OK(fc_window_map(window, next, &mapped));
    /* The last that this rank put there. */
    CHECK(((int64_t*)mapped)[COUNT - 1] == 2 * (rank + 1) + ROUNDS - 1, "a peer's memory");
  } else {
    CHECK_STATUS(FC_ERR_UNSUPPORTED, fc_window_map(window, next, &mapped));
  }
  /* One signal is one wait. */
  fc_op_options soon;
  fc_op_options_init(&soon);
  soon.timeout_ns = 20000000;
  CHECK_STATUS(FC_ERR_TIMEOUT, fc_window_wait_signal(window, next, &soon, NULL));
  CHECK_TEXT("wait_signal");
  CHECK_OK(fc_comm_barrier(comm, NULL, NULL));
  /* A put that signals is both. */
  CHECK_OK(fc_window_put_signal(window, &(int64_t){77}, 1, FC_DTYPE_INT64, next, 5, NULL, NULL));
  CHECK_OK(fc_window_wait_signal(window, (rank + size - 1) % size, NULL, NULL));
  CHECK(memory[5] == 77, "put_signal");
  CHECK_OK(fc_window_deregister(window, NULL));
  CHECK_STATUS(FC_ERR_STATE, fc_window_signal(window, next, NULL, NULL));
  CHECK_TEXT("deregistered");
  CHECK_STATUS(FC_ERR_STATE, fc_window_deregister(window, NULL));
  fc_window_destroy(window);
}

void test_windows(fc_comm* comm) {
  int64_t* plain = malloc(COUNT * sizeof *plain);
  if (CHECK(plain != NULL, "memory")) {
    on(comm, plain);
  }
  void* shared = NULL;
  CHECK_OK(fc_mem_alloc("host", COUNT * sizeof *plain, &shared));
  on(comm, shared);
  /* One rank has ordinary memory, the others have not. */
  on(comm, fc_comm_rank(comm) == 0 ? plain : shared);
  CHECK_OK(fc_mem_free("host", shared));
  free(plain);
  /* A rank without any. */
  fc_window* window = NULL;
  int64_t one = 0;
  int has = fc_comm_rank(comm) == 0;
  CHECK_OK(fc_window_create(comm, has ? &one : NULL, has ? sizeof one : 0, NULL, &window));
  CHECK_OK(fc_window_put(window, NULL, 0, FC_DTYPE_INT64, fc_comm_size(comm) - 1, 0, NULL, NULL));
  CHECK_OK(fc_window_deregister(window, NULL));
  fc_window_destroy(window);
  fc_window_destroy(NULL);
}
