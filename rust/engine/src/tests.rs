//! A communicator over a group whose operations end as the test wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ferrocomm_core::call::{Collective, Mode, PointToPoint, Source, Task};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reduce_op::ReduceOp;
use ferrocomm_core::store::Store;
use ferrocomm_core::{Error, ErrorKind, Result, interrupt};

use crate::abort_hook::Ending;
use crate::backend::Backend;
use crate::communicator::{Communicator, CommunicatorOptions};
use crate::engine_info;
use crate::testing::{Puppet, region};

fn pair(name: &str) -> (Arc<Puppet>, Arc<Communicator>) {
    let puppet = Puppet::new();
    (puppet.clone(), Communicator::of_group(name, puppet))
}

fn all_reduce() -> Task {
    let (input, op) = (region(8), ReduceOp::Sum);
    Task::Collective(Collective::AllReduce {
        input,
        output: input,
        op,
    })
}

fn barrier() -> Task {
    Task::Collective(Collective::Barrier)
}

fn recv() -> Task {
    Task::PointToPoint(PointToPoint::Recv {
        buffer: region(8),
        from: Source::Any,
        tag: 3,
    })
}

fn start(communicator: &Arc<Communicator>, task: Task) -> crate::Pending {
    communicator
        .start(task, Dtype::Float32, None)
        .expect("it starts")
}

fn state(communicator: &Communicator) -> &'static str {
    communicator.state_name().to_str().expect("plain ASCII")
}

fn lost() -> Error {
    Error::new(ErrorKind::PeerLost, "rank 1 is gone").peers([GroupRank::new(1)])
}

#[test]
fn collectives_and_point_to_point_are_numbered_apart() {
    let (puppet, comm) = pair("numbers");
    for task in [all_reduce(), recv(), barrier(), recv()] {
        start(&comm, task);
    }
    let numbers: Vec<u64> = puppet
        .script()
        .issued
        .iter()
        .map(|(call, _)| call.sequence)
        .collect();
    assert_eq!(numbers, [1, 1, 2, 2]);
    assert_eq!(comm.sequence(), 2);
    let child = comm
        .split(&[1, 0], "child", None, &[])
        .expect("it splits")
        .expect("a member");
    assert_eq!((comm.sequence(), child.sequence()), (3, 0));
    assert!(
        comm.split(&[1], "other", None, &[])
            .expect("it splits")
            .is_none()
    );
    let ranks = vec![GroupRank::new(1), GroupRank::new(0)];
    assert_eq!(puppet.script().splits, [(ranks, "child".to_owned(), 3)]);
    assert_eq!(comm.sequence(), 4);
}

#[test]
fn a_split_hands_its_time_out_and_hints_to_the_engine_on_both_sides() {
    let (puppet, comm) = pair("wishes");
    let hints = [("eager".to_owned(), "1".to_owned())];
    let limit = Duration::from_millis(1500);
    for ranks in [&[0, 1][..], &[1]] {
        puppet.script().wishes = None;
        comm.split(ranks, "child", Some(limit), &hints)
            .expect("it splits");
        assert_eq!(puppet.script().wishes, Some((limit, hints.to_vec())));
    }
    comm.split(&[1], "plain", None, &[]).expect("it splits");
    assert_eq!(puppet.script().wishes, Some((comm.timeout(), Vec::new())));
}

#[test]
fn threads_issue_without_gaps_and_in_the_order_of_their_numbers() {
    let (puppet, comm) = pair("threads");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| drop(start(&comm, barrier()))));
        }
    });
    let numbers: Vec<u64> = puppet
        .script()
        .issued
        .iter()
        .map(|(call, _)| call.sequence)
        .collect();
    assert_eq!(numbers, (1..=200).collect::<Vec<_>>());
}

#[test]
fn bad_arguments_are_named_and_leave_the_communicator_ready() {
    let (puppet, comm) = pair("arguments");
    let root = GroupRank::new(9);
    let mut task = Task::Collective(Collective::Broadcast {
        buffer: region(8),
        root,
    });
    let error = comm.run(&mut task, Dtype::Float32, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid argument: root is not a rank of this communicator; got root 9; expected 0 to 1 \
         [communicator arguments, rank 0, operation broadcast]"
    );
    let zero = comm
        .run(&mut barrier(), Dtype::Byte, Some(Duration::ZERO))
        .unwrap_err();
    assert_eq!(zero.kind(), ErrorKind::InvalidArgument);
    assert!(comm.split(&[0, 0], "twice", None, &[]).is_err());
    assert!(puppet.script().issued.is_empty());
    assert_eq!((state(&comm), comm.sequence()), ("ready", 0));
}

