// Statuses, texts and interrupts into exceptions. Must not know communicators.

#include "errors.hpp"

#include <c10/util/Exception.h>

#include "python_runtime.hpp"
#include "time_limit.hpp"

namespace ferrocomm {
namespace {

template <typename E>
std::exception_ptr make(const std::string& text) {
  return std::make_exception_ptr(E({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text));
}

}  // namespace

std::string to_string(const Site& site) {
  return " [communicator " + std::string(site.communicator) + ", rank " +
         std::to_string(site.rank) + ", operation " + site.operation + "]";
}

void throw_invalid(const Site& site, const Complaint& complaint) {
  std::string text = "invalid argument: " + complaint.what;
  if (!complaint.got.empty()) text += "; got " + complaint.got;
  if (!complaint.expected.empty()) text += "; expected " + complaint.expected;
  text += to_string(site);
  if (!complaint.remedy.empty()) text += "; " + complaint.remedy;
  throw_status(FC_ERR_INVALID_ARGUMENT, text);
}

void throw_not_positive(const Site& site, std::chrono::milliseconds timeout) {
  // torch counts microseconds, and what does not fit comes out as anything.
  const bool wrapped = timeout < -kLongest;
  throw_invalid(site, {"the time-out is not positive", std::to_string(timeout.count()) + " ms",
                       "at least 1 ms; more than 100 years are as 100 years",
                       wrapped ? "torch can hand over no more than 106751991 days" : ""});
}

std::exception_ptr to_exception(fc_status status, const std::string& text) {
  switch (status) {
    case FC_ERR_INVALID_ARGUMENT:
      return make<c10::ValueError>(text);
    case FC_ERR_UNSUPPORTED:
      return make<c10::NotImplementedError>(text);
    case FC_ERR_STORE:
    case FC_ERR_STORE_TIMEOUT:
      return make<c10::DistStoreError>(text);
    case FC_ERR_STORE_DISCONNECTED:
      return make<c10::DistNetworkError>(text);
    default:
      return make<c10::DistBackendError>(text);
  }
}

void check(fc_status status) {
  if (status != FC_OK) throw_status(status, fc_last_error());
  rethrow_interrupt();  // a signal that came as the call succeeded
}

void throw_status(fc_status status, const std::string& text) {
  // Whatever status the engine chose for the call that was cut short, the user sees the signal.
  rethrow_interrupt();
  std::rethrow_exception(to_exception(status, text));
}

}  // namespace ferrocomm
