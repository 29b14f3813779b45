//! A window as the engine above holds it: each operation goes the way on which its rank is reached.
//!
//! Must not know frames.

use std::os::unix::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrocomm_core::call::{Mode, Operation, Region, Stream};
use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::{CommId, GroupRank};
use ferrocomm_core::window::{Access, OneSided, Registration, Window, WindowCall};
use ferrocomm_core::work::Work;

use super::Pane;
use super::board::Face;
use super::reaching::{Near, Reach};
use super::registering::{Matter, Record, exchange};
use crate::bell::Bell;
use crate::bootstrap::Member;
use crate::choosing::DirectReads;
use crate::core::Core;
use crate::progress::{Progress, YIELDS};
use crate::pulling::Readable;
use crate::stream::StreamKind;

/// A copy that is no longer than this does not hold up other callers for long.
const SHORT: usize = 64 * 1024;
/// Looks at a counter between two looks at the clock.
const LOOKS: u32 = 64;
/// For so long a wait only looks; then it offers the processor to others.
const SOON: Duration = Duration::from_micros(50);

/// The communicator a window is made on.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) progress: Arc<Progress>,
    pub(crate) comm: CommId,
    pub(crate) rank: GroupRank,
    pub(crate) members: Arc<Vec<Member>>,
}

/// The window of another rank, or the own one.
struct Peer {
    bytes: usize,
    reach: Reach,
    /// what wakes it; none: it is not on this machine
    bell: Option<SocketAddr>,
    /// it was sent frames
    used: AtomicBool,
}

/// A window.
pub(crate) struct HostWindow {
    at: Site,
    pane: Arc<Pane>,
    peers: Vec<Peer>,
    bell: Arc<Bell>,
}

/// What a call came to on the caller's thread.
enum Done {
    Yes,
    /// the engine has it
    Handed(Arc<Work>),
}

impl HostWindow {
    /// Makes a window of `registration.memory` and the others'.
    ///
    /// # Errors
    /// As a collective fails.
    pub(crate) fn register(
        at: Site,
        registration: Registration,
        issued: &mut dyn FnMut(),
    ) -> Result<Self> {
        let reaches = DirectReads::from_environment()? != DirectReads::Off;
        Self::register_as(at, registration, reaches, issued)
    }

    /// The same; `reaches`: whether this rank may reach others directly.
    pub(super) fn register_as(
        at: Site,
        registration: Registration,
        reaches: bool,
        issued: &mut dyn FnMut(),
    ) -> Result<Self> {
        let ranks = at.members.len();
        let Registration {
            memory,
            sequence,
            timeout,
            ..
        } = registration;
        let pane = Arc::new(Pane::new((at.comm, sequence), memory, ranks));
        // Before anybody hears of it: the first frames may come before this rank has heard of all.
        let bell = at.progress.with(|core| {
            core.open_window(&pane)?;
            Ok::<_, Error>(core.bell.clone())
        })?;
        let own = record_of(&pane, reaches);
        let told = exchange(
            &at,
            (Matter::Begin, sequence),
            &own,
            (sequence, timeout),
            issued,
        );
        let made = told.and_then(|records| Self::of_records(at.clone(), &pane, &records, bell));
        made.inspect_err(|_| at.progress.with(|core| core.close_window(pane.id)))
    }

    fn of_records(at: Site, pane: &Arc<Pane>, records: &[Record], bell: Arc<Bell>) -> Result<Self> {
        let near: Vec<bool> = at.progress.with(|core| {
            at.members
                .iter()
                .map(|member| is_near(core, member))
                .collect()
        });
        let own = &records[at.rank.index()];
        let mut peers = Vec::with_capacity(records.len());
        for ((rank, record), member) in (0_u32..).zip(records).zip(at.members.iter()) {
            let rank = GroupRank::new(rank);
            let near = near[rank.index()];
            let reach = if rank == at.rank {
                Reach::Own
            } else if near && own.reaches && record.board != 0 {
                Near::find(record, at.rank, records.len()).map_or(Reach::Far, Reach::Near)
            } else {
                Reach::Far
            };
            // It knows the same of this rank.
            let sends_frames = rank != at.rank && !(near && record.reaches && own.board != 0);
            if sends_frames {
                at.progress.with(|core| core.attend(pane));
            }
            peers.push(Peer {
                bytes: record.bytes,
                reach,
                bell: near.then(|| Bell::name_of(&member.unix)).transpose()?,
                used: AtomicBool::new(false),
            });
        }
        Ok(Self {
            at,
            pane: pane.clone(),
            peers,
            bell,
        })
    }

