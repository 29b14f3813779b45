//! The engine's face: one per process, and the groups it makes. Must not know how ranks meet, nor
//! what an algorithm sends.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferrocomm_core::call::{Call, Conditions, Operation, PointToPoint, Source, Task};
use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::group::{Group, Notes, Part};
use ferrocomm_core::ids::{CommId, GroupRank, stable_hash};
use ferrocomm_core::reconfigure::Presence;
use ferrocomm_core::reduce_op::ReduceOp;
use ferrocomm_core::reduction::Reduction;
use ferrocomm_core::store::Store;
use ferrocomm_core::window::{Registration, Window};
use ferrocomm_core::work::Work;

use crate::address;
use crate::at_once::Attempt;
use crate::bootstrap::{JoinRequest, Member, Neighbours, join};
use crate::endpoint::{self, Endpoint, TransportChoice};
use crate::hints;
use crate::instructions;
use crate::membership::{Membership, Standing};
use crate::points::Tried;
use crate::progress::Progress;
use crate::regroup::HostPresence;
use crate::seat::Place;
use crate::windows::{HostWindow, Site};

/// How long the end of a communicator waits for control messages to leave.
const FLUSH: Duration = Duration::from_secs(1);
/// How long the end of a communicator waits for peers to agree about what they were sent last. A peer
/// that is busy elsewhere must not hold up this one's end for long.
const VERDICT: Duration = Duration::from_millis(500);
/// What a group is made with.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// the same on all ranks
    pub name: Arc<str>,
    /// this rank
    pub rank: GroupRank,
    /// number of ranks
    pub size: usize,
    /// how long joining may take
    pub timeout: Duration,
    /// known: `eager` (connect to all ranks at once)
    pub hints: Vec<(String, String)>,
}

/// An engine: what the communicators of a process share.
pub struct HostEngine {
    progress: Arc<Progress>,
}

static PROCESS: Mutex<Option<Arc<HostEngine>>> = Mutex::new(None);

/// Whether the engine can combine elements of `dtype` with `op`.
///
/// # Errors
/// `Unsupported`, with the reason.
#[inline(always)]
pub fn reduction_supported(op: &ReduceOp, dtype: Dtype) -> Result<()> {
    if matches!(op, ReduceOp::PremulSumAt(_)) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the host engine reads no factor from a device",
        )
        .got(*op)
        .remedy("set premul_factor instead"));
    }
    Reduction::check(op, dtype)
}

/// What can carry data between ranks.
pub fn transports() -> Vec<&'static str> {
    vec!["shm", "tcp"]
}

impl HostEngine {
    /// The engine of this process, made on first use; a forked child gets one of its own.
    ///
    /// # Errors
    /// Whatever keeps the process from listening.
    pub fn process() -> Result<Arc<Self>> {
        let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        match &*process {
            Some(engine) if engine.progress.is_own() => Ok(engine.clone()),
            _ => {
                let engine = Self::new()?;
                // The parent's engine stays in the child's memory untouched: another thread may
                // have held its lock when the process forked.
                std::mem::forget(process.replace(engine.clone()));
                Ok(engine)
            }
        }
    }

    /// One more engine: a rank of its own, for tests.
    ///
    /// # Errors
    /// Whatever keeps it from listening.
    pub fn new() -> Result<Arc<Self>> {
        instructions::from_environment()?.choose();
        let endpoint = Endpoint::open(TransportChoice::from_environment()?)?;
        let progress = Progress::new(endpoint)?;
        Ok(Arc::new(Self { progress }))
    }

