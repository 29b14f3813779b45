//! The progress engine's state and its rules: what happens when a call is issued, a frame arrives,
//! a stream ends or a deadline passes. One lock guards all of it; nothing here blocks or calls a
//! client. Must not know threads or sleeping; `progress` does.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use ferrocomm_core::call::{Call, Collective, Mode, Operation, PointToPoint, Region, Source, Task};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::{CommId, GroupRank, ProcessId};
use ferrocomm_core::reduction::Input;
use ferrocomm_core::work::Work;

use crate::bootstrap::Member;
use crate::collectives;
use crate::endpoint::Endpoint;
use crate::frame::{EAGER, Fingerprint, Header, Kind, encode_failure, listens};
use crate::link::{Body, Link, LinkState, Outgoing, client_bytes, client_bytes_mut};
use crate::membership::{Address, Membership, Payload, Posted, Standing, Unexpected};
use crate::program::{Limits, Operand, Place, Program, Step};
use crate::slab::{Key, Slab};

/// Where algorithms change; the same on all ranks.
const LIMITS: Limits = Limits {
    one_shot: 32 * 1024,
    piece: 256 * 1024,
};

/// A started transfer of an operation.
#[derive(Clone, Copy)]
enum Transfer {
    Send(Key),
    Recv(Key),
    Done,
}

/// A message on its way out.
pub(crate) struct Send {
    op: Key,
    index: u32,
    comm: CommId,
    to: GroupRank,
    pub(crate) region: Region,
    pub(crate) sent: usize,
    /// the receiver's transfer, once granted
    pub(crate) granted: Option<u64>,
}

/// A message on its way in, or awaited.
pub(crate) struct Recv {
    op: Key,
    index: u32,
    comm: CommId,
    pub(crate) region: Region,
    pub(crate) got: usize,
    dtype: Dtype,
    from: Source,
}

enum Course {
    Program {
        program: Program,
        at: usize,
        scratch: Vec<u8>,
        fingerprint: Fingerprint,
    },
    Points,
}

/// A call that is not complete.
pub(crate) struct Op {
    pub(crate) work: Arc<Work>,
    pub(crate) comm: CommId,
    sequence: u64,
    pub(crate) mode: Mode,
    timeout: std::time::Duration,
    deadline: Option<Instant>,
    transfers: Vec<Transfer>,
    body: Course,
}

/// Works to complete once the lock is released.
pub(crate) type Finished = Vec<(Arc<Work>, Result<()>)>;

/// Everything the progress engine knows.
pub(crate) struct Core {
    pub(crate) endpoint: Endpoint,
    pub(crate) links: Slab<Link>,
    pub(crate) by_process: HashMap<ProcessId, Key>,
    pub(crate) groups: HashMap<CommId, Membership>,
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
}

