//! What a communicator's group can do beside operations: give up memory for a while, and say how much
//! there is and what the library below knows it under. Here are the states and names.

use ferrocomm_core::Result;
use ferrocomm_core::group::{Group, MemoryUse};

use crate::communicator::Communicator;

impl Communicator {
    fn resource<T>(
        &self,
        doing: &'static str,
        ask: impl FnOnce(&dyn Group) -> Result<T>,
    ) -> Result<T> {
        self.group()
            .and_then(|group| ask(&**group))
            .map_err(|error| self.shared().named_as(error, doing))
    }

    /// Gives up what memory can be taken again; every rank calls it. Operations are refused until
    /// `resume`.
    ///
    /// # Errors
    /// `Unsupported` by an engine or library that cannot; `Timeout`; the cause of failure.
    pub fn suspend(&self) -> Result<()> {
        self.resource("suspend", |group| {
            self.admit()?;
            group.suspend()
        })
    }

    /// Takes the memory again; every rank calls it.
    ///
    /// # Errors
    /// As `suspend`.
    pub fn resume(&self) -> Result<()> {
        self.resource("resume", |group| {
            self.admit()?;
            group.resume()
        })
    }

    /// How much memory of its device the communicator takes.
    ///
    /// # Errors
    /// As `suspend`.
    pub fn memory(&self) -> Result<MemoryUse> {
        self.resource("memory statistics", |group| {
            self.admit()?;
            group.memory()
        })
    }

    /// What the library below knows the communicator under; borrowed.
    ///
    /// # Errors
    /// `Unsupported` where there is no such thing; the cause of failure.
    pub fn native(&self) -> Result<usize> {
        self.resource("native handle", |group| {
            self.admit()?;
            group.native()
        })
    }
}