    /// The presence of a communicator whose members change. `rank` is the launcher's.
    ///
    /// # Errors
    /// When the system gives no random numbers.
    pub fn presence(&self, name: &Arc<str>, rank: i32) -> Result<Arc<dyn Presence>> {
        let facts = self.facts();
        let id = endpoint::random()?;
        let id = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at| id[at]));
        Ok(Arc::new(HostPresence::new(
            self.progress.clone(),
            id,
            name.clone(),
            facts,
            u32::try_from(rank).unwrap_or(0),
        )))
    }

    /// What all members of a group must have alike, in words: ranks that differ in their transport
    /// would wait for one another in different places.
    fn facts(&self) -> String {
        let choice = self.progress.with(|core| core.endpoint.choice());
        format!(
            "ferrocomm {}, transport {choice}",
            env!("CARGO_PKG_VERSION")
        )
    }

    /// Joins the ranks into a group; returns when all have come.
    ///
    /// # Errors
    /// `Timeout` naming the ranks that did not come, `Mismatch`, the store's errors, `Interrupted`.
    pub fn create(&self, options: &GroupOptions, store: &dyn Store) -> Result<Arc<dyn Group>> {
        let eager = hints::eager(&options.hints)?;
        let me = self.progress.with(|core| core.endpoint.me.clone());
        let advertise = match me.addresses.first() {
            Some(address) => address.ip(),
            None => address::local_address()?,
        };
        let facts = self.facts();
        let request = JoinRequest {
            name: &options.name,
            rank: options.rank,
            size: options.size,
            deadline: Deadline::after(options.timeout),
            facts: &facts,
            me,
            advertise,
            neighbours: Neighbours::of_launcher(options.rank, options.size),
        };
        let table = join(&request, store)?;
        let members = Arc::new(table.members);
        let group = HostGroup::open(
            &self.progress,
            table.id,
            options.name.clone(),
            options.rank,
            members,
        );
        if eager {
            group.connect_all()?;
        }
        Ok(Arc::new(group))
    }
}

#[cfg(test)]
impl HostEngine {
    /// One round of it, as a program that waits would give.
    pub(crate) fn step(&self) {
        self.progress.with(|core| {
            core.accept_arrivals();
            core.poll();
        });
    }

    /// How this engine can be reached.
    pub(crate) fn member(&self) -> Member {
        self.progress.with(|core| core.endpoint.me.clone())
    }

    /// The group of `members`, one of which this engine is, without joining.
    pub(crate) fn group(
        &self,
        comm: CommId,
        rank: GroupRank,
        members: &Arc<Vec<Member>>,
    ) -> HostGroup {
        let name = Arc::from("pair");
        HostGroup::open(&self.progress, comm, name, rank, members.clone())
    }
}

/// One communicator of this engine.
pub(crate) struct HostGroup {
    progress: Arc<Progress>,
    comm: CommId,
    name: Arc<str>,
    rank: GroupRank,
    members: Arc<Vec<Member>>,
    place: Arc<Place>,
}

impl HostGroup {
    pub(crate) fn open(
        progress: &Arc<Progress>,
        comm: CommId,
        name: Arc<str>,
        rank: GroupRank,
        members: Arc<Vec<Member>>,
    ) -> Self {
        let place = Arc::<Place>::default();
        progress.with(|core| {
            let local = core.endpoint.me.machine;
            let neighbours = members
                .iter()
                .filter(|member| member.machine == local)
                .count();
            core.spin.note_ranks(neighbours);
            let seating = core.seating_for(&members);
            let membership =
                Membership::new(name.clone(), rank, members.clone(), seating, place.clone());
            core.groups.insert(comm, membership);
            core.adopt(comm);
        });
        Self {
            progress: progress.clone(),
            comm,
            name,
            rank,
            members,
            place,
        }
    }

    pub(crate) fn connect_all(&self) -> Result<()> {
        self.progress.with(|core| {
            (0u32..)
                .zip(self.members.iter())
                .map(|(rank, _)| GroupRank::new(rank))
                .filter(|rank| *rank != self.rank)
                .try_for_each(|rank| core.link_to(self.comm, rank).map(drop))
        })
    }

