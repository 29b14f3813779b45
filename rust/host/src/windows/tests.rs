//! Windows of two and three engines of this process, on every way on which one reaches another.

use std::time::Duration;

use ferrocomm_core::call::{Mode, Region, Stream};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::{ErrorKind, Result};
use ferrocomm_core::group::Group;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::window::{Access, OneSided, Registration, Window, WindowCall};

use super::HostWindow;
use crate::allocator;
use crate::engine::HostGroup;
use crate::testing::{LONG, groups, region};

/// How a rank reaches another.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Mapped,
    Kernel,
    Frames,
}

const WAYS: [Way; 3] = [Way::Mapped, Way::Kernel, Way::Frames];

/// A rank's memory for a window; freed when dropped.
struct Lent {
    region: Region,
    block: bool,
    bytes: Vec<u8>,
}

impl Lent {
    fn new(way: Way, bytes: usize) -> Self {
        let mut plain = vec![0; bytes];
        let block = way == Way::Mapped;
        let address = if block {
            let block = allocator::allocate(bytes).unwrap();
            // SAFETY: the block is new and so long.
            unsafe { block.write_bytes(0, bytes) };
            block.as_ptr() as usize
        } else {
            plain.as_mut_ptr() as usize
        };
        Self {
            region: Region { address, bytes },
            block,
            bytes: plain,
        }
    }

    fn word(&self, at: usize) -> u64 {
        assert!(8 * at + 8 <= self.region.bytes);
        // SAFETY: inside the memory; whoever wrote it has signalled.
        unsafe { ((self.region.address + 8 * at) as *const u64).read_volatile() }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.block {
            allocator::release(self.region.address).unwrap();
        }
        drop(std::mem::take(&mut self.bytes));
    }
}

fn registration(memory: Region, sequence: u64, timeout: Duration) -> Registration {
    Registration {
        memory,
        sequence,
        timeout,
        stream: Stream::default(),
    }
}

fn register(group: &HostGroup, lent: &Lent, way: Way, sequence: u64) -> HostWindow {
    let asked = registration(lent.region, sequence, LONG);
    let reaches = way != Way::Frames;
    HostWindow::register_as(group.site(), asked, reaches, &mut || {}).unwrap()
}

fn call(task: OneSided, mode: Mode, timeout: Duration) -> WindowCall {
    WindowCall {
        task,
        dtype: Dtype::Byte,
        sequence: 1,
        timeout,
        mode,
    }
}

fn run(window: &HostWindow, task: OneSided) -> Result<()> {
    window.run(call(task, Mode::Sync, LONG), &mut || {})
}

fn put(window: &HostWindow, values: &mut [u64], to: u32, offset: usize) -> Result<()> {
    let task = OneSided::Put {
        source: region(values),
        to: GroupRank::new(to),
        offset: 8 * offset,
        signal: false,
    };
    run(window, task)
}

fn signal(window: &HostWindow, to: u32) -> Result<()> {
    let to = GroupRank::new(to);
    run(window, OneSided::Signal { to })
}

fn wait(window: &HostWindow, from: u32) -> Result<()> {
    let from = GroupRank::new(from);
    run(window, OneSided::WaitSignal { from })
}

/// Runs `body` as every rank, with a window of `words` words on each.
fn ranks(count: u32, way: Way, words: usize, body: impl Fn(u32, &HostWindow, &Lent) + Sync) {
    let groups = groups(count as usize);
    std::thread::scope(|scope| {
        for (rank, group) in (0u32..).zip(&groups) {
            let body = &body;
            scope.spawn(move || {
                let lent = Lent::new(way, 8 * words);
                let window = register(group, &lent, way, 1);
                body(rank, &window, &lent);
                let end = registration(lent.region, 2, LONG);
                window.deregister(end, &mut || {}).unwrap();
            });
        }
    });
}

