//! Windows: memory of every rank that NCCL maps into the address space of the others' devices.
//!
//! NCCL's own put always signals, and its signals are the communicator's. So what a window does to
//! another rank's memory are copies and words in stream order: a put is a copy and nothing else, and a
//! signal raises a word that one pair of ranks has for this window alone. The k-th wait for a rank
//! waits for its k-th signal, which no put and no other window can be taken for. Ranks whose memory
//! this device does not reach are refused by name. Must not know collectives.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ferrocomm_core::call::{Mode, Region, Stream};
use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::group::Group;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::window::{Access, OneSided, Registration, Window, WindowCall};
use ferrocomm_core::work::Work;
use ferrocomm_core::{Error, ErrorKind, Result, interrupt};
use ferrocomm_nccl_sys::symbol;
use ferrocomm_nccl_sys::sys::{
    NCCL_WIN_COLL_SYMMETRIC, NCCL_WIN_REQUIRED_ALIGNMENT, ncclDataType_t, ncclResult_t,
    ncclWindow_t,
};

use crate::comm::{Core, locked};
use crate::driver::{self, Event, OwnStream};
use crate::errors;
use crate::events::Pooled;
use crate::flights::Flight;
use crate::group::NcclGroup;
use crate::memory;
use crate::memory_ops::{self, Deed, Scratch};
use crate::traffic::Lane;
use crate::watchdog::Grave;

/// Bytes of a rank's word for one other rank.
const WORD: usize = 4;
/// What ranks tell each other: two numbers.
type Note = [u64; 2];

/// NCCL's name for a window.
#[derive(Clone, Copy)]
struct Named(ncclWindow_t);
// SAFETY: only handed back to NCCL, which takes it on any thread.
unsafe impl Send for Named {}

/// A rank's part of the window, as this device sees it.
#[derive(Clone, Copy, Debug)]
struct Part {
    bytes: usize,
    /// where its memory and its words begin; `None` where they are out of reach
    memory: Option<usize>,
    words: Option<usize>,
}

/// Operations of one kind: they take effect in the order they were issued in.
struct Order {
    before: Pooled,
    last: Option<(Arc<Flight>, Stream)>,
    /// signals that were given, or waited for, by rank
    signals: Vec<u32>,
}

struct Side {
    stream: OwnStream,
    lane: Arc<Lane>,
    order: Arc<Mutex<Order>>,
}

/// A window.
pub(crate) struct NcclWindow {
    core: Arc<Core>,
    rank: GroupRank,
    parts: Vec<Part>,
    /// the memory's and the words' windows, until they end
    named: Mutex<Option<[Named; 2]>>,
    /// the memory's window, which stays after the end for whoever maps it
    kept: Mutex<Option<Named>>,
    /// whether an address of another rank's memory was given to the client
    mapped: AtomicBool,
    /// from `ncclMemAlloc`
    words: usize,
    acting: Side,
    waiting: Side,
}

impl NcclWindow {
    /// Makes a window together with the other ranks.
    ///
    /// # Errors
    /// As `Group::register`.
    pub(crate) fn register(core: &Arc<Core>, asked: Registration) -> Result<Arc<Self>> {
        let deadline = Deadline::after(asked.timeout);
        let _issuing = locked(&core.issuing);
        core.admit()?;
        let _entered = core.seat.device.enter()?;
        let own = prepare(core, asked.memory);
        let (code, bytes) = (u64::from(own.is_err()), asked.memory.bytes as u64);
        let notes = agree(core, [code, bytes], deadline)?;
        let words = own?;
        // All ranks go back here, or none.
        all_ready(&notes).inspect_err(|_| give_back(words))?;
        let made = Self::make(core, asked.memory, words, &notes);
        let notes = agree(core, [u64::from(made.is_err()), 0], deadline)?;
        let window = made.inspect_err(|_| give_back(words))?;
        if let Err(error) = all_ready(&notes) {
            window.unname()?;
            return Err(error);
        }
        core.flights.open(&window.acting.lane);
        core.flights.open(&window.waiting.lane);
        Ok(Arc::new(window))
    }

