//! The progress engine's state, and its operations: issued, run step by step, finished.
//!
//! What their messages do is in `messages`, what failing does in `failing`, collectives in shared
//! memory in `gathering`, what links do in `traffic`. One lock guards all of it; nothing in it waits
//! for a peer's program or calls a client. Must not know threads or sleeping; `progress` does.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use ferrocomm_core::call::{Call, Collective, Mode, Operation, PointToPoint, Region, Source, Task};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::{CommId, ProcessId};
use ferrocomm_core::reduction::Input;
use ferrocomm_core::work::{Callbacks, Work};

use crate::asking::Asked;
use crate::bell::Bell;
use crate::collectives::{self, Ending};
use crate::endpoint::{Endpoint, Watch};
use crate::frame::{Fingerprint, Header};
use crate::gathering::Offer;
use crate::link::{Link, client_bytes, client_bytes_mut};
use crate::meeting;
use crate::membership::{Address, Membership, Payload, Seating, Standing};
use crate::numbered::Numbered;
use crate::op::{Course, Op, Recv, Send, Transfer};
use crate::program::{Limits, Operand, Place, Step};
use crate::regroup::{Gatherings, PresenceId};
use crate::seat::Seat;
use crate::slab::{Key, Slab};
use crate::spin::Spin;
use crate::windows::{Pane, WindowId};

/// Where algorithms change; the same on all ranks.
pub(crate) const LIMITS: Limits = Limits {
    one_shot: 32 * 1024,
    piece: 256 * 1024,
    direct: 3,
    ring: 1024 * 1024,
};

/// No more scratch memory than this is kept between operations.
const MOST_SPARE: usize = 4 << 20;

/// Closed communicators that are remembered, so that what still comes for them is dropped.
const CLOSED: usize = 4096;

/// Complete works, and what to call for them once the lock is released.
pub(crate) type Finished = Vec<(Arc<Work>, Callbacks)>;

/// Everything the progress engine knows.
pub(crate) struct Core {
    pub(crate) endpoint: Endpoint,
    pub(crate) links: Slab<Link>,
    pub(crate) by_process: Numbered<ProcessId, Key>,
    pub(crate) groups: Numbered<CommId, Membership>,
    pub(crate) ops: Slab<Op>,
    pub(crate) sends: Slab<Send>,
    pub(crate) recvs: Slab<Recv>,
    pub(crate) ready: VecDeque<Key>,
    pub(crate) finished: Finished,
    /// messages of communicators this rank has not made yet
    pub(crate) orphans: Vec<(ProcessId, Header, Option<Vec<u8>>)>,
    pub(crate) closed: VecDeque<CommId>,
    pub(crate) asynchronous: usize,
    pub(crate) next_deadline: Option<Instant>,
    pub(crate) probed: Option<Instant>,
    pub(crate) bell: Arc<Bell>,
    /// collectives at the head of their queues that run in shared memory, or wait for some
    pub(crate) meetings: Vec<Key>,
    /// arenas of communicators this rank has not made, or not used, yet
    pub(crate) offers: HashMap<CommId, Offer>,
    /// communicators whose end waits for the other ranks
    pub(crate) closing: Vec<CommId>,
    /// where this process has announced that it sleeps
    pub(crate) lying: Vec<Arc<Seat>>,
    pub(crate) watches: Vec<Watch>,
    pub(crate) spin: Arc<Spin>,
    /// open windows
    pub(crate) windows: HashMap<WindowId, Arc<Pane>>,
    /// operations that await signals, in order
    pub(crate) awaiting: Vec<Key>,
    /// communicators that can be reconfigured, by their handles
    pub(crate) presences: HashMap<PresenceId, Gatherings>,
    /// windows at which this process has announced that it sleeps
    pub(crate) lying_at: Vec<Arc<Pane>>,
    /// scratch memory that no program uses now
    spare: Vec<u8>,
}

