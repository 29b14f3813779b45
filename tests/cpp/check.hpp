// Counts checks and says which failed.
#ifndef CHECK_HPP
#define CHECK_HPP

#include <atomic>
#include <cstdio>
#include <string>

struct Tally {
  std::atomic<int> passed{0};
  std::atomic<int> failed{0};
};

// One for the program; ranks are threads and share it.
Tally& tally();

inline bool check_at(const char* file, int line, bool holds, const std::string& text) {
  if (holds) {
    tally().passed++;
  } else {
    tally().failed++;
    std::fprintf(stderr, "%s:%d: %s\n", file, line, text.c_str());
  }
  return holds;
}

#define CHECK(holds) check_at(__FILE__, __LINE__, (holds), #holds)

// Checks that `statement` throws an Error with `expected` whose text contains `part`.
#define CHECK_THROWS(expected, part, statement)                                                    \
  try {                                                                                            \
    statement;                                                                                     \
    check_at(__FILE__, __LINE__, false, #statement " does not throw");                             \
  } catch (const ferrocomm::Error& error) {                                                        \
    const bool right =                                                                             \
        error.status() == (expected) && std::string(error.what()).find(part) != std::string::npos; \
    check_at(__FILE__, __LINE__, right, #statement " throws " + std::string(error.what()));        \
  }

#endif
