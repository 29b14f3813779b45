//! Collectives in shared memory on the caller's thread, without the engine's lock, for as long as a
//! wait is worth a spin; what takes longer is the engine's. Must not know links or other operations.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrocomm_core::call::{Conditions, Mode, Operation, Task};
use ferrocomm_core::error::Result;
use ferrocomm_core::group::Notes;
use ferrocomm_core::work::Work;

use crate::engine::HostGroup;
use crate::meeting::{self, Meeting, Stepped};
use crate::progress::{FEW_YIELDS, YIELDS};
use crate::seat::{Seat, Turn};

/// Looks at the peers' flags between two looks at the clock.
const LOOKS: u32 = 64;
/// Ranks that start a short operation at one time are no further apart: it ends before anybody has
/// to be told of it.
const PATIENCE: Duration = Duration::from_micros(3);
/// Longer operations are not worth holding up the caller who starts them.
const SHORT: usize = 16 << 10;

/// What became of a call.
pub(crate) enum Attempt {
    /// over
    Done,
    /// the engine has it
    Handed(Arc<Work>),
    /// not begun, and not taken out: its turn has not come, or it is none for this place
    Not,
}

impl HostGroup {
    /// Begins `task` if its turn is now.
    ///
    /// # Errors
    /// As `Group::issue`.
    #[inline(always)]
    pub(crate) fn at_once(
        &self,
        task: &mut Task,
        conditions: &Conditions,
        notes: &mut dyn Notes,
    ) -> Result<Attempt> {
        let (Some(seat), Task::Collective(collective)) = (self.place().seat(), &*task) else {
            return Ok(Attempt::Not);
        };
        if seat.arena().is_failed() {
            return Ok(Attempt::Not);
        }
        // What was queued before has its turn first.
        let Some(mut turn) = seat.try_turn().filter(|_| self.place().queued() == 0) else {
            return Ok(Attempt::Not);
        };
        let Some(brief) = seat.brief(collective, conditions.dtype) else {
            return self.longer((seat, turn), task, conditions, notes);
        };
        if !seat.post(&brief, &mut turn) {
            return self.longer((seat, turn), task, conditions, notes);
        }
        // All that the others need not wait for is done while their flags are on their way.
        let patience = Patience::new(seat.spin(&turn), conditions.mode, brief.bytes());
        let ready = brief.ready();
        brief.expect(&turn);
        notes.issued();
        brief.fetch_ahead(&turn);
        // Without its reduction the engine finds what kept it from being made.
        if let Ok(ready) = ready {
            notes.looks();
            if patience.wait(|| notes.looks_again(), || ready.step(&mut turn)) {
                self.let_go(turn);
                return Ok(Attempt::Done);
            }
            notes.waits();
        }
        let meeting = Meeting::of_posted(collective.clone(), conditions.dtype);
        Ok(self.hand_over(collective.operation(), conditions, meeting, turn))
    }

    /// `at_once`, for what is not brief.
    fn longer(
        &self,
        (seat, mut turn): (&Seat, Turn<'_>),
        task: &mut Task,
        conditions: &Conditions,
        notes: &mut dyn Notes,
    ) -> Result<Attempt> {
        let Task::Collective(collective) = conditions.call(task).task else {
            return Ok(Attempt::Not);
        };
        let patience = Patience::new(
            seat.spin(&turn),
            conditions.mode,
            collective.payload_bytes(),
        );
        meeting::check(
            &collective,
            conditions.dtype,
            seat.me(),
            seat.arena().ranks(),
        )?;
        let operation = collective.operation();
        let mut meeting = Meeting::new(collective, conditions.dtype);
        // A short one is posted first: what the caller does with its news takes time that the others
        // need to come as far.
        let mut posted = patience.short.then(|| seat.step(&mut meeting, &mut turn));
        notes.issued();
        let over = patience.wait(std::hint::spin_loop, || {
            let posted = posted.take();
            posted.unwrap_or_else(|| seat.step(&mut meeting, &mut turn))
        });
        if over {
            self.let_go(turn);
            return Ok(Attempt::Done);
        }
        Ok(self.hand_over(operation, conditions, meeting, turn))
    }

    /// Gives the turn back, and sees to those who could not get it.
    #[inline(always)]
    fn let_go(&self, turn: Turn<'_>) {
        drop(turn);
        if self.place().has_queued_meanwhile() {
            self.progress().with(|core| core.kick(self.comm()));
        }
    }

    /// Gives the engine what takes longer.
    #[cold]
    fn hand_over(
        &self,
        operation: Operation,
        conditions: &Conditions,
        meeting: Meeting,
        turn: Turn<'_>,
    ) -> Attempt {
        let work = Arc::new(Work::new(operation, conditions.sequence));
        let manner = (conditions.mode, conditions.timeout);
        self.progress()
            .with(|core| core.take_over(self.comm(), meeting, &work, manner, turn));
        Attempt::Handed(work)
    }
}

/// How long the caller's thread waits for the others.
#[derive(Clone, Copy)]
struct Patience {
    /// looks at their flags for so long; zero: ranks share cores; `None`: does not wait
    spin: Option<Duration>,
    /// times the core is given away when ranks share it
    yields: u32,
    /// little is moved
    short: bool,
}

impl Patience {
    /// `spin`: how long a wait is worth spinning on this machine.
    fn new(spin: Duration, mode: Mode, bytes: usize) -> Self {
        let short = bytes <= SHORT;
        Self {
            spin: match mode {
                Mode::Sync => Some(spin),
                Mode::Async => (short && !spin.is_zero()).then_some(spin.min(PATIENCE)),
            },
            // While a core is given away it computes for none of the ranks: that pays where they are
            // soon done with their parts.
            yields: if bytes <= 8 * SHORT {
                YIELDS
            } else {
                FEW_YIELDS
            },
            short,
        }
    }

