//! The last words of a process that a failure ends: why, and what was on its way.
//!
//! Only the nccl engine ends a process, and only where it was asked to. Must not know who asks for it.

use ferrocomm_core::Error;

use crate::abort_hook::Ending;
use crate::dump::recorder_dump;
use crate::process::process;

/// Where the flight recorder of a process that is ended goes; the rank is appended.
const FILE_VARIABLE: &str = "TORCHCOMM_FR_DUMP_TEMP_FILE";

/// Writes why the process ends to stderr, and the flight recorder to a file where one is named; then
/// runs the abort hooks of all communicators, which end with the process. In this order, so that a
/// hook that does not come back leaves the reason behind.
pub(crate) fn report(error: &Error) {
    let mut words = format!("ferrocomm: the process ends: {error}");
    if let Some(place) = std::env::var_os(FILE_VARIABLE) {
        let rank = error
            .reporter()
            .map_or(0, ferrocomm_core::ids::GroupRank::get);
        let mut path = place;
        path.push(rank.to_string());
        let written = std::fs::write(&path, recorder_dump(0, false));
        let path = path.display();
        words += &match written {
            Ok(()) => format!("; the flight recorder is in {path}"),
            Err(why) => format!("; the flight recorder cannot be written to {path}: {why}"),
        };
    }
    words.push('\n');
    // The last thing this process says: nobody is left to hear that it cannot be said.
    let _unheard = std::io::Write::write_all(&mut std::io::stderr(), words.as_bytes());
    for communicator in process().communicators() {
        if let Some(hook) = communicator.shared().abort_hook.get() {
            hook(error, Ending::Process);
        }
    }
}