    #[inline(always)]
    fn same_process(&self) -> Result<()> {
        if self.progress.is_own() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Forked,
            "a communicator cannot be used in a forked child",
        )
        .communicator(&self.name)
        .rank(self.rank)
        .remedy("make a communicator of its own in the child"))
    }

    /// Takes the group out of the engine; the failure nobody has raised yet, if there is one.
    fn close(&self) -> Option<Error> {
        self.progress.with(|core| {
            if let Some(group) = core.groups.get_mut(&self.comm) {
                let queries = group.take_queries(u64::MAX);
                for question in queries {
                    core.answer(self.comm, question.rank, question.sequence);
                }
            }
            core.closing.retain(|comm| *comm != self.comm);
            core.close_windows(self.comm);
            let group = core.groups.remove(&self.comm)?;
            core.close_comm(self.comm);
            core.forget_dead(|_| false);
            match group.standing {
                Standing::Failed(error) if !group.reported => Some(error),
                Standing::Failed(_) | Standing::Open => None,
            }
        })
    }

    /// Ends the group for another one that comes in its place. Others may still be at its last
    /// operations, to which this rank has done its part; they hear of it where it has not.
    pub(crate) fn give_way(&self) {
        if self.same_process().is_err() {
            return;
        }
        self.progress.with(|core| {
            let error = Error::new(ErrorKind::Aborted, "the communicator was reconfigured")
                .remedy("issue the operation again, on the new group");
            if core.ops.iter().any(|(_, op)| op.comm == self.comm) {
                core.fail(self.comm, error);
            } else {
                core.fail_here(self.comm, error);
            }
        });
        self.close();
    }

    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn comm(&self) -> CommId {
        self.comm
    }

    /// Where its windows are made.
    pub(crate) fn site(&self) -> Site {
        Site {
            progress: self.progress.clone(),
            comm: self.comm,
            rank: self.rank,
            members: self.members.clone(),
        }
    }

    fn idle(&self) -> bool {
        self.progress
            .with(|core| !core.ops.iter().any(|(_, op)| op.comm == self.comm))
    }

    fn flushed(&self) -> bool {
        self.progress.with(|core| {
            self.members.iter().all(|member| {
                let link = core.by_process.get(&member.process);
                link.and_then(|link| core.links.get(*link))
                    .is_none_or(|link| link.out.is_empty())
            })
        })
    }
}

/// Of a call that is started: whoever asks for it later notes what becomes of it.
struct NoNotes;

impl Notes for NoNotes {
    fn issued(&mut self) {}
}

