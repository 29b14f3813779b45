//! The flight recorder: the last operations of this process, in a ring.
//!
//! Noting an operation costs two reads of a counter, three atomic operations on lines of its own and
//! no memory except for the text of a failure. A short operation spares the second read: it ends with
//! its last look for others. It must not know works or groups; `dump` turns it into JSON.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferrocomm_core::call::{Collective, Operation, PointToPoint, Source, Task};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reduce_op::ReduceOp;
use ferrocomm_core::window::OneSided;
use spin::mutex::{SpinMutex, SpinMutexGuard};

use crate::ticks::{Scale, Ticks};

const DEFAULT_ENTRIES: usize = 2048;
/// Environment variable: number of operations kept, 0 for none.
const ENTRIES_VARIABLE: &str = "FERROCOMM_RECORDER_ENTRIES";
/// More would be memory for nobody to read.
const MOST_ENTRIES: usize = 1 << 20;

/// The communicator an entry belongs to, also after its end.
#[derive(Debug)]
pub(crate) struct Label {
    /// its number in this process
    pub(crate) number: u64,
    /// its name
    pub(crate) name: Arc<str>,
    /// the engine that serves it
    pub(crate) engine: &'static str,
    /// this process's rank
    pub(crate) rank: GroupRank,
    /// number of ranks
    pub(crate) size: usize,
    /// its ranks as ranks of the communicator that was joined through a store; `None` for that
    /// one itself
    pub(crate) members: Option<Arc<[u32]>>,
}

/// How far an operation has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// numbered
    Scheduled,
    /// with the engine
    Started,
    /// over
    Completed,
    /// over, with this text
    Failed(String),
}

/// The other side of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// nobody in particular
    Nobody,
    /// the root of a collective
    Root(GroupRank),
    /// sends to this rank
    To(GroupRank),
    /// receives from
    From(Source),
}

/// What an operation is, without its buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) operation: Operation,
    pub(crate) dtype: Dtype,
    pub(crate) input_bytes: usize,
    pub(crate) output_bytes: usize,
    pub(crate) other: Other,
    pub(crate) tag: Option<u32>,
    pub(crate) reduce_op: Option<ReduceOp>,
}

/// One operation.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) label: Arc<Label>,
    pub(crate) facts: Facts,
    pub(crate) sequence: u64,
    pub(crate) timeout: Duration,
    pub(crate) created: u64,
    pub(crate) started: Option<u64>,
    pub(crate) ended: Option<u64>,
    pub(crate) progress: Progress,
}

impl Entry {
    /// A copy whose times are nanoseconds since 1970.
    fn read_with(&self, scale: &Scale) -> Self {
        Self {
            created: scale.nanos(self.created),
            started: self.started.map(|count| scale.nanos(count)),
            ended: self.ended.map(|count| scale.nanos(count)),
            ..self.clone()
        }
    }

    /// Whether it is not over.
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.progress, Progress::Scheduled | Progress::Started)
    }
}

/// A point in time, by the recorder's own clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(u64);

/// An entry's number, to come back with, and when it was noted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    id: u64,
    created: Moment,
}

impl Ticket {
    /// When the entry was noted.
    pub(crate) fn created(self) -> Moment {
        self.created
    }
}

/// A place in the ring. Its lock is held for a few stores, and given back without an atomic
/// read-modify-write, which would take as long as all of them.
type Slot = SpinMutex<Option<Entry>, spin::Yield>;

/// The ring.
pub(crate) struct Recorder {
    /// a power of two, so that finding one takes no division, or none
    slots: Box<[Slot]>,
    /// how many operations are shown
    entries: usize,
    next: AtomicU64,
    /// entries below were forgotten by `reset`
    floor: AtomicU64,
    ticks: Ticks,
}

impl Recorder {
    /// As large as the environment asks for.
    pub(crate) fn from_environment() -> Self {
        let asked = std::env::var(ENTRIES_VARIABLE).ok();
        let entries = match asked.as_deref().map(str::parse::<usize>) {
            None => DEFAULT_ENTRIES,
            Some(Ok(entries)) => entries.min(MOST_ENTRIES),
            Some(Err(_)) => {
                tracing::warn!(
                    variable = ENTRIES_VARIABLE,
                    got = asked.as_deref(),
                    using = DEFAULT_ENTRIES,
                    "not a number of entries"
                );
                DEFAULT_ENTRIES
            }
        };
        Self::new(entries)
    }