    fn make(core: &Arc<Core>, own: Region, words: usize, notes: &[Note]) -> Result<Self> {
        let bytes: Vec<usize> = notes
            .iter()
            .map(|note| usize::try_from(note[1]))
            .collect::<std::result::Result<_, _>>()
            .map_err(|_| Error::new(ErrorKind::Mismatch, "a window is larger than memory"))?;
        let alike = bytes.iter().all(|each| *each == own.bytes);
        let of_words = Region {
            address: words,
            bytes: core.size * WORD,
        };
        // A rank without memory takes part with its words.
        let of_memory = if own.bytes == 0 { of_words } else { own };
        let named = [name(core, of_memory, alike)?, name(core, of_words, true)?];
        let parts = (0..core.size).map(|rank| {
            let at = |named: Named| pointer(core, named, rank);
            Part {
                bytes: bytes[rank],
                memory: at(named[0]),
                words: at(named[1]),
            }
        });
        let parts = parts.collect();
        let acting = Side::new(core, |_| Lane::default())?;
        let stop = OwnStream::new(core.seat.device, false)?;
        let device = core.seat.device;
        let waiting = Side::new(core, |order| {
            Lane::held(move || {
                let Ok(_entered) = device.enter() else { return };
                let goals = locked(&order).signals.clone();
                for (rank, goal) in goals.into_iter().enumerate() {
                    let word = Deed::Write {
                        word: words + rank * WORD,
                        value: goal,
                    };
                    if let Err(error) = word.put_on(stop.handle()) {
                        tracing::warn!(error = %error, "a wait on the device goes on");
                    }
                }
            })
        })?;
        Ok(Self {
            core: core.clone(),
            rank: core.rank,
            parts,
            named: Mutex::new(Some(named)),
            kept: Mutex::default(),
            mapped: AtomicBool::new(false),
            words,
            acting,
            waiting,
        })
    }

    fn part(&self, rank: GroupRank) -> Part {
        self.parts[rank.index()]
    }

    fn out_of_reach(&self, rank: GroupRank) -> Error {
        Error::new(
            ErrorKind::Unsupported,
            "the other's memory is out of this device's reach",
        )
        .got(format!("rank {rank}"))
        .expected("a rank of the same machine or NVLink domain")
        .peers([rank])
    }

    fn memory(&self, rank: GroupRank) -> Result<usize> {
        self.part(rank)
            .memory
            .ok_or_else(|| self.out_of_reach(rank))
    }

    /// The word that `of` has for signals of `by`.
    fn word(&self, of: GroupRank, by: GroupRank) -> Result<usize> {
        let words = self.part(of).words.ok_or_else(|| self.out_of_reach(of))?;
        Ok(words + by.index() * WORD)
    }

    /// What `task` is on the device. `signals` counts what it gives or takes.
    fn deeds(&self, task: &OneSided, signals: &mut [u32]) -> Result<Vec<Deed>> {
        let mut next = |rank: GroupRank| {
            let count = &mut signals[rank.index()];
            *count = count.wrapping_add(1);
            *count
        };
        Ok(match *task {
            OneSided::Put {
                source,
                to,
                offset,
                signal,
            } => {
                let copy = Deed::Copy {
                    from: source.address,
                    to: self.memory(to)? + offset,
                    bytes: source.bytes,
                };
                let word = self.word(to, self.rank)?;
                let mut deeds = vec![copy];
                if signal {
                    deeds.push(Deed::Write {
                        word,
                        value: next(to),
                    });
                }
                deeds
            }
            OneSided::Get {
                target,
                from,
                offset,
            } => vec![Deed::Copy {
                from: self.memory(from)? + offset,
                to: target.address,
                bytes: target.bytes,
            }],
            OneSided::Signal { to } => {
                let word = self.word(to, self.rank)?;
                vec![Deed::Write {
                    word,
                    value: next(to),
                }]
            }
            OneSided::WaitSignal { from } => {
                let word = self.word(self.rank, from)?;
                vec![Deed::Wait {
                    word,
                    value: next(from),
                }]
            }
        })
    }

