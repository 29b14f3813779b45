//! Communicators: their states, what is unfinished in them, and who may still use them.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, mpsc};
use std::thread;

use simgpu_common::driver::{Handle, driver};
use simgpu_common::fault;

use crate::arena::{Arena, Watch};
use crate::config::Config;
use crate::dtype::{DataType, Reduction};
use crate::failure::{Code, Failure, Outcome, cuda, remember};
use crate::locked;
use crate::registered;

/// A step that a communicator without blocking does on its own thread.
type Job = Box<dyn FnOnce() -> Outcome + Send>;

/// The first number of a reduction that a caller made.
const FIRST_MADE: c_int = 5;

/// The last operation that was put on a stream, to keep the order of those on other streams.
#[derive(Default)]
pub(crate) struct Order {
    /// The event recorded after it; null before the first.
    pub(crate) event: usize,
    /// Its stream.
    pub(crate) stream: usize,
    /// Its capture, or zero.
    pub(crate) capture: u64,
}

/// A communicator.
pub struct Comm {
    /// Its handle, which is never used again.
    pub handle: usize,
    /// The device it belongs to.
    pub device: c_int,
    /// What it was made with.
    pub config: Config,
    arena: OnceLock<Arena>,
    stopped: AtomicBool,
    finalized: AtomicBool,
    revoked: AtomicBool,
    suspended: AtomicBool,
    async_error: AtomicI32,
    /// Collective calls of management so far.
    turn: AtomicU64,
    pub(crate) order: Mutex<Order>,
    /// Held while an operation runs, of which there is one at a time.
    pub(crate) execution: Mutex<()>,
    /// Signals that waits have used up, by peer and context.
    pub(crate) used_signals: Mutex<HashMap<(usize, usize), u64>>,
    unfinished: Mutex<Unfinished>,
    finished: Condvar,
    reductions: Mutex<HashMap<c_int, (DataType, Reduction)>>,
    next_reduction: AtomicI32,
    issued: AtomicU64,
    worker: Mutex<Option<mpsc::Sender<Job>>>,
    /// Whether an id for growing was given and not used yet.
    pub(crate) growing: AtomicBool,
}

#[derive(Default)]
struct Unfinished {
    operations: u64,
    jobs: u64,
}

static COMMS: Mutex<Option<HashMap<usize, Arc<Comm>>>> = Mutex::new(None);

fn next_handle() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    0x5800_0000_0000 + (NEXT.fetch_add(1, Ordering::Relaxed) << 8)
}

/// The device that is current on the calling thread.
pub(crate) fn current_device() -> Outcome<c_int> {
    let mut device = 0;
    // SAFETY: the out pointer is a local's.
    let status = unsafe { (driver().cuCtxGetDevice)(&mut device) };
    if status == 0 {
        return Ok(device);
    }
    // As NCCL through the runtime: a thread without a context uses device 0.
    use_device(0)?;
    Ok(0)
}

/// Makes a device current on the calling thread.
pub(crate) fn use_device(device: c_int) -> Outcome {
    let mut context: Handle = std::ptr::null_mut();
    // SAFETY: no flags exist.
    cuda(unsafe { (driver().cuInit)(0) }, "cuInit")?;
    // SAFETY: the out pointer is a local's.
    let status = unsafe { (driver().cuDevicePrimaryCtxRetain)(&mut context, device) };
    cuda(status, "cuDevicePrimaryCtxRetain")?;
    // SAFETY: the context was just given.
    cuda(
        unsafe { (driver().cuCtxSetCurrent)(context) },
        "cuCtxSetCurrent",
    )
}

impl Comm {
    /// A communicator of the current device that has not joined yet.
    pub fn create(config: Config) -> Outcome<Arc<Comm>> {
        let device = current_device()?;
        let comm = Arc::new(Comm {
            handle: next_handle(),
            device,
            config,
            arena: OnceLock::new(),
            stopped: AtomicBool::new(false),
            finalized: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            suspended: AtomicBool::new(false),
            async_error: AtomicI32::new(0),
            turn: AtomicU64::new(0),
            order: Mutex::default(),
            execution: Mutex::default(),
            used_signals: Mutex::default(),
            unfinished: Mutex::default(),
            finished: Condvar::new(),
            reductions: Mutex::default(),
            next_reduction: AtomicI32::new(FIRST_MADE),
            issued: AtomicU64::new(0),
            worker: Mutex::default(),
            growing: AtomicBool::new(false),
        });
        locked(&COMMS)
            .get_or_insert_default()
            .insert(comm.handle, comm.clone());
        Ok(comm)
    }

