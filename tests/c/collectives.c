/* Every collective with equal parts, against arithmetic of this file's own. */
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* Sizes around the changes of algorithm, and the corner cases. */
static const size_t COUNTS[] = {0, 1, 7, 1000, 100003};
enum { COUNT_KINDS = sizeof COUNTS / sizeof COUNTS[0] };

/* The element that rank `rank` gives at `i`. */
static int64_t given(int rank, size_t i) { return (int64_t)(rank + 1) * 1000003 + (int64_t)i * 7; }

/* The sum of what all ranks give at `i`. */
static int64_t given_by_all(int size, size_t i) {
  return (int64_t)size * (size + 1) / 2 * 1000003 + (int64_t)size * (int64_t)i * 7;
}

/* Memory for `count` elements that hold what rank `rank` gives from `first` on. */
static int64_t* filled(int rank, size_t first, size_t count) {
  int64_t* data = malloc((count + 1) * sizeof *data);
  if (data == NULL) {
    abort();
  }
  for (size_t i = 0; i < count; i++) {
    data[i] = given(rank, first + i);
  }
  return data;
}

/* Memory for `count` elements that nobody gives. */
static int64_t* blank(size_t count) {
  int64_t* data = malloc((count + 1) * sizeof *data);
  if (data == NULL) {
    abort();
  }
  memset(data, 0xee, (count + 1) * sizeof *data);
  return data;
}

/* Checks that `data` holds what rank `rank` gives from `first` on. */
static void check_given(const char* what, const int64_t* data, int rank, size_t first,
                        size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (data[i] != given(rank, first + i)) {
      CHECK(0, "%s: element %zu of rank %d is %lld", what, i, rank, (long long)data[i]);
      return;
    }
  }
  CHECK(1, "%s", what);
}

/* Checks that `data` holds the sum over all ranks from `first` on. */
static void check_sum(const char* what, const int64_t* data, int size, size_t first, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (data[i] != given_by_all(size, first + i)) {
      CHECK(0, "%s: element %zu is %lld", what, i, (long long)data[i]);
      return;
    }
  }
  CHECK(1, "%s", what);
}

static void broadcast(fc_comm* comm, size_t count, call_mode mode) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  for (int root = 0; root < size; root++) {
    int64_t* data = rank == root ? filled(root, 0, count) : blank(count);
    fc_work* work;
    CHECK_OK(
        done(fc_comm_broadcast(comm, data, count, FC_DTYPE_INT64, root, NULL, slot(mode, &work)),
             &work));
    check_given("broadcast", data, root, 0, count);
    free(data);
  }
}

static void all_reduce(fc_comm* comm, size_t count, call_mode mode) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  int64_t *input = filled(rank, 0, count), *output = blank(count);
  fc_work* work;
  CHECK_OK(done(fc_comm_all_reduce(comm, input, output, count, FC_DTYPE_INT64, FC_REDUCE_SUM, NULL,
                                   slot(mode, &work)),
                &work));
  check_sum("all_reduce", output, size, 0, count);
  check_given("all_reduce leaves its input", input, rank, 0, count);
  CHECK_OK(done(fc_comm_all_reduce(comm, input, input, count, FC_DTYPE_INT64, FC_REDUCE_SUM, NULL,
                                   slot(mode, &work)),
                &work));
  check_sum("all_reduce in place", input, size, 0, count);
  free(input);
  free(output);
}

static void reduce(fc_comm* comm, size_t count, call_mode mode) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  for (int root = 0; root < size; root++) {
    int64_t *input = filled(rank, 0, count), *output = blank(count);
    fc_work* work;
    CHECK_OK(done(fc_comm_reduce(comm, input, rank == root ? output : NULL, count, FC_DTYPE_INT64,
                                 FC_REDUCE_SUM, root, NULL, slot(mode, &work)),
                  &work));
    check_given("reduce leaves its input", input, rank, 0, count);
    if (rank == root) {
      check_sum("reduce", output, size, 0, count);
    }
    free(input);
    free(output);
  }
}