    fn launch(&self, call: &WindowCall, work: &Arc<Work>, callers: Stream) -> Result<()> {
        let side = match call.task {
            OneSided::WaitSignal { .. } => &self.waiting,
            _ => &self.acting,
        };
        let mut order = locked(&side.order);
        self.core.admit()?;
        let _entered = self.core.seat.device.enter()?;
        if driver::is_capturing(callers)? {
            return Err(
                Error::new(ErrorKind::Unsupported, "a window is not used in a capture")
                    .remedy("leave it out of the capture"),
            );
        }
        let deeds = self.deeds(&call.task, &mut order.signals)?;
        let stream = match call.mode {
            Mode::Sync => callers,
            Mode::Async => side.stream.handle(),
        };
        let (start, end) = (self.core.events.take()?, self.core.events.take()?);
        if stream != callers {
            order.before.record(callers)?;
            order.before.hold(stream)?;
        }
        if let Some((last, on)) = &order.last
            && *on != stream
        {
            last.end.hold(stream)?;
        }
        start.record(stream)?;
        deeds.iter().try_for_each(|deed| deed.put_on(stream))?;
        end.record(stream)?;
        let flight = Flight::new(work.clone(), start, end, call.timeout);
        order.last = Some((flight.clone(), stream));
        side.lane.flights.push(flight);
        Ok(())
    }

    /// Waits until nothing of this rank's is on its way through the window.
    fn drain(&self, deadline: Deadline) -> Result<()> {
        let busy = |side: &Side| !side.lane.flights.is_empty();
        while busy(&self.acting) || busy(&self.waiting) {
            self.core.reap();
            self.core.admit()?;
            pause(deadline)?;
        }
        Ok(())
    }

    /// Takes the window from NCCL, and its words back. What the client has mapped stays mapped.
    fn unname(&self) -> Result<()> {
        let Some([memory, words]) = locked(&self.named).take() else {
            return Ok(());
        };
        self.core.flights.close(&self.acting.lane);
        self.core.flights.close(&self.waiting.lane);
        if self.mapped.load(Ordering::Acquire) {
            *locked(&self.kept) = Some(memory);
        } else {
            unname(&self.core, memory)?;
        }
        unname(&self.core, words)?;
        memory::release(self.words)
    }
}

/// Takes a window from NCCL. The caller holds the issuing lock.
fn unname(core: &Core, Named(window): Named) -> Result<()> {
    let end = symbol!(core.handle.nccl, ncclCommWindowDeregister)
        .map_err(|error| errors::missing(&error))?;
    core.call("ncclCommWindowDeregister", |comm| {
        // SAFETY: made by `name` on this communicator, and ended once.
        Ok(unsafe { end(comm, window) })
    })
}

/// A window that has ended, but for what the client had mapped; nobody holds that any more.
struct Leftover(Arc<Core>, Named);

impl Drop for Leftover {
    /// On the watchdog's thread, which waits for nobody for long.
    fn drop(&mut self) {
        let Self(core, window) = self;
        let Some(_issuing) = core.issuing_soon() else {
            return tracing::debug!("a window stays mapped: a call does not return");
        };
        // Of a communicator that was given up nothing is left.
        if core.admit().is_ok()
            && let Err(error) = unname(core, *window)
        {
            tracing::debug!(%error, "a window stays mapped");
        }
    }
}

impl Side {
    fn new(core: &Core, lane: impl FnOnce(Arc<Mutex<Order>>) -> Lane) -> Result<Self> {
        let order = Arc::new(Mutex::new(Order {
            before: core.events.take()?,
            last: None,
            signals: vec![0; core.size],
        }));
        Ok(Self {
            stream: OwnStream::new(core.seat.device, core.seat.hints.high_priority_stream)?,
            lane: Arc::new(lane(order.clone())),
            order,
        })
    }
}

