//! Windows as clients see them: registered and ended in order with the communicator's collectives,
//! used in order with its sends and receives.
//!
//! Must not know how a window reaches the memory of others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ferrocomm_core::call::{Mode, Operation, Region, Stream};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::window::{self as core, Access, OneSided, Registration, WindowCall};
use ferrocomm_core::{Error, ErrorKind, Result};

use crate::check::{invalid, whole};
use crate::communicator::Communicator;
use crate::counters::raise;
use crate::deferred::Collecting;
use crate::pending::Pending;
use crate::process::process;
use crate::recorder::{Facts, Ticket};

/// Memory of every rank that the others write to and read from on their own. Any thread may use it.
pub struct Window {
    communicator: Arc<Communicator>,
    window: Arc<dyn core::Window>,
    memory: Region,
    /// changed while the communicator's order is held
    over: AtomicBool,
}

impl Communicator {
    /// Makes a window of `memory` on every rank: a collective. `timeout` `None`: the communicator's.
    ///
    /// `memory` stays valid until the window is deregistered, or the communicator is finalized or
    /// aborted.
    ///
    /// # Errors
    /// `Unsupported` by an engine without windows; whatever kept the ranks from making it.
    pub fn open_window(
        self: &Arc<Self>,
        memory: Region,
        timeout: Option<Duration>,
        stream: Stream,
    ) -> Result<Window> {
        let registered = self.together(
            Operation::TensorRegister,
            (memory, timeout, stream),
            || Ok(()),
            |registration, issued| self.group()?.open_window(registration, issued),
        );
        Ok(Window {
            communicator: self.clone(),
            window: registered?,
            memory,
            over: AtomicBool::new(false),
        })
    }

    /// Runs what all ranks do to a window together, as one of the communicator's collectives. `admit`
    /// says whether it may start, while the order is held.
    fn together<T>(
        &self,
        operation: Operation,
        (memory, timeout, stream): (Region, Option<Duration>, Stream),
        admit: impl FnOnce() -> Result<()>,
        act: impl FnOnce(Registration, &mut dyn FnMut()) -> Result<T>,
    ) -> Result<T> {
        let named = |error| self.named(error, operation);
        self.group().map_err(named)?;
        let timeout = self.timeout_for(timeout).map_err(named)?;
        let facts = Facts {
            input_bytes: memory.bytes,
            ..Facts::bare(operation, Dtype::Byte)
        };
        let collecting = Collecting::start();
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.admit().and_then(|()| admit()).map_err(named)?;
        let sequence = raise(&self.collectives, 1);
        let ticket = process()
            .recorder
            .begin(self.label(), &facts, sequence, timeout);
        self.counters().add(operation, facts.payload_bytes());
        let mut held = Some((order, collecting));
        let mut issued = || drop(held.take());
        let registration = Registration {
            memory,
            sequence,
            timeout,
            stream,
        };
        let outcome = act(registration, &mut issued);
        issued();
        let outcome = outcome.map_err(|error| named(error).sequence(sequence));
        let ended = outcome.as_ref().map(drop).map_err(Clone::clone);
        if ended
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Interrupted)
        {
            self.abort();
        }
        self.shared().settle(ticket, operation, &ended);
        outcome
    }
}

impl Window {
    /// The communicator it belongs to.
    pub fn communicator(&self) -> &Arc<Communicator> {
        &self.communicator
    }

    /// Bytes of the window of `rank`.
    pub fn bytes(&self, rank: GroupRank) -> usize {
        self.window.bytes(rank)
    }

    /// Whether this process reaches the window of `rank` by an address.
    pub fn access(&self, rank: GroupRank) -> Access {
        self.window.access(rank)
    }

    /// Where the window of `rank` lies in this process; valid as long as this object.
    ///
    /// # Errors
    /// `Unsupported`, where it is out of reach.
    pub fn map(&self, rank: GroupRank) -> Result<Region> {
        self.communicator.check_process()?;
        self.window.map(rank).map_err(|error| {
            error
                .communicator(&self.communicator.label().name)
                .rank(self.communicator.rank())
                .peers([rank])
        })
    }

