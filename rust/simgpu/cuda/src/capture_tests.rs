//! Capture and graphs, from the outside of their modules.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;
use crate::event::{DISABLE_TIMING, EXTERNAL, Event};
use crate::graph::{Executable, UserObject};
use crate::stream::NON_BLOCKING;

fn streams() -> (Arc<Stream>, Arc<Stream>) {
    (
        Stream::create(NON_BLOCKING, 0).unwrap(),
        Stream::create(NON_BLOCKING, 0).unwrap(),
    )
}

fn add(counter: &Arc<AtomicUsize>, amount: usize) -> Work {
    let counter = counter.clone();
    Arc::new(move || {
        counter.fetch_add(amount, Ordering::SeqCst);
    })
}

fn event() -> Arc<Event> {
    Event::create(DISABLE_TIMING).unwrap()
}

#[test]
fn what_is_captured_runs_at_each_launch_and_not_before() {
    let _alone = crate::alone();
    let (stream, _) = streams();
    let counter = Arc::new(AtomicUsize::new(0));
    begin(&stream, Mode::ThreadLocal, None).unwrap();
    stream.enqueue(add(&counter, 1)).unwrap();
    let graph = end(&stream).unwrap();
    stream.synchronize().unwrap();
    assert_eq!((counter.load(Ordering::SeqCst), graph.len()), (0, 1));
    let executable = Executable::instantiate(&graph).unwrap();
    for _ in 0..3 {
        executable.launch(&stream).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(counter.load(Ordering::SeqCst), 3);
}

#[test]
fn a_stream_joins_through_an_event_and_must_come_back() {
    let _alone = crate::alone();
    let (origin, side) = streams();
    let counter = Arc::new(AtomicUsize::new(0));
    begin(&origin, Mode::ThreadLocal, None).unwrap();
    origin.enqueue(add(&counter, 1)).unwrap();
    let fork = event();
    fork.record(&origin, 0).unwrap();
    fork.make_wait(&side, 0).unwrap();
    side.enqueue(add(&counter, 10)).unwrap();
    assert_eq!(
        info(&side).unwrap().unwrap().id,
        info(&origin).unwrap().unwrap().id
    );
    let back = event();
    back.record(&side, 0).unwrap();
    back.make_wait(&origin, 0).unwrap();
    let graph = end(&origin).unwrap();
    assert!(info(&side).unwrap().is_none());
    assert_eq!(graph.dependencies(1), [graph.node_handle(0)]);

    begin(&origin, Mode::ThreadLocal, None).unwrap();
    fork.record(&origin, 0).unwrap();
    fork.make_wait(&side, 0).unwrap();
    side.enqueue(add(&counter, 10)).unwrap();
    assert_eq!(end(&origin).err(), Some(Status::CAPTURE_UNJOINED));
}

#[test]
fn a_capture_may_not_wait_for_what_is_outside() {
    let _alone = crate::alone();
    let (stream, other) = streams();
    let outside = event();
    outside.record(&other, 0).unwrap();
    begin(&stream, Mode::ThreadLocal, None).unwrap();
    assert_eq!(
        outside.make_wait(&stream, 0),
        Err(Status::CAPTURE_ISOLATION)
    );
    assert_eq!(end(&stream).err(), Some(Status::CAPTURE_INVALIDATED));
}

#[test]
fn two_captures_do_not_merge() {
    let _alone = crate::alone();
    let (one, other) = streams();
    begin(&one, Mode::ThreadLocal, None).unwrap();
    begin(&other, Mode::ThreadLocal, None).unwrap();
    let point = event();
    point.record(&one, 0).unwrap();
    assert_eq!(point.make_wait(&other, 0), Err(Status::CAPTURE_MERGE));
    assert_eq!(end(&one).err(), Some(Status::CAPTURE_INVALIDATED));
    assert_eq!(end(&other).err(), Some(Status::CAPTURE_INVALIDATED));
}

#[test]
fn an_event_recorded_in_a_capture_may_not_be_asked() {
    let _alone = crate::alone();
    let (stream, _) = streams();
    begin(&stream, Mode::Relaxed, None).unwrap();
    let point = event();
    point.record(&stream, 0).unwrap();
    assert_eq!(point.query(), Err(Status::CAPTURED_EVENT));
    assert_eq!(end(&stream).err(), Some(Status::CAPTURE_INVALIDATED));
}

#[test]
fn an_unsafe_call_of_another_thread_breaks_a_global_capture_unless_its_mode_permits_it() {
    let _alone = crate::alone();
    let (stream, _) = streams();
    let elsewhere = event();
    for (mode, refused) in [
        (Mode::Global, true),
        (Mode::ThreadLocal, false),
        (Mode::Relaxed, false),
    ] {
        begin(&stream, Mode::Global, None).unwrap();
        let asked = elsewhere.clone();
        let answer = thread::spawn(move || {
            exchange_mode(mode);
            asked.query()
        });
        let expected = if refused {
            Err(Status::CAPTURE_UNSUPPORTED)
        } else {
            Ok(())
        };
        assert_eq!(answer.join().unwrap(), expected, "{mode:?}");
        assert_eq!(end(&stream).is_err(), refused, "{mode:?}");
    }
}

#[test]
fn a_capture_ends_on_its_own_thread() {
    let _alone = crate::alone();
    let (stream, _) = streams();
    begin(&stream, Mode::ThreadLocal, None).unwrap();
    let other = stream.clone();
    let answer = thread::spawn(move || end(&other).err()).join().unwrap();
    assert_eq!(answer, Some(Status::CAPTURE_WRONG_THREAD));
    end(&stream).unwrap();
}

#[test]
fn synchronizing_a_stream_that_captures_breaks_the_capture() {
    let _alone = crate::alone();
    let (stream, _) = streams();
    begin(&stream, Mode::Relaxed, None).unwrap();
    assert_eq!(stream.synchronize(), Err(Status::CAPTURE_UNSUPPORTED));
    assert_eq!(end(&stream).err(), Some(Status::CAPTURE_INVALIDATED));
}

#[test]
fn an_external_record_happens_at_the_launch() {
    let _alone = crate::alone();
    let (stream, _) = streams();
    let point = event();
    begin(&stream, Mode::ThreadLocal, None).unwrap();
    point.record(&stream, EXTERNAL).unwrap();
    let graph = end(&stream).unwrap();
    assert_eq!(graph.len(), 1);
    Executable::instantiate(&graph)
        .unwrap()
        .launch(&stream)
        .unwrap();
    stream.synchronize().unwrap();
    assert_eq!(point.query(), Ok(()));
}

unsafe extern "C" fn tell(address: *mut c_void) {
    // SAFETY: the tests pass a leaked sender, once.
    let sender = unsafe { Box::from_raw(address.cast::<mpsc::Sender<()>>()) };
    sender.send(()).unwrap();
}

#[test]
fn a_user_object_lives_as_long_as_the_graph_and_what_is_made_of_it() {
    let _alone = crate::alone();
    let (stream, _) = streams();
    let (sender, receiver) = mpsc::channel::<()>();
    let object = UserObject::create(Box::into_raw(Box::new(sender)).cast(), tell, 1);
    begin(&stream, Mode::ThreadLocal, None).unwrap();
    info(&stream)
        .unwrap()
        .unwrap()
        .graph
        .retain(&object, 1, true)
        .unwrap();
    let graph = end(&stream).unwrap();
    let executable = Executable::instantiate(&graph).unwrap();
    let (handle, executable_handle) = (graph.handle, executable.handle);
    drop((graph, executable));
    Graph::destroy(handle).unwrap();
    assert_eq!(receiver.try_recv(), Err(mpsc::TryRecvError::Empty));
    Executable::destroy(executable_handle).unwrap();
    receiver.recv().unwrap();
}