#[test]
fn ways_are_what_they_are_called() {
    for way in WAYS {
        ranks(2, way, 4, |rank, window, lent| {
            let other = GroupRank::new(1 - rank);
            let unified = window.access(other) == Access::Unified;
            assert_eq!(unified, way == Way::Mapped, "{way:?}");
            assert_eq!(window.map(other).is_ok(), unified);
            assert_eq!(window.access(GroupRank::new(rank)), Access::Unified);
            assert_eq!(window.map(GroupRank::new(rank)).unwrap(), lent.region);
        });
    }
}

#[test]
fn what_was_put_before_a_signal_is_there_after_it() {
    for way in WAYS {
        ranks(3, way, 3 * 5, |rank, window, lent| {
            let (next, last) = ((rank + 1) % 3, (rank + 2) % 3);
            for round in 0..1000_u64 {
                let mut values = [round; 5];
                put(window, &mut values, next, 5 * rank as usize).unwrap();
                signal(window, next).unwrap();
                wait(window, last).unwrap();
                for at in 0..5 {
                    assert_eq!(lent.word(5 * last as usize + at), round, "{way:?}");
                }
                // Only then may the other put again.
                signal(window, last).unwrap();
                wait(window, next).unwrap();
            }
        });
    }
}

#[test]
fn long_puts_arrive_whole_and_can_be_got_back() {
    let words = 1 << 18;
    for way in WAYS {
        ranks(2, way, words, |rank, window, lent| {
            let other = 1 - rank;
            let mut values: Vec<u64> = (0..words as u64 - 3).map(|at| at << rank).collect();
            let task = OneSided::Put {
                source: region(&mut values),
                to: GroupRank::new(other),
                offset: 24,
                signal: true,
            };
            run(window, task).unwrap();
            wait(window, other).unwrap();
            for at in 3..words {
                assert_eq!(lent.word(at), (at as u64 - 3) << other, "{way:?} {at}");
            }
            let mut back = vec![0_u64; words - 3];
            let task = OneSided::Get {
                target: region(&mut back),
                from: GroupRank::new(other),
                offset: 24,
            };
            run(window, task).unwrap();
            assert_eq!(back, values);
        });
    }
}

#[test]
fn every_signal_is_taken_once_whoever_waits() {
    const SIGNALS: u64 = 300;
    for way in WAYS {
        ranks(2, way, 1, |rank, window, _| {
            if rank == 0 {
                for _ in 0..SIGNALS {
                    signal(window, 1).unwrap();
                }
                wait(window, 1).unwrap();
                return;
            }
            // As many waits as signals return, and not one more.
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for _ in 0..SIGNALS / 3 {
                            wait(window, 0).unwrap();
                        }
                    });
                }
            });
            let from = GroupRank::new(0);
            let more = call(OneSided::WaitSignal { from }, Mode::Sync, TINY);
            let error = window.run(more, &mut || {}).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            signal(window, 0).unwrap();
        });
    }
}

const TINY: Duration = Duration::from_millis(20);

#[test]
fn a_wait_that_times_out_names_the_peer_and_takes_nothing() {
    for way in WAYS {
        ranks(2, way, 1, |rank, window, _| {
            let from = GroupRank::new(1 - rank);
            if rank == 0 {
                let late = call(OneSided::WaitSignal { from }, Mode::Sync, TINY);
                let error = window.run(late, &mut || {}).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Timeout);
                assert_eq!(error.peer_ranks(), [from]);
                signal(window, 1).unwrap();
            } else {
                wait(window, 0).unwrap();
                signal(window, 0).unwrap();
            }
            if rank == 0 {
                wait(window, 1).unwrap();
            }
        });
    }
}

#[test]
fn asynchronous_waits_are_served_in_order_and_before_later_ones() {
    for way in WAYS {
        ranks(2, way, 1, |rank, window, _| {
            let peer = GroupRank::new(1 - rank);
            if rank == 0 {
                let waiting = call(OneSided::WaitSignal { from: peer }, Mode::Async, LONG);
                let works = [(); 3].map(|()| window.issue_on(waiting, Stream::default()).unwrap());
                signal(window, 1).unwrap();
                wait(window, 1).unwrap();
                for work in works {
                    assert!(work.is_complete(), "{way:?}");
                }
            } else {
                wait(window, 0).unwrap();
                for _ in 0..4 {
                    signal(window, 0).unwrap();
                }
            }
        });
    }
}

