//! What a communicator whose members change has beside NCCL: the group over which they met. Over it go
//! the few words that NCCL needs to hear, and through it each hears when another one is lost or leaves.
//!
//! Another engine's group; which one, this crate must not know.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use ferrocomm_core::call::{Call, Collective, Mode, PointToPoint, Region, Regions, Source, Task};
use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::group::Group;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::work::Work;
use ferrocomm_core::{Error, ErrorKind, Result, interrupt};

/// As long as there are programs.
const FOR_EVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
/// Nobody sends to this tag.
const UNUSED_TAG: u32 = u32::MAX;

/// The group, and receives of every other rank that nobody answers: they fail when one of them is lost,
/// or the group fails.
pub(crate) struct Ties {
    group: Arc<dyn Group>,
    sentinel: Arc<Work>,
    collectives: AtomicU64,
    /// this rank is about to leave it
    pub(crate) leaving: AtomicBool,
}

impl Ties {
    /// Listens to `group` from now on.
    ///
    /// # Errors
    /// The group's.
    pub(crate) fn new(group: Arc<dyn Group>) -> Result<Self> {
        let mut buffer = vec![0u8; group.size()].into_boxed_slice();
        let whole = Region {
            address: buffer.as_mut_ptr().expose_provenance(),
            bytes: buffer.len(),
        };
        let own = group.rank();
        let others = (0u32..)
            .map(GroupRank::new)
            .take(group.size())
            .filter(|rank| *rank != own);
        let receives = others.map(|rank| {
            let receive = PointToPoint::Recv {
                buffer: whole.slice(rank.index(), 1),
                from: Source::Rank(rank),
                tag: UNUSED_TAG,
            };
            (receive, Dtype::Byte)
        });
        let task = Task::Batch(receives.collect());
        let sentinel = group.issue(call(task, 1, FOR_EVER))?;
        // The buffer is lent until the work is complete.
        sentinel.on_complete(move |_| drop(buffer));
        Ok(Self {
            group,
            sentinel,
            collectives: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
        })
    }

    /// Rank and size.
    pub(crate) fn place(&self) -> (GroupRank, usize) {
        (self.group.rank(), self.group.size())
    }

    /// Why the group serves no more: a member is lost, or has left for another group.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.sentinel
            .outcome()?
            .err()
            .filter(|error| error.kind() != ErrorKind::Cancelled)
    }

    /// Runs `heard` when there is a failure.
    pub(crate) fn on_failure(&self, heard: impl FnOnce() + Send + 'static) {
        self.sentinel.on_complete(move |outcome| {
            if outcome.is_err() {
                heard();
            }
        });
    }

    /// What every rank gives here. `stop` is asked now and then, and ends the group for all with its
    /// error.
    ///
    /// # Errors
    /// The group's; that of `stop`.
    pub(crate) fn gather<const N: usize>(
        &self,
        own: [u8; N],
        deadline: Deadline,
        stop: impl Fn() -> Option<Error>,
    ) -> Result<Vec<[u8; N]>> {
        let mine: Box<[u8]> = Box::new(own);
        let mut all = vec![0u8; N * self.group.size()].into_boxed_slice();
        let task = Task::Collective(Collective::AllGather {
            input: region_of(&mine),
            outputs: Regions::Equal {
                whole: Region {
                    address: all.as_mut_ptr().expose_provenance(),
                    bytes: all.len(),
                },
                each: N,
            },
        });
        let number = self.collectives.fetch_add(1, Ordering::Relaxed) + 1;
        let limit = deadline.left().max(Duration::from_millis(1));
        let (told, hear) = channel();
        let work = self.group.issue(call(task, number, limit))?;
        work.on_complete(move |outcome| {
            // Whoever waits does so until this comes.
            let _nobody_waits = told.send(outcome.clone());
        });
        let outcome = loop {
            match hear.recv_timeout(interrupt::INTERVAL) {
                Ok(outcome) => break outcome,
                Err(RecvTimeoutError::Disconnected) => break Ok(()),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(error) = stop() {
                        self.group.fail(error);
                    }
                }
            }
        };
        drop(mine);
        outcome?;
        let (notes, _) = all.as_chunks::<N>();
        Ok(notes.to_vec())
    }

    /// Ends the group for all its members.
    pub(crate) fn fail(&self, cause: Error) {
        self.group.fail(cause);
    }

    /// Ends the group together with the others.
    pub(crate) fn close(&self, limit: Duration) {
        self.group.cancel(&self.sentinel);
        if let Err(error) = self.group.finalize(limit) {
            tracing::debug!(%error, "the group over which members met does not end in order");
        }
    }
}

fn region_of(bytes: &[u8]) -> Region {
    Region {
        address: bytes.as_ptr().expose_provenance(),
        bytes: bytes.len(),
    }
}

fn call(task: Task, sequence: u64, timeout: Duration) -> Call {
    Call {
        task,
        dtype: Dtype::Byte,
        sequence,
        timeout,
        mode: Mode::Async,
    }
}
