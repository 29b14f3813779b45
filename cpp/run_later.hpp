// Work that an engine thread hands over, because it may take the GIL or block in user code.
// Must not know torch or Python.
#pragma once

#include <functional>

namespace ferrocomm {

/// Runs `job` soon, on a thread that may take the GIL and may block in user code, so that an engine
/// thread never does. Any thread. Dropped (and leaked, as its tensors would need the GIL) once the
/// interpreter ends.
void run_later(std::function<void()> job);

/// Waits until jobs that already started are done, two seconds at most, and runs no more.
void stop_running_later();

}  // namespace ferrocomm
