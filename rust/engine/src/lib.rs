//! Communicators as clients see them: state, order, time-outs, argument checks, errors with names,
//! counters and the flight recorder.
//!
//! The engines below (host, nccl) move data. This crate must not know how they do it, nor the C ABI nor
//! torch above it.

mod abort_hook;
mod backend;
mod check;
mod communicator;
mod counters;
mod deferred;
mod dump;
mod fatal;
mod hints;
mod info;
mod issue;
mod json;
mod outstanding;
mod pending;
mod place;
mod process;
mod reconfigure;
mod recorder;
mod registered;
mod resources;
mod shared;
mod state;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod ticks;
mod window;

pub use abort_hook::{AbortHook, Ending};
pub use backend::Backend;
pub use communicator::{Communicator, CommunicatorOptions};
pub use dump::{recorder_dump, recorder_reset};
pub use ferrocomm_nccl::{allocate_on as allocate_on_gpu, locate as locate_nccl};
pub use hints::log_unknown_hint;
pub use info::engine_info;
pub use pending::Pending;
pub use reconfigure::{Reconfigurable, ReconfigureOptions};
pub use window::Window;
