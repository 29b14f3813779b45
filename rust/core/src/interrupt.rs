//! A way for the client to end a wait inside the engine, as Ctrl-C does in Python.
//! Must not know the client, nor who waits.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

type Check = Arc<dyn Fn() -> bool + Send + Sync>;

static CHECK: RwLock<Option<Check>> = RwLock::new(None);

/// How often a waiting thread asks.
pub const INTERVAL: Duration = Duration::from_millis(100);

/// Installs the check of this process (`true` ends the wait), or removes it.
pub fn set_check(check: Option<Check>) {
    *CHECK.write().unwrap_or_else(PoisonError::into_inner) = check;
}

/// Asks the client whether to go on waiting. Call it on the waiting thread, with no lock held.
///
/// # Errors
/// `Interrupted`, when the client wants its thread back.
pub fn check() -> Result<()> {
    let check = CHECK.read().unwrap_or_else(PoisonError::into_inner).clone();
    match check {
        Some(check) if check() => Err(Error::new(
            ErrorKind::Interrupted,
            "the wait was interrupted by the caller",
        )),
        _ => Ok(()),
    }
}