#[test]
fn an_operations_time_out_comes_before_the_communicators() {
    let (puppet, comm) = pair("timeouts");
    start(&comm, barrier());
    comm.set_timeout(Duration::from_secs(5)).expect("positive");
    start(&comm, barrier());
    let own = Some(Duration::from_secs(2));
    drop(comm.start(barrier(), Dtype::Byte, own).expect("it starts"));
    let seconds: Vec<u64> = puppet
        .script()
        .issued
        .iter()
        .map(|(call, _)| call.timeout.as_secs())
        .collect();
    assert_eq!(seconds, [600, 5, 2]);
    assert!(comm.set_timeout(Duration::ZERO).is_err());
}

#[test]
fn a_failed_collective_fails_the_communicator_with_the_same_cause() {
    let (puppet, comm) = pair("failing");
    let pending = start(&comm, all_reduce());
    puppet.end(0, Err(lost()));
    let error = pending.wait(None).unwrap_err();
    let facts = "[communicator failing, rank 0, peer 1, operation all_reduce, sequence 1]";
    assert!(error.to_string().contains(facts), "{error}");
    assert_eq!(state(&comm), "failed");
    let later = comm.run(&mut barrier(), Dtype::Byte, None).unwrap_err();
    assert!(later.to_string().starts_with(&error.to_string()), "{later}");
    assert_eq!(
        comm.failure().map(|cause| cause.kind()),
        Some(ErrorKind::PeerLost)
    );
    comm.finalize().expect("legal after a failure");
    assert_eq!(state(&comm), "finalized");
}

#[test]
fn a_failed_point_to_point_operation_fails_alone() {
    let (puppet, comm) = pair("alone");
    let pending = start(&comm, recv());
    assert_eq!(
        pending
            .wait(Some(Duration::from_millis(1)))
            .unwrap_err()
            .kind(),
        ErrorKind::Timeout
    );
    let cancelled = start(&comm, recv());
    cancelled.cancel().expect("point-to-point");
    assert_eq!(
        cancelled.wait(None).unwrap_err().kind(),
        ErrorKind::Cancelled
    );
    assert_eq!(state(&comm), "ready");
    puppet.script().failure = Some(lost());
    assert_eq!(state(&comm), "failed");
}

#[test]
fn a_collective_cannot_be_cancelled() {
    let (_puppet, comm) = pair("cancel");
    let error = start(&comm, barrier()).cancel().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(state(&comm), "ready");
}

#[test]
fn what_the_group_refuses_is_raised_and_recorded() {
    let (puppet, comm) = pair("refusing");
    puppet.script().refuse = Some(lost());
    let error = comm.run(&mut barrier(), Dtype::Byte, None).unwrap_err();
    assert!(
        error.to_string().contains("operation barrier, sequence 1"),
        "{error}"
    );
    assert_eq!(state(&comm), "failed");
}

#[test]
fn abort_ends_everything_and_may_be_called_again() {
    let (puppet, comm) = pair("aborting");
    let pending = start(&comm, all_reduce());
    comm.abort();
    comm.abort();
    assert_eq!(pending.wait(None).unwrap_err().kind(), ErrorKind::Aborted);
    assert_eq!(puppet.script().aborts, 1);
    assert_eq!(state(&comm), "aborted");
    assert_eq!(
        comm.run(&mut barrier(), Dtype::Byte, None)
            .unwrap_err()
            .kind(),
        ErrorKind::Aborted
    );
    comm.finalize().expect("legal after abort");
    assert_eq!(state(&comm), "finalized");
}

#[test]
fn finalize_raises_what_nobody_has_raised_and_only_once() {
    let (puppet, comm) = pair("finalizing");
    puppet.script().finalize = Some(lost());
    let error = comm.finalize().unwrap_err();
    assert!(error.to_string().contains("operation finalize"), "{error}");
    comm.finalize().expect("again does nothing");
    let late = comm.run(&mut barrier(), Dtype::Byte, None).unwrap_err();
    assert!(late.to_string().contains("finalized"), "{late}");
    assert_eq!(late.kind(), ErrorKind::State);
}

