// The headers once more, in another order and twice, in a second unit of the same program.
// clang-format off: it would drop what is there twice
#include <ferrocomm.h>
#include <ferrocomm.h>
#include <ferrocomm.hpp>
#include <ferrocomm.hpp>
// clang-format on

std::string info_from_second_unit() { return ferrocomm::engine_info(); }
