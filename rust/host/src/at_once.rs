//! Collectives in shared memory on the caller's thread, without the engine's lock, for as long as a
//! wait is worth a spin; what takes longer is the engine's. Must not know links or other operations.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrocomm_core::call::{Call, Mode, Task};
use ferrocomm_core::error::Result;
use ferrocomm_core::work::Work;

use crate::engine::HostGroup;
use crate::meeting::{self, Meeting, Stepped};
use crate::progress::{FEW_YIELDS, YIELDS};
use crate::seat::Turn;

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
    /// not begun: its turn has not come, or it is none for this place
    Not(Call),
}

impl HostGroup {
    /// Begins `call` if its turn is now. `issued` is called once it has its place in the order.
    ///
    /// # Errors
    /// As `Group::issue`.
    #[inline(always)]
    pub(crate) fn at_once(&self, call: Call, issued: &mut dyn FnMut()) -> Result<Attempt> {
        let Some(seat) = self.place().seat() else {
            return Ok(Attempt::Not(call));
        };
        if seat.arena().is_failed() {
            return Ok(Attempt::Not(call));
        }
        // What was queued before has its turn first.
        let Some(mut turn) = seat.try_turn().filter(|_| self.place().queued() == 0) else {
            return Ok(Attempt::Not(call));
        };
        let spin = seat.spin(&turn);
        if let Task::Collective(collective) = &call.task
            && let Some(brief) = seat.brief(collective, call.dtype)
            && seat.post(&brief, &mut turn)
        {
            let patience = Patience::new(spin, call.mode, collective.payload_bytes());
            issued();
            if patience.wait(|| brief.step(&mut turn)) {
                self.let_go(turn);
                return Ok(Attempt::Done);
            }
            let meeting = Meeting::of_posted(collective.clone(), call.dtype);
            let work = Work::new(collective.operation(), call.sequence);
            return Ok(self.hand_over(work, (call.mode, call.timeout), meeting, turn));
        }
        let collective = match call.task {
            Task::Collective(collective) => collective,
            task => return Ok(Attempt::Not(Call { task, ..call })),
        };
        meeting::check(&collective, call.dtype, seat.me(), seat.arena().ranks())?;
        let operation = collective.operation();
        let patience = Patience::new(spin, call.mode, collective.payload_bytes());
        let mut meeting = Meeting::new(collective, call.dtype);
        // A short one is posted first: what the caller does with its news takes time that the others
        // need to come as far.
        let mut posted = patience.short.then(|| seat.step(&mut meeting, &mut turn));
        issued();
        let over = patience.wait(|| {
            let posted = posted.take();
            posted.unwrap_or_else(|| seat.step(&mut meeting, &mut turn))
        });
        if over {
            self.let_go(turn);
            return Ok(Attempt::Done);
        }
        let work = Work::new(operation, call.sequence);
        Ok(self.hand_over(work, (call.mode, call.timeout), meeting, turn))
    }

    /// Gives the turn back, and sees to those who could not get it.
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
        work: Work,
        manner: (Mode, Duration),
        meeting: Meeting,
        turn: Turn<'_>,
    ) -> Attempt {
        let work = Arc::new(work);
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

    /// Steps until it is over, or until it is better to sleep; whether it is over.
    fn wait(self, mut step: impl FnMut() -> Stepped) -> bool {
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
                    std::hint::spin_loop();
                }
                // The engine finds the same, and fails the communicator for it.
                Stepped::Differs { .. } | Stepped::Failed(_) => return false,
            }
        }
    }
}