#[test]
fn an_interrupted_finalize_may_be_tried_again() {
    let (puppet, comm) = pair("interrupted");
    puppet.script().finalize = Some(Error::new(ErrorKind::Interrupted, "stop"));
    assert_eq!(comm.finalize().unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(state(&comm), "ready");
    puppet.script().finalize = None;
    comm.finalize().expect("second try");
}

#[test]
fn a_panic_puts_the_communicator_out_of_use() {
    let (puppet, comm) = pair("panicking");
    let pending = start(&comm, barrier());
    comm.fail_with_panic("index out of range");
    assert!(pending.wait(None).is_err());
    assert_eq!(puppet.script().aborts, 1);
    let later = comm.run(&mut barrier(), Dtype::Byte, None).unwrap_err();
    assert_eq!(later.kind(), ErrorKind::Panic);
    assert!(later.to_string().contains("index out of range"));
}

#[test]
fn callbacks_may_issue_even_when_they_run_inside_issue() {
    let (puppet, comm) = pair("callbacks");
    let first = start(&comm, barrier());
    let called = Arc::new(AtomicUsize::new(0));
    let (count, again) = (called.clone(), comm.clone());
    first.on_complete(move |outcome| {
        assert!(outcome.is_ok());
        drop(start(&again, barrier()));
        count.fetch_add(1, Ordering::Relaxed);
    });
    puppet.script().inside_issue = Some(Arc::new(|puppet: &Puppet| puppet.end(0, Ok(()))));
    drop(start(&comm, barrier()));
    assert_eq!(called.load(Ordering::Relaxed), 1);
    assert_eq!(comm.sequence(), 3);
    let count = called.clone();
    first.on_complete(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(called.load(Ordering::Relaxed), 2);
}

#[test]
fn a_synchronous_operation_waits_and_names_its_failure() {
    let (puppet, comm) = pair("sync");
    puppet.script().inside_issue = Some(Arc::new(|puppet: &Puppet| puppet.end(0, Ok(()))));
    comm.run(&mut all_reduce(), Dtype::Float32, None)
        .expect("it ends well");
    assert_eq!(puppet.script().issued[0].0.mode, Mode::Sync);
    puppet.script().inside_issue = Some(Arc::new(|puppet: &Puppet| puppet.end(1, Err(lost()))));
    let error = comm
        .run(&mut all_reduce(), Dtype::Float32, None)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("operation all_reduce, sequence 2"),
        "{error}"
    );
    assert_eq!(state(&comm), "failed");
}

#[test]
fn an_interrupt_gives_a_synchronous_operation_up_and_leaves_an_asynchronous_one_alone() {
    /// The check is the process's; only the thread of this test answers it.
    struct Installed;
    impl Drop for Installed {
        fn drop(&mut self) {
            interrupt::set_check(None);
        }
    }
    let this = std::thread::current().id();
    interrupt::set_check(Some(Arc::new(move || std::thread::current().id() == this)));
    let _installed = Installed;
    let (_puppet, comm) = pair("ctrl-c");
    let pending = start(&comm, barrier());
    assert_eq!(
        pending.wait(None).unwrap_err().kind(),
        ErrorKind::Interrupted
    );
    assert!(pending.outcome().is_none());
    assert_eq!(
        comm.run(&mut recv(), Dtype::Int8, None).unwrap_err().kind(),
        ErrorKind::Interrupted
    );
    assert_eq!(state(&comm), "ready");
    assert_eq!(
        comm.run(&mut barrier(), Dtype::Byte, None)
            .unwrap_err()
            .kind(),
        ErrorKind::Interrupted
    );
    assert_eq!(state(&comm), "aborted");
}

#[test]
fn an_empty_batch_is_complete_at_once() {
    let (puppet, comm) = pair("empty");
    comm.run(&mut Task::Batch(Vec::new()), Dtype::Byte, None)
        .expect("nothing to do");
    assert!(matches!(
        start(&comm, Task::Batch(Vec::new())).outcome(),
        Some(Ok(()))
    ));
    assert!(puppet.script().issued.is_empty());
}

#[test]
fn giving_a_communicator_up_aborts_what_is_pending_and_nothing_else() {
    let (puppet, comm) = pair("idle");
    comm.close();
    assert_eq!(puppet.script().aborts, 0);
    let pending = start(&comm, barrier());
    comm.close();
    drop(comm);
    assert_eq!(puppet.script().aborts, 1);
    assert_eq!(pending.wait(None).unwrap_err().kind(), ErrorKind::Aborted);
    let (puppet, comm) = pair("dropped");
    drop(start(&comm, barrier()));
    drop(comm);
    assert_eq!(puppet.script().aborts, 1);
}

#[test]
fn an_inherited_communicator_refuses_everything_and_touches_nothing() {
    let (puppet, comm) = pair("forked");
    drop(start(&comm, barrier()));
    let comm = comm.pretend_inherited();
    for error in [
        comm.run(&mut barrier(), Dtype::Byte, None).unwrap_err(),
        comm.split(&[0], "child", None, &[]).map(drop).unwrap_err(),
        comm.finalize().unwrap_err(),
        comm.check_process().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Forked);
    }
    comm.abort();
    drop(comm);
    assert_eq!(puppet.script().aborts, 0);
}

