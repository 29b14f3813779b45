/* Reduce ops on a few dtypes, and that every dtype moves. */
#include <stdlib.h>
#include <string.h>

#include "check.h"

static void floats(fc_comm* comm) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  double total = (double)size * (size + 1) / 2;
  struct {
    fc_reduce_op op;
    double expected;
  } cases[] = {
      {FC_REDUCE_SUM, total}, {FC_REDUCE_AVG, total / size},     {FC_REDUCE_MIN, 1.0},
      {FC_REDUCE_MAX, size},  {FC_REDUCE_PREMUL_SUM, total / 2},
  };
  fc_op_options options;
  fc_op_options_init(&options);
  options.premul_factor = 0.5;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    double d = rank + 1;
    float f = (float)(rank + 1);
    CHECK_OK(fc_comm_all_reduce(comm, &d, &d, 1, FC_DTYPE_FLOAT64, cases[i].op, &options, NULL));
    CHECK_OK(fc_comm_all_reduce(comm, &f, &f, 1, FC_DTYPE_FLOAT32, cases[i].op, &options, NULL));
    CHECK(d == cases[i].expected, "float64, op %u: %g", cases[i].op, d);
    CHECK(f == (float)cases[i].expected, "float32, op %u: %g", cases[i].op, (double)f);
  }
}

static void integers(fc_comm* comm) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  uint32_t product = 1, and = ~0u, or = 0, xor = 0;
  for (uint32_t r = 0; r < (uint32_t)size; r++) {
    uint32_t v = 0xf0 + r;
    product *= v;
    and &= v;
    or |= v;
    xor ^= v;
  }
  struct {
    fc_reduce_op op;
    uint32_t expected;
  } cases[] = {
      {FC_REDUCE_PRODUCT, product},
      {FC_REDUCE_BAND, and},
      {FC_REDUCE_BOR, or},
      {FC_REDUCE_BXOR, xor},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    uint32_t v = 0xf0 + (uint32_t)rank;
    CHECK_OK(fc_comm_all_reduce(comm, &v, &v, 1, FC_DTYPE_UINT32, cases[i].op, NULL, NULL));
    CHECK(v == cases[i].expected, "uint32, op %u: %x", cases[i].op, v);
  }
  uint8_t small = 200;
  CHECK_OK(fc_comm_all_reduce(comm, &small, &small, 1, FC_DTYPE_UINT8, FC_REDUCE_SUM, NULL, NULL));
  CHECK(small == (uint8_t)(200 * size), "uint8 wraps: %u", small);
}

static void every_dtype_moves(fc_comm* comm) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  for (fc_dtype dtype = FC_DTYPE_BYTE; dtype <= FC_DTYPE_FLOAT8_E8M0FNU; dtype++) {
    size_t element = 0;
    CHECK_OK(fc_dtype_size(dtype, &element));
    uint8_t input[3 * 16], output[3 * 16 * 64];
    memset(input, rank + 1, sizeof input);
    CHECK_OK(fc_comm_all_gather(comm, input, output, 3, dtype, NULL, NULL));
    int right = 1;
    for (size_t i = 0; i < 3 * element * (size_t)size; i++) {
      right &= output[i] == i / (3 * element) + 1;
    }
    CHECK(right, "dtype %u moves", dtype);
  }
}

void test_reductions(fc_comm* comm) {
  floats(comm);
  integers(comm);
  every_dtype_moves(comm);
}
