// The operations of a communicator, whether they are run or started. Must not know which: whoever
// derives from it passes the place for a work.
#ifndef FERROCOMM_OPERATIONS_HPP
#define FERROCOMM_OPERATIONS_HPP

#include <cstddef>
#include <cstdint>

#include "elements.hpp"
#include "error.hpp"
#include "options.hpp"
#include "work.hpp"

namespace ferrocomm {

// The operations, once for both ways of calling them: `Face` says on which communicator and what
// becomes of a call. `Result` is void (runs and throws) or Work (starts).
template <class Face, class Result>
class Operations {
 public:
  Result broadcast(void* buffer, std::size_t count, fc_dtype dtype, std::int32_t root,
                   const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_broadcast(comm, buffer, count, dtype, root, opts, work);
    });
  }
  template <class T>
  Result broadcast(Span<T> buffer, std::int32_t root, const OpOptions& options = {}) {
    return broadcast(buffer.data(), buffer.size(), dtype_of<T>, root, options);
  }

  Result all_reduce(const void* input, void* output, std::size_t count, fc_dtype dtype,
                    fc_reduce_op op, const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_all_reduce(comm, input, output, count, dtype, op, opts, work);
    });
  }
  // In place.
  template <class T>
  Result all_reduce(Span<T> buffer, fc_reduce_op op, const OpOptions& options = {}) {
    return all_reduce(buffer.data(), buffer.data(), buffer.size(), dtype_of<T>, op, options);
  }

  Result reduce(const void* input, void* output, std::size_t count, fc_dtype dtype, fc_reduce_op op,
                std::int32_t root, const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_reduce(comm, input, output, count, dtype, op, root, opts, work);
    });
  }

  Result all_gather(const void* input, void* output, std::size_t count, fc_dtype dtype,
                    const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_all_gather(comm, input, output, count, dtype, opts, work);
    });
  }
  // `output` holds one `input` per rank.
  template <class T>
  Result all_gather(Span<const T> input, Span<T> output, const OpOptions& options = {}) {
    require(output.size() == input.size() * ranks(), "output is not one input per rank");
    return all_gather(input.data(), output.data(), input.size(), dtype_of<T>, options);
  }

  // Lists hold one entry per rank.
  Result all_gather_v(const void* input, Span<void* const> outputs, Span<const std::size_t> counts,
                      fc_dtype dtype, const OpOptions& options = {}) {
    require(outputs.size() == ranks() && counts.size() == ranks(), kLists);
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_all_gather_v(comm, input, outputs.data(), counts.data(), dtype, opts, work);
    });
  }

  Result reduce_scatter(const void* input, void* output, std::size_t count, fc_dtype dtype,
                        fc_reduce_op op, const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_reduce_scatter(comm, input, output, count, dtype, op, opts, work);
    });
  }

  // Lists hold one entry per rank.
  Result reduce_scatter_v(Span<const void* const> inputs, Span<const std::size_t> counts,
                          void* output, fc_dtype dtype, fc_reduce_op op,
                          const OpOptions& options = {}) {
    require(inputs.size() == ranks() && counts.size() == ranks(), kLists);
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_reduce_scatter_v(comm, inputs.data(), counts.data(), output, dtype, op, opts,
                                      work);
    });
  }

  Result all_to_all(const void* input, void* output, std::size_t count, fc_dtype dtype,
                    const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_all_to_all(comm, input, output, count, dtype, opts, work);
    });
  }

  // Lists hold one entry per rank.
  Result all_to_all_v(Span<const void* const> inputs, Span<const std::size_t> input_counts,
                      Span<void* const> outputs, Span<const std::size_t> output_counts,
                      fc_dtype dtype, const OpOptions& options = {}) {
    require(inputs.size() == ranks() && input_counts.size() == ranks() &&
                outputs.size() == ranks() && output_counts.size() == ranks(),
            kLists);
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_all_to_all_v(comm, inputs.data(), input_counts.data(), outputs.data(),
                                  output_counts.data(), dtype, opts, work);
    });
  }

  // `outputs` holds one entry per rank on the root and is empty elsewhere.
  Result gather(const void* input, std::size_t count, Span<void* const> outputs, fc_dtype dtype,
                std::int32_t root, const OpOptions& options = {}) {
    require(outputs.size() == (rank() == root ? ranks() : 0), kRootList);
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_gather(comm, input, count, outputs.data(), dtype, root, opts, work);
    });
  }

  // `inputs` holds one entry per rank on the root and is empty elsewhere.
  Result scatter(Span<const void* const> inputs, void* output, std::size_t count, fc_dtype dtype,
                 std::int32_t root, const OpOptions& options = {}) {
    require(inputs.size() == (rank() == root ? ranks() : 0), kRootList);
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_scatter(comm, inputs.data(), output, count, dtype, root, opts, work);
    });
  }

  Result send(const void* buffer, std::size_t count, fc_dtype dtype, std::int32_t dst,
              std::uint32_t tag = 0, const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_send(comm, buffer, count, dtype, dst, tag, opts, work);
    });
  }
  template <class T>
  Result send(Span<T> buffer, std::int32_t dst, std::uint32_t tag = 0,
              const OpOptions& options = {}) {
    return send(buffer.data(), buffer.size(), dtype_of<T>, dst, tag, options);
  }

  Result recv(void* buffer, std::size_t count, fc_dtype dtype, std::int32_t src,
              std::uint32_t tag = 0, const OpOptions& options = {}) {
    return call(options, [=](auto comm, auto opts, auto work) {
      return fc_comm_recv(comm, buffer, count, dtype, src, tag, opts, work);
    });
  }
  template <class T>
  Result recv(Span<T> buffer, std::int32_t src, std::uint32_t tag = 0,
              const OpOptions& options = {}) {
    return recv(buffer.data(), buffer.size(), dtype_of<T>, src, tag, options);
  }

  Result barrier(const OpOptions& options = {}) {
    return call(options,
                [](auto comm, auto opts, auto work) { return fc_comm_barrier(comm, opts, work); });
  }

 private:
  static constexpr const char* kLists = "a list does not have one entry per rank";
  static constexpr const char* kRootList = "the root gives one entry per rank, others give none";

  Face& face() noexcept { return static_cast<Face&>(*this); }
  std::int32_t rank() noexcept { return fc_comm_rank(face().get()); }
  std::size_t ranks() noexcept { return static_cast<std::size_t>(fc_comm_size(face().get())); }

  // The C ABI cannot see how long a list is, so this border does.
  static void require(bool holds, const char* text) {
    if (!holds) throw Error(FC_ERR_INVALID_ARGUMENT, text);
  }

  template <class Function>
  Result call(const OpOptions& options, Function function) {
    const detail::RawOpOptions raw(options);
    return face().finish(
        [&](fc_comm* comm, fc_work** work) { return function(comm, raw.get(), work); });
  }
};

}  // namespace ferrocomm

#endif  // FERROCOMM_OPERATIONS_HPP