#[test]
fn counters_and_records_tell_what_was_called() {
    let (puppet, comm) = pair("counted");
    for _ in 0..2 {
        start(&comm, all_reduce());
    }
    start(&comm, recv());
    puppet.end(0, Ok(()));
    puppet.end(1, Err(lost()));
    let info = comm.info();
    for part in [
        r#""name":"counted","engine":"host","rank":0,"size":2,"state":"failed""#,
        r#""transport":"none","sequence":2,"timeout_ms":600000"#,
        r#""all_reduce":{"count":2,"bytes":16}"#,
        r#""recv":{"count":1,"bytes":8}"#,
    ] {
        assert!(info.contains(part), "{part} is not in {info}");
    }
    assert!(engine_info(1).contains(&info));
    let dump = crate::recorder_dump(0, false);
    let own: Vec<&str> = dump
        .split("{\"record_id\"")
        .skip(1)
        .filter(|e| e.contains("counted"))
        .collect();
    let states = own
        .iter()
        .filter_map(|entry| Some(&entry[entry.find("\"state\"")? + 9..][..4]));
    assert_eq!(states.collect::<Vec<_>>(), ["comp", "fail", "star"]);
    assert!(own[1].contains("rank 1 is gone"));
    drop(comm);
    assert!(!engine_info(1).contains("counted"));
}

/// A store that answers every call with the same failure and notes that it was asked.
struct Broken(AtomicBool);

impl Broken {
    fn fail<T>(&self) -> Result<T> {
        self.0.store(true, Ordering::Relaxed);
        Err(Error::new(
            ErrorKind::StoreDisconnected,
            "the store is gone",
        ))
    }
}

impl Store for Broken {
    fn set(&self, _: &str, _: &[u8]) -> Result<()> {
        self.fail()
    }
    fn get(&self, _: &str, _: Duration) -> Result<Vec<u8>> {
        self.fail()
    }
    fn remove(&self, _: &str) -> Result<()> {
        self.fail()
    }
}

fn options(rank: i32, size: i32) -> CommunicatorOptions {
    CommunicatorOptions {
        backend: Backend::Host,
        name: "joining".into(),
        rank,
        size,
        timeout: Some(Duration::from_secs(10)),
        device: 0,
        hints: Vec::new(),
    }
}

#[test]
fn a_rank_outside_its_size_is_refused_before_the_store_is_asked() {
    let store = Broken(AtomicBool::new(false));
    for (rank, size) in [(-1, 2), (2, 2), (0, 0), (0, -3)] {
        let error = Communicator::create(options(rank, size), &store)
            .map(drop)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(
            error
                .to_string()
                .contains(&format!("rank {rank}, size {size}")),
            "{error}"
        );
    }
    assert!(!store.0.load(Ordering::Relaxed));
}

#[test]
fn the_abort_hook_is_told_of_a_failure_once_and_may_use_the_communicator() {
    let (puppet, comm) = pair("a");
    let (sender, told) = std::sync::mpsc::channel();
    let again = Arc::downgrade(&comm);
    comm.set_abort_hook(Some(Arc::new(move |error, ending| {
        if ending == Ending::Process {
            return; // another test's process ends
        }
        let state = again.upgrade().map(|comm| state(&comm));
        sender
            .send((error.kind(), state))
            .expect("the test listens");
    })));
    let _works = (start(&comm, all_reduce()), start(&comm, all_reduce()));
    puppet.end(0, Err(lost()));
    puppet.end(1, Err(lost()));
    let words: Vec<_> = told.try_iter().collect();
    assert_eq!(words, [(ErrorKind::PeerLost, Some("failed"))]);
    comm.abort();
    assert!(
        told.try_recv().is_err(),
        "the client knows what it does itself"
    );
}

#[test]
fn before_the_process_ends_the_hooks_of_all_communicators_are_told() {
    let ((_, one), (_, two)) = (pair("a"), pair("b"));
    let (sender, told) = std::sync::mpsc::channel();
    for comm in [&one, &two] {
        let sender = sender.clone();
        comm.set_abort_hook(Some(Arc::new(move |error, ending| {
            sender
                .send((error.kind(), ending))
                .expect("the test listens");
        })));
    }
    crate::fatal::report(&lost());
    let words: Vec<_> = told.try_iter().collect();
    assert_eq!(words, [(ErrorKind::PeerLost, Ending::Process); 2]);
}
