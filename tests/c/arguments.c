/* Bad arguments: refused before a byte moves, by name, and the communicator goes on. */
#include <string.h>

#include "check.h"

static void operations(fc_comm* comm) {
  int size = fc_comm_size(comm);
  float data[4] = {0}, other[4] = {0};
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT,
               fc_comm_broadcast(comm, data, 4, FC_DTYPE_FLOAT32, size, NULL, NULL));
  CHECK_TEXT("root");
  CHECK_TEXT("broadcast");
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT,
               fc_comm_broadcast(comm, data, 4, FC_DTYPE_FLOAT32, -1, NULL, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_broadcast(comm, data, 4, 99, 0, NULL, NULL));
  CHECK_TEXT("got 99");
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT,
               fc_comm_broadcast(comm, NULL, 4, FC_DTYPE_FLOAT32, 0, NULL, NULL));
  CHECK_TEXT("buffer is NULL");
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT,
               fc_comm_broadcast(comm, data, SIZE_MAX / 2, FC_DTYPE_FLOAT32, 0, NULL, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT,
               fc_comm_all_reduce(comm, data, other, 4, FC_DTYPE_FLOAT32, 42, NULL, NULL));
  CHECK_TEXT("reduce op");
  CHECK_STATUS(
      FC_ERR_INVALID_ARGUMENT,
      fc_comm_all_reduce(comm, data, data + 1, 3, FC_DTYPE_FLOAT32, FC_REDUCE_SUM, NULL, NULL));
  CHECK_TEXT("overlap");
  CHECK_STATUS(FC_ERR_UNSUPPORTED, fc_comm_all_reduce(comm, data, other, 4, FC_DTYPE_FLOAT32,
                                                      FC_REDUCE_BAND, NULL, NULL));
  CHECK_STATUS(FC_ERR_UNSUPPORTED,
               fc_comm_all_reduce(comm, data, other, 4, FC_DTYPE_BYTE, FC_REDUCE_SUM, NULL, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT,
               fc_comm_send(comm, data, 4, FC_DTYPE_FLOAT32, size, 0, NULL, NULL));
  CHECK_TEXT("dst");
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT,
               fc_comm_recv(comm, data, 4, FC_DTYPE_FLOAT32, -2, 0, NULL, NULL));
  CHECK_TEXT("any source");
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT,
               fc_comm_all_gather_v(comm, data, NULL, NULL, FC_DTYPE_FLOAT32, NULL, NULL));
  fc_work* work = (fc_work*)data;
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT,
               fc_comm_broadcast(comm, data, 4, FC_DTYPE_FLOAT32, size, NULL, &work));
  CHECK(work == (fc_work*)data, "outputs are left alone on failure");
}

/* Counts the records that name the hint. */
static void hear(void* ctx, fc_log_level level, const char* target, const char* message) {
  (void)target;
  if (level == FC_LOG_WARN && strstr(message, "colour") != NULL) {
    __atomic_add_fetch((int*)ctx, 1, __ATOMIC_RELAXED);
  }
}

static void hints(fc_comm* comm) {
  static int heard;
  CHECK_OK(fc_set_log_callback(hear, &heard, FC_LOG_WARN));
  const fc_hint unknown = {"colour", "blue"};
  fc_op_options options;
  fc_op_options_init(&options);
  CHECK(options.hints == NULL && options.hint_count == 0, "no hints unless they are set");
  options.hints = &unknown;
  options.hint_count = 1;
  for (int i = 0; i < 3; i++) {
    CHECK_OK(fc_comm_barrier(comm, &options, NULL));
  }
  CHECK(__atomic_load_n(&heard, __ATOMIC_RELAXED) == 1, "an unknown hint is named once");
  options.hints = NULL;
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_barrier(comm, &options, NULL));
  const fc_hint nameless = {NULL, "blue"};
  options.hints = &nameless;
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_barrier(comm, &options, NULL));
  CHECK_TEXT("hint key");
}

static void options(fc_comm* comm) {
  fc_op_options options;
  fc_op_options_init(&options);
  options.timeout_ns = -5;
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_barrier(comm, &options, NULL));
  CHECK_TEXT("negative");
  memset(&options, 0, sizeof options);
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_barrier(comm, &options, NULL));
  CHECK_TEXT("not initialised");
  /* An older client's struct ends after the time-out; a newer one's has a field more. */
  fc_op_options_init(&options);
  options.size = offsetof(fc_op_options, premul_factor);
  CHECK_OK(fc_comm_barrier(comm, &options, NULL));
  struct {
    fc_op_options known;
    int64_t newer;
  } grown;
  memset(&grown, 0, sizeof grown);
  fc_op_options_init(&grown.known);
  grown.known.size = sizeof grown;
  CHECK_OK(fc_comm_barrier(comm, &grown.known, NULL));
  grown.newer = 1;
  CHECK_STATUS(FC_ERR_UNSUPPORTED, fc_comm_barrier(comm, &grown.known, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_set_timeout(comm, 0));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_set_timeout(comm, -1));
}

