// From the engine's statuses to the exceptions that torch turns into Python's. Must not know
// communicators: who failed is in the text.
#pragma once

#include <chrono>
#include <exception>
#include <string>
#include <string_view>

#include "ferrocomm.h"

namespace ferrocomm {

/// Whose call it is; names the place in messages. Valid as long as the communicator's handle.
struct Site {
  std::string_view communicator;
  int rank = 0;
  const char* operation = "";
};

/// What is wrong with an argument. `what` is a short sentence in lower case; the rest may be empty.
struct Complaint {
  std::string what;
  std::string got;
  std::string expected;
  std::string remedy;
};

/// " [communicator c, rank r, operation o]", as the engine's messages have it.
std::string to_string(const Site& site);

/// Raises ValueError in the words of the engine's own messages. Nothing may have moved yet.
[[noreturn]] void throw_invalid(const Site& site, const Complaint& complaint);

/// Raises ValueError for a time-out that is none. Nothing may have moved yet.
[[noreturn]] void throw_not_positive(const Site& site, std::chrono::milliseconds timeout);

/// The exception for a failure: ValueError for a bad argument, NotImplementedError for what is not
/// supported, DistStoreError and DistNetworkError for the store, DistBackendError for the rest.
std::exception_ptr to_exception(fc_status status, const std::string& text);

/// Raises it; an interrupted wait raises the Python exception that interrupted it.
[[noreturn]] void throw_status(fc_status status, const std::string& text);

/// Raises the calling thread's last error unless `status` is FC_OK, and an interrupt in any case.
void check(fc_status status);

}  // namespace ferrocomm