/// Looks at this rank's memory before anybody acts on it; gives its words.
fn prepare(core: &Core, memory: Region) -> Result<usize> {
    memory_ops::usable()?;
    let nccl = core.handle.nccl;
    symbol!(nccl, ncclCommWindowRegister).map_err(|error| errors::missing(&error))?;
    nccl.peer_pointer()
        .map_err(|error| errors::missing(&error))?;
    let alignment = NCCL_WIN_REQUIRED_ALIGNMENT as usize;
    if memory.bytes > 0 && !memory.address.is_multiple_of(alignment) {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "a window does not begin where nccl wants it",
        )
        .got(format!("{:#x}", memory.address))
        .expected(format!("a multiple of {alignment}"))
        .remedy("register a whole tensor from a pool of get_mem_allocator('nccl')"));
    }
    let words = memory::allocate(core.size * WORD)?
        .as_ptr()
        .expose_provenance();
    memory_ops::upload(&vec![0; core.size * WORD], words, core.side.handle())?;
    Ok(words)
}

fn give_back(words: usize) {
    if let Err(error) = memory::release(words) {
        tracing::debug!(error = %error, "device memory could not be freed");
    }
}

/// `InvalidArgument` with the ranks that cannot, when there are such.
fn all_ready(notes: &[Note]) -> Result<()> {
    let late = (0u32..).zip(notes).filter(|(_, note)| note[0] != 0);
    let late: Vec<GroupRank> = late.map(|(rank, _)| GroupRank::new(rank)).collect();
    if late.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        "other ranks could not make the window",
    )
    .remedy("see what they raised")
    .peers(late))
}

/// Tells every rank `note`, and gives all ranks' notes. The caller holds the issuing lock.
fn agree(core: &Core, note: Note, deadline: Deadline) -> Result<Vec<Note>> {
    const BYTES: usize = size_of::<Note>();
    let gather =
        symbol!(core.handle.nccl, ncclAllGather).map_err(|error| errors::missing(&error))?;
    let stream = core.side.handle();
    let scratch = Scratch::new(core.seat.device, (core.size + 1) * BYTES)?;
    let (all, own) = (scratch.address(), scratch.address() + core.size * BYTES);
    let mut bytes = vec![0; core.size * BYTES];
    let (first, second) = (note[0].to_ne_bytes(), note[1].to_ne_bytes());
    memory_ops::upload(&[first, second].concat(), own, stream)?;
    core.call("ncclAllGather", |comm| {
        let (own, all) = (
            ptr::with_exposed_provenance_mut(own),
            ptr::with_exposed_provenance_mut(all),
        );
        let on = ptr::with_exposed_provenance_mut(stream.0);
        // SAFETY: memory of `scratch`, which lives until this is over, or is left to the device.
        Ok(unsafe { gather(own, all, BYTES, ncclDataType_t::ncclUint8, comm, on) })
    })?;
    let end = Event::new()?;
    end.record(stream)?;
    while !end.has_come()? {
        let failure = core.admit().err().or_else(|| core.handle.async_failure());
        let outcome = failure.map_or_else(|| pause(deadline), Err);
        if outcome.is_err() {
            // The device may still write to it.
            std::mem::forget(scratch);
            return outcome.map(|()| Vec::new());
        }
    }
    memory_ops::download(all, &mut bytes, stream)?;
    let number = |part: &[u8]| part.try_into().map(u64::from_ne_bytes).unwrap_or_default();
    Ok(bytes
        .chunks_exact(BYTES)
        .map(|note| [number(&note[..8]), number(&note[8..])])
        .collect())
}

/// A moment of a wait that ends at `deadline`.
fn pause(deadline: Deadline) -> Result<()> {
    interrupt::check()?;
    if deadline.passed() {
        return Err(Error::new(
            ErrorKind::Timeout,
            "not all ranks came to the window in time",
        )
        .expected(format!("at most {:?}", deadline.limit())));
    }
    thread::sleep(Duration::from_micros(50));
    Ok(())
}

