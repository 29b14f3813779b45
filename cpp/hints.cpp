// What the values of hints mean. Must not know the engine's.

#include "hints.hpp"

namespace ferrocomm {

bool wants_shared_memory(const Site& site, const HintMap& hints) {
  const auto hint = hints.find(kShareMemory);
  if (hint == hints.end() || hint->second == "false" || hint->second == "0") return false;
  if (hint->second == "true" || hint->second == "1") return true;
  throw_invalid(site, {std::string("the hint ") + kShareMemory + " has no such value", hint->second,
                       "true, 1, false or 0", ""});
}

}  // namespace ferrocomm