    /// Whether operations may start.
    fn admit(&self) -> Result<()> {
        if !self.at.progress.is_own() {
            return Err(Error::new(
                ErrorKind::Forked,
                "a window cannot be used in a forked child",
            ));
        }
        if self.pane.is_closed() {
            let comm = self.at.comm;
            self.at
                .progress
                .with(|core| core.open_group(comm).map(drop))?;
            return Err(Error::new(ErrorKind::State, "the window is closed"));
        }
        Ok(())
    }

    fn begin(&self, call: &WindowCall, issued: &mut dyn FnMut()) -> Result<Done> {
        self.admit()?;
        let peer = &self.peers[call.task.peer().index()];
        match call.task {
            OneSided::WaitSignal { from } => self.take_signal(from, call, issued),
            task => match &peer.reach {
                Reach::Own => {
                    self.at_home(task, issued);
                    Ok(Done::Yes)
                }
                Reach::Near(near) => {
                    self.directly(near, peer, task, issued)?;
                    Ok(Done::Yes)
                }
                Reach::Far => {
                    peer.used.store(true, Ordering::Relaxed);
                    self.at
                        .progress
                        .with(|core| self.in_frames(core, task, call))
                }
            },
        }
    }

    // ---- the own window

    fn at_home(&self, task: OneSided, issued: &mut dyn FnMut()) {
        let lends = self.lend(task.region().bytes, issued);
        let copy = |from: Region, to: Region| {
            // SAFETY: one is the running call's, the other the window's, which is lent; the layers
            // above have compared lengths. `copy` lets them overlap.
            unsafe {
                std::ptr::copy(from.address as *const u8, to.address as *mut u8, from.bytes);
            }
        };
        match task {
            OneSided::Put { source, offset, .. } if source.bytes > 0 => {
                copy(source, self.pane.memory.slice(offset, source.bytes));
            }
            OneSided::Get { target, offset, .. } if target.bytes > 0 => {
                copy(self.pane.memory.slice(offset, target.bytes), target);
            }
            _ => {}
        }
        drop(lends);
        if signals(task) {
            self.signal(&self.pane.board.face(), &self.peers[self.at.rank.index()]);
        }
    }

    // ---- directly

    fn directly(
        &self,
        near: &Near,
        peer: &Peer,
        task: OneSided,
        issued: &mut dyn FnMut(),
    ) -> Result<()> {
        if near.board().is_closed() {
            return Err(
                Error::new(ErrorKind::State, "the named rank has closed its window")
                    .peers([task.peer()])
                    .remedy("look at whether its communicator failed, or was aborted"),
            );
        }
        let lends = self.lend(task.region().bytes, issued);
        // SAFETY: the regions are the running call's, and the layers above have compared them with the
        // length of the window.
        let moved = unsafe {
            match task {
                OneSided::Put { source, offset, .. } => near.put(source, offset),
                OneSided::Get { target, offset, .. } => near.get(target, offset),
                OneSided::Signal { .. } | OneSided::WaitSignal { .. } => Ok(()),
            }
        };
        drop(lends);
        moved.map_err(|error| error.peers([task.peer()]))?;
        if signals(task) {
            self.signal(near.board(), peer);
        }
        Ok(())
    }

    fn signal(&self, board: &Face, peer: &Peer) {
        if board.signal(self.at.rank)
            && let Some(bell) = &peer.bell
        {
            self.bell.ring_at(bell);
        }
    }

