/* The loops over libferrocomm's C ABI. */
#include <ferrocomm.h>
#include <stdio.h>
#include <stdlib.h>

#include "../c/file_store.h"
#include "side.h"

enum { MAX_RANKS = 256 };

static fc_comm* comm;
static int my_rank;
static int ranks;

static fc_dtype dtype(element type) { return type == F32 ? FC_DTYPE_FLOAT32 : FC_DTYPE_BFLOAT16; }

int side_rank(const char* told) { return atoi(told); }

int side_has(element type) { return type == F32 || type == BF16; }

int side_open(int rank, int size, const char* folder) {
  fc_store_table store;
  if (size > MAX_RANKS || !file_store_open(folder, &store)) return 1;
  fc_comm_options options;
  fc_comm_options_init(&options);
  options.name = "bench";
  options.rank = rank;
  options.comm_size = size;
  options.timeout_ns = 60000000000;
  my_rank = rank;
  ranks = size;
  return fc_comm_create(&options, &store, &comm);
}

void side_close(void) {
  if (fc_comm_finalize(comm) != FC_OK) fprintf(stderr, "finalize: %s\n", side_error());
  fc_comm_destroy(comm);
}

int side_barrier(void) { return fc_comm_barrier(comm, NULL, NULL); }

const char* side_error(void) { return fc_last_error(); }

static int all_reduce(const call* w) {
  return fc_comm_all_reduce(comm, w->input, w->output, w->count, dtype(w->type), FC_REDUCE_SUM,
                            NULL, NULL);
}

static int all_reduce_async(const call* w) {
  fc_work* work = NULL;
  int status = fc_comm_all_reduce(comm, w->input, w->output, w->count, dtype(w->type),
                                  FC_REDUCE_SUM, NULL, &work);
  if (status == FC_OK) {
    status = fc_work_wait(work, 0);
    fc_work_destroy(work);
  }
  return status;
}

static int reduce_scatter(const call* w) {
  return fc_comm_reduce_scatter(comm, w->input, w->output, w->count, dtype(w->type), FC_REDUCE_SUM,
                                NULL, NULL);
}

static int all_gather(const call* w) {
  return fc_comm_all_gather(comm, w->input, w->output, w->count, dtype(w->type), NULL, NULL);
}

static int all_to_all(const call* w) {
  return fc_comm_all_to_all(comm, w->input, w->output, w->count, dtype(w->type), NULL, NULL);
}

static int broadcast(const call* w) {
  return fc_comm_broadcast(comm, w->output, w->count, dtype(w->type), w->root, NULL, NULL);
}

static int reduce(const call* w) {
  return fc_comm_reduce(comm, w->input, w->output, w->count, dtype(w->type), FC_REDUCE_SUM, w->root,
                        NULL, NULL);
}

static size_t bytes_of_part(const call* w) { return w->count * (w->type == F32 ? 4 : 2); }

static int gather(const call* w) {
  void* parts[MAX_RANKS];
  for (int r = 0; r < ranks; r++) parts[r] = (char*)w->output + (size_t)r * bytes_of_part(w);
  return fc_comm_gather(comm, w->input, w->count, parts, dtype(w->type), w->root, NULL, NULL);
}

static int scatter(const call* w) {
  const void* parts[MAX_RANKS];
  for (int r = 0; r < ranks; r++) parts[r] = (const char*)w->input + (size_t)r * bytes_of_part(w);
  return fc_comm_scatter(comm, parts, w->output, w->count, dtype(w->type), w->root, NULL, NULL);
}

static int barrier(const call* w) {
  (void)w;
  return side_barrier();
}

static int send_it(const call* w) {
  return fc_comm_send(comm, w->input, w->count, dtype(w->type), 1 - my_rank, 0, NULL, NULL);
}

static int receive_it(const call* w) {
  return fc_comm_recv(comm, w->output, w->count, dtype(w->type), 1 - my_rank, 0, NULL, NULL);
}

static int send_recv(const call* w) {
  if (my_rank > 1) return 0;
  int status = my_rank == 0 ? send_it(w) : receive_it(w);
  if (status != FC_OK) return status;
  return my_rank == 0 ? receive_it(w) : send_it(w);
}

const named_operation operations[] = {
    {"all_reduce", all_reduce},
    {"all_reduce_async", all_reduce_async},
    {"reduce_scatter", reduce_scatter},
    {"all_gather", all_gather},
    {"all_to_all", all_to_all},
    {"broadcast", broadcast},
    {"reduce", reduce},
    {"gather", gather},
    {"scatter", scatter},
    {"barrier", barrier},
    {"send_recv", send_recv},
    {NULL, NULL},
};
