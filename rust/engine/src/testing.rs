//! A group for tests that moves nothing: the test decides how each operation ends. Must not know
//! any engine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrocomm_core::call::{Call, Operation, PointToPoint, Region, Task};
use ferrocomm_core::group::{Group, Part};
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::window::{Registration, Window};
use ferrocomm_core::work::Work;
use ferrocomm_core::{Error, ErrorKind, Result, interrupt};

/// Room for a busy machine; reaching it fails the test.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(20);

type Hook = Arc<dyn Fn(&Puppet) + Send + Sync>;

/// The group.
#[derive(Default)]
pub(crate) struct Puppet {
    script: Mutex<Script>,
}

/// What it has seen and what it shall do.
#[derive(Default)]
pub(crate) struct Script {
    /// every call with its work
    pub(crate) issued: Vec<(Call, Arc<Work>)>,
    /// splits: ranks, name, sequence
    pub(crate) splits: Vec<(Vec<GroupRank>, String, u64)>,
    /// time-out and hints of the last split, on whichever side of it
    pub(crate) wishes: Option<(Duration, Vec<(String, String)>)>,
    /// runs inside `issue`, after the work exists
    pub(crate) inside_issue: Option<Hook>,
    /// the next `issue` fails with this
    pub(crate) refuse: Option<Error>,
    /// what `finalize` answers
    pub(crate) finalize: Option<Error>,
    /// what `failure` answers
    pub(crate) failure: Option<Error>,
    /// what `register` answers; without one it has no windows
    pub(crate) window: Option<Arc<dyn Window>>,
    /// calls of `abort`
    pub(crate) aborts: usize,
}

impl Puppet {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends operation number `index` of those issued.
    pub(crate) fn end(&self, index: usize, outcome: Result<()>) {
        let work = self.script().issued[index].1.clone();
        work.run(work.complete(outcome));
    }

    fn end_all(&self, kind: ErrorKind) {
        let works: Vec<_> = self
            .script()
            .issued
            .iter()
            .map(|(_, work)| work.clone())
            .collect();
        for work in works {
            work.run(work.complete(Err(Error::new(kind, "ended by the test"))));
        }
    }
}

impl Group for Puppet {
    fn rank(&self) -> GroupRank {
        GroupRank::new(0)
    }

    fn size(&self) -> usize {
        2
    }

    fn issue(&self, call: Call) -> Result<Arc<Work>> {
        if let Some(error) = self.script().refuse.take() {
            return Err(error);
        }
        let operation = match &call.task {
            Task::Collective(collective) => collective.operation(),
            Task::PointToPoint(PointToPoint::Send { .. }) => Operation::Send,
            Task::PointToPoint(PointToPoint::Recv { .. }) => Operation::Recv,
            Task::Batch(_) => Operation::Batch,
        };
        let work = Arc::new(Work::new(operation, call.sequence));
        self.script().issued.push((call, work.clone()));
        let hook = self.script().inside_issue.clone();
        if let Some(hook) = hook {
            hook(self);
        }
        Ok(work)
    }

    fn wait(&self, work: &Arc<Work>, limit: Option<Duration>) -> Result<()> {
        let begin = Instant::now();
        loop {
            if let Some(outcome) = work.outcome() {
                return outcome;
            }
            interrupt::check()?;
            if limit.is_some_and(|limit| begin.elapsed() > limit) {
                let late = Error::new(ErrorKind::Timeout, "nobody ended it");
                work.run(work.complete(Err(late)));
            }
            assert!(begin.elapsed() < WATCHDOG, "nobody ended {work:?}");
            std::thread::yield_now();
        }
    }

    fn cancel(&self, work: &Arc<Work>) {
        let error = Error::new(ErrorKind::Cancelled, "cancelled by the caller");
        work.run(work.complete(Err(error)));
    }

    fn split(&self, ranks: &[GroupRank], part: &Part<'_>) -> Result<Arc<dyn Group>> {
        self.stand_aside(part)?;
        self.script()
            .splits
            .push((ranks.to_vec(), part.name.to_owned(), part.sequence));
        Ok(Self::new())
    }

    fn stand_aside(&self, part: &Part<'_>) -> Result<()> {
        self.script().wishes = Some((part.timeout, part.hints.to_vec()));
        Ok(())
    }

    fn open_window(&self, _: Registration, issued: &mut dyn FnMut()) -> Result<Arc<dyn Window>> {
        issued();
        self.script()
            .window
            .clone()
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, "the test has no windows"))
    }

    fn finalize(&self, _: Duration) -> Result<()> {
        let answer = self.script().finalize.clone();
        answer.map_or(Ok(()), Err)
    }

    fn abort(&self) {
        self.script().aborts += 1;
        self.end_all(ErrorKind::Aborted);
    }

    fn failure(&self) -> Option<Error> {
        self.script().failure.clone()
    }

    fn transport(&self) -> String {
        "none".into()
    }
}

/// A buffer that a puppet never looks at.
pub(crate) fn region(bytes: usize) -> Region {
    Region {
        address: 4096,
        bytes,
    }
}