    /// A long copy lets other callers go on, and the end of the window wait for it.
    fn lend<'a>(&'a self, bytes: usize, issued: &mut dyn FnMut()) -> Option<Copying<'a>> {
        (bytes > SHORT).then(|| {
            let copying = Copying::new(&self.pane);
            issued();
            copying
        })
    }

    // ---- in frames

    fn in_frames(&self, core: &mut Core, task: OneSided, call: &WindowCall) -> Result<Done> {
        let id = self.pane.id;
        match task {
            OneSided::Put {
                source,
                to,
                offset,
                signal,
            } => core
                .send_put(id, (to, offset), source, signal, call)
                .map(Done::Handed),
            OneSided::Get {
                target,
                from,
                offset,
            } => core
                .send_get(id, (from, offset), target, call)
                .map(Done::Handed),
            OneSided::Signal { to } => core.send_signal(id, to).map(|()| Done::Yes),
            OneSided::WaitSignal { .. } => Ok(Done::Yes),
        }
    }

    // ---- waiting

    fn take_signal(
        &self,
        from: GroupRank,
        call: &WindowCall,
        issued: &mut dyn FnMut(),
    ) -> Result<Done> {
        if self.pane.take_signal(from) {
            return Ok(Done::Yes);
        }
        let direct = !matches!(self.peers[from.index()].reach, Reach::Far);
        if call.mode == Mode::Sync && direct {
            issued();
            if self.spins_until_signal(from, call.timeout) {
                return Ok(Done::Yes);
            }
        }
        self.at
            .progress
            .with(|core| core.await_signal(&self.pane, from, call))
            .map(Done::Handed)
    }

    /// Looks for a signal as long as that is sooner than being woken.
    fn spins_until_signal(&self, from: GroupRank, timeout: Duration) -> bool {
        let progress = &self.at.progress;
        if progress.spin().is_zero() {
            // Others need this processor to come as far.
            return (0..YIELDS).any(|_| {
                std::thread::yield_now();
                self.pane.take_signal(from)
            });
        }
        let begun = Instant::now();
        let spin = progress.spin_from(begun).min(timeout);
        loop {
            for _ in 0..LOOKS {
                if self.pane.take_signal(from) {
                    return true;
                }
                std::hint::spin_loop();
            }
            let waited = begun.elapsed();
            if waited >= spin || self.pane.is_closed() {
                return false;
            }
            if waited >= SOON {
                std::thread::yield_now();
                let now = Instant::now();
                let given_way = now - begun - waited;
                if progress.lost_processor(given_way, false, now) {
                    return self.pane.take_signal(from);
                }
            }
        }
    }

    // ---- the end

    /// Waits until all that this rank does to others through frames has been done.
    fn settle(&self, deadline: Deadline) -> Result<()> {
        let progress = &self.at.progress;
        let moving = progress.with(|core| core.moving(self.at.comm));
        let over = || {
            self.pane.copying.load(Ordering::Acquire) == 0
                && progress.with(|core| moving.iter().all(|op| core.ops.get(*op).is_none()))
        };
        progress
            .wait_until(over, Some(deadline.left()))
            .map_err(|error| error.remedy("wait for the operations on the window first"))?;
        // A frame that asks comes behind all frames that put: who answers has put them in place.
        let asked: Vec<Arc<Work>> = (0_u32..)
            .zip(&self.peers)
            .filter(|(_, peer)| peer.used.load(Ordering::Relaxed))
            .map(|(rank, _)| self.ask(GroupRank::new(rank), deadline))
            .collect::<Result<_>>()?;
        asked
            .iter()
            .try_for_each(|work| progress.wait_for(work, Some(deadline.left())))
    }

    /// Asks for nothing of the window of `rank`.
    fn ask(&self, rank: GroupRank, deadline: Deadline) -> Result<Arc<Work>> {
        let target = Region::EMPTY;
        let call = WindowCall {
            task: OneSided::Get {
                target,
                from: rank,
                offset: 0,
            },
            dtype: Dtype::Byte,
            sequence: 0,
            timeout: deadline.left(),
            mode: Mode::Sync,
        };
        self.at
            .progress
            .with(|core| core.send_get(self.pane.id, (rank, 0), target, &call))
    }

    fn try_deregister(&self, end: Registration, issued: &mut dyn FnMut()) -> Result<()> {
        self.admit()?;
        let deadline = Deadline::after(end.timeout);
        self.settle(deadline)?;
        let own = record_of(&self.pane, true);
        let number = self.pane.id.1;
        let time = (end.sequence, deadline.left());
        exchange(&self.at, (Matter::End, number), &own, time, issued).map(drop)
    }
}