    /// The communicator of a handle.
    pub fn from_handle(handle: usize) -> Outcome<Arc<Comm>> {
        if handle == 0 {
            return Err(Failure::argument("comm argument is NULL"));
        }
        let comms = locked(&COMMS);
        let known = comms.as_ref().and_then(|all| all.get(&handle)).cloned();
        known.ok_or_else(|| Failure::argument("comm argument is no communicator, or one destroyed"))
    }

    /// Ends the handle.
    pub fn forget(&self) {
        if let Some(all) = locked(&COMMS).as_mut() {
            all.remove(&self.handle);
        }
        locked(&self.worker).take();
        registered::forget(self.handle);
    }

    /// How many communicators this process has.
    pub fn count() -> usize {
        locked(&COMMS).as_ref().map_or(0, HashMap::len)
    }

    /// The memory it shares, once it has joined.
    pub fn arena(&self) -> Outcome<&Arena> {
        let unready = || Failure::argument("the communicator has not joined yet");
        self.arena.get().ok_or_else(unready)
    }

    /// Keeps the memory that it has joined.
    pub(crate) fn joined(&self, arena: Arena) -> Outcome {
        self.arena
            .set(arena)
            .map_err(|_| Failure::new(Code::INTERNAL_ERROR, "joined twice"))
    }

    /// Refuses a communicator on which an earlier call is not done.
    pub fn ready(&self) -> Outcome {
        if locked(&self.unfinished).jobs > 0 {
            let text =
                "Attempt to use communicator before the previous operation returned ncclSuccess";
            return Err(Failure::argument(text));
        }
        self.arena().map(drop)
    }

