/* Works: status, numbers, callbacks, interrupts, what outlives what. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "check.h"

/* Counts calls of a work's callback and tells whoever waits. */
typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t called;
  int calls;
  fc_status status;
} listener;

static void listen(void* ctx, fc_status status, const char* message) {
  listener* l = ctx;
  pthread_mutex_lock(&l->lock);
  l->calls++;
  l->status = status == FC_OK && message[0] != '\0' ? FC_ERR_PANIC : status;
  pthread_cond_signal(&l->called);
  pthread_mutex_unlock(&l->lock);
}

/* Waits for the first call; the time-out only ends a test that has failed. */
static int heard(listener* l) {
  struct timespec limit;
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += 20;
  pthread_mutex_lock(&l->lock);
  int late = 0;
  while (l->calls == 0 && !late) {
    late = pthread_cond_timedwait(&l->called, &l->lock, &limit) != 0;
  }
  int calls = l->calls;
  pthread_mutex_unlock(&l->lock);
  return calls;
}

static void callbacks(fc_comm* comm) {
  listener before = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, FC_IN_PROGRESS};
  listener after = before;
  fc_work* work = NULL;
  CHECK_OK(fc_comm_barrier(comm, NULL, &work));
  CHECK_OK(fc_work_on_complete(work, listen, &before));
  CHECK(heard(&before) == 1, "nobody waits and the callback comes all the same");
  CHECK(before.status == FC_OK, "the callback gets the status");
  CHECK_OK(fc_work_wait(work, 0));
  CHECK_OK(fc_work_on_complete(work, listen, &after));
  CHECK(after.calls == 1, "a callback on a complete work runs at once");
  CHECK(before.calls == 1, "a callback runs once");
  CHECK(fc_work_status(work) == FC_OK, "the status of a complete work");
  fc_work_destroy(work);
}

static void numbers(fc_comm* comm) {
  uint64_t before = fc_comm_sequence(comm);
  fc_work *first = NULL, *second = NULL;
  CHECK_OK(fc_comm_barrier(comm, NULL, &first));
  CHECK_OK(fc_comm_barrier(comm, NULL, &second));
  CHECK(fc_work_sequence(first) == before + 1, "the first number");
  CHECK(fc_work_sequence(second) == before + 2, "the second number");
  CHECK(fc_comm_sequence(comm) == before + 2, "the communicator's number");
  fc_work_destroy(first);
  CHECK_OK(fc_work_wait(second, 0));
  fc_work_destroy(second);
}

/* The first gather of rank 1 cannot end before rank 0 comes, which waits for rank 1's word. */
static void turns(fc_comm* comm) {
  int32_t mine = fc_comm_rank(comm), all[16], word = 0;
  CHECK(fc_work_has_begun(NULL) == 1, "of nothing nothing waits");
  if (fc_comm_size(comm) < 2 || fc_comm_size(comm) > 16) return;
  if (mine == 0) {
    CHECK_OK(fc_comm_recv(comm, &word, 1, FC_DTYPE_INT32, 1, 75, NULL, NULL));
    CHECK_OK(fc_comm_all_gather(comm, &mine, all, 1, FC_DTYPE_INT32, NULL, NULL));
    CHECK_OK(fc_comm_barrier(comm, NULL, NULL));
    return;
  }
  fc_work *first = NULL, *second = NULL;
  CHECK_OK(fc_comm_all_gather(comm, &mine, all, 1, FC_DTYPE_INT32, NULL, &first));
  CHECK_OK(fc_comm_barrier(comm, NULL, &second));
  if (mine == 1) {
    CHECK(fc_work_has_begun(first) == 1, "the first one of a queue has begun");
    CHECK(fc_work_status(second) == FC_IN_PROGRESS, "the second one is not over");
    CHECK(fc_work_has_begun(second) == 0, "the second one waits for its turn");
    CHECK_OK(fc_comm_send(comm, &word, 1, FC_DTYPE_INT32, 0, 75, NULL, NULL));
  }
  CHECK_OK(fc_work_wait(second, 0));
  CHECK(fc_work_has_begun(first) == 1 && fc_work_has_begun(second) == 1, "what is over has begun");
  fc_work_destroy(first);
  fc_work_destroy(second);
}