impl Core {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            links: Slab::new(),
            by_process: HashMap::new(),
            groups: HashMap::new(),
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
        }
    }

    // ---- calls

    /// Starts `call`, or queues it behind the collectives before it.
    pub(crate) fn issue(&mut self, comm: CommId, call: Call) -> Result<Arc<Work>> {
        let group = self.open_group(comm)?;
        let (rank, size) = (group.rank, group.members.len());
        let Call {
            task,
            dtype,
            sequence,
            timeout,
            mode,
        } = call;
        match task {
            Task::Collective(collective) => {
                let program = collectives::program(&collective, dtype, rank, size, &LIMITS)?;
                let fingerprint = fingerprint(&collective, dtype);
                let work = Arc::new(Work::new(collective.operation(), sequence));
                let scratch = vec![0; program.scratch];
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
                        for (rank, asked) in queries {
                            self.answer(comm, rank, asked);
                        }
                        if first {
                            self.start(op);
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

    fn add_op(
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

    /// The clock of an operation runs from its start.
    fn set_deadline(&mut self, op: Key) {
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

    // ---- programs

    /// Takes every operation that can go on as far as it goes.
    pub(crate) fn run_ready(&mut self) {
        while let Some(op) = self.ready.pop_front() {
            self.advance(op);
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

    /// Takes an operation out of the engine; its work completes once the lock is released.
    fn finish(&mut self, key: Key, outcome: Result<()>) {
        let Some(op) = self.ops.remove(key) else {
            return;
        };
        for transfer in &op.transfers {
            match transfer {
                Transfer::Send(send) => drop(self.sends.remove(*send)),
                Transfer::Recv(recv) => drop(self.recvs.remove(*recv)),
                Transfer::Done => {}
            }
        }
        if op.mode == Mode::Async {
            self.asynchronous -= 1;
        }
        let succeeded = outcome.is_ok();
        self.finished.push((op.work.clone(), outcome));
        let Some(group) = self.groups.get_mut(&op.comm) else {
            return;
        };
        let recvs = &self.recvs;
        group
            .posted
            .retain(|posted| recvs.get(posted.recv).is_some());
        let sends = &self.sends;
        group.unexpected.retain(|message| match message.payload {
            Payload::Local(send) => sends.get(send).is_some(),
            Payload::Here(_) | Payload::Announced => true,
        });
        // None of these completes before every rank has sent something of the same call.
        let mutual = matches!(
            op.work.operation(),
            Operation::AllReduce
                | Operation::ReduceScatter
                | Operation::AllGather
                | Operation::Barrier
        );
        if mutual && succeeded {
            group.heard_from_all();
        }
        let was_first = group.queue.front() == Some(&key);
        group.queue.retain(|queued| *queued != key);
        if was_first && let Some(next) = group.queue.front().copied() {
            self.set_deadline(next);
            self.ready.push_back(next);
        }
    }

    // ---- messages out

    fn post_send(
        &mut self,
        op: Key,
        comm: CommId,
        to: GroupRank,
        address: Address,
        fingerprint: Fingerprint,
        region: Region,
    ) {
        let Some(entry) = self.ops.get_mut(op) else {
            return;
        };
        #[allow(
            clippy::cast_possible_truncation,
            reason = "a program has far fewer transfers"
        )]
        let index = entry.transfers.len() as u32;
        let send = self.sends.insert(Send {
            op,
            index,
            comm,
            to,
            region,
            sent: 0,
            granted: None,
        });
        entry.transfers.push(Transfer::Send(send));
        let (sequence, part) = match address {
            Address::Collective { sequence, part } => (sequence, part),
            Address::Tagged(tag) => (0, tag),
        };
        let eager = region.bytes <= EAGER;
        #[allow(clippy::cast_possible_truncation, reason = "at most EAGER")]
        let header = Header {
            kind: if eager { Kind::Message } else { Kind::Announce },
            comm,
            fingerprint,
            sequence,
            part,
            length: region.bytes as u64,
            transfer: send.to_bits(),
            payload: if eager { region.bytes as u32 } else { 0 },
        };
        let Some(group) = self.groups.get_mut(&comm) else {
            return;
        };
        group.told(to, sequence);
        if to == group.rank {
            group.heard(to, sequence);
            self.deliver_local(comm, to, header, send);
            return;
        }
        let link = match self.link_to(comm, to) {
            Ok(link) => link,
            Err(error) => return self.fail(comm, error),
        };
        if let Some(link) = self.links.get_mut(link) {
            let body = if eager {
                Body::Lent { send, region }
            } else {
                Body::Owned(Vec::new())
            };
            let completes = eager.then_some(send);
            link.out.push_back(Outgoing {
                header: header.encode(),
                body,
                written: 0,
                completes,
            });
        }
        self.write_link(link);
    }

    fn deliver_local(&mut self, comm: CommId, from: GroupRank, header: Header, send: Key) {
        let Some(group) = self.groups.get_mut(&comm) else {
            return;
        };
        match group.take_posted(from, Address::of(&header)) {
            Some(posted) => self.copy_local(comm, from, &header, send, posted.recv),
            None => group.unexpected.push_back(Unexpected {
                from,
                header,
                payload: Payload::Local(send),
            }),
        }
    }

    fn copy_local(&mut self, comm: CommId, from: GroupRank, header: &Header, send: Key, recv: Key) {
        if !self.accept(comm, from, header, recv) {
            return;
        }
        let (Some(source), Some(target)) = (self.sends.remove(send), self.recvs.remove(recv))
        else {
            return;
        };
        // SAFETY: both works are not complete, so their clients keep the regions valid; the lengths
        // were compared; `copy` lets them overlap.
        unsafe {
            std::ptr::copy(
                source.region.address as *const u8,
                target.region.address as *mut u8,
                target.region.bytes,
            );
        }
        self.transfer_done(source.op, source.index);
        self.transfer_done(target.op, target.index);
    }

    // ---- messages in

    fn post_recv(
        &mut self,
        op: Key,
        comm: CommId,
        from: Source,
        address: Address,
        dtype: Dtype,
        region: Region,
    ) {
        let Some(entry) = self.ops.get_mut(op) else {
            return;
        };
        #[allow(
            clippy::cast_possible_truncation,
            reason = "a program has far fewer transfers"
        )]
        let index = entry.transfers.len() as u32;
        let recv = self.recvs.insert(Recv {
            op,
            index,
            comm,
            region,
            got: 0,
            dtype,
            from,
        });
        entry.transfers.push(Transfer::Recv(recv));
        let Some(group) = self.groups.get_mut(&comm) else {
            return;
        };
        let own = group.rank;
        if let Some(message) = group.take_unexpected(from, address) {
            return self.meet(comm, message, recv);
        }
        group.posted.push(Posted {
            recv,
            from,
            address,
        });
        // A link to whom is awaited: without it nobody would notice that it died.
        if let Source::Rank(peer) = from
            && peer != own
            && let Err(error) = self.link_to(comm, peer)
        {
            self.fail(comm, error);
        }
    }

    /// A message that came early meets its receive.
    fn meet(&mut self, comm: CommId, message: Unexpected, recv: Key) {
        let Unexpected {
            from,
            header,
            payload,
        } = message;
        match payload {
            Payload::Local(send) => self.copy_local(comm, from, &header, send, recv),
            Payload::Here(bytes) => {
                if self.accept(comm, from, &header, recv)
                    && let Some(entry) = self.recvs.remove(recv)
                {
                    // SAFETY: the receive is alive, so its client keeps the region valid.
                    unsafe { client_bytes_mut(entry.region) }.copy_from_slice(&bytes);
                    self.transfer_done(entry.op, entry.index);
                }
            }
            Payload::Announced => {
                if self.accept(comm, from, &header, recv) {
                    self.grant(comm, from, &header, recv);
                }
            }
        }
    }

    /// Whether the message fits the receive; fails the communicator when it does not.
    pub(crate) fn accept(
        &mut self,
        comm: CommId,
        from: GroupRank,
        header: &Header,
        recv: Key,
    ) -> bool {
        let Some(entry) = self.recvs.get(recv) else {
            return false;
        };
        let Some(op) = self.ops.get(entry.op) else {
            return false;
        };
        let fits =
            header.length == entry.region.bytes as u64 && header.fingerprint.dtype == entry.dtype;
        if fits {
            if header.sequence == 0 {
                op.work.set_source(from);
            }
            return true;
        }
        let error = Error::new(ErrorKind::Mismatch, "a message does not fit its receive")
            .got(format_args!(
                "{} elements of {} from rank {from}",
                header.length / header.fingerprint.dtype.size() as u64,
                header.fingerprint.dtype
            ))
            .expected(format_args!(
                "{} elements of {}",
                entry.region.bytes / entry.dtype.size(),
                entry.dtype
            ))
            .peers([from])
            .operation(op.work.operation().name())
            .sequence(op.sequence)
            .remedy("send and receive the same number of elements of the same dtype");
        self.fail(comm, error);
        false
    }

    pub(crate) fn grant(&mut self, comm: CommId, from: GroupRank, header: &Header, recv: Key) {
        let mut grant = Header::control(Kind::Grant, comm);
        grant.transfer = header.transfer;
        grant.sequence = recv.to_bits();
        match self.link_to(comm, from) {
            Ok(link) => self.push_control(link, &grant, Vec::new()),
            Err(error) => self.fail(comm, error),
        }
    }

    pub(crate) fn push_control(&mut self, link: Key, header: &Header, payload: Vec<u8>) {
        if let Some(entry) = self.links.get_mut(link) {
            let (header, body) = (header.encode(), Body::Owned(payload));
            entry.out.push_back(Outgoing {
                header,
                body,
                written: 0,
                completes: None,
            });
            self.write_link(link);
        }
    }

    // ---- failing

    /// Fails the communicator: everything pending gets `error`, and the peers are told.
    pub(crate) fn fail(&mut self, comm: CommId, error: Error) {
        if let Some((error, members, rank)) = self.fail_here(comm, error) {
            self.tell(comm, &error, &members, rank);
        }
    }

    /// Fails the communicator on this rank alone; what there is to tell the peers.
    pub(crate) fn fail_here(
        &mut self,
        comm: CommId,
        error: Error,
    ) -> Option<(Error, Arc<Vec<Member>>, GroupRank)> {
        let group = self.groups.get_mut(&comm)?;
        if matches!(group.standing, Standing::Failed(_)) {
            return None;
        }
        let error = error.communicator(&group.name).rank(group.rank);
        group.standing = Standing::Failed(error.clone());
        group.unexpected.clear();
        let rank = group.rank;
        let members = group.members.clone();
        let victims: Vec<Key> = self
            .ops
            .iter()
            .filter(|(_, op)| op.comm == comm)
            .map(|(key, _)| key)
            .collect();
        if let Some(group) = self.groups.get_mut(&comm) {
            group.reported = !victims.is_empty();
        }
        for op in victims {
            let (name, sequence) = match self.ops.get(op) {
                Some(entry) => (entry.work.operation().name(), entry.sequence),
                None => continue,
            };
            self.finish(op, Err(error.clone().operation(name).sequence(sequence)));
        }
        Some((error, members, rank))
    }

    fn tell(&mut self, comm: CommId, error: &Error, members: &[Member], rank: GroupRank) {
        let payload = encode_failure(error, rank);
        let mut header = Header::control(Kind::Failure, comm);
        header.payload = u32::try_from(payload.len()).unwrap_or(0);
        let own = self.endpoint.me.process;
        for member in members.iter().filter(|member| member.process != own) {
            let open = self
                .by_process
                .get(&member.process)
                .copied()
                .filter(|link| {
                    self.links
                        .get(*link)
                        .is_some_and(|link| matches!(link.state, LinkState::Open))
                });
            if let Some(link) = open {
                self.push_control(link, &header, payload.clone());
            }
        }
    }

    /// Fails what passed its deadline.
    pub(crate) fn check_deadlines(&mut self, now: Instant) {
        if self.next_deadline.is_none_or(|next| now < next) {
            return;
        }
        let late: Vec<Key> = self
            .ops
            .iter()
            .filter(|(_, op)| op.deadline.is_some_and(|deadline| deadline <= now))
            .map(|(key, _)| key)
            .collect();
        self.next_deadline = None;
        for op in late {
            self.time_out(op, None);
        }
        self.next_deadline = self.ops.iter().filter_map(|(_, op)| op.deadline).min();
    }

    /// Fails an operation whose time is over: a point-to-point alone, a collective with its group.
    pub(crate) fn time_out(&mut self, key: Key, limit: Option<std::time::Duration>) {
        let Some(op) = self.ops.get(key) else { return };
        let mut missing: Vec<GroupRank> = op
            .transfers
            .iter()
            .filter_map(|transfer| match transfer {
                Transfer::Recv(recv) => match self.recvs.get(*recv)?.from {
                    Source::Rank(rank) => Some(rank),
                    Source::Any => None,
                },
                Transfer::Send(_) | Transfer::Done => None,
            })
            .collect();
        missing.sort_unstable();
        missing.dedup();
        let limit = limit.unwrap_or(op.timeout);
        let error = Error::new(ErrorKind::Timeout, "ranks did not take part in time")
            .expected(format_args!(
                "an answer within {:.3} s",
                limit.as_secs_f64()
            ))
            .peers(missing)
            .operation(op.work.operation().name())
            .sequence(op.sequence)
            .remedy("look at what the named ranks do, or raise the time-out");
        let comm = op.comm;
        match op.body {
            Course::Program { .. } => self.fail(comm, error),
            Course::Points => self.fail_alone(key, error),
        }
    }

    /// Fails a point-to-point operation; the communicator goes on.
    pub(crate) fn fail_alone(&mut self, key: Key, error: Error) {
        let Some(op) = self.ops.get(key) else { return };
        let error = match self.groups.get(&op.comm) {
            Some(group) => error.communicator(&group.name).rank(group.rank),
            None => error,
        };
        let error = error
            .operation(op.work.operation().name())
            .sequence(op.sequence);
        self.finish(key, Err(error));
    }

    pub(crate) fn op_of(&self, work: &Arc<Work>) -> Option<Key> {
        self.ops
            .iter()
            .find(|(_, op)| Arc::ptr_eq(&op.work, work))
            .map(|(key, _)| key)
    }

    pub(crate) fn is_collective(&self, key: Key) -> bool {
        self.ops
            .get(key)
            .is_some_and(|op| matches!(op.body, Course::Program { .. }))
    }

    /// A send is complete: its bytes are in the stream.
    pub(crate) fn send_done(&mut self, send: Key) {
        if let Some(send) = self.sends.remove(send) {
            self.transfer_done(send.op, send.index);
        }
    }

    /// A receive has all its bytes.
    pub(crate) fn recv_done(&mut self, recv: Key) {
        if let Some(recv) = self.recvs.remove(recv) {
            self.transfer_done(recv.op, recv.index);
        }
    }

    /// Communicators that wait for `process` and cannot go on without it.
    pub(crate) fn fail_those_waiting_for(&mut self, process: ProcessId, error: &Error) {
        let mut victims = Vec::new();
        for (comm, group) in &self.groups {
            let Some(rank) = group.rank_of(process) else {
                continue;
            };
            let waits = self
                .recvs
                .iter()
                .any(|(_, recv)| recv.comm == *comm && listens(recv.from, rank));
            let sends = self
                .sends
                .iter()
                .any(|(_, send)| send.comm == *comm && send.to == rank);
            if waits || sends {
                victims.push((*comm, rank));
            }
        }
        for (comm, rank) in victims {
            self.fail(comm, error.clone().peers([rank]));
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

fn fingerprint(collective: &Collective, dtype: Dtype) -> Fingerprint {
    Fingerprint {
        operation: collective.operation(),
        dtype,
        op: collective.reduce_op().map(Fingerprint::op),
        root: collective.root(),
        bytes: collective.common_bytes().map(|bytes| bytes as u64),
    }
}