static void handles(fc_comm* comm) {
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_barrier(NULL, NULL, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_wait_pending(NULL));
  CHECK_TEXT("communicator is NULL");
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_work_wait(NULL, 0));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_state(comm, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_create(NULL, NULL, NULL));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_batch_create(NULL, NULL));
  CHECK(fc_comm_rank(NULL) == -1, "no rank");
  CHECK(fc_comm_name(NULL) == NULL, "no name");
  fc_comm_destroy(NULL);
  fc_work_destroy(NULL);
  fc_batch_destroy(NULL);
  fc_string_destroy(NULL);
}

static void splits(fc_comm* comm) {
  const int32_t twice[] = {0, 0}, outside[] = {fc_comm_size(comm)}, own[] = {0};
  fc_comm* child = NULL;
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_split(comm, twice, 2, "twice", 0, &child));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_split(comm, outside, 1, "outside", 0, &child));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_split(comm, NULL, 1, "null", 0, &child));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_split(comm, own, 1, NULL, 0, &child));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_split(comm, own, 1, "", 0, &child));
  fc_comm_options options;
  fc_comm_options_init(&options);
  options.name = "wrong";
  const fc_hint maybe = {"eager", "maybe"};
  options.hints = &maybe;
  options.hint_count = 1;
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_split_with(comm, own, 1, &options, &child));
  CHECK_TEXT("true or false");
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_split_with(comm, own, 1, NULL, &child));
  CHECK(child == NULL, "no child");
}

static void batches(fc_comm* comm) {
  float data = 0;
  fc_batch* batch = NULL;
  CHECK_OK(fc_batch_create(comm, &batch));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT,
               fc_batch_send(batch, &data, 1, FC_DTYPE_FLOAT32, fc_comm_size(comm), 0));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_batch_recv(batch, NULL, 1, FC_DTYPE_FLOAT32, 0, 0));
  CHECK_OK(fc_batch_issue(batch, NULL, NULL));
  fc_batch_destroy(batch);
}

static void queries(void) {
  size_t bytes = 0;
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_dtype_size(22, &bytes));
  CHECK_OK(fc_dtype_size(FC_DTYPE_COMPLEX128, &bytes));
  CHECK(bytes == 16, "size of complex128");
  CHECK_OK(fc_reduction_supported("gloo", FC_REDUCE_SUM, FC_DTYPE_BFLOAT16));
  CHECK_STATUS(FC_ERR_UNSUPPORTED,
               fc_reduction_supported("host", FC_REDUCE_MAX, FC_DTYPE_COMPLEX64));
  CHECK_OK(fc_reduction_supported("nccl", FC_REDUCE_SUM, FC_DTYPE_FLOAT32));
  CHECK_STATUS(FC_ERR_UNSUPPORTED, fc_reduction_supported("nccl", FC_REDUCE_BAND, FC_DTYPE_INT32));
  CHECK_TEXT("BAND of int32");
  CHECK_STATUS(FC_ERR_UNSUPPORTED, fc_reduction_supported("mpi", FC_REDUCE_SUM, 11));
  CHECK_TEXT("mpi");
  CHECK(strcmp(fc_status_name(FC_ERR_PEER_LOST), "peer_lost") == 0, "a status' name");
  CHECK(strcmp(fc_status_name(12345), "unknown") == 0, "no status' name");
  CHECK(fc_abi_version() == FC_ABI_VERSION, "header and library agree");
}

void test_arguments(fc_comm* comm) {
  operations(comm);
  options(comm);
  hints(comm);
  handles(comm);
  splits(comm);
  batches(comm);
  queries();
  const char* state = "";
  CHECK_OK(fc_comm_state(comm, &state));
  CHECK(strcmp(state, "ready") == 0, "bad arguments leave the communicator %s", state);
  int64_t one = 1;
  CHECK_OK(fc_comm_all_reduce(comm, &one, &one, 1, FC_DTYPE_INT64, FC_REDUCE_SUM, NULL, NULL));
  CHECK(one == fc_comm_size(comm), "and usable");
}