    /// Keeps the last `entries` operations.
    pub(crate) fn new(entries: usize) -> Self {
        let slots = if entries == 0 {
            0
        } else {
            entries.next_power_of_two()
        };
        Self {
            slots: (0..slots).map(|_| Slot::new(None)).collect(),
            entries,
            next: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            ticks: Ticks::new(),
        }
    }

    /// How many entries are kept.
    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    #[inline(always)]
    fn slot(&self, id: u64) -> Option<SpinMutexGuard<'_, Option<Entry>>> {
        let last = self.slots.len().wrapping_sub(1);
        Some(self.slots.get(id as usize & last)?.lock())
    }

    /// Notes an operation that has got its number.
    pub(crate) fn schedule(
        &self,
        label: &Arc<Label>,
        facts: &Facts,
        sequence: u64,
        timeout: Duration,
    ) -> Ticket {
        self.note(label, facts, sequence, timeout, Progress::Scheduled)
    }

    /// Notes an operation that has got its number and runs on the spot.
    #[inline(always)]
    pub(crate) fn begin(
        &self,
        label: &Arc<Label>,
        facts: &Facts,
        sequence: u64,
        timeout: Duration,
    ) -> Ticket {
        self.note(label, facts, sequence, timeout, Progress::Started)
    }

    #[inline(always)]
    fn note(
        &self,
        label: &Arc<Label>,
        facts: &Facts,
        sequence: u64,
        timeout: Duration,
        progress: Progress,
    ) -> Ticket {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let created = self.ticks.now();
        if let Some(mut slot) = self.slot(id) {
            let started = (progress == Progress::Started).then_some(created);
            match &mut *slot {
                // Where one communicator has the ring to itself, its label is there already.
                Some(entry) if Arc::ptr_eq(&entry.label, label) => {
                    entry.id = id;
                    entry.facts = *facts;
                    entry.sequence = sequence;
                    entry.timeout = timeout;
                    entry.created = created;
                    entry.started = started;
                    entry.ended = None;
                    entry.progress = progress;
                }
                place => {
                    *place = Some(Entry {
                        id,
                        label: label.clone(),
                        facts: *facts,
                        sequence,
                        timeout,
                        created,
                        started,
                        ended: None,
                        progress,
                    });
                }
            }
        }
        Ticket {
            id,
            created: Moment(created),
        }
    }

    /// Changes an entry that the ring has not moved past.
    #[inline(always)]
    fn update(&self, ticket: Ticket, change: impl FnOnce(&mut Entry)) {
        let Some(mut slot) = self.slot(ticket.id) else {
            return;
        };
        if let Some(entry) = slot.as_mut().filter(|entry| entry.id == ticket.id) {
            change(entry);
        }
    }

    /// Notes that the engine has the operation, which it was given as soon as it was noted: reading
    /// the clock once more would cost more than it told. An entry that is over stays so: the
    /// operation may have ended while it was being issued.
    pub(crate) fn start(&self, ticket: Ticket) {
        self.update(ticket, |entry| {
            entry.started = Some(entry.created);
            if entry.progress == Progress::Scheduled {
                entry.progress = Progress::Started;
            }
        });
    }

    /// What the time is, for `complete`.
    #[inline(always)]
    pub(crate) fn now(&self) -> Moment {
        Moment(self.ticks.now())
    }

    /// Notes that the operation came to its end, at `moment`; `None`: now.
    #[inline(always)]
    pub(crate) fn complete(&self, ticket: Ticket, moment: Option<Moment>) {
        self.end(ticket, moment, Progress::Completed);
    }

    /// Notes that the operation failed, and how.
    pub(crate) fn fail(&self, ticket: Ticket, how: String) {
        self.end(ticket, None, Progress::Failed(how));
    }

    #[inline(always)]
    fn end(&self, ticket: Ticket, moment: Option<Moment>, progress: Progress) {
        self.update(ticket, |entry| {
            let Moment(count) = moment.unwrap_or_else(|| self.now());
            entry.ended = Some(count);
            entry.progress = progress;
        });
    }

    /// Forgets what was noted so far.
    pub(crate) fn reset(&self) {
        self.floor
            .store(self.next.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The entries that are kept, oldest first.
    pub(crate) fn snapshot(&self) -> Vec<Entry> {
        let next = self.next.load(Ordering::Relaxed);
        let oldest = next.saturating_sub(self.entries as u64);
        let scale = self.ticks.scale();
        (oldest.max(self.floor.load(Ordering::Relaxed))..next)
            .filter_map(|id| {
                self.slot(id)?
                    .as_ref()
                    .filter(|entry| entry.id == id)
                    .map(|entry| entry.read_with(&scale))
            })
            .collect()
    }
}

impl Facts {
    /// What is worth noting of a task.
    #[inline(always)]
    pub(crate) fn of(task: &Task, dtype: Dtype) -> Self {
        match task {
            Task::Collective(collective) => Self::of_collective(collective, dtype),
            Task::PointToPoint(part) => Self::of_part(part, dtype),
            Task::Batch(parts) => {
                let parts = || {
                    parts
                        .iter()
                        .map(|(part, dtype)| Self::of_part(part, *dtype))
                };
                Self {
                    input_bytes: parts().map(|part| part.input_bytes).sum(),
                    output_bytes: parts().map(|part| part.output_bytes).sum(),
                    ..Self::bare(Operation::Batch, dtype)
                }
            }
        }
    }

    /// Bytes of the client's payload on this rank, for counters: what it gives, or takes where that
    /// says more.
    #[inline(always)]
    pub(crate) fn payload_bytes(&self) -> usize {
        match self.operation {
            Operation::Broadcast | Operation::Scatter | Operation::Recv | Operation::Get => {
                self.output_bytes
            }
            Operation::Batch => self.input_bytes + self.output_bytes,
            Operation::AllReduce
            | Operation::Reduce
            | Operation::AllGather
            | Operation::ReduceScatter
            | Operation::AllToAll
            | Operation::Gather
            | Operation::Barrier
            | Operation::Send
            | Operation::Split
            | Operation::Put
            | Operation::PutSignal
            | Operation::Signal
            | Operation::WaitSignal
            | Operation::TensorRegister
            | Operation::TensorDeregister
            | Operation::Reconfigure => self.input_bytes,
        }
    }

    /// What is worth noting of an operation on a window.
    pub(crate) fn of_one_sided(task: &OneSided, dtype: Dtype) -> Self {
        let bytes = task.region().bytes;
        let bare = Self::bare(task.operation(), dtype);
        match *task {
            OneSided::Put { to, .. } | OneSided::Signal { to } => Self {
                input_bytes: bytes,
                other: Other::To(to),
                ..bare
            },
            OneSided::Get { from, .. } | OneSided::WaitSignal { from } => Self {
                output_bytes: bytes,
                other: Other::From(Source::Rank(from)),
                ..bare
            },
        }
    }

    /// An operation without buffers.
    #[inline(always)]
    pub(crate) fn bare(operation: Operation, dtype: Dtype) -> Self {
        Self {
            operation,
            dtype,
            input_bytes: 0,
            output_bytes: 0,
            other: Other::Nobody,
            tag: None,
            reduce_op: None,
        }
    }

    fn of_part(part: &PointToPoint, dtype: Dtype) -> Self {
        match *part {
            PointToPoint::Send { buffer, to, tag } => Self {
                input_bytes: buffer.bytes,
                other: Other::To(to),
                tag: Some(tag),
                ..Self::bare(Operation::Send, dtype)
            },
            PointToPoint::Recv { buffer, from, tag } => Self {
                output_bytes: buffer.bytes,
                other: Other::From(from),
                tag: Some(tag),
                ..Self::bare(Operation::Recv, dtype)
            },
        }
    }

    #[inline(always)]
    fn of_collective(collective: &Collective, dtype: Dtype) -> Self {
        let (input_bytes, output_bytes) = match collective {
            // In place on every rank, as torch's recorders note them: its analyser takes sizes that
            // differ between ranks for a mismatch.
            Collective::Broadcast { buffer, .. } => (buffer.bytes, buffer.bytes),
            Collective::Reduce { input, .. } => (input.bytes, input.bytes),
            Collective::AllReduce { input, output, .. } => (input.bytes, output.bytes),
            Collective::AllGather { input, outputs } => (input.bytes, outputs.bytes()),
            Collective::ReduceScatter { inputs, output, .. } => (inputs.bytes(), output.bytes),
            Collective::AllToAll { inputs, outputs } => (inputs.bytes(), outputs.bytes()),
            Collective::Gather { input, outputs, .. } => (
                input.bytes,
                outputs.as_ref().map_or(0, |outputs| outputs.bytes()),
            ),
            Collective::Scatter { inputs, output, .. } => (
                inputs.as_ref().map_or(0, |inputs| inputs.bytes()),
                output.bytes,
            ),
            Collective::Barrier => (0, 0),
        };
        Self {
            input_bytes,
            output_bytes,
            other: collective.root().map_or(Other::Nobody, Other::Root),
            reduce_op: collective.reduce_op().copied(),
            ..Self::bare(collective.operation(), dtype)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Arc<Label> {
        Arc::new(Label {
            number: 0,
            name: "a".into(),
            engine: "host",
            rank: GroupRank::new(0),
            size: 2,
            members: None,
        })
    }

    fn schedule(recorder: &Recorder, label: &Arc<Label>, sequence: u64) -> Ticket {
        let facts = Facts::bare(Operation::Barrier, Dtype::Byte);
        recorder.schedule(label, &facts, sequence, Duration::from_secs(1))
    }

    #[test]
    fn the_ring_keeps_the_newest_and_their_order() {
        let (recorder, label) = (Recorder::new(4), label());
        for sequence in 1..=6 {
            let ticket = schedule(&recorder, &label, sequence);
            recorder.start(ticket);
            recorder.complete(ticket, None);
        }
        let sequences: Vec<_> = recorder
            .snapshot()
            .iter()
            .map(|entry| entry.sequence)
            .collect();
        assert_eq!(sequences, [3, 4, 5, 6]);
    }

    #[test]
    fn an_entry_goes_through_its_states_in_time() {
        let (recorder, label) = (Recorder::new(4), label());
        let ticket = schedule(&recorder, &label, 1);
        assert_eq!(recorder.snapshot()[0].progress, Progress::Scheduled);
        recorder.start(ticket);
        assert!(recorder.snapshot()[0].is_active());
        recorder.fail(ticket, "lost".into());
        recorder.start(ticket);
        let entry = &recorder.snapshot()[0];
        assert_eq!(entry.progress, Progress::Failed("lost".into()));
        let times = [
            Some(entry.created),
            entry.started.min(entry.ended),
            entry.ended,
        ];
        assert!(times.is_sorted(), "{times:?}");
    }

    #[test]
    fn an_operation_ends_at_the_moment_that_is_given() {
        let (recorder, label) = (Recorder::new(4), label());
        let ticket = schedule(&recorder, &label, 1);
        let moment = recorder.now();
        while recorder.now().0 == moment.0 {}
        recorder.complete(ticket, Some(moment));
        let later = schedule(&recorder, &label, 2);
        recorder.complete(later, Some(later.created()));
        let entries = recorder.snapshot();
        assert!(entries[0].created <= entries[0].ended.unwrap());
        assert!(entries[0].ended.unwrap() <= entries[1].created);
        assert_eq!(entries[1].ended, Some(entries[1].created));
    }

    #[test]
    fn a_late_end_does_not_touch_the_entry_that_took_the_slot() {
        let (recorder, label) = (Recorder::new(1), label());
        let late = schedule(&recorder, &label, 1);
        schedule(&recorder, &label, 2);
        recorder.complete(late, None);
        assert_eq!(recorder.snapshot()[0].progress, Progress::Scheduled);
    }

    #[test]
    fn a_reset_forgets_and_a_recorder_of_no_entries_keeps_none() {
        let (recorder, label) = (Recorder::new(4), label());
        schedule(&recorder, &label, 1);
        recorder.reset();
        schedule(&recorder, &label, 2);
        assert_eq!(recorder.snapshot().len(), 1);
        let none = Recorder::new(0);
        none.complete(schedule(&none, &label, 1), None);
        assert!(none.snapshot().is_empty());
    }
}