/// Makes NCCL's window of `memory`, together with the other ranks.
fn name(core: &Core, memory: Region, symmetric: bool) -> Result<Named> {
    let register = symbol!(core.handle.nccl, ncclCommWindowRegister)
        .map_err(|error| errors::missing(&error))?;
    let mut window: ncclWindow_t = ptr::null_mut();
    let place = &raw mut window;
    let flags = if symmetric {
        NCCL_WIN_COLL_SYMMETRIC as i32
    } else {
        0
    };
    core.call("ncclCommWindowRegister", |comm| {
        let address = ptr::with_exposed_provenance_mut(memory.address);
        // SAFETY: memory that stays until the window ends, and a place for one window.
        Ok(unsafe { register(comm, address, memory.bytes, place, flags) })
    })?;
    if window.is_null() {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "nccl makes no window of this memory",
        )
        .remedy("register a tensor from a pool of get_mem_allocator('nccl')"));
    }
    Ok(Named(window))
}

/// Where the window of `rank` begins for this device.
fn pointer(core: &Core, Named(window): Named, rank: usize) -> Option<usize> {
    let ask = core.handle.nccl.peer_pointer().ok()?;
    let mut address = ptr::null_mut();
    // SAFETY: a window of this communicator, one of its ranks, and a place for one pointer.
    let result = unsafe { ask(window, 0, i32::try_from(rank).ok()?, &raw mut address) };
    (result == ncclResult_t::ncclSuccess && !address.is_null()).then(|| address.expose_provenance())
}

impl Window for NcclWindow {
    fn bytes(&self, rank: GroupRank) -> usize {
        self.part(rank).bytes
    }

    fn access(&self, rank: GroupRank) -> Access {
        match self.part(rank).memory {
            Some(_) => Access::Unified,
            None => Access::Separate,
        }
    }

    fn map(&self, rank: GroupRank) -> Result<Region> {
        let address = self.memory(rank)?;
        if !self.mapped.swap(true, Ordering::AcqRel) {
            self.core.handle.lend();
        }
        Ok(Region {
            address,
            bytes: self.part(rank).bytes,
        })
    }

    fn issue_on(&self, call: WindowCall, stream: Stream) -> Result<Arc<Work>> {
        let work = Arc::new(Work::new(call.task.operation(), call.sequence));
        self.launch(&call, &work, stream)?;
        self.core.watchdog.nudge();
        Ok(work)
    }

    fn run(&self, call: WindowCall, issued: &mut dyn FnMut()) -> Result<()> {
        let work = self.issue_on(call, Stream::default())?;
        issued();
        NcclGroup::new(self.core.clone()).wait(&work, None)
    }

    fn deregister(&self, end: Registration, issued: &mut dyn FnMut()) -> Result<()> {
        let deadline = Deadline::after(end.timeout);
        issued();
        self.drain(deadline)?;
        let _issuing = locked(&self.core.issuing);
        self.core.admit()?;
        let _entered = self.core.seat.device.enter()?;
        // When all have come, nobody uses this rank's memory any more.
        agree(&self.core, [0, 0], deadline)?;
        self.unname()
    }
}

impl Drop for NcclWindow {
    fn drop(&mut self) {
        if self.mapped.load(Ordering::Acquire) {
            self.core.handle.take_back();
        }
        if let Some(window) = locked(&self.kept).take() {
            let leftover = Leftover(self.core.clone(), window);
            self.core.watchdog.bury(Grave::new(leftover));
        }
        let registered = locked(&self.named).is_some();
        self.core.flights.close(&self.acting.lane);
        self.core.flights.close(&self.waiting.lane);
        // NCCL knows the words until the communicator is gone.
        if registered && self.core.handle.get().is_ok() {
            tracing::debug!("a window was dropped before its end: its words stay");
        } else if registered && let Err(error) = memory::release(self.words) {
            tracing::debug!(error = %error, "device memory could not be freed");
        }
    }
}
