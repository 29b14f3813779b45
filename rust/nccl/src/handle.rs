//! The owner of one NCCL communicator: nobody uses it once it is given up, and it is given up once.
//! Must not know operations.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::{Error, ErrorKind, Result};
use ferrocomm_nccl_sys::sys::{NCCL_REVOKE_DEFAULT, ncclComm_t, ncclResult_t};
use ferrocomm_nccl_sys::{Nccl, symbol};

use crate::bounded::bounded;
use crate::driver::Device;
use crate::errors;
use crate::hints::Hints;

/// How long the end of a communicator on this rank alone may take.
const ENDING: Duration = Duration::from_secs(5);
/// How long a revocation may take: whoever waits for an operation waits for this too.
const REVOKING: Duration = Duration::from_secs(1);
/// Pause between two looks at a call in progress.
const PAUSE: Duration = Duration::from_micros(20);

/// A communicator's pointer, to move between threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comm(pub(crate) ncclComm_t);
// SAFETY: NCCL allows calls on a communicator from any thread; the engine makes one at a time, but for
// those that NCCL allows beside others (ncclCommGetAsyncError, ncclCommAbort).
unsafe impl Send for Comm {}

/// The owner.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) nccl: &'static Nccl,
    pub(crate) device: Device,
    comm: Mutex<Option<Comm>>,
    /// held while it is revoked or given up, of which NCCL allows one at a time
    ending: Mutex<()>,
    /// how many holders of addresses that NCCL mapped there are
    lent: AtomicUsize,
    texts: Texts,
}

/// NCCL may look at the texts of its configuration as long as the communicator lives, so whoever may be
/// its last owner has them.
#[derive(Clone, Debug)]
struct Texts {
    _hints: Arc<Hints>,
    _name: Arc<CString>,
}

impl Handle {
    /// Owns `comm`, which was made with texts of `hints` and `name`.
    pub(crate) fn new(
        nccl: &'static Nccl,
        device: Device,
        comm: Comm,
        hints: Arc<Hints>,
        name: CString,
    ) -> Arc<Self> {
        Arc::new(Self {
            nccl,
            device,
            comm: Mutex::new(Some(comm)),
            ending: Mutex::default(),
            lent: AtomicUsize::new(0),
            texts: Texts {
                _hints: hints,
                _name: Arc::new(name),
            },
        })
    }

    fn ending(&self) -> MutexGuard<'_, ()> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn comm(&self) -> MutexGuard<'_, Option<Comm>> {
        self.comm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The communicator, for a call of the one thread that issues.
    ///
    /// # Errors
    /// `Aborted`, once it is given up.
    pub(crate) fn get(&self) -> Result<Comm> {
        (*self.comm()).ok_or_else(given_up)
    }

    /// What went wrong with calls that are on their way, when something did.
    pub(crate) fn async_failure(&self) -> Option<Error> {
        let held = self.comm();
        let Comm(comm) = (*held)?;
        // SAFETY: alive, since whoever gives it up takes it out of `held` first.
        match unsafe { async_result(self.nccl, comm) } {
            Ok(ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress) => None,
            Ok(result) => Some(
                // SAFETY: as above.
                unsafe {
                    errors::failed(self.nccl, comm, "a call of the communicator", result, None)
                },
            ),
            Err(error) => Some(error),
        }
    }

    /// Stops what is on its way and leaves a communicator that can only be given up. `false` where
    /// this NCCL cannot. When it does not end in time the communicator is left to the thread that is
    /// in it, which gives it up whenever it gets there.
    pub(crate) fn revoke(&self) -> bool {
        let Ok(revoke) = symbol!(self.nccl, ncclCommRevoke) else {
            return false;
        };
        let _ending = self.ending();
        let Ok(comm) = self.get() else {
            return false;
        };
        let (nccl, device, texts) = (self.nccl, self.device, self.texts.clone());
        // Whoever sets it first, the thread at its end or the one that waits for it at the deadline,
        // leaves the communicator to the other.
        let parted = Arc::new(AtomicBool::new(false));
        let theirs = parted.clone();
        let outcome = bounded("revoking", Deadline::after(REVOKING), move || {
            let (Comm(comm), _texts) = (comm, texts);
            let _entered = device.enter()?;
            // SAFETY: NCCL allows it beside a call that is stuck. It is not given up meanwhile:
            // `ending` is held until this has ended, and else it is left to this thread.
            let result = unsafe { revoke(comm, NCCL_REVOKE_DEFAULT as i32) };
            let deadline = Deadline::after(REVOKING);
            // SAFETY: as above.
            let outcome = unsafe { finished(nccl, comm, "ncclCommRevoke", result, deadline) };
            if theirs.swap(true, Ordering::AcqRel) {
                // SAFETY: left to this thread, and no other uses it.
                unsafe { abort(nccl, comm) }?;
            }
            outcome
        });
        let late = outcome
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Timeout)
            && !parted.swap(true, Ordering::AcqRel);
        if late {
            self.comm().take();
        }
        outcome
            .inspect_err(|error| tracing::warn!(error = %error, "a communicator cannot be revoked"))
            .is_ok()
    }

    /// Moves the communicator to an owner of its own. Here it is given up from now on.
    pub(crate) fn detach(&self) -> Option<Arc<Self>> {
        let _ending = self.ending();
        let comm = self.comm().take()?;
        Some(Arc::new(Self {
            nccl: self.nccl,
            device: self.device,
            comm: Mutex::new(Some(comm)),
            ending: Mutex::default(),
            lent: AtomicUsize::new(0),
            texts: self.texts.clone(),
        }))
    }

