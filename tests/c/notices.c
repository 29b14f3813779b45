/* What a communicator tells unasked, and the memory it is told of. */
#include "check.h"

typedef struct {
  int told;
  int released;
} context;

static void told(void* ctx, const char* message, int32_t process_ends) {
  context* mine = ctx;
  CHECK(message != NULL && process_ends == 0, "a text, and the process goes on");
  mine->told++;
}

static void released(void* ctx) { ((context*)ctx)->released++; }

static void callbacks(fc_comm* comm) {
  context first = {0, 0}, second = {0, 0}, refused = {0, 0};
  CHECK_OK(fc_comm_set_abort_callback(comm, told, &first, released));
  CHECK_OK(fc_comm_barrier(comm, NULL, NULL));
  CHECK_OK(fc_comm_set_abort_callback(comm, told, &second, released));
  CHECK(first.released == 1 && second.released == 0, "a replaced context is let go, once");
  CHECK_OK(fc_comm_set_abort_callback(comm, NULL, NULL, NULL));
  CHECK(second.released == 1, "so is one that is taken away");
  CHECK(first.told == 0 && second.told == 0, "nothing has failed");
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_set_abort_callback(NULL, told, &refused, released));
  CHECK(refused.released == 1, "a context is let go when the call fails");
}

static void registration(fc_comm* comm) {
  float data[16];
  CHECK_OK(fc_comm_register(comm, data, sizeof data));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_register(comm, data, sizeof data));
  CHECK_TEXT("registered already");
  CHECK_OK(fc_comm_deregister(comm, data));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_deregister(comm, data));
  CHECK_TEXT("not registered");
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_register(comm, NULL, 4));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_register(comm, data, 0));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, fc_comm_register(NULL, data, 4));
}

void test_notices(fc_comm* comm) {
  callbacks(comm);
  registration(comm);
}
