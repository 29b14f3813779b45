//! What a communicator holds beside its operations: registrations of memory, and device memory that
//! NCCL can give up for a while. Must not know what the memory is for.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ferrocomm_core::call::Region;
use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::group::MemoryUse;
use ferrocomm_core::{Error, ErrorKind, Result, interrupt};
use ferrocomm_nccl_sys::symbol;
use ferrocomm_nccl_sys::sys::{NCCL_SUSPEND_MEM, ncclComm_t, ncclCommMemStat_t, ncclResult_t};

use crate::comm::{Core, locked};
use crate::errors;
use crate::handle::finished;
use crate::issuing::is_harmless;

/// NCCL's name for memory that it knows.
struct Known(*mut c_void);
// SAFETY: only handed back to NCCL, which takes it on any thread.
unsafe impl Send for Known {}

/// The memory that a communicator has registered, by its address.
#[derive(Default)]
pub(crate) struct Registrations(HashMap<usize, Known>);

impl Core {
    /// Makes a call of NCCL's on the communicator, with the watchdog's eye on it. The caller holds
    /// the issuing lock.
    pub(crate) fn call(
        &self,
        name: &'static str,
        call: impl FnOnce(ncclComm_t) -> Result<ncclResult_t>,
    ) -> Result<()> {
        let _entered = self.seat.device.enter()?;
        let comm = self.handle.get()?.0;
        let deadline = Deadline::after(self.seat.timeout);
        locked(&self.standing).call = Some((Instant::now(), self.seat.timeout));
        let outcome = call(comm).and_then(|result| {
            // SAFETY: the issuing thread's communicator; where another thread gives it up meanwhile,
            // NCCL lets calls in progress return.
            unsafe { finished(self.handle.nccl, comm, name, result, deadline) }
        });
        locked(&self.standing).call = None;
        outcome
    }

    /// The outcome of a call that leaves the communicator unusable when it fails half-way. With no lock
    /// held: failing waits for a thread that is in a call.
    fn settled(&self, outcome: Result<()>) -> Result<()> {
        outcome.inspect_err(|error| {
            if !is_harmless(error) {
                self.fail(error.clone());
            }
        })
    }

    pub(crate) fn register(&self, memory: Region) -> Result<()> {
        let register =
            symbol!(self.handle.nccl, ncclCommRegister).map_err(|error| errors::missing(&error))?;
        let _issuing = locked(&self.issuing);
        self.admit()?;
        let mut known = Known(ptr::null_mut());
        let place = &raw mut known.0;
        self.call("ncclCommRegister", |comm| {
            let address = ptr::with_exposed_provenance_mut(memory.address);
            // SAFETY: the client's memory, valid until it is deregistered by its promise, and a place
            // for one handle.
            Ok(unsafe { register(comm, address, memory.bytes, place) })
        })?;
        locked(&self.registrations).0.insert(memory.address, known);
        Ok(())
    }

    pub(crate) fn deregister(&self, address: usize) -> Result<()> {
        let known = locked(&self.registrations).0.remove(&address);
        let known = known.ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, "nothing is registered there")
                .got(format!("{address:#x}"))
        })?;
        let _issuing = locked(&self.issuing);
        self.forget(&known)
    }

    /// Ends a registration; one whose communicator is given up went with it.
    fn forget(&self, known: &Known) -> Result<()> {
        if self.handle.get().is_err() {
            return Ok(());
        }
        let deregister = symbol!(self.handle.nccl, ncclCommDeregister)
            .map_err(|error| errors::missing(&error))?;
        self.call("ncclCommDeregister", |comm| {
            // SAFETY: made by `register` on this communicator, and ended once.
            Ok(unsafe { deregister(comm, known.0) })
        })
    }

    /// Ends all registrations, for a communicator that is about to end. The caller holds the issuing
    /// lock.
    pub(crate) fn forget_all(&self) {
        let all = std::mem::take(&mut locked(&self.registrations).0);
        for known in all.values() {
            if let Err(error) = self.forget(known) {
                tracing::warn!(error = %error, "memory stays registered");
            }
        }
    }

    pub(crate) fn suspend(&self) -> Result<()> {
        let outcome = self.try_suspend()?;
        self.settled(outcome)
    }

    /// The inner result is NCCL's, the outer one whether it was asked at all.
    fn try_suspend(&self) -> Result<Result<()>> {
        let suspend =
            symbol!(self.handle.nccl, ncclCommSuspend).map_err(|error| errors::missing(&error))?;
        let _issuing = locked(&self.issuing);
        if locked(&self.standing).suspended {
            return Ok(Ok(()));
        }
        self.admit()?;
        if self.is_in_graphs() {
            return Err(Error::new(
                ErrorKind::State,
                "a captured graph uses the communicator's memory",
            )
            .remedy("destroy the graphs first"));
        }
        self.drain(Deadline::after(self.seat.timeout))?;
        let outcome = self.call("ncclCommSuspend", |comm| {
            // SAFETY: the issuing thread's communicator, with nothing on its way.
            Ok(unsafe { suspend(comm, NCCL_SUSPEND_MEM as i32) })
        });
        locked(&self.standing).suspended = outcome.is_ok();
        Ok(outcome)
    }

    pub(crate) fn resume(&self) -> Result<()> {
        let outcome = self.try_resume()?;
        self.settled(outcome)
    }

    fn try_resume(&self) -> Result<Result<()>> {
        let resume =
            symbol!(self.handle.nccl, ncclCommResume).map_err(|error| errors::missing(&error))?;
        let _issuing = locked(&self.issuing);
        if !locked(&self.standing).suspended {
            return self.admit().map(Ok);
        }
        let outcome = self.call("ncclCommResume", |comm| {
            // SAFETY: the issuing thread's communicator.
            Ok(unsafe { resume(comm) })
        });
        locked(&self.standing).suspended = outcome.is_err();
        Ok(outcome)
    }

    /// Whether a graph holds an operation of the communicator.
    pub(crate) fn is_in_graphs(&self) -> bool {
        Arc::strong_count(&self.handle) > 1
    }

    /// Waits until everything issued has ended.
    fn drain(&self, deadline: Deadline) -> Result<()> {
        while !self.flights.is_empty() {
            self.reap();
            self.admit()?;
            interrupt::check()?;
            if deadline.passed() {
                return Err(
                    Error::new(ErrorKind::Timeout, "operations did not end in time")
                        .expected(format!("at most {:?}", deadline.limit())),
                );
            }
            thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    pub(crate) fn memory(&self) -> Result<MemoryUse> {
        let ask =
            symbol!(self.handle.nccl, ncclCommMemStats).map_err(|error| errors::missing(&error))?;
        let _issuing = locked(&self.issuing);
        let number = |statistic| {
            let mut value = 0;
            let place = &raw mut value;
            self.call("ncclCommMemStats", |comm| {
                // SAFETY: the issuing thread's communicator, and a place for one number.
                Ok(unsafe { ask(comm, statistic, place) })
            })?;
            Ok::<u64, Error>(value)
        };
        Ok(MemoryUse {
            suspendable: number(ncclCommMemStat_t::ncclStatGpuMemSuspend)?,
            suspended: number(ncclCommMemStat_t::ncclStatGpuMemSuspended)? != 0,
            persistent: number(ncclCommMemStat_t::ncclStatGpuMemPersist)?,
            total: number(ncclCommMemStat_t::ncclStatGpuMemTotal)?,
        })
    }
}
