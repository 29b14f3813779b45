/* The loops over MPI: Open MPI and MPICH, each with its own compiler wrapper. */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "side.h"

static int my_rank;
static char text[MPI_MAX_ERROR_STRING + 1];

/* The launchers say it before MPI_Init, in time for the choice of the core. */
int side_rank(const char* told) {
  (void)told;
  static const char* const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK"};
  for (int i = 0; i < 2; i++) {
    const char* value = getenv(names[i]);
    if (value != NULL) return atoi(value);
  }
  return -1;
}

int side_has(element type) { return type == F32; }

static int keep(int status) {
  int length = 0;
  if (status != MPI_SUCCESS) MPI_Error_string(status, text, &length);
  return status;
}

int side_open(int rank, int size, const char* folder) {
  (void)folder;
  int status = MPI_Init(NULL, NULL);
  if (status != MPI_SUCCESS) return keep(status);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  snprintf(text, sizeof text, "rank %d of %d came as %d of %d", rank, size, my_rank, ranks);
  return my_rank == rank && ranks == size ? 0 : 1;
}

void side_close(void) { MPI_Finalize(); }

int side_barrier(void) { return keep(MPI_Barrier(MPI_COMM_WORLD)); }

const char* side_error(void) { return text; }

/* MPI counts in int; the sizes of the bench stay below. */
static int number(const call* w) { return w->count > INT_MAX ? -1 : (int)w->count; }

static int all_reduce(const call* w) {
  return keep(MPI_Allreduce(w->input, w->output, number(w), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
}

static int all_reduce_async(const call* w) {
  MPI_Request request;
  int status =
      MPI_Iallreduce(w->input, w->output, number(w), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
  return keep(status == MPI_SUCCESS ? MPI_Wait(&request, MPI_STATUS_IGNORE) : status);
}

static int reduce_scatter(const call* w) {
  return keep(
      MPI_Reduce_scatter_block(w->input, w->output, number(w), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
}

static int all_gather(const call* w) {
  return keep(MPI_Allgather(w->input, number(w), MPI_FLOAT, w->output, number(w), MPI_FLOAT,
                            MPI_COMM_WORLD));
}

static int all_to_all(const call* w) {
  return keep(MPI_Alltoall(w->input, number(w), MPI_FLOAT, w->output, number(w), MPI_FLOAT,
                           MPI_COMM_WORLD));
}

static int broadcast(const call* w) {
  return keep(MPI_Bcast(w->output, number(w), MPI_FLOAT, w->root, MPI_COMM_WORLD));
}

static int reduce(const call* w) {
  return keep(
      MPI_Reduce(w->input, w->output, number(w), MPI_FLOAT, MPI_SUM, w->root, MPI_COMM_WORLD));
}

static int gather(const call* w) {
  return keep(MPI_Gather(w->input, number(w), MPI_FLOAT, w->output, number(w), MPI_FLOAT, w->root,
                         MPI_COMM_WORLD));
}

static int scatter(const call* w) {
  return keep(MPI_Scatter(w->input, number(w), MPI_FLOAT, w->output, number(w), MPI_FLOAT, w->root,
                          MPI_COMM_WORLD));
}

static int barrier(const call* w) {
  (void)w;
  return side_barrier();
}

static int send_it(const call* w) {
  return MPI_Send(w->input, number(w), MPI_FLOAT, 1 - my_rank, 0, MPI_COMM_WORLD);
}

static int receive_it(const call* w) {
  return MPI_Recv(w->output, number(w), MPI_FLOAT, 1 - my_rank, 0, MPI_COMM_WORLD,
                  MPI_STATUS_IGNORE);
}

static int send_recv(const call* w) {
  if (my_rank > 1) return 0;
  int status = my_rank == 0 ? send_it(w) : receive_it(w);
  if (status != MPI_SUCCESS) return keep(status);
  return keep(my_rank == 0 ? receive_it(w) : send_it(w));
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