static void all_that_is_pending(fc_comm* comm) {
  int32_t data = 0;
  fc_work* works[3] = {NULL, NULL, NULL};
  CHECK_OK(fc_comm_barrier(comm, NULL, &works[0]));
  CHECK_OK(fc_comm_recv(comm, &data, 1, FC_DTYPE_INT32, fc_comm_rank(comm), 76, NULL, &works[1]));
  CHECK_OK(fc_comm_barrier(comm, NULL, &works[2]));
  CHECK_OK(fc_work_cancel(works[1]));
  CHECK_OK(fc_comm_wait_pending(comm));
  CHECK(fc_work_status(works[0]) == FC_OK, "the first is over");
  CHECK(fc_work_status(works[1]) == FC_ERR_CANCELLED, "one that failed is over");
  CHECK(fc_work_status(works[2]) == FC_OK, "the last is over");
  for (int i = 0; i < 3; ++i) fc_work_destroy(works[i]);
  CHECK_OK(fc_comm_wait_pending(comm));
}

static void a_pending_receive(fc_comm* comm) {
  int32_t data = 0;
  int self = fc_comm_rank(comm);
  fc_work* work = NULL;
  CHECK_OK(fc_comm_recv(comm, &data, 1, FC_DTYPE_INT32, self, 77, NULL, &work));
  CHECK(fc_work_status(work) == FC_IN_PROGRESS, "nothing was sent");
  CHECK(fc_work_source(work) == -1, "no source yet");
  CHECK_OK(fc_work_cancel(work));
  CHECK_STATUS(FC_ERR_CANCELLED, fc_work_wait(work, 0));
  fc_string* text = NULL;
  CHECK_OK(fc_work_error(work, &text));
  CHECK(strstr(fc_string_data(text), "recv") != NULL, "%s", fc_string_data(text));
  CHECK(fc_string_len(text) == strlen(fc_string_data(text)), "length of the text");
  fc_string_destroy(text);
  fc_work_destroy(work);

  CHECK_OK(fc_comm_recv(comm, &data, 1, FC_DTYPE_INT32, self, 78, NULL, &work));
  CHECK_STATUS(FC_ERR_TIMEOUT, fc_work_wait(work, 50000000));
  fc_work_destroy(work);
  fc_op_options options;
  fc_op_options_init(&options);
  options.timeout_ns = 50000000;
  CHECK_STATUS(FC_ERR_TIMEOUT,
               fc_comm_recv(comm, &data, 1, FC_DTYPE_INT32, self, 79, &options, NULL));
  CHECK_TEXT("operation recv");
}

static int interrupt(void* ctx) { return *(int*)ctx; }

static void interrupts(fc_comm* comm) {
  static int stop = 1;
  int32_t data = 0;
  fc_work* work = NULL;
  CHECK_OK(fc_comm_recv(comm, &data, 1, FC_DTYPE_INT32, fc_comm_rank(comm), 80, NULL, &work));
  CHECK_OK(fc_set_interrupt_callback(interrupt, &stop));
  CHECK_STATUS(FC_ERR_INTERRUPTED, fc_work_wait(work, 0));
  CHECK_STATUS(FC_ERR_INTERRUPTED, fc_comm_wait_pending(comm));
  CHECK(fc_work_status(work) == FC_IN_PROGRESS, "the operation goes on");
  CHECK_OK(fc_set_interrupt_callback(NULL, NULL));
  CHECK_OK(fc_work_cancel(work));
  fc_work_destroy(work);
}

void test_works(fc_comm* comm) {
  callbacks(comm);
  numbers(comm);
  turns(comm);
  all_that_is_pending(comm);
  a_pending_receive(comm);
  interrupts(comm);
  CHECK_OK(fc_comm_barrier(comm, NULL, NULL));
}