impl Core {
    pub(crate) fn new(endpoint: Endpoint, bell: Arc<Bell>) -> Self {
        Self {
            endpoint,
            links: Slab::new(),
            by_process: Numbered::default(),
            groups: Numbered::default(),
            ops: Slab::new(),
            sends: Slab::new(),
            recvs: Slab::new(),
            ready: VecDeque::new(),
            finished: Vec::new(),
            orphans: Vec::new(),
            closed: VecDeque::new(),
            asynchronous: 0,
            next_deadline: None,
            probed: None,
            bell,
            meetings: Vec::new(),
            offers: HashMap::new(),
            closing: Vec::new(),
            lying: Vec::new(),
            watches: Vec::new(),
            spin: Arc::default(),
            windows: HashMap::new(),
            awaiting: Vec::new(),
            presences: HashMap::new(),
            lying_at: Vec::new(),
            spare: Vec::new(),
        }
    }

    // ---- calls

    /// Starts `call`, or queues it behind the collectives before it.
    pub(crate) fn issue(&mut self, comm: CommId, call: Call) -> Result<Arc<Work>> {
        let group = self.open_group(comm)?;
        let rank = group.rank;
        let Call {
            task,
            dtype,
            sequence,
            timeout,
            mode,
        } = call;
        match task {
            Task::Collective(collective) if !matches!(group.seating, Seating::Links) => {
                meeting::check(&collective, dtype, rank.index(), group.members.len())?;
                let work = Arc::new(Work::new(collective.operation(), sequence));
                let body = Course::Undecided { collective, dtype };
                let op = self.add_op(&work, comm, sequence, timeout, mode, body);
                self.enqueue(comm, op, sequence);
                Ok(work)
            }
            Task::Collective(collective) => {
                let ending = Ending::of(sequence);
                let topology = &group.topology;
                let program =
                    collectives::program(&collective, dtype, rank, topology, &LIMITS, ending)?;
                let fingerprint = collectives::fingerprint(&collective, dtype);
                let work = Arc::new(Work::new(collective.operation(), sequence));
                let scratch = self.scratch(program.scratch);
                let body = Course::Program {
                    program,
                    at: 0,
                    scratch,
                    fingerprint,
                };
                let op = self.add_op(&work, comm, sequence, timeout, mode, body);
                if let Some(group) = self.groups.get_mut(&comm) {
                    let early = group.note_issued(sequence, fingerprint);
                    let queries = group.take_queries(sequence);
                    group.queue.push_back(op);
                    let first = group.queue.len() == 1;
                    if let Some(error) = early {
                        self.fail(comm, error);
                    } else {
                        if first {
                            self.start(op);
                        }
                        for question in queries {
                            self.answer(comm, question.rank, question.sequence);
                        }
                    }
                }
                Ok(work)
            }
            Task::PointToPoint(point) => {
                let operation = match point {
                    PointToPoint::Send { .. } => Operation::Send,
                    PointToPoint::Recv { .. } => Operation::Recv,
                };
                Ok(self.issue_points(
                    comm,
                    operation,
                    vec![(point, dtype)],
                    sequence,
                    timeout,
                    mode,
                ))
            }
            Task::Batch(points) => {
                Ok(self.issue_points(comm, Operation::Batch, points, sequence, timeout, mode))
            }
        }
    }

    pub(crate) fn open_group(&mut self, comm: CommId) -> Result<&mut Membership> {
        let group = self
            .groups
            .get_mut(&comm)
            .ok_or_else(|| Error::new(ErrorKind::State, "the communicator is finalized"))?;
        match &group.standing {
            Standing::Open => Ok(group),
            Standing::Failed(error) => {
                group.reported = true;
                Err(error.clone())
            }
        }
    }

    /// Queues a collective behind those before it, and starts it when it is the first.
    fn enqueue(&mut self, comm: CommId, op: Key, sequence: u64) {
        let Some(group) = self.groups.get_mut(&comm) else {
            return;
        };
        group.note_number(sequence);
        group.queue.push_back(op);
        group.place.set_queued(group.queue.len());
        if group.queue.len() == 1 {
            self.start(op);
        }
    }

