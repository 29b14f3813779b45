/* What the library tells about itself. */
#include <stdio.h>
#include <string.h>

#include "check.h"

static void says(fc_status status, fc_string* text, const char* const* parts) {
  if (!CHECK(status == FC_OK && text != NULL, "%s", fc_last_error())) {
    return;
  }
  for (; *parts != NULL; parts++) {
    CHECK(strstr(fc_string_data(text), *parts) != NULL, "no %s in %.900s", *parts,
          fc_string_data(text));
  }
  fc_string_destroy(text);
}

void test_reports(fc_comm* comm) {
  CHECK_OK(fc_recorder_reset());
  int64_t data[3] = {0};
  CHECK_OK(fc_comm_all_reduce(comm, data, data, 3, FC_DTYPE_INT64, FC_REDUCE_SUM, NULL, NULL));
  char rank[32];
  snprintf(rank, sizeof rank, "\"rank\":%d", fc_comm_rank(comm));
  fc_string* text = NULL;

  fc_status status = fc_recorder_dump(0, 0, &text);
  says(status, text,
       (const char* const[]){"\"ferrocomm:all_reduce\"", "\"input_sizes\":[[3]]",
                             "\"state\":\"completed\"", rank, NULL});
  status = fc_recorder_dump(0, 1, &text);
  says(status, text, (const char* const[]){"\"entries\":[]", NULL});
  status = fc_comm_info(comm, &text);
  says(status, text,
       (const char* const[]){"\"engine\":\"host\"", "\"state\":\"ready\"", "\"all_reduce\":{",
                             "\"transport\":\"", rank, NULL});
  status = fc_engine_info(&text);
  says(status, text,
       (const char* const[]){"\"abi\":1", "\"name\":\"host\"", "\"usable\":true",
                             "\"transports\":[\"", fc_comm_name(comm), NULL});
}
