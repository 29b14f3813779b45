//! The flight recorder. Must not know what it holds.

use ferrocomm_abi::fc_status;

use crate::ffi::{Out, guard};
use crate::text::{fc_string, give_text};

/// The last operations of this process's communicators, oldest first, as JSON in the shape torch's
/// flight recorder analyser reads: {"version", "pg_config", "pg_status", "entries": [..]}.
/// At most `max_entries` of the newest (0: all that are kept); `only_active` other than 0 leaves
/// out what is complete. `*json` receives an owned string. The recorder keeps the last 2048
/// operations, or `FERROCOMM_RECORDER_ENTRIES` of the environment (0: none).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_recorder_dump(
    max_entries: usize,
    only_active: i32,
    json: *mut *mut fc_string,
) -> fc_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a place for one pointer.
        let out = unsafe { Out::new(json, "json") }?;
        out.set(give_text(&ferrocomm_engine::recorder_dump(
            max_entries,
            only_active != 0,
        )));
        Ok(())
    })
}

/// Forgets the operations recorded so far.
#[unsafe(no_mangle)]
pub extern "C" fn fc_recorder_reset() -> fc_status {
    guard(|| {
        ferrocomm_engine::recorder_reset();
        Ok(())
    })
}