    /// Turns a collective that has no shared memory to run in into messages.
    pub(crate) fn start_program(
        &mut self,
        key: Key,
        collective: &Collective,
        dtype: Dtype,
    ) -> Result<()> {
        let Some((comm, sequence)) = self.ops.get(key).map(|op| (op.comm, op.sequence)) else {
            return Ok(());
        };
        let group = self.open_group(comm)?;
        let (rank, topology) = (group.rank, &group.topology);
        let ending = Ending::of(sequence);
        let program = collectives::program(collective, dtype, rank, topology, &LIMITS, ending)?;
        let fingerprint = collectives::fingerprint(collective, dtype);
        if let Some(error) = group.note_issued(sequence, fingerprint) {
            return Err(error);
        }
        for question in group.take_queries(sequence) {
            self.answer(comm, question.rank, question.sequence);
        }
        let scratch = self.scratch(program.scratch);
        if let Some(op) = self.ops.get_mut(key) {
            op.body = Course::Program {
                program,
                at: 0,
                scratch,
                fingerprint,
            };
            self.ready.push_back(key);
        }
        Ok(())
    }

    /// Scratch memory for a program that needs `bytes` bytes: what an earlier one left, if it is enough,
    /// so that no operation pays for pages it has not seen.
    fn scratch(&mut self, bytes: usize) -> Vec<u8> {
        if bytes > 0 && bytes <= self.spare.len() {
            std::mem::take(&mut self.spare)
        } else {
            vec![0; bytes]
        }
    }

    pub(crate) fn add_op(
        &mut self,
        work: &Arc<Work>,
        comm: CommId,
        sequence: u64,
        timeout: std::time::Duration,
        mode: Mode,
        body: Course,
    ) -> Key {
        if mode == Mode::Async {
            self.asynchronous += 1;
        }
        self.ops.insert(Op {
            work: work.clone(),
            comm,
            sequence,
            mode,
            timeout,
            deadline: None,
            transfers: Vec::new(),
            asked: Asked::default(),
            body,
        })
    }

    fn issue_points(
        &mut self,
        comm: CommId,
        operation: Operation,
        points: Vec<(PointToPoint, Dtype)>,
        sequence: u64,
        timeout: std::time::Duration,
        mode: Mode,
    ) -> Arc<Work> {
        let work = Arc::new(Work::new(operation, sequence));
        let op = self.add_op(&work, comm, sequence, timeout, mode, Course::Points);
        self.set_deadline(op);
        self.look_for(comm, &points);
        // Receives first: a send to the own rank in the same batch finds its receive.
        let (recvs, sends): (Vec<_>, Vec<_>) = points
            .into_iter()
            .partition(|(point, _)| matches!(point, PointToPoint::Recv { .. }));
        for (point, dtype) in recvs.into_iter().chain(sends) {
            match point {
                PointToPoint::Recv { buffer, from, tag } => {
                    self.post_recv(op, comm, from, Address::Tagged(tag), dtype, buffer);
                }
                PointToPoint::Send { buffer, to, tag } => {
                    let fingerprint = Fingerprint {
                        operation: Operation::Send,
                        dtype,
                        op: None,
                        root: None,
                        bytes: Some(buffer.bytes as u64),
                    };
                    self.post_send(op, comm, to, Address::Tagged(tag), fingerprint, buffer);
                }
            }
        }
        self.ready.push_back(op);
        self.run_ready();
        work
    }

    /// Reads what has come already from those who are to be received from: of a message that its
    /// sender has taken back, its end has come as well.
    fn look_for(&mut self, comm: CommId, points: &[(PointToPoint, Dtype)]) {
        let Some(group) = self.groups.get(&comm) else {
            return;
        };
        let from: Vec<ProcessId> = points
            .iter()
            .filter_map(|(point, _)| match point {
                PointToPoint::Recv { from, .. } => Some(*from),
                PointToPoint::Send { .. } => None,
            })
            .flat_map(|from| {
                let members = group.members.iter().enumerate();
                members
                    .filter(move |(rank, _)| match from {
                        Source::Rank(only) => only.index() == *rank,
                        Source::Any => true,
                    })
                    .map(|(_, member)| member.process)
            })
            .collect();
        // A first message may wait in a connection nobody has taken in yet.
        if !from
            .iter()
            .all(|process| self.by_process.contains_key(process))
        {
            self.accept_arrivals();
        }
        for process in from {
            let Some(key) = self.by_process.get(&process).copied() else {
                continue;
            };
            let channels = self.links.get(key).map_or(0, |link| link.channels.len());
            for channel in 0..channels {
                self.read_channel(key, channel);
            }
        }
    }

