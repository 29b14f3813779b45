/* What the loops ask of a communication library: one file per library answers. */
#ifndef SIDE_H
#define SIDE_H

#include <stddef.h>

typedef enum { F32, BF16 } element;

/* One call of an operation. `count` is the number of elements of a part where the operation moves
 * parts (gather, scatter, all_gather, reduce_scatter, all_to_all), else of the whole buffer. */
typedef struct {
  const void* input;
  void* output;
  size_t count;
  element type;
  int root;
} call;

/* Every rank makes the call; 0 on success. */
typedef int (*operation)(const call* what);

typedef struct {
  const char* name;
  operation run;
} named_operation;

/* Ends with an entry without a name. */
extern const named_operation operations[];

/* This process's place, before the library starts where the launcher tells it: `told` is the
 * command line's word for it. -1 when it is not known. */
int side_rank(const char* told);

/* Joins the ranks; 0 on success. */
int side_open(int rank, int size, const char* folder);

/* Whether the library has the element type. */
int side_has(element type);

int side_barrier(void);

/* Leaves the ranks. */
void side_close(void);

/* Why the last call failed. */
const char* side_error(void);

#endif
