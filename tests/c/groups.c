/* Splits, and communicators that do not wait for one another. */
#include <stdio.h>
#include <string.h>

#include "check.h"

/* Even and odd ranks, in descending order. */
static void halves(fc_comm* comm) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  int32_t ranks[64];
  size_t n = 0;
  for (int member = size - 1; member >= 0; member--) {
    if (member % 2 == rank % 2) {
      ranks[n++] = member;
    }
  }
  fc_comm* half = NULL;
  CHECK_OK(fc_comm_split(comm, ranks, n, rank % 2 ? "odd" : "even", 0, &half));
  if (half == NULL) {
    return;
  }
  CHECK(fc_comm_size(half) == (int32_t)n, "size of the half");
  CHECK(ranks[fc_comm_rank(half)] == rank, "place in the half");
  int64_t sum = rank, expected = 0;
  for (size_t i = 0; i < n; i++) {
    expected += ranks[i];
  }
  CHECK_OK(fc_comm_all_reduce(half, &sum, &sum, 1, FC_DTYPE_INT64, FC_REDUCE_SUM, NULL, NULL));
  CHECK(sum == expected, "the half's sum is %lld", (long long)sum);
  CHECK_OK(fc_comm_finalize(half));
  fc_comm_destroy(half);
}

/* Rank 0 alone; the others get none. */
static void a_group_of_one(fc_comm* comm) {
  static const int32_t first[] = {0};
  fc_comm* alone = (fc_comm*)comm;
  CHECK_OK(fc_comm_split(comm, first, 1, "alone", 0, &alone));
  CHECK((alone != NULL) == (fc_comm_rank(comm) == 0), "members get a communicator");
  if (alone != NULL) {
    float one = 1;
    CHECK_OK(fc_comm_all_reduce(alone, &one, &one, 1, FC_DTYPE_FLOAT32, FC_REDUCE_SUM, NULL, NULL));
    CHECK(one == 1, "the sum over one rank");
    CHECK_OK(fc_comm_barrier(alone, NULL, NULL));
    CHECK_OK(fc_comm_finalize(alone));
    fc_comm_destroy(alone);
  }
  CHECK_OK(fc_comm_split(comm, NULL, 0, "nobody", 0, &alone));
  CHECK(alone == NULL, "nobody is in an empty group");
}

/* Two communicators of all ranks, used in opposite orders on odd and even ranks. */
static void opposite_orders(fc_comm* comm) {
  int rank = fc_comm_rank(comm), size = fc_comm_size(comm);
  int32_t ranks[64];
  for (int i = 0; i < size; i++) {
    ranks[i] = i;
  }
  fc_comm* pair[2] = {NULL, NULL};
  CHECK_OK(fc_comm_split(comm, ranks, (size_t)size, "first", 0, &pair[0]));
  CHECK_OK(fc_comm_split(comm, ranks, (size_t)size, "second", 0, &pair[1]));
  enum { ROUNDS = 20, ELEMENTS = 5000 };
  static int32_t data[2][ROUNDS][ELEMENTS];
  fc_work* works[2][ROUNDS] = {{NULL}};
  for (int turn = 0; turn < 2; turn++) {
    int which = (turn + rank) % 2;
    for (int round = 0; round < ROUNDS; round++) {
      for (int i = 0; i < ELEMENTS; i++) {
        data[which][round][i] = (which + 1) * (rank + 1) * (round + 1);
      }
      CHECK_OK(fc_comm_all_reduce(pair[which], data[which][round], data[which][round], ELEMENTS,
                                  FC_DTYPE_INT32, FC_REDUCE_SUM, NULL, &works[which][round]));
    }
  }
  for (int which = 0; which < 2; which++) {
    for (int round = 0; round < ROUNDS; round++) {
      CHECK_OK(done(FC_OK, &works[which][round]));
      int32_t expected = (which + 1) * size * (size + 1) / 2 * (round + 1);
      int right = 1;
      for (int i = 0; i < ELEMENTS; i++) {
        right &= data[which][round][i] == expected;
      }
      CHECK(right, "round %d on communicator %d", round, which);
    }
    CHECK_OK(fc_comm_finalize(pair[which]));
    fc_comm_destroy(pair[which]);
  }
}

void test_groups(fc_comm* comm) {
  halves(comm);
  a_group_of_one(comm);
  opposite_orders(comm);
}
