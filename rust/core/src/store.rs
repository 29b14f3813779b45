//! The key-value store through which ranks find one another.
//! Must not know whose it is, nor what is kept in it.

use std::time::Duration;

use crate::error::Result;

/// What an engine needs of a store. Calls block and come from one thread at a time.
pub trait Store: Send {
    /// Stores `value` under `key`.
    ///
    /// # Errors
    /// `Store`, `StoreTimeout` or `StoreDisconnected`, with the store's own words.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// Waits until `key` is there, at most `timeout`, and returns its value.
    ///
    /// # Errors
    /// `StoreTimeout` when the key did not come in time; else as for `set`.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>>;

    /// Removes `key`; a store that cannot does nothing.
    ///
    /// # Errors
    /// As for `set`.
    fn remove(&self, key: &str) -> Result<()>;
}
