//! The client's memory that a communicator was told to prepare for its operations.
//!
//! It must not know what an engine does with it: here is only which memory it is.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrocomm_core::{Error, ErrorKind, Result};

/// Bytes by address.
#[derive(Default)]
pub(crate) struct Registered(Mutex<BTreeMap<usize, usize>>);

impl Registered {
    fn map(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes `bytes` bytes at `address`.
    ///
    /// # Errors
    /// `InvalidArgument` for no bytes, for NULL, and for memory that is registered already.
    pub(crate) fn add(&self, address: usize, bytes: usize) -> Result<()> {
        if address == 0 || bytes == 0 {
            return Err(
                Error::new(ErrorKind::InvalidArgument, "there is no memory to register")
                    .got(format!("{bytes} bytes at {address:#x}"))
                    .expected("at least one byte"),
            );
        }
        let mut map = self.map();
        if let Some(before) = map.get(&address) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the memory is registered already",
            )
            .got(format!("{bytes} bytes at {address:#x}"))
            .expected(format!("other memory than the {before} bytes there"))
            .remedy("deregister it first"));
        }
        map.insert(address, bytes);
        Ok(())
    }

    /// Takes over what `other` has, and returns it.
    pub(crate) fn take_over(&self, other: &Self) -> BTreeMap<usize, usize> {
        let taken = std::mem::take(&mut *other.map());
        self.map().extend(&taken);
        taken
    }

    /// Forgets what is at `address`.
    ///
    /// # Errors
    /// `InvalidArgument` when nothing was registered there.
    pub(crate) fn remove(&self, address: usize) -> Result<()> {
        self.map().remove(&address).map(drop).ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, "the memory is not registered")
                .got(format!("{address:#x}"))
                .expected("the start of memory that was registered with this communicator")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_registered_once_and_deregistered_once() {
        let registered = Registered::default();
        registered.add(0x1000, 16).expect("new");
        let twice = registered.add(0x1000, 8).unwrap_err().to_string();
        assert!(twice.contains("16 bytes"), "{twice}");
        registered.remove(0x1000).expect("there");
        let gone = registered.remove(0x1000).unwrap_err().to_string();
        assert!(gone.contains("not registered"), "{gone}");
        assert!(registered.add(0, 16).is_err() && registered.add(0x1000, 0).is_err());
    }
}
