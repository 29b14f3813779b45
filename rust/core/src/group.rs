//! What an engine (host, NCCL) offers for one communicator.
//!
//! The layer above keeps the communicator's state, its sequence numbers and its records; an
//! engine's group moves data. A group never calls back while it holds a lock of its own. Must not
//! know how an engine does it.

use std::sync::Arc;
use std::time::Duration;

use crate::call::{Call, Conditions, Region, Stream, Task};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::GroupRank;
use crate::window::{Registration, Window};
use crate::work::Work;

/// How a sub-group is made, besides its ranks; the same on every rank of it.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// the sub-group's
    pub name: &'a str,
    /// number of the split on the group it is made of
    pub sequence: u64,
    /// default time-out of the sub-group
    pub timeout: Duration,
    /// what is wished of it beyond what holds for the group it is made of; the last of a name counts
    pub hints: &'a [(String, String)],
}

/// What the layer above notes of a synchronous call while its group runs it.
pub trait Notes {
    /// The call has its place in the order of calls. With no lock held that a callback of this thread
    /// could be waiting for; again: nothing.
    fn issued(&mut self);

    /// The call is a short one: the group has done its part, looks whether the others have come, and
    /// takes what they brought as soon as they have.
    fn looks(&mut self) {}

    /// They had not come, and the group looks again. The time between two looks is nobody's: what is
    /// noted in it costs nothing.
    fn looks_again(&mut self) {
        std::hint::spin_loop();
    }

    /// They are not soon there: the group stops looking, and the call takes its time.
    fn waits(&mut self) {}
}

/// One communicator inside an engine.
pub trait Group: Send + Sync {
    /// This process's rank.
    fn rank(&self) -> GroupRank;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Starts `call`. Collectives take effect in the order of their sequence numbers.
    ///
    /// # Errors
    /// The cause of failure of a failed group; whatever keeps the call from starting. What goes
    /// wrong later is the work's outcome.
    ///
    /// # Safety rule of the caller
    /// The call's regions stay valid until the work is complete.
    fn issue(&self, call: Call) -> Result<Arc<Work>>;

    /// Starts `call` for a caller whose own work is on `stream`: the call comes after what is on it.
    /// A `Sync` call runs on `stream` itself, an `Async` one beside it. As `issue` in all else.
    ///
    /// # Errors
    /// As `issue`.
    fn issue_on(&self, call: Call, stream: Stream) -> Result<Arc<Work>> {
        let _no_streams_here = stream;
        self.issue(call)
    }

    /// Whether calls run on streams of a device. Such a group never runs a call on the caller's
    /// thread: a `Sync` call, too, has only been put on its stream when `issue_on` returns.
    fn on_streams(&self) -> bool {
        false
    }

    /// Makes `stream` wait for `work`; where there are no streams, the caller.
    ///
    /// # Errors
    /// How the work failed, when it has; whatever keeps the stream from waiting.
    fn wait_on(&self, work: &Arc<Work>, stream: Stream) -> Result<()> {
        let _no_streams_here = stream;
        self.wait(work, None)
    }

    /// Looks whether `work` has come to its end. For groups whose works nobody drives.
    fn poll(&self, work: &Arc<Work>) {
        let _driven_elsewhere = work;
    }

    /// Whether `work` has begun: it has not while it waits for calls before it. A group that cannot
    /// tell says that it has. Looks, without waiting.
    fn has_begun(&self, work: &Arc<Work>) -> bool {
        let _none_is_seen_waiting = work;
        true
    }

    /// Whether `work` belongs to a graph that is being, or was, captured: it is complete at once, and
    /// its buffers are used whenever the graph is launched.
    fn is_captured(&self, work: &Arc<Work>) -> bool {
        let _no_graphs_here = work;
        false
    }

    /// Runs `release` once nothing uses the buffers of `work` any more: when it is complete, or when
    /// the graph it was captured in is gone. Runs on any thread.
    fn keep(&self, work: &Arc<Work>, release: Box<dyn FnOnce() + Send>) {
        work.on_complete(move |_| release());
    }

    /// Whether `cancel` can take a point-to-point work back.
    fn can_cancel(&self) -> bool {
        true
    }

    /// Runs `task` on the caller's thread until it is over; a synchronous call, in one go. A task
    /// that has to be kept is taken out; the short ones, which are over before that, are never
    /// moved, since moving one takes as long as a flag from core to core. `notes` hears how it goes on.
    ///
    /// # Errors
    /// As `issue` and `wait`. When the client interrupts the wait, a point-to-point call is cancelled,
    /// and the group of a collective aborted: the caller is about to take its buffers back.
    fn run(&self, task: &mut Task, conditions: &Conditions, notes: &mut dyn Notes) -> Result<()> {
        let work = self.issue(conditions.call(task))?;
        notes.issued();
        self.wait_out(&work)
    }