    /// Refuses a communicator that takes no operations.
    pub fn takes_operations(&self) -> Outcome {
        self.ready()?;
        let reasons = [
            (self.stopped.load(Ordering::Acquire), "was aborted"),
            (self.revoked.load(Ordering::Acquire), "was revoked"),
            (self.finalized.load(Ordering::Acquire), "was finalized"),
            (self.suspended.load(Ordering::Acquire), "is suspended"),
        ];
        for (holds, reason) in reasons {
            if holds {
                return Err(Failure::usage(format!("the communicator {reason}")));
            }
        }
        match self.async_error.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(Failure::new(
                Code(code),
                "the communicator has an asynchronous error",
            )),
        }
    }

    /// Does a step now, or on the communicator's own thread when it does not block.
    pub fn perform(
        self: &Arc<Self>,
        job: impl FnOnce(&Arc<Comm>) -> Outcome + Send + 'static,
    ) -> Outcome<Code> {
        if self.config.blocking {
            return job(self).map(|()| Code::SUCCESS);
        }
        locked(&self.unfinished).jobs += 1;
        let comm = self.clone();
        let job: Job = Box::new(move || {
            let outcome = job(&comm);
            if let Err(failure) = &outcome {
                comm.fail(failure);
            }
            locked(&comm.unfinished).jobs -= 1;
            comm.finished.notify_all();
            outcome
        });
        let mut worker = locked(&self.worker);
        let sender = match worker.as_ref() {
            Some(sender) => sender,
            None => worker.insert(self.start_worker()?),
        };
        sender
            .send(job)
            .map_err(|_| Failure::new(Code::INTERNAL_ERROR, "the worker is gone"))?;
        Ok(Code::IN_PROGRESS)
    }

    fn start_worker(&self) -> Outcome<mpsc::Sender<Job>> {
        let (sender, receiver) = mpsc::channel::<Job>();
        let device = self.device;
        let run = move || {
            let mut relaxed: c_int = 2;
            // SAFETY: the pointer is a local's. Captures are the callers', not this thread's.
            unsafe { (driver().cuThreadExchangeStreamCaptureMode)(&mut relaxed) };
            if let Err(failure) = use_device(device) {
                remember(&failure);
            }
            for job in receiver {
                if let Err(failure) = job() {
                    remember(&failure);
                }
            }
        };
        thread::Builder::new()
            .name("simgpu nccl".into())
            .spawn(run)
            .map_err(|_| Failure::system("starting a thread"))?;
        Ok(sender)
    }

    /// Keeps the first asynchronous error.
    pub fn fail(&self, failure: &Failure) {
        let code = failure.code.0;
        let first = self
            .async_error
            .compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            remember(failure);
        }
    }

    /// What polling tells: not done yet, an error, or nothing.
    pub fn state(&self) -> Code {
        if let Some(code) = self.injected_error() {
            return code;
        }
        match self.async_error.load(Ordering::Acquire) {
            0 if locked(&self.unfinished).jobs > 0 => Code::IN_PROGRESS,
            code => Code(code),
        }
    }

    /// The fault "failing communicator": `SIMGPU_ASYNC_ERROR=RANK:CODE[:OPERATIONS]`.
    fn injected_error(&self) -> Option<Code> {
        static FAULT: OnceLock<Option<Vec<i64>>> = OnceLock::new();
        let values = FAULT
            .get_or_init(|| fault::of_this_rank("SIMGPU_ASYNC_ERROR"))
            .as_ref()?;
        let after = values.get(1).copied().unwrap_or(0);
        let due = i64::try_from(self.issued.load(Ordering::Acquire)).unwrap_or(0) >= after;
        due.then(|| {
            Code(
                values
                    .first()
                    .and_then(|code| c_int::try_from(*code).ok())
                    .unwrap_or(6),
            )
        })
    }

    /// Counts an operation in.
    pub(crate) fn begin_operation(&self) {
        self.issued.fetch_add(1, Ordering::AcqRel);
        locked(&self.unfinished).operations += 1;
    }

    /// Counts an operation out.
    pub(crate) fn end_operation(&self) {
        locked(&self.unfinished).operations -= 1;
        self.finished.notify_all();
    }

    /// Waits until no operation is on its way.
    pub fn wait_until_idle(&self) {
        let mut unfinished = locked(&self.unfinished);
        while unfinished.operations > 0 {
            unfinished = self
                .finished
                .wait(unfinished)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends every operation under way without its result.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        if let Some(arena) = self.arena.get() {
            arena.ring(arena.rank);
        }
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire) || self.revoked.load(Ordering::Acquire)
    }

    /// Ends every operation under way; management goes on.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
        if let Some(arena) = self.arena.get() {
            arena.ring(arena.rank);
        }
    }

    /// Whether it was revoked.
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Takes no operations from now on.
    pub fn finalize(&self) -> Outcome {
        if self.finalized.swap(true, Ordering::AcqRel) {
            return Err(Failure::usage("the communicator was finalized already"));
        }
        Ok(())
    }

    /// Gives memory up, or takes it again.
    pub fn suspend(&self, suspended: bool) -> Outcome {
        if self.suspended.swap(suspended, Ordering::AcqRel) == suspended {
            let state = if suspended {
                "suspended already"
            } else {
                "not suspended"
            };
            return Err(Failure::usage(format!("the communicator is {state}")));
        }
        Ok(())
    }

    /// Whether it is suspended.
    pub fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Acquire)
    }

    /// The numbers of the next `count` collective calls of management; the first is given.
    pub(crate) fn take_turns(&self, count: u64) -> u64 {
        self.turn.fetch_add(count, Ordering::AcqRel) + 1
    }

    /// A reduction that the caller made.
    pub fn make_reduction(&self, dtype: DataType, reduction: Reduction) -> c_int {
        let number = self.next_reduction.fetch_add(1, Ordering::Relaxed);
        locked(&self.reductions).insert(number, (dtype, reduction));
        number
    }

    /// Ends a reduction that the caller made.
    pub fn end_reduction(&self, number: c_int) -> Outcome {
        let known = locked(&self.reductions).remove(&number).map(drop);
        known.ok_or_else(|| Failure::argument(format!("reduction {number} does not exist")))
    }

    /// A reduction that the caller made for a data type.
    pub fn made_reduction(&self, number: c_int, dtype: DataType) -> Outcome<Reduction> {
        match locked(&self.reductions).get(&number) {
            Some((made_for, reduction)) if *made_for == dtype => Ok(*reduction),
            Some((made_for, _)) => Err(Failure::argument(format!(
                "reduction {number} is for {made_for:?}, used with {dtype:?}"
            ))),
            None => Err(Failure::argument(format!(
                "reduction {number} does not exist"
            ))),
        }
    }
}

impl Watch for Comm {
    fn stopped(&self) -> bool {
        self.is_stopped()
    }

    fn lost(&self, rank: usize) {
        let text = format!("rank {rank}: its process is gone");
        self.fail(&Failure::new(Code::REMOTE_ERROR, text));
    }
}