impl Window for HostWindow {
    fn bytes(&self, rank: GroupRank) -> usize {
        self.peers[rank.index()].bytes
    }

    fn access(&self, rank: GroupRank) -> Access {
        let peer = &self.peers[rank.index()];
        match &peer.reach {
            Reach::Own => Access::Unified,
            Reach::Near(near) if near.memory().is_some() || peer.bytes == 0 => Access::Unified,
            Reach::Near(_) | Reach::Far => Access::Separate,
        }
    }

    fn map(&self, rank: GroupRank) -> Result<Region> {
        let peer = &self.peers[rank.index()];
        match &peer.reach {
            Reach::Own => Ok(self.pane.memory),
            Reach::Near(near) if near.memory().is_some() => Ok(Region {
                address: near
                    .memory()
                    .map_or(0, |memory| memory.pointer().expose_provenance()),
                bytes: peer.bytes,
            }),
            Reach::Near(_) if peer.bytes == 0 => Ok(Region::EMPTY),
            Reach::Near(_) | Reach::Far => Err(Error::new(
                ErrorKind::Unsupported,
                "this process has no address for the window of that rank",
            )
            .remedy(
                "register memory of the communicator's allocator, on ranks of one machine; or use \
                 get and put",
            )),
        }
    }

    fn issue_on(&self, call: WindowCall, _no_streams_here: Stream) -> Result<Arc<Work>> {
        match self.begin(&call, &mut || {})? {
            Done::Yes => {
                let work = Arc::new(Work::new(call.task.operation(), call.sequence));
                work.run(work.complete(Ok(())));
                Ok(work)
            }
            Done::Handed(work) => Ok(work),
        }
    }

    fn run(&self, call: WindowCall, issued: &mut dyn FnMut()) -> Result<()> {
        let Done::Handed(work) = self.begin(&call, issued)? else {
            return Ok(());
        };
        issued();
        let outcome = self.at.progress.wait_for(&work, None);
        if !work.is_complete() {
            // Interrupted: the caller is about to take its buffer back.
            self.at.progress.with(|core| {
                if let Some(op) = core.op_of(&work) {
                    let error = "the operation was cancelled by its caller";
                    core.fail_alone(op, Error::new(ErrorKind::Cancelled, error));
                }
            });
        }
        outcome
    }

    fn deregister(&self, end: Registration, issued: &mut dyn FnMut()) -> Result<()> {
        let outcome = self.try_deregister(end, issued);
        if outcome.is_ok() {
            self.pane.board.give_up();
        }
        let id = self.pane.id;
        self.at.progress.with(|core| {
            core.close_window(id);
            // Without all ranks' word nobody knows whether frames are still on their way.
            if let Err(error) = &outcome
                && error.kind() != ErrorKind::State
            {
                core.fail(
                    id.0,
                    error.clone().operation(Operation::TensorDeregister.name()),
                );
            }
        });
        outcome
    }
}

impl Drop for HostWindow {
    fn drop(&mut self) {
        if self.at.progress.is_own() {
            self.at
                .progress
                .with(|core| core.close_window(self.pane.id));
        }
    }
}

/// A thread that copies while others may call.
struct Copying<'a>(&'a Pane);

impl<'a> Copying<'a> {
    fn new(pane: &'a Pane) -> Self {
        pane.copying.fetch_add(1, Ordering::Relaxed);
        Self(pane)
    }
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.0.copying.fetch_sub(1, Ordering::Release);
    }
}

fn signals(task: OneSided) -> bool {
    matches!(
        task,
        OneSided::Signal { .. } | OneSided::Put { signal: true, .. }
    )
}

fn is_near(core: &Core, member: &Member) -> bool {
    member.machine == core.endpoint.me.machine && core.endpoint.kind_for(member) == StreamKind::Shm
}

fn record_of(pane: &Pane, reaches: bool) -> Record {
    Record {
        bytes: pane.memory.bytes,
        address: pane.memory.address as u64,
        board: pane.board.address(),
        who: Readable::own(),
        reaches,
    }
}