    /// The clock of an operation runs from its start.
    pub(crate) fn set_deadline(&mut self, op: Key) {
        if let Some(op) = self.ops.get_mut(op) {
            let deadline = Instant::now().checked_add(op.timeout);
            op.deadline = deadline;
            self.next_deadline = match (self.next_deadline, deadline) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
    }

    fn start(&mut self, op: Key) {
        self.set_deadline(op);
        self.ready.push_back(op);
        self.run_ready();
    }

    /// From here on, what comes for this communicator is dropped.
    pub(crate) fn close_comm(&mut self, comm: CommId) {
        self.offers.remove(&comm);
        self.orphans.retain(|(_, header, _)| header.comm != comm);
        if self.closed.len() == CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back(comm);
    }

    /// Whether an operation can go on or is over.
    pub(crate) fn has_news(&self) -> bool {
        !self.ready.is_empty() || !self.finished.is_empty()
    }

    // ---- programs

    /// Takes every operation that can go on as far as it goes.
    pub(crate) fn run_ready(&mut self) {
        while let Some(op) = self.ready.pop_front() {
            match self.ops.get(op).map(|op| &op.body) {
                Some(Course::Undecided { .. }) => self.decide(op),
                Some(Course::Meeting(_)) => drop(self.advance_meeting(op)),
                Some(Course::Program { .. } | Course::Points) => self.advance(op),
                Some(Course::Regroup(id)) => self.settle_attempt(*id),
                Some(Course::Awaiting { .. }) | None => {}
            }
        }
    }

    fn advance(&mut self, key: Key) {
        loop {
            let Some(op) = self.ops.get_mut(key) else {
                return;
            };
            let Course::Program {
                program,
                at,
                scratch,
                fingerprint,
            } = &mut op.body
            else {
                if op
                    .transfers
                    .iter()
                    .all(|transfer| matches!(transfer, Transfer::Done))
                {
                    self.finish(key, Ok(()));
                }
                return;
            };
            let scratch = scratch.as_mut_ptr() as usize;
            let Some(step) = program.steps.get(*at) else {
                if op
                    .transfers
                    .iter()
                    .all(|transfer| matches!(transfer, Transfer::Done))
                {
                    self.finish(key, Ok(()));
                }
                return;
            };
            let (comm, sequence, fingerprint) = (op.comm, op.sequence, *fingerprint);
            match step {
                Step::Wait(range) => {
                    let waiting = op.transfers[range.start as usize..range.end as usize]
                        .iter()
                        .any(|transfer| !matches!(transfer, Transfer::Done));
                    if waiting {
                        return;
                    }
                    *at += 1;
                }
                Step::Copy { from, to } => {
                    let (from, to) = (place(*from, scratch), place(*to, scratch));
                    *at += 1;
                    // SAFETY: both belong to this call, which is not complete; programs copy only
                    // between equally long places, which `copy` lets overlap.
                    unsafe {
                        std::ptr::copy(from.address as *const u8, to.address as *mut u8, to.bytes);
                    }
                }
                Step::Reduce {
                    reduction,
                    operands,
                    output,
                } => {
                    let out = place(*output, scratch);
                    let inputs: Vec<Input<'_>> = operands
                        .iter()
                        .map(|operand| match operand {
                            Operand::Output => Input::Output,
                            Operand::At(at) => {
                                // SAFETY: the place belongs to this call, no transfer owns it now
                                // (the program has waited), and programs keep operands apart from
                                // outputs.
                                Input::Bytes(unsafe { client_bytes(place(*at, scratch)) })
                            }
                        })
                        .collect();
                    // SAFETY: as above.
                    reduction.reduce(unsafe { client_bytes_mut(out) }, &inputs);
                    *at += 1;
                }
                Step::Send { to, part, from } => {
                    let (to, address) = (
                        *to,
                        Address::Collective {
                            sequence,
                            part: *part,
                        },
                    );
                    let region = place(*from, scratch);
                    *at += 1;
                    self.post_send(key, comm, to, address, fingerprint, region);
                }
                Step::Recv { from, part, into } => {
                    let (from, address) = (
                        *from,
                        Address::Collective {
                            sequence,
                            part: *part,
                        },
                    );
                    let region = place(*into, scratch);
                    *at += 1;
                    self.post_recv(
                        key,
                        comm,
                        Source::Rank(from),
                        address,
                        fingerprint.dtype,
                        region,
                    );
                }
            }
        }
    }

    pub(crate) fn transfer_done(&mut self, op: Key, index: u32) {
        if let Some(entry) = self.ops.get_mut(op) {
            entry.transfers[index as usize] = Transfer::Done;
            self.ready.push_back(op);
        }
    }

    /// Takes an operation out of the engine and completes its work; callbacks run once the lock is
    /// released. Completed before its place in a queue is given up: who finds the queue empty, and so
    /// comes after it, also finds it complete.
    pub(crate) fn finish(&mut self, key: Key, outcome: Result<()>) {
        let Some(mut op) = self.ops.remove(key) else {
            return;
        };
        for transfer in &op.transfers {
            match transfer {
                Transfer::Send(send) => self.withdraw(*send),
                Transfer::Recv(recv) => drop(self.recvs.remove(*recv)),
                Transfer::Done => {}
            }
        }
        // No transfer works on it any more.
        if let Course::Program { scratch, .. } = &mut op.body
            && (self.spare.len()..=MOST_SPARE).contains(&scratch.len())
        {
            self.spare = std::mem::take(scratch);
        }
        let succeeded = outcome.is_ok();
        let callbacks = op.work.complete(outcome);
        self.finished.push((op.work.clone(), callbacks));
        if let Course::Awaiting { pane, from } = &op.body {
            pane.leave(*from);
            self.awaiting.retain(|waiting| *waiting != key);
        }
        if op.mode == Mode::Async {
            self.asynchronous -= 1;
        }
        self.forget_messages(&op, succeeded);
        self.leave_queue(key, op.comm);
    }

    /// What the messages of an operation that is over told, or what is left of them when it failed.
    fn forget_messages(&mut self, op: &Op, succeeded: bool) {
        let Some(group) = self.groups.get_mut(&op.comm) else {
            return;
        };
        if succeeded {
            // None of these completes before every rank has sent something of the same call.
            let mutual = matches!(
                op.work.operation(),
                Operation::AllReduce
                    | Operation::ReduceScatter
                    | Operation::AllGather
                    | Operation::Barrier
            );
            if mutual {
                group.heard_from_all();
            }
        } else {
            let (recvs, sends) = (&self.recvs, &self.sends);
            group
                .posted
                .retain(|posted| recvs.get(posted.recv).is_some());
            group.unexpected.retain(|message| match message.payload {
                Payload::Local(send) => sends.get(send).is_some(),
                Payload::Here(_) | Payload::Announced => true,
            });
        }
    }

    /// Lets the next collective of `comm` begin when `key` was the first.
    fn leave_queue(&mut self, key: Key, comm: CommId) {
        let Some(group) = self.groups.get_mut(&comm) else {
            return;
        };
        let was_first = group.queue.front() == Some(&key);
        group.queue.retain(|queued| *queued != key);
        group.place.set_queued(group.queue.len());
        self.meetings.retain(|waiting| *waiting != key);
        if was_first && let Some(next) = group.queue.front().copied() {
            self.set_deadline(next);
            self.ready.push_back(next);
        }
    }
}

fn place(place: Place, scratch: usize) -> Region {
    match place {
        Place::Client(region) => region,
        Place::Scratch { offset, bytes } => Region {
            address: scratch + offset,
            bytes,
        },
    }
}