#[test]
fn a_callback_that_takes_long_holds_up_no_other_work() {
    for way in WAYS {
        ranks(2, way, 1, |rank, window, _| {
            let peer = GroupRank::new(1 - rank);
            if rank == 1 {
                wait(window, 0).unwrap();
                for _ in 0..4 {
                    signal(window, 0).unwrap();
                }
                return;
            }
            let waiting = call(OneSided::WaitSignal { from: peer }, Mode::Async, LONG);
            let works = [(); 3].map(|()| window.issue_on(waiting, Stream::default()).unwrap());
            let (over, until) = std::sync::mpsc::channel::<()>();
            let caller = std::thread::current().id();
            works[0].on_complete(move |_| {
                if std::thread::current().id() != caller {
                    // Ends when the other end is dropped.
                    let _dropped = until.recv();
                }
            });
            signal(window, 1).unwrap();
            wait(window, 1).unwrap();
            for work in works {
                assert!(work.is_complete(), "{way:?}");
            }
            drop(over);
        });
    }
}

#[test]
fn who_has_slept_and_was_woken_is_awake() {
    for way in WAYS {
        ranks(2, way, 1, |rank, window, _| {
            if rank == 0 {
                // Longer than any spin: it has slept, and lies there no more.
                let from = GroupRank::new(1);
                let late = call(OneSided::WaitSignal { from }, Mode::Sync, TINY);
                window.run(late, &mut || {}).unwrap_err();
                assert!(!window.lies_down(), "{way:?}");
                signal(window, 1).unwrap();
            }
            wait(window, 1 - rank).unwrap();
            assert!(!window.lies_down(), "{way:?}");
            if rank == 1 {
                signal(window, 0).unwrap();
            }
        });
    }
}

#[test]
fn a_rank_puts_to_itself() {
    for way in WAYS {
        ranks(2, way, 4, |rank, window, lent| {
            put(window, &mut [7, 8], rank, 1).unwrap();
            signal(window, rank).unwrap();
            wait(window, rank).unwrap();
            assert_eq!([lent.word(1), lent.word(2)], [7, 8]);
        });
    }
}

#[test]
fn an_abort_ends_waits_and_closes_the_window() {
    for way in WAYS {
        let groups = groups(2);
        let lents = [Lent::new(way, 64), Lent::new(way, 64)];
        std::thread::scope(|scope| {
            let other = scope.spawn(|| register(&groups[1], &lents[1], way, 1));
            let window = register(&groups[0], &lents[0], way, 1);
            let theirs = other.join().unwrap();
            let from = GroupRank::new(1);
            let waiting = call(OneSided::WaitSignal { from }, Mode::Async, LONG);
            let work = window.issue_on(waiting, Stream::default()).unwrap();
            groups[0].abort();
            let error = groups[0].wait(&work, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Aborted);
            assert_eq!(
                put(&window, &mut [1], 1, 0).unwrap_err().kind(),
                ErrorKind::Aborted
            );
            if way != Way::Frames {
                let error = put(&theirs, &mut [1], 0, 0).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::State, "{error}");
                assert_eq!(error.peer_ranks(), [GroupRank::new(0)]);
            }
            assert_eq!(lents[0].word(0), 0);
        });
    }
}

#[test]
fn ranks_that_do_not_all_register_learn_of_it() {
    let groups = groups(2);
    let lent = Lent::new(Way::Kernel, 64);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let asked = registration(Region::EMPTY, 2, LONG);
            let made = HostWindow::register_as(groups[1].site(), asked, true, &mut || {});
            made.err().unwrap()
        });
        // As if a rank had registered one window more.
        let asked = registration(lent.region, 1, LONG);
        let made = HostWindow::register_as(groups[0].site(), asked, true, &mut || {});
        let errors = [made.err().unwrap(), other.join().unwrap()];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        }
    });
}