    /// Somebody holds addresses that NCCL mapped: they are valid until it is given up.
    pub(crate) fn lend(&self) {
        self.lent.fetch_add(1, Ordering::AcqRel);
    }

    /// What `lend` said holds no more.
    pub(crate) fn take_back(&self) {
        self.lent.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether somebody holds addresses that NCCL mapped.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Acquire) > 0
    }

    /// Gives it up without regard to peers; where somebody holds addresses that it mapped, what is on its
    /// way is stopped, and the rest follows with the last owner. Waits a moment at most.
    pub(crate) fn abort(&self) {
        if self.is_lent() && self.revoke() {
            return;
        }
        self.give_up();
    }

    /// Gives it up without regard to peers or holders. Waits a moment at most.
    fn give_up(&self) {
        let _ending = self.ending();
        let Some(comm) = self.comm().take() else {
            return;
        };
        let (nccl, device, texts) = (self.nccl, self.device, self.texts.clone());
        let outcome = bounded("aborting", Deadline::after(ENDING), move || {
            let (Comm(comm), _texts) = (comm, texts);
            let _entered = device.enter()?;
            // SAFETY: taken out above, so that nobody else gives it up or starts to use it; NCCL
            // lets a call that is stuck in it return.
            unsafe { abort(nccl, comm) }
        });
        if let Err(error) = outcome {
            tracing::warn!(error = %error, "a communicator was left behind");
        }
    }

    /// Lets everything on its way end, together with the peers, and gives it up.
    ///
    /// # Errors
    /// `Timeout`; NCCL's.
    pub(crate) fn finalize(&self, deadline: Deadline) -> Result<()> {
        let _ending = self.ending();
        let Some(comm) = self.comm().take() else {
            return Ok(());
        };
        let (nccl, device, texts) = (self.nccl, self.device, self.texts.clone());
        bounded("finalizing", deadline, move || {
            let (Comm(comm), _texts) = (comm, texts);
            let _entered = device.enter()?;
            if let Ok(finalize) = symbol!(nccl, ncclCommFinalize) {
                // SAFETY: taken out above: nobody else uses it.
                let result = unsafe { finalize(comm) };
                // SAFETY: as above.
                unsafe { finished(nccl, comm, "ncclCommFinalize", result, deadline) }?;
            }
            let destroy =
                symbol!(nccl, ncclCommDestroy).map_err(|error| errors::missing(&error))?;
            // SAFETY: as above, and given up with this.
            let result = unsafe { destroy(comm) };
            if result == ncclResult_t::ncclSuccess || result == ncclResult_t::ncclInProgress {
                return Ok(());
            }
            // SAFETY: NULL instead of a communicator that may be gone.
            Err(unsafe {
                errors::failed(nccl, std::ptr::null_mut(), "ncclCommDestroy", result, None)
            })
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.give_up();
    }
}

fn given_up() -> Error {
    Error::new(ErrorKind::Aborted, "the communicator was given up").remedy("make a new one")
}

/// Gives `comm` up without regard to peers.
///
/// # Errors
/// NCCL's.
///
/// # Safety
/// `comm` is alive, and nobody else gives it up or starts to use it.
unsafe fn abort(nccl: &Nccl, comm: ncclComm_t) -> Result<()> {
    let abort = symbol!(nccl, ncclCommAbort).map_err(|error| errors::missing(&error))?;
    // SAFETY: by the caller's promise.
    let result = unsafe { abort(comm) };
    if result == ncclResult_t::ncclSuccess || result == ncclResult_t::ncclInProgress {
        return Ok(());
    }
    // SAFETY: NULL instead of a communicator that may be gone.
    Err(unsafe { errors::failed(nccl, std::ptr::null_mut(), "ncclCommAbort", result, None) })
}

/// What NCCL says about calls on `comm` that are on their way.
///
/// # Safety
/// `comm` is alive during the call.
unsafe fn async_result(nccl: &Nccl, comm: ncclComm_t) -> Result<ncclResult_t> {
    let ask = symbol!(nccl, ncclCommGetAsyncError).map_err(|error| errors::missing(&error))?;
    let mut answer = ncclResult_t::ncclSuccess;
    // SAFETY: alive by the caller's promise, and a place for one value.
    let result = unsafe { ask(comm, &raw mut answer) };
    if result == ncclResult_t::ncclSuccess {
        return Ok(answer);
    }
    // SAFETY: as above.
    Err(unsafe { errors::failed(nccl, comm, "ncclCommGetAsyncError", result, None) })
}

/// Waits until `call`, which answered `result`, is no longer in progress.
///
/// # Errors
/// NCCL's; `Timeout`.
///
/// # Safety
/// `comm` is alive, and nobody else gives it up.
pub(crate) unsafe fn finished(
    nccl: &Nccl,
    comm: ncclComm_t,
    call: &'static str,
    result: ncclResult_t,
    deadline: Deadline,
) -> Result<()> {
    let mut result = result;
    while result == ncclResult_t::ncclInProgress {
        if deadline.passed() {
            return Err(
                Error::new(ErrorKind::Timeout, format!("{call} did not end in time"))
                    .expected(format!("{:?}", deadline.limit())),
            );
        }
        thread::sleep(PAUSE);
        // SAFETY: by the caller's promise.
        result = unsafe { async_result(nccl, comm) }?;
    }
    if result == ncclResult_t::ncclSuccess {
        return Ok(());
    }
    // SAFETY: as above.
    Err(unsafe { errors::failed(nccl, comm, call, result, None) })
}
