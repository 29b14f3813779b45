#include "check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

size_t checks_passed;
size_t checks_failed;

int check_at(const char* file, int line, int holds, const char* format, ...) {
  if (holds) {
    checks_passed++;
    return 1;
  }
  checks_failed++;
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "%s:%d: %s\n", file, line, text);
  return 0;
}

int check_status(const char* file, int line, fc_status expected, fc_status got, const char* call) {
  const char* text = got == FC_OK ? "" : fc_last_error();
  return check_at(file, line, got == expected, "%s: got %s, expected %s: %s", call,
                  fc_status_name(got), fc_status_name(expected), text);
}

int check_text(const char* file, int line, const char* text, const char* part) {
  return check_at(file, line, strstr(text, part) != NULL, "\"%s\" does not say \"%s\"", text, part);
}

fc_work** slot(call_mode mode, fc_work** work) {
  *work = NULL;
  return mode == ASYNC ? work : NULL;
}

fc_status done(fc_status started, fc_work** work) {
  if (started != FC_OK || *work == NULL) {
    return started;
  }
  fc_status status = fc_work_wait(*work, 0);
  fc_work_destroy(*work);
  *work = NULL;
  return status;
}
