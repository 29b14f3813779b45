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
    /// not begun: its turn has not come, or it is none for this place
    Not(Call),
}

impl HostGroup {
    /// Begins `call` if its turn is now. `issued` is called once it has its place in the order.
    ///
    /// # Errors
    /// As `Group::issue`.
    pub(crate) fn at_once(&self, call: Call, issued: &mut dyn FnMut()) -> Result<Attempt> {
        let Some(seat) = self.place().seat() else {
            return Ok(Attempt::Not(call));
        };
        let Task::Collective(collective) = &call.task else {
            return Ok(Attempt::Not(call));
        };
        if seat.arena().is_failed() {
            return Ok(Attempt::Not(call));
        }
        // What was queued before has its turn first.
        let Some(mut turn) = seat.try_turn().filter(|_| self.place().queued() == 0) else {
            return Ok(Attempt::Not(call));
        };
        meeting::check(collective, call.dtype, seat.me(), seat.arena().ranks())?;
        let spin = match call.mode {
            Mode::Sync => seat.spin(&turn),
            Mode::Async => seat.spin(&turn).min(PATIENCE),
        };
        // While a core is given away it computes for none of the ranks: that pays where they are soon
        // done with their parts.
        let yields = if collective.payload_bytes() <= 8 * SHORT {
            YIELDS
        } else {
            FEW_YIELDS
        };
        let waits = match call.mode {
            Mode::Sync => true,
            Mode::Async => !spin.is_zero() && collective.payload_bytes() <= SHORT,
        };
        let operation = collective.operation();
        let (sequence, timeout, mode) = (call.sequence, call.timeout, call.mode);
        let Task::Collective(collective) = call.task else {
            return Ok(Attempt::Not(call));
        };
        let mut meeting = Meeting::new(collective, call.dtype);
        issued();
        if wait_a_little(seat, &mut meeting, &mut turn, waits.then_some(spin), yields) {
            drop(turn);
            if self.place().has_queued_meanwhile() {
                self.progress().with(|core| core.kick(self.comm()));
            }
            return Ok(Attempt::Done);
        }
        let work = Arc::new(Work::new(operation, sequence));
        self.progress().with(|core| {
            core.take_over(self.comm(), meeting, &work, (mode, timeout), turn);
        });
        Ok(Attempt::Handed(work))
    }
}

/// Whether the meeting is over before it is better to sleep. `None`: does not wait at all; zero: ranks
/// share cores.
fn wait_a_little(
    seat: &Seat,
    meeting: &mut Meeting,
    turn: &mut Turn<'_>,
    spin: Option<Duration>,
    yields: u32,
) -> bool {
    let mut since = None;
    let mut looks = 0_u32;
    loop {
        match seat.step(meeting, turn) {
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
