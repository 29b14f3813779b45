//! What the simulated libraries share: faults asked for by the environment, and the table through
//! which the runtime and NCCL call the driver. It must not know what a stream or a collective is.

pub mod driver;
pub mod fault;

/// Says on standard error what the simulator refuses or notices, with the library's name.
pub fn report(library: &str, text: &str) {
    eprintln!("[simgpu {library}] {text}");
}
