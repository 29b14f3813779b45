// The headers once more, in another order and twice, in a second unit of the same program.
#include <ferrocomm.h>

#include <ferrocomm.hpp>

std::string info_from_second_unit() { return ferrocomm::engine_info(); }
