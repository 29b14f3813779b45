/* Counts checks and says which failed; one process's share of the test. */
#ifndef CHECK_H
#define CHECK_H

#include <ferrocomm.h>
#include <stddef.h>
#include <stdint.h>

/* What the checks of this process came to. */
extern size_t checks_passed;
extern size_t checks_failed;

/* Counts one check; a failed one is printed with its place and `text`. Returns `holds`. */
int check_at(const char* file, int line, int holds, const char* format, ...)
    __attribute__((format(printf, 4, 5)));

#define CHECK(holds, ...) check_at(__FILE__, __LINE__, (holds), __VA_ARGS__)

/* Checks that a call succeeded, or failed as expected; the message carries the engine's text. */
#define CHECK_OK(call) CHECK_STATUS(FC_OK, call)
#define CHECK_STATUS(expected, call) check_status(__FILE__, __LINE__, (expected), (call), #call)
int check_status(const char* file, int line, fc_status expected, fc_status got, const char* call);

/* Checks that the last error on this thread contains `part`. */
#define CHECK_TEXT(part) check_text(__FILE__, __LINE__, fc_last_error(), (part))
int check_text(const char* file, int line, const char* text, const char* part);

/* Whether to call an operation synchronously or to start it and wait for its work. */
typedef enum { SYNC, ASYNC } call_mode;

/* The `work` argument for a mode. */
fc_work** slot(call_mode mode, fc_work** work);

/* The end of an operation called with `slot`: waits when it was started; gives the work back. By
 * address, because C may evaluate this argument before the call beside it. */
fc_status done(fc_status started, fc_work** work);

/* The suites; every rank of `comm` calls each. */
void test_collectives(fc_comm* comm);
void test_uneven(fc_comm* comm);
void test_memory(fc_comm* comm);
void test_notices(fc_comm* comm);
void test_reductions(fc_comm* comm);
void test_point_to_point(fc_comm* comm);
void test_groups(fc_comm* comm);
void test_windows(fc_comm* comm);
void test_works(fc_comm* comm);
void test_arguments(fc_comm* comm);
void test_failures(fc_comm* comm);
void test_reports(fc_comm* comm);
void test_reconfigure(fc_comm* comm);

#endif
