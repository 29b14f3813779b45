//! Hints that nobody understands: named in the log, so that a misspelt one is found. Which there are
//! is the engines' affair. Must not know any of them.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Says once per process that operations have no hint `key`.
pub fn log_unknown_hint(key: &str) {
    static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let fresh = SEEN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(key.to_owned());
    if fresh {
        tracing::warn!(hint = key, "a hint of an operation that no engine knows");
    }
}
