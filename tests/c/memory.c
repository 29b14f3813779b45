/* Memory that peers read where it lies: what it is, and collectives on it beside ordinary memory.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { COUNT = 300000 };

static float* allocate(size_t count) {
  void* memory = NULL;
  CHECK_OK(fc_mem_alloc("host", count * sizeof(float), &memory));
  CHECK(memory != NULL && (uintptr_t)memory % 64 == 0, "aligned memory");
  return memory;
}

static void release(float* memory) { CHECK_OK(fc_mem_free("host", memory)); }

static void refused(void) {
  void* memory = &memory;
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_mem_alloc(NULL, 8, &memory));
  CHECK_STATUS(FC_ERR_UNSUPPORTED, fc_mem_alloc("nowhere", 8, &memory));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_mem_alloc("gloo", 8, NULL));
  CHECK_STATUS(FC_ERR_RESOURCES, fc_mem_alloc("gloo", SIZE_MAX / 4, &memory));
  CHECK_TEXT("not enough memory");
  CHECK(memory == &memory, "outputs are left alone on failure");
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_mem_free("gloo", &memory));
  CHECK_OK(fc_mem_free("gloo", NULL));
  CHECK_OK(fc_mem_alloc("gloo", 0, &memory));
  CHECK_OK(fc_mem_free("host", memory));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_mem_free("host", memory));
}

static int all_are(const float* data, size_t count, float value) {
  for (size_t i = 0; i < count; i++) {
    if (data[i] != value) {
      return 0;
    }
  }
  return 1;
}

static void fill(float* data, size_t count, float value) {
  for (size_t i = 0; i < count; i++) {
    data[i] = value;
  }
}

/* `input` and `output` have COUNT elements; `all` as many for every rank. */
static void run(fc_comm* comm, float* input, float* output, float* all) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  float sum = (float)(size * (size + 1) / 2);
  for (int repeat = 0; repeat < 3; repeat++) {
    fill(input, COUNT, (float)(rank + 1));
    CHECK_OK(fc_comm_all_reduce(comm, input, output, COUNT, FC_DTYPE_FLOAT32, FC_REDUCE_SUM, NULL,
                                NULL));
    CHECK(all_are(output, COUNT, sum), "all_reduce apart");
    CHECK_OK(
        fc_comm_all_reduce(comm, input, input, COUNT, FC_DTYPE_FLOAT32, FC_REDUCE_SUM, NULL, NULL));
    CHECK(all_are(input, COUNT, sum), "all_reduce in place");
    fill(input, COUNT, (float)rank);
    CHECK_OK(fc_comm_all_gather(comm, input, all, COUNT, FC_DTYPE_FLOAT32, NULL, NULL));
    for (int from = 0; from < size; from++) {
      CHECK(all_are(all + (size_t)from * COUNT, COUNT, (float)from), "all_gather of %d", from);
    }
    int root = repeat % size;
    CHECK_OK(fc_comm_broadcast(comm, input, COUNT, FC_DTYPE_FLOAT32, root, NULL, NULL));
    CHECK(all_are(input, COUNT, (float)root), "broadcast");
  }
}

void test_memory(fc_comm* comm) {
  refused();
  size_t all_count = (size_t)fc_comm_size(comm) * COUNT;
  float *input = allocate(COUNT), *output = allocate(COUNT), *all = allocate(all_count);
  run(comm, input, output, all);
  /* Freed and allocated anew, at the same addresses or not. */
  release(input), release(output), release(all);
  input = allocate(COUNT), output = allocate(COUNT), all = allocate(all_count);
  run(comm, input, output, all);
  float* ordinary = malloc(COUNT * sizeof(float));
  if (CHECK(ordinary != NULL, "memory")) {
    /* One rank has ordinary memory, the others have not; then each in both places. */
    run(comm, fc_comm_rank(comm) == 0 ? ordinary : input, output, all);
    run(comm, input, ordinary, all);
  }
  free(ordinary);
  release(input), release(output), release(all);
}