    /// Runs an operation on the caller's thread until it is over. `timeout` `None`: the
    /// communicator's. The region of `task` stays valid until this returns.
    ///
    /// # Errors
    /// `InvalidArgument` before anything moves; else how the operation failed.
    pub fn run(&self, task: OneSided, dtype: Dtype, timeout: Option<Duration>) -> Result<()> {
        let operation = task.operation();
        let named = |error| self.communicator.named(error, operation);
        let (call, facts, order, collecting) =
            self.turn(task, dtype, timeout, Mode::Sync).map_err(named)?;
        let sequence = call.sequence;
        let mut held = Some((order, collecting));
        let mut ticket = None;
        let mut issued = || {
            if let Some(held) = held.take() {
                ticket = Some(self.note(&call, &facts));
                drop(held);
            }
        };
        let outcome = self.window.run(call, &mut issued);
        issued();
        let outcome = outcome.map_err(|error| named(error).sequence(sequence));
        if let Some(ticket) = ticket {
            self.communicator
                .shared()
                .settle(ticket, operation, &outcome);
        }
        outcome
    }

    /// Starts an operation for a caller whose own work is on `stream`. `timeout` as for `run`. The
    /// region of `task` stays valid until the operation is complete.
    ///
    /// # Errors
    /// `InvalidArgument`; whatever keeps it from starting. Later failures are the pending operation's
    /// outcome.
    pub fn start_on(
        &self,
        task: OneSided,
        dtype: Dtype,
        timeout: Option<Duration>,
        mode: Mode,
        stream: Stream,
    ) -> Result<Pending> {
        let operation = task.operation();
        let named = |error| self.communicator.named(error, operation);
        let (call, facts, order, collecting) =
            self.turn(task, dtype, timeout, mode).map_err(named)?;
        let ticket = self.note(&call, &facts);
        let issued = self.window.issue_on(call, stream);
        drop(order);
        drop(collecting);
        let shared = self.communicator.shared();
        match issued {
            Ok(work) => Ok(self.communicator.pending(work, ticket)),
            Err(error) => {
                let error = named(error).sequence(call.sequence);
                shared.settle(ticket, operation, &Err(error.clone()));
                Err(error)
            }
        }
    }

    /// Ends the window: a collective, after which nobody uses the memory through it. `timeout` as for
    /// `run`.
    ///
    /// # Errors
    /// `State` the second time; what kept the ranks from agreeing, and the window is over all the same.
    pub fn deregister(&self, timeout: Option<Duration>, stream: Stream) -> Result<()> {
        self.communicator.together(
            Operation::TensorDeregister,
            (self.memory, timeout, stream),
            || {
                self.is_open()?;
                self.over.store(true, Ordering::Release);
                Ok(())
            },
            |end, issued| self.window.deregister(end, issued),
        )
    }

