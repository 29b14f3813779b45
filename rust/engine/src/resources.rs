//! What a communicator holds beside its operations: registered memory, and memory that it can give up
//! for a while. All of it is the engine's below; here are its states and names. Must not know which
//! engine that is.

use ferrocomm_core::Result;
use ferrocomm_core::call::Region;
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

    /// Prepares memory of the client's for operations, until `deregister_memory` or the communicator's end.
    ///
    /// # Errors
    /// `InvalidArgument`; whatever keeps the engine from it, and then nothing is registered.
    pub fn register_memory(&self, memory: Region) -> Result<()> {
        self.resource("register", |group| {
            self.admit()?;
            self.registered.add(memory.address, memory.bytes)?;
            group
                .register_memory(memory)
                .or_else(|error| self.registered.remove(memory.address).and(Err(error)))
        })
    }

    /// Takes that back. On a communicator that has failed or ended, too.
    ///
    /// # Errors
    /// `InvalidArgument` when nothing was registered there.
    pub fn deregister_memory(&self, address: usize) -> Result<()> {
        self.check_process()?;
        // Without members there is nobody below to tell.
        self.registered
            .remove(address)
            .and_then(|()| match self.group() {
                Ok(group) => group.deregister_memory(address),
                Err(_without_members) => Ok(()),
            })
            .map_err(|error| self.shared().named_as(error, "deregister"))
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