    /// Waits for a synchronous call's work; one that is interrupted is given up, as `run` says.
    fn wait_out(&self, work: &Arc<Work>) -> Result<()> {
        let outcome = self.wait(work, None);
        if !work.is_complete() {
            if work.operation().is_alone() {
                self.cancel(work);
            } else {
                self.abort();
            }
        }
        outcome
    }

    /// Waits until `work` is complete and returns how it ended, driving the engine meanwhile.
    /// When `limit` passes first, the work fails with a time-out: a point-to-point work alone, a
    /// collective together with its group.
    fn wait(&self, work: &Arc<Work>, limit: Option<Duration>) -> Result<()>;

    /// Cancels a point-to-point work that is not complete; it fails with `Cancelled`.
    fn cancel(&self, work: &Arc<Work>);

    /// The sub-group of `ranks`, in that order; this rank is one of them. Moves no data.
    ///
    /// # Errors
    /// `InvalidArgument` for a hint with a value that does not fit; whatever keeps the engine from
    /// making a group, as the cause of failure of this one.
    fn split(&self, ranks: &[GroupRank], part: &Part<'_>) -> Result<Arc<dyn Group>>;

    /// This rank's part in a split that makes a sub-group without it.
    ///
    /// # Errors
    /// As `split`.
    fn stand_aside(&self, part: &Part<'_>) -> Result<()>;

    /// Makes a window of every rank's memory: a collective, in order with the others. `issued` as for
    /// `run`.
    ///
    /// # Errors
    /// `Unsupported`, by groups without windows; else as a collective fails.
    fn open_window(
        &self,
        registration: Registration,
        issued: &mut dyn FnMut(),
    ) -> Result<Arc<dyn Window>> {
        let _no_windows_here = (registration, issued);
        Err(Error::new(
            ErrorKind::Unsupported,
            "this engine has no windows",
        ))
    }

    /// Waits for everything issued, then closes the group. Idempotent.
    ///
    /// # Errors
    /// The group's cause of failure, or a failure reported by a peer that this rank has not
    /// raised yet.
    fn finalize(&self, timeout: Duration) -> Result<()>;

    /// Fails everything pending with `Aborted`, on this rank alone, and closes the group. Idempotent,
    /// from any thread, never blocks on a peer.
    fn abort(&self);

    /// Fails the group with `cause` on all ranks that can be told. Never waits for them. An engine that
    /// tells nobody ends it here alone.
    fn fail(&self, cause: Error) {
        let _nobody_is_told = cause;
        self.abort();
    }

    /// Why the group has failed, if it has.
    fn failure(&self) -> Option<Error>;

    /// How this group's data travels, in one word or a few: `shm`, `tcp`, `shm+tcp`, `none`.
    fn transport(&self) -> String;

    /// Prepares memory of the client's, which stays there until `deregister_memory` or the end of the
    /// group. Not a collective. The layer above lets an address be registered once. Where memory needs
    /// nothing: nothing.
    ///
    /// # Errors
    /// Whatever keeps the engine from it.
    fn register_memory(&self, memory: Region) -> Result<()> {
        let _nothing_to_prepare = memory;
        Ok(())
    }

    /// Takes `register_memory` back, on a group that has failed, too.
    ///
    /// # Errors
    /// Whatever keeps the engine from it.
    fn deregister_memory(&self, address: usize) -> Result<()> {
        let _nothing_was_prepared = address;
        Ok(())
    }

    /// Waits for what is on its way, then gives up what memory can be taken again. Until `resume` no
    /// operation is admitted. Every rank calls it. Again: nothing.
    ///
    /// # Errors
    /// `Unsupported` by an engine or library that cannot; `Timeout`; the cause of failure.
    fn suspend(&self) -> Result<()> {
        Err(has_not("this engine gives up no memory"))
    }

    /// Takes the memory again that `suspend` gave up. Every rank calls it. Again: nothing.
    ///
    /// # Errors
    /// As `suspend`.
    fn resume(&self) -> Result<()> {
        Err(has_not("this engine gives up no memory"))
    }

    /// How much memory of its device the group takes.
    ///
    /// # Errors
    /// `Unsupported` by an engine or library that does not count it.
    fn memory(&self) -> Result<MemoryUse> {
        Err(has_not("this engine does not count its memory"))
    }

    /// What the library below knows the group under, such as an `ncclComm_t`; borrowed, valid as long
    /// as the group.
    ///
    /// # Errors
    /// `Unsupported` where there is no such thing; `Aborted`, once it is given up.
    fn native(&self) -> Result<usize> {
        Err(has_not("this engine stands on no other library"))
    }
}

fn has_not(what: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, what).remedy("nccl does, for CUDA tensors")
}

/// Bytes of a device that a group takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// that `suspend` gives up
    pub suspendable: u64,
    /// whether they are given up now
    pub suspended: bool,
    /// that stay
    pub persistent: u64,
    /// of both kinds
    pub total: u64,
}