    /// Whether it may be used.
    fn is_open(&self) -> Result<()> {
        if self.over.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::State, "the window is deregistered")
                .remedy("register a tensor again, on all ranks"));
        }
        Ok(())
    }

    /// Checks the call, and gives it its number while the order is held.
    fn turn(
        &self,
        task: OneSided,
        dtype: Dtype,
        timeout: Option<Duration>,
        mode: Mode,
    ) -> Result<(WindowCall, Facts, std::sync::MutexGuard<'_, ()>, Collecting)> {
        self.communicator.group()?;
        self.fits(&task, dtype)?;
        let timeout = self.communicator.timeout_for(timeout)?;
        let facts = Facts::of_one_sided(&task, dtype);
        let collecting = Collecting::start();
        let order = self.communicator.order.lock();
        let order = order.unwrap_or_else(PoisonError::into_inner);
        self.communicator.admit()?;
        self.is_open()?;
        let call = WindowCall {
            task,
            dtype,
            sequence: raise(&self.communicator.parts, 1),
            timeout,
            mode,
        };
        Ok((call, facts, order, collecting))
    }

    /// Counts and records a call; the order is held.
    fn note(&self, call: &WindowCall, facts: &Facts) -> Ticket {
        self.communicator.count(facts, call.sequence);
        process().recorder.begin(
            self.communicator.label(),
            facts,
            call.sequence,
            call.timeout,
        )
    }

    /// Whether the task lies within the other's window.
    fn fits(&self, task: &OneSided, dtype: Dtype) -> Result<()> {
        let (region, offset, peer) = (task.region(), task.offset(), task.peer());
        whole("the buffer", region, dtype)?;
        if peer.index() >= self.communicator.size() {
            return Err(invalid("the peer is not a rank of this communicator").got(peer));
        }
        let window = match task {
            OneSided::Put { .. } | OneSided::Get { .. } => self.window.bytes(peer),
            OneSided::Signal { .. } | OneSided::WaitSignal { .. } => return Ok(()),
        };
        if offset
            .checked_add(region.bytes)
            .is_none_or(|end| end > window)
        {
            let each = dtype.size();
            return Err(invalid("the bytes do not lie within the other's window")
                .got(format!(
                    "{} elements of {dtype} at offset {}",
                    region.bytes / each,
                    offset / each
                ))
                .expected(format!(
                    "at most {} elements, the {window} bytes that rank {peer} registered",
                    window / each
                ))
                .peers([peer]));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ferrocomm_core::work::Work;

    use super::*;
    use crate::testing::{Puppet, region};

    /// A window that notes its calls: 16 bytes on rank 0, 64 on rank 1.
    #[derive(Default)]
    struct Glass(Mutex<Vec<WindowCall>>);

    impl core::Window for Glass {
        fn bytes(&self, rank: GroupRank) -> usize {
            [16, 64][rank.index()]
        }

        fn access(&self, _: GroupRank) -> Access {
            Access::Separate
        }

        fn map(&self, _: GroupRank) -> Result<Region> {
            Err(Error::new(ErrorKind::Unsupported, "out of reach"))
        }

        fn issue_on(&self, call: WindowCall, _: Stream) -> Result<Arc<Work>> {
            self.0.lock().unwrap().push(call);
            Ok(Arc::new(Work::new(call.task.operation(), call.sequence)))
        }

        fn run(&self, call: WindowCall, _: &mut dyn FnMut()) -> Result<()> {
            self.0.lock().unwrap().push(call);
            Ok(())
        }

        fn deregister(&self, _: Registration, _: &mut dyn FnMut()) -> Result<()> {
            Ok(())
        }
    }

    fn put(to: u32, offset: usize, bytes: usize) -> OneSided {
        OneSided::Put {
            source: region(bytes),
            to: GroupRank::new(to),
            offset,
            signal: false,
        }
    }

    fn window(name: &str) -> (Arc<Glass>, Window) {
        let (puppet, glass) = (Puppet::new(), Arc::new(Glass::default()));
        puppet.script().window = Some(glass.clone());
        let communicator = Communicator::of_group(name, puppet);
        let made = communicator.open_window(region(16), None, Stream::default());
        (glass, made.unwrap())
    }

    #[test]
    fn an_engine_without_windows_says_so_and_goes_on() {
        let communicator = Communicator::of_group("no windows", Puppet::new());
        let made = communicator.open_window(region(16), None, Stream::default());
        let error = made.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("tensor_register"), "{error}");
        assert_eq!(communicator.state_name(), c"ready");
    }

    #[test]
    fn bounds_are_those_of_the_other_rank() {
        let (glass, window) = window("bounds");
        let float = Dtype::Float32;
        for (to, offset, bytes) in [(1, 60, 8), (0, 16, 4), (1, usize::MAX, 4), (0, 0, 20)] {
            let error = window.run(put(to, offset, bytes), float, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("operation put"), "{error}");
            assert_eq!(error.peer_ranks(), [GroupRank::new(to)]);
        }
        let half = window.run(put(1, 0, 6), float, None).unwrap_err();
        assert!(half.to_string().contains("whole elements"), "{half}");
        assert!(window.run(put(2, 0, 4), float, None).is_err());
        assert!(glass.0.lock().unwrap().is_empty());
        window.run(put(1, 60, 4), float, None).unwrap();
        window.run(put(0, 16, 0), float, None).unwrap();
        assert_eq!(glass.0.lock().unwrap().len(), 2);
    }

    #[test]
    fn a_window_ends_once_and_is_not_used_after() {
        let (glass, window) = window("ended");
        let from = GroupRank::new(1);
        let pending = window
            .start_on(
                OneSided::WaitSignal { from },
                Dtype::Byte,
                None,
                Mode::Async,
                Stream::default(),
            )
            .unwrap();
        assert_eq!(pending.sequence(), 1);
        pending.cancel().unwrap();
        window.deregister(None, Stream::default()).unwrap();
        let again = window.deregister(None, Stream::default()).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::State);
        let late = window.run(put(1, 0, 4), Dtype::Byte, None).unwrap_err();
        assert!(late.to_string().contains("deregistered"), "{late}");
        assert_eq!(glass.0.lock().unwrap().len(), 1);
        let communicator = window.communicator();
        // The registration and its end.
        assert_eq!(communicator.sequence(), 2);
        assert_eq!(communicator.state_name(), c"ready");
    }
}
