// The pages of torch's debug server that are about this package. Must not know Python.
#pragma once

namespace ferrocomm {

/// Registers the handlers that torch's worker server calls. They run on its threads, and take no
/// GIL: the pages are for processes that hang.
void register_debug_handlers();

}  // namespace ferrocomm