static void all_gather(fc_comm* comm, size_t count, call_mode mode) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  int64_t *input = filled(rank, 0, count), *output = blank((size_t)size * count);
  fc_work* work;
  CHECK_OK(
      done(fc_comm_all_gather(comm, input, output, count, FC_DTYPE_INT64, NULL, slot(mode, &work)),
           &work));
  for (int from = 0; from < size; from++) {
    check_given("all_gather", output + (size_t)from * count, from, 0, count);
  }
  int64_t* own = output + (size_t)rank * count;
  memset(output, 0xee, (size_t)size * count * sizeof *output);
  memcpy(own, input, count * sizeof *own);
  CHECK_OK(
      done(fc_comm_all_gather(comm, own, output, count, FC_DTYPE_INT64, NULL, slot(mode, &work)),
           &work));
  for (int from = 0; from < size; from++) {
    check_given("all_gather in place", output + (size_t)from * count, from, 0, count);
  }
  free(input);
  free(output);
}

static void reduce_scatter(fc_comm* comm, size_t count, call_mode mode) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  int64_t *input = filled(rank, 0, (size_t)size * count), *output = blank(count);
  fc_work* work;
  CHECK_OK(done(fc_comm_reduce_scatter(comm, input, output, count, FC_DTYPE_INT64, FC_REDUCE_SUM,
                                       NULL, slot(mode, &work)),
                &work));
  check_sum("reduce_scatter", output, size, (size_t)rank * count, count);
  free(input);
  free(output);
}

/* What rank `from` gives rank `to`: the elements from here on. */
static size_t between(int from, int to) { return (size_t)(from * 131 + to * 17); }

static void all_to_all(fc_comm* comm, size_t count, call_mode mode) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  int64_t *input = blank((size_t)size * count), *output = blank((size_t)size * count);
  for (int to = 0; to < size; to++) {
    for (size_t i = 0; i < count; i++) {
      input[(size_t)to * count + i] = given(rank, between(rank, to) + i);
    }
  }
  fc_work* work;
  CHECK_OK(
      done(fc_comm_all_to_all(comm, input, output, count, FC_DTYPE_INT64, NULL, slot(mode, &work)),
           &work));
  for (int from = 0; from < size; from++) {
    check_given("all_to_all", output + (size_t)from * count, from, between(from, rank), count);
  }
  free(input);
  free(output);
}

static void gather(fc_comm* comm, size_t count, call_mode mode) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  for (int root = 0; root < size; root++) {
    int64_t *input = filled(rank, 0, count), *all = blank((size_t)size * count);
    void* outputs[64];
    for (int from = 0; from < size; from++) {
      outputs[from] = all + (size_t)from * count;
    }
    fc_work* work;
    CHECK_OK(done(fc_comm_gather(comm, input, count, rank == root ? outputs : NULL, FC_DTYPE_INT64,
                                 root, NULL, slot(mode, &work)),
                  &work));
    for (int from = 0; rank == root && from < size; from++) {
      check_given("gather", outputs[from], from, 0, count);
    }
    free(input);
    free(all);
  }
}

static void scatter(fc_comm* comm, size_t count, call_mode mode) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  for (int root = 0; root < size; root++) {
    int64_t *all = filled(root, 0, (size_t)size * count), *output = blank(count);
    const void* inputs[64];
    for (int to = 0; to < size; to++) {
      inputs[to] = all + (size_t)to * count;
    }
    fc_work* work;
    CHECK_OK(done(fc_comm_scatter(comm, rank == root ? inputs : NULL, output, count, FC_DTYPE_INT64,
                                  root, NULL, slot(mode, &work)),
                  &work));
    check_given("scatter", output, root, (size_t)rank * count, count);
    free(all);
    free(output);
  }
}

void test_collectives(fc_comm* comm) {
  static void (*const operations[])(fc_comm*, size_t, call_mode) = {
      broadcast, all_reduce, reduce, all_gather, reduce_scatter, all_to_all, gather, scatter,
  };
  for (size_t operation = 0; operation < sizeof operations / sizeof operations[0]; operation++) {
    for (int kind = 0; kind < COUNT_KINDS; kind++) {
      operations[operation](comm, COUNTS[kind], SYNC);
      operations[operation](comm, COUNTS[kind], ASYNC);
    }
  }
  for (int mode = SYNC; mode <= ASYNC; mode++) {
    fc_work* work;
    CHECK_OK(done(fc_comm_barrier(comm, NULL, slot((call_mode)mode, &work)), &work));
  }
}
