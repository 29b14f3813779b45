/* Drives libferrocomm from C: starts itself once per rank, over a store in a folder.
 *
 *     ferrocomm_c_test            all numbers of ranks over all transports
 *     ferrocomm_c_test SIZE TRANSPORT    one job alone
 *     ferrocomm_c_test RANK SIZE FOLDER PIPE    one rank (started by the above)
 *
 * Prints "N passed, M failed" over all processes; ends with 0 when nothing failed. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "file_store.h"

/* A rank that takes longer hangs; the signal ends it, and that counts as a failure. */
enum { WATCHDOG_SECONDS = 120 };

/* What one rank tells the starter. */
typedef struct {
  size_t passed;
  size_t failed;
} tally;

static int log_records;

static void count_log(void* ctx, fc_log_level level, const char* target, const char* message) {
  (void)level, (void)target, (void)message;
  __atomic_add_fetch((int*)ctx, 1, __ATOMIC_RELAXED);
}

static fc_status join(const char* folder, const char* name, int rank, int size, int64_t timeout_ns,
                      fc_comm** comm) {
  fc_store_table store;
  if (!file_store_open(folder, &store)) {
    return FC_ERR_RESOURCES;
  }
  fc_comm_options options;
  fc_comm_options_init(&options);
  options.name = name;
  options.rank = rank;
  options.comm_size = size;
  options.timeout_ns = timeout_ns;
  return fc_comm_create(&options, &store, comm);
}

/* A rank that waits for one that never comes, and stores that are released whatever happens. */
static void join_alone(const char* folder) {
  fc_comm* comm = NULL;
  int released = file_store_released();
  CHECK_STATUS(FC_ERR_TIMEOUT, join(folder, "nobody else", 0, 2, 500000000, &comm));
  CHECK_TEXT("1");
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, join(folder, "outside", 2, 2, 0, &comm));
  CHECK_STATUS(FC_ERR_INVALID_ARGUMENT, join(folder, "", 0, 1, 0, &comm));
  CHECK(comm == NULL, "no communicator");
  CHECK(file_store_released() == released + 3, "every store is released once");
}

static void run_rank(int rank, int size, const char* folder) {
  CHECK_OK(fc_set_log_callback(count_log, &log_records, FC_LOG_INFO));
  fc_comm* comm = NULL;
  if (!CHECK_OK(join(folder, "world", rank, size, 60000000000, &comm))) {
    return;
  }
  CHECK(fc_comm_rank(comm) == rank && fc_comm_size(comm) == size, "rank and size");
  CHECK(strcmp(fc_comm_name(comm), "world") == 0, "name");
  CHECK(strcmp(fc_comm_backend(comm), "host") == 0, "engine");
  int64_t timeout_ns = 0;
  CHECK_OK(fc_comm_timeout(comm, &timeout_ns));
  CHECK(timeout_ns == 60000000000, "time-out");
  CHECK(file_store_released() == 1, "the store is released");

  test_collectives(comm);
  test_uneven(comm);
  test_memory(comm);
  test_notices(comm);
  test_reductions(comm);
  test_point_to_point(comm);
  test_groups(comm);
  test_windows(comm);
  test_reconfigure(comm);
  test_works(comm);
  test_arguments(comm);
  test_failures(comm);
  test_reports(comm);

  CHECK_OK(fc_comm_finalize(comm));
  CHECK_STATUS(FC_ERR_STATE, fc_comm_barrier(comm, NULL, NULL));
  fc_comm_destroy(comm);
  if (rank == 0) {
    join_alone(folder);
  }
  CHECK(__atomic_load_n(&log_records, __ATOMIC_RELAXED) > 0, "log records arrive");
  CHECK_OK(fc_set_log_callback(NULL, NULL, 0));
}

static pid_t start_rank(const char* program, int rank, int size, const char* folder, int pipe_fd) {
  char arguments[3][16];
  snprintf(arguments[0], sizeof arguments[0], "%d", rank);
  snprintf(arguments[1], sizeof arguments[1], "%d", size);
  snprintf(arguments[2], sizeof arguments[2], "%d", pipe_fd);
  pid_t child = fork();
  if (child == 0) {
    execl(program, program, arguments[0], arguments[1], folder, arguments[2], (char*)NULL);
    perror(program);
    _exit(127);
  }
  return child;
}

static void remove_folder(const char* folder) {
  DIR* entries = opendir(folder);
  if (entries != NULL) {
    for (struct dirent* entry; (entry = readdir(entries)) != NULL;) {
      unlinkat(dirfd(entries), entry->d_name, 0);
    }
    closedir(entries);
  }
  rmdir(folder);
}

/* Runs `size` ranks and adds up what they tell. */
static void run_job(const char* program, int size, const char* transport, tally* total) {
  const char* temporary = getenv("TMPDIR");
  char folder[PATH_MAX];
  snprintf(folder, sizeof folder, "%s/ferrocomm-c-XXXXXX", temporary ? temporary : "/tmp");
  int pipe_fds[2];
  if (mkdtemp(folder) == NULL || pipe(pipe_fds) != 0) {
    perror(folder);
    total->failed++;
    return;
  }
  setenv("FERROCOMM_HOST_TRANSPORT", transport, 1);
  pid_t children[64];
  for (int rank = 0; rank < size; rank++) {
    children[rank] = start_rank(program, rank, size, folder, pipe_fds[1]);
  }
  close(pipe_fds[1]);
  tally job = {0, 0}, one;
  while (read(pipe_fds[0], &one, sizeof one) == (ssize_t)sizeof one) {
    job.passed += one.passed;
    job.failed += one.failed;
  }
  close(pipe_fds[0]);
  for (int rank = 0; rank < size; rank++) {
    int status = -1;
    if (children[rank] < 0 || waitpid(children[rank], &status, 0) < 0 || status != 0) {
      fprintf(stderr, "rank %d of %d over %s ended with %s %d\n", rank, size, transport,
              WIFSIGNALED(status) ? "signal" : "status",
              WIFSIGNALED(status) ? WTERMSIG(status) : status);
      job.failed++;
    }
  }
  remove_folder(folder);
  printf("c: %d ranks over %s: %zu passed, %zu failed\n", size, transport, job.passed, job.failed);
  fflush(stdout);
  total->passed += job.passed;
  total->failed += job.failed;
}

int main(int argc, char** argv) {
  if (argc == 5) {
    alarm(WATCHDOG_SECONDS);
    run_rank(atoi(argv[1]), atoi(argv[2]), argv[3]);
    tally mine = {checks_passed, checks_failed};
    int told = write(atoi(argv[4]), &mine, sizeof mine) == (ssize_t)sizeof mine;
    return told ? 0 : 1;
  }
  tally total = {0, 0};
  if (argc == 3) {
    run_job(argv[0], atoi(argv[1]), argv[2], &total);
  } else {
    run_job(argv[0], 1, "auto", &total);
    static const char* const transports[] = {"shm", "tcp"};
    for (int i = 0; i < 2; i++) {
      run_job(argv[0], 2, transports[i], &total);
      run_job(argv[0], 4, transports[i], &total);
    }
  }
  printf("c tests: %zu passed, %zu failed\n", total.passed, total.failed);
  return total.failed == 0 && total.passed > 0 ? 0 : 1;
}