    /// Steps until it is over, or until it is better to sleep; whether it is over. `pause` comes
    /// between two looks for others.
    fn wait(self, mut pause: impl FnMut(), mut step: impl FnMut() -> Stepped) -> bool {
        let Self { spin, yields, .. } = self;
        let mut since = None;
        let mut looks = 0_u32;
        loop {
            match step() {
                Stepped::Done => return true,
                Stepped::Waiting(true) => {
                    since = None;
                    looks = 0;
                }
                Stepped::Waiting(false) if spin.is_none() => return false,
                // Others need this core to come as far.
                Stepped::Waiting(false) if spin == Some(Duration::ZERO) => {
                    looks += 1;
                    if looks > yields {
                        return false;
                    }
                    std::thread::yield_now();
                    pause();
                }
                Stepped::Waiting(false) => {
                    looks += 1;
                    // Reading the clock takes as long as many looks.
                    if looks.is_multiple_of(LOOKS) {
                        let since = since.get_or_insert_with(Instant::now);
                        if spin.is_none_or(|spin| since.elapsed() >= spin) {
                            return false;
                        }
                    }
                    pause();
                }
                // The engine finds the same, and fails the communicator for it.
                Stepped::Differs { .. } | Stepped::Failed(_) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ferrocomm_core::call::Collective;
    use ferrocomm_core::dtype::Dtype;
    use ferrocomm_core::group::Group;

    use super::*;
    use crate::testing::{collective, groups};

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Heard {
        Issued,
        Looks,
        LooksAgain,
        Waits,
    }

    #[derive(Default)]
    struct Listener(Vec<Heard>);

    impl Notes for Listener {
        fn issued(&mut self) {
            self.0.push(Heard::Issued);
        }
        fn looks(&mut self) {
            self.0.push(Heard::Looks);
        }
        fn looks_again(&mut self) {
            self.0.push(Heard::LooksAgain);
        }
        fn waits(&mut self) {
            self.0.push(Heard::Waits);
        }
    }

    /// What the notes of each of `count` barriers hear on one rank, which comes late by `late`.
    fn barriers(group: &HostGroup, count: u64, late: Duration) -> Vec<Vec<Heard>> {
        (1..=count)
            .map(|sequence| {
                std::thread::sleep(late);
                let mut call = collective(Collective::Barrier, Dtype::Byte, sequence, Mode::Sync);
                let (conditions, mut heard) = (call.conditions(), Listener::default());
                group.run(&mut call.task, &conditions, &mut heard).unwrap();
                heard.0
            })
            .collect()
    }

    /// What is heard on two ranks, of which one comes late by `late`.
    fn heard(count: u64, late: Duration) -> [Vec<Vec<Heard>>; 2] {
        let groups = groups(2);
        std::thread::scope(|scope| {
            let late = scope.spawn(|| barriers(&groups[1], count, late));
            let early = barriers(&groups[0], count, Duration::ZERO);
            [early, late.join().unwrap()]
        })
    }

    #[test]
    fn a_short_collective_is_issued_before_its_rank_looks_for_others() {
        let heard = heard(200, Duration::ZERO).concat();
        for call in &heard {
            assert_eq!(call.first(), Some(&Heard::Issued), "{call:?}");
            let looks = call.iter().skip(1).filter(|heard| **heard != Heard::Waits);
            let at_first = looks.clone().take(1).all(|heard| *heard == Heard::Looks);
            let again = looks.skip(1).all(|heard| *heard == Heard::LooksAgain);
            assert!(at_first && again, "{call:?}");
        }
        // The first, before all know that they share memory, and any that met a busy engine, are the
        // engine's.
        assert!(heard.iter().any(|call| call.len() > 1));
    }

    #[test]
    fn a_short_collective_that_takes_longer_says_so_last() {
        // Longer than anybody spins.
        let [early, _] = heard(50, Duration::from_millis(2));
        let waits = |call: &&Vec<Heard>| call.contains(&Heard::Waits);
        assert!(early.iter().filter(waits).count() > 0);
        for call in early.iter().filter(waits) {
            assert_eq!(call.last(), Some(&Heard::Waits), "{call:?}");
        }
    }
}
