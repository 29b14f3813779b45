// Elements in memory that somebody else owns, and their types. Must not know communicators; keeps
// nothing alive.
#ifndef FERROCOMM_ELEMENTS_HPP
#define FERROCOMM_ELEMENTS_HPP

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "../ferrocomm.h"

namespace ferrocomm {

// Elements that somebody else owns. Made from anything with data() and size().
template <class T>
class Span {
 public:
  Span() noexcept = default;
  Span(T* data, std::size_t size) noexcept : data_(data), size_(size) {}
  template <class Container, class = decltype(std::declval<Container&>().data())>
  Span(Container& container) noexcept : data_(container.data()), size_(container.size()) {}

  T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// The dtype of a C++ type; types without one do not compile.
template <class T>
struct DtypeOf;
template <>
struct DtypeOf<std::uint8_t> {
  static constexpr fc_dtype value = FC_DTYPE_UINT8;
};
template <>
struct DtypeOf<std::int8_t> {
  static constexpr fc_dtype value = FC_DTYPE_INT8;
};
template <>
struct DtypeOf<std::uint16_t> {
  static constexpr fc_dtype value = FC_DTYPE_UINT16;
};
template <>
struct DtypeOf<std::int16_t> {
  static constexpr fc_dtype value = FC_DTYPE_INT16;
};
template <>
struct DtypeOf<std::uint32_t> {
  static constexpr fc_dtype value = FC_DTYPE_UINT32;
};
template <>
struct DtypeOf<std::int32_t> {
  static constexpr fc_dtype value = FC_DTYPE_INT32;
};
template <>
struct DtypeOf<std::uint64_t> {
  static constexpr fc_dtype value = FC_DTYPE_UINT64;
};
template <>
struct DtypeOf<std::int64_t> {
  static constexpr fc_dtype value = FC_DTYPE_INT64;
};
template <>
struct DtypeOf<float> {
  static constexpr fc_dtype value = FC_DTYPE_FLOAT32;
};
template <>
struct DtypeOf<double> {
  static constexpr fc_dtype value = FC_DTYPE_FLOAT64;
};
template <>
struct DtypeOf<bool> {
  static constexpr fc_dtype value = FC_DTYPE_BOOL;
};

template <class T>
inline constexpr fc_dtype dtype_of = DtypeOf<std::remove_cv_t<T>>::value;

}  // namespace ferrocomm

#endif  // FERROCOMM_ELEMENTS_HPP