impl Group for HostGroup {
    fn rank(&self) -> GroupRank {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn issue(&self, mut call: Call) -> Result<Arc<Work>> {
        self.same_process()?;
        let (operation, sequence) = (call.task.operation(), call.sequence);
        if let Task::PointToPoint(point) = call.task {
            return match self.point_now(&call, point)? {
                Tried::Over => Ok(over(operation, sequence, point)),
                Tried::Handed(work) => Ok(work),
                Tried::Not => self.progress.with(|core| core.issue(self.comm, call)),
            };
        }
        let conditions = call.conditions();
        match self.at_once(&mut call.task, &conditions, &mut NoNotes)? {
            Attempt::Done => {
                let work = Arc::new(Work::new(operation, sequence));
                work.run(work.complete(Ok(())));
                Ok(work)
            }
            Attempt::Handed(work) => Ok(work),
            Attempt::Not => self.progress.with(|core| core.issue(self.comm, call)),
        }
    }

    fn run(&self, task: &mut Task, conditions: &Conditions, notes: &mut dyn Notes) -> Result<()> {
        self.same_process()?;
        if let Task::PointToPoint(point) = *task {
            let mut call = conditions.call(task);
            let mut issued = || notes.issued();
            let work = match self.point_at_once(&mut call, point, &mut issued)? {
                Tried::Over => return Ok(()),
                Tried::Handed(work) => work,
                Tried::Not => self.progress.with(|core| core.issue(self.comm, call))?,
            };
            notes.issued();
            return self.wait_out(&work);
        }
        match self.at_once(task, conditions, notes)? {
            Attempt::Done => Ok(()),
            Attempt::Handed(work) => self.wait_out(&work),
            Attempt::Not => {
                let call = conditions.call(task);
                let work = self.progress.with(|core| core.issue(self.comm, call))?;
                notes.issued();
                self.wait_out(&work)
            }
        }
    }

    fn wait(&self, work: &Arc<Work>, limit: Option<Duration>) -> Result<()> {
        self.same_process()?;
        self.progress.wait_for(work, limit)
    }

    fn has_begun(&self, work: &Arc<Work>) -> bool {
        self.same_process().is_err() || self.progress.look(|core| core.has_begun(work))
    }

    fn cancel(&self, work: &Arc<Work>) {
        if self.same_process().is_err() {
            return;
        }
        self.progress.with(|core| {
            if let Some(op) = core.op_of(work)
                && !core.is_collective(op)
            {
                core.fail_alone(
                    op,
                    Error::new(
                        ErrorKind::Cancelled,
                        "the operation was cancelled by its caller",
                    ),
                );
            }
        });
    }

    fn stand_aside(&self, part: &Part<'_>) -> Result<()> {
        hints::eager(part.hints).map(drop)
    }

    fn split(&self, ranks: &[GroupRank], part: &Part<'_>) -> Result<Arc<dyn Group>> {
        self.same_process()?;
        let eager = hints::eager(part.hints)?;
        self.progress
            .with(|core| core.open_group(self.comm).map(drop))?;
        let own = ranks
            .iter()
            .position(|rank| *rank == self.rank)
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    "only a member of the sub-group can make it",
                )
            })?;
        let list: Vec<u8> = ranks
            .iter()
            .flat_map(|rank| rank.get().to_le_bytes())
            .collect();
        let id = stable_hash(&[
            &self.comm.0.to_le_bytes(),
            &part.sequence.to_le_bytes(),
            &list,
        ]);
        let members: Vec<Member> = ranks
            .iter()
            .filter_map(|rank| self.members.get(rank.index()).cloned())
            .collect();
        let rank = GroupRank::new(u32::try_from(own).unwrap_or(u32::MAX));
        let members = Arc::new(members);
        let name = Arc::from(part.name);
        let group = Self::open(&self.progress, CommId(id), name, rank, members);
        if eager {
            group.connect_all()?;
        }
        Ok(Arc::new(group))
    }

    fn open_window(
        &self,
        registration: Registration,
        issued: &mut dyn FnMut(),
    ) -> Result<Arc<dyn Window>> {
        self.same_process()?;
        let window = HostWindow::register(self.site(), registration, issued)?;
        Ok(Arc::new(window))
    }

    fn finalize(&self, timeout: Duration) -> Result<()> {
        self.same_process()?;
        let waited = self.progress.wait_until(|| self.idle(), Some(timeout));
        // A collective that a peer has called differently may be over here: hear of it before closing.
        self.progress.with(|core| {
            core.ask(self.comm);
            core.closing.push(self.comm);
        });
        let agreed = || {
            self.progress
                .with(|core| core.agreed(self.comm) && core.met(self.comm))
        };
        if self.progress.wait_until(agreed, Some(VERDICT)).is_err() {
            tracing::debug!(communicator = %self.name, "closed before every peer had come as far");
        }
        // What cannot leave within the limit belongs to peers that are gone; they need it no more.
        if self
            .progress
            .wait_until(|| self.flushed(), Some(FLUSH))
            .is_err()
        {
            tracing::debug!(communicator = %self.name, "closed with messages still to be written");
        }
        if let Err(error) = waited {
            self.progress
                .with(|core| core.fail(self.comm, error.clone()));
            self.close();
            return Err(error.communicator(&self.name).rank(self.rank));
        }
        self.close().map_or(Ok(()), Err)
    }

    fn abort(&self) {
        if self.same_process().is_err() {
            return;
        }
        self.progress.with(|core| {
            let error = Error::new(ErrorKind::Aborted, "the communicator was aborted")
                .remedy("make a new communicator");
            // Local: a peer may have all it needs from this rank already.
            core.fail_here(self.comm, error);
        });
    }

    fn fail(&self, cause: Error) {
        if self.same_process().is_ok() {
            self.progress.with(|core| core.fail(self.comm, cause));
        }
    }

    fn failure(&self) -> Option<Error> {
        self.progress
            .with(|core| match &core.groups.get(&self.comm)?.standing {
                Standing::Failed(error) => Some(error.clone()),
                Standing::Open => None,
            })
    }

    fn transport(&self) -> String {
        self.progress.with(|core| core.transport(self.comm))
    }
}

/// A work that is complete.
fn over(operation: Operation, sequence: u64, point: PointToPoint) -> Arc<Work> {
    let work = Arc::new(Work::new(operation, sequence));
    if let PointToPoint::Recv {
        from: Source::Rank(from),
        ..
    } = point
    {
        work.set_source(from);
    }
    work.run(work.complete(Ok(())));
    work
}

impl Drop for HostGroup {
    /// Quiet: a rank that drops its communicator at the end of its program has often done its part,
    /// and the others are still on their way. Who needs it for more learns from its connection.
    fn drop(&mut self) {
        if self.same_process().is_ok() {
            self.progress.with(|core| {
                let error = Error::new(ErrorKind::State, "the communicator was dropped");
                core.fail_here(self.comm, error);
            });
            self.close();
        }
    }
}
