// Batches of sends and receives. Like all of this layer it keeps handles and throws for statuses,
// and knows nothing of its own about ranks or memory.
#ifndef FERROCOMM_BATCH_HPP
#define FERROCOMM_BATCH_HPP

#include <cstdint>

#include "communicator.hpp"
#include "elements.hpp"
#include "options.hpp"
#include "work.hpp"

namespace ferrocomm {

// Sends and receives issued as one unit; one thread at a time.
class Batch {
 public:
  explicit Batch(const Communicator& comm) {
    fc_batch* batch = nullptr;
    detail::check(fc_batch_create(comm.get(), &batch));
    handle_.reset(batch);
  }

  template <class T>
  Batch& send(Span<T> buffer, std::int32_t dst, std::uint32_t tag = 0) {
    detail::check(fc_batch_send(get(), buffer.data(), buffer.size(), dtype_of<T>, dst, tag));
    return *this;
  }
  template <class T>
  Batch& recv(Span<T> buffer, std::int32_t src, std::uint32_t tag = 0) {
    detail::check(fc_batch_recv(get(), buffer.data(), buffer.size(), dtype_of<T>, src, tag));
    return *this;
  }

  // Issues what was added, waits for it, and empties the batch.
  void run(const OpOptions& options = {}) {
    const detail::RawOpOptions raw(options);
    detail::check(fc_batch_issue(get(), raw.get(), nullptr));
  }
  // Issues what was added and empties the batch.
  Work start(const OpOptions& options = {}) {
    const detail::RawOpOptions raw(options);
    fc_work* work = nullptr;
    detail::check(fc_batch_issue(get(), raw.get(), &work));
    return Work(work);
  }

  fc_batch* get() const noexcept { return handle_.get(); }

 private:
  detail::OwnedBatch handle_;
};

}  // namespace ferrocomm

#endif  // FERROCOMM_BATCH_HPP
