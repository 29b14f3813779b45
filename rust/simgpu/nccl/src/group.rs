//! Groups: calls between start and end are kept, and take effect together at the end.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use simgpu_common::fault;

use crate::comm::{Comm, use_device};
use crate::failure::{Code, Failure, Outcome};
use crate::launch::{self, Action, Issued};

/// A communicator that is about to join, with what it does to that end.
type Joining = (Arc<Comm>, Box<dyn FnOnce(&Arc<Comm>) -> Outcome + Send>);

#[derive(Default)]
struct Group {
    depth: u32,
    issued: Vec<(Arc<Comm>, Vec<Issued>)>,
    joining: Vec<Joining>,
    failure: Option<Failure>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Begins a group, or one more inside.
pub fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Ends the innermost group; with the outermost, everything takes effect.
pub fn end() -> Outcome<Code> {
    let whole = GROUP.with_borrow_mut(|group| match group.depth {
        0 => Err(Failure::usage("ncclGroupEnd: not in a group call")),
        1 => Ok(Some(std::mem::take(group))),
        _ => {
            group.depth -= 1;
            Ok(None)
        }
    })?;
    match whole {
        Some(group) => finish(group),
        None => Ok(Code::SUCCESS),
    }
}

/// Ends a group without any effect.
pub fn cancel() -> Outcome {
    GROUP.with_borrow_mut(|group| match std::mem::take(group).depth {
        0 => Err(Failure::usage("ncclGroupSimulateEnd: not in a group call")),
        _ => Ok(()),
    })
}

/// Whether the thread is in a group.
pub fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

fn finish(group: Group) -> Outcome<Code> {
    if let Some(failure) = group.failure {
        for (comm, _) in group.joining {
            comm.forget();
        }
        return Err(failure);
    }
    let mut code = join_together(group.joining)?;
    for (comm, issued) in group.issued {
        let one = comm.perform(move |comm| launch::launch(comm, issued))?;
        if one != Code::SUCCESS {
            code = one;
        }
    }
    Ok(code)
}

/// Joins several communicators of one thread at the same time, since each waits for the others.
fn join_together(all: Vec<Joining>) -> Outcome<Code> {
    let mut code = Code::SUCCESS;
    let mut threads = Vec::new();
    for (comm, join) in all {
        if !comm.config.blocking {
            code = comm.perform(join)?;
            continue;
        }
        threads.push(thread::spawn(move || {
            use_device(comm.device)?;
            join(&comm)
        }));
    }
    let failed = || Failure::new(Code::INTERNAL_ERROR, "a thread that joins panicked");
    for thread in threads {
        thread.join().map_err(|_| failed())??;
    }
    Ok(code)
}

/// Lets a communicator join, now or with the group.
pub fn join(
    comm: Arc<Comm>,
    step: impl FnOnce(&Arc<Comm>) -> Outcome + Send + 'static,
) -> Outcome<Code> {
    if is_open() {
        GROUP.with_borrow_mut(|group| group.joining.push((comm, Box::new(step))));
        return Ok(Code::SUCCESS);
    }
    let joined = comm.perform(step);
    if joined.is_err() {
        comm.forget();
    }
    joined
}

/// Issues an operation, now or with the group. One that is refused makes the group fail.
pub fn issue(comm: Outcome<Arc<Comm>>, stream: usize, action: Outcome<Action>) -> Outcome<Code> {
    die_when_due();
    let checked = comm.and_then(|comm| {
        comm.takes_operations()?;
        launch::check_stream(&comm, stream)?;
        Ok((comm, action?))
    });
    match checked {
        Ok((comm, action)) if is_open() => {
            GROUP.with_borrow_mut(|group| add(group, comm, (stream, action)));
            Ok(Code::SUCCESS)
        }
        Ok((comm, action)) => {
            comm.perform(move |comm| launch::launch(comm, vec![(stream, action)]))
        }
        Err(failure) => {
            GROUP.with_borrow_mut(|group| {
                if group.depth > 0 {
                    group.failure.get_or_insert_with(|| failure.clone());
                }
            });
            Err(failure)
        }
    }
}

fn add(group: &mut Group, comm: Arc<Comm>, issued: Issued) {
    match group
        .issued
        .iter_mut()
        .find(|(other, _)| Arc::ptr_eq(other, &comm))
    {
        Some((_, all)) => all.push(issued),
        None => group.issued.push((comm, vec![issued])),
    }
}

/// The fault "killed rank": `SIMGPU_KILL=RANK:OPERATIONS` ends the process by SIGKILL when it is
/// about to issue one more.
fn die_when_due() {
    static LEFT: AtomicI64 = AtomicI64::new(i64::MIN);
    if LEFT.load(Ordering::Relaxed) == i64::MIN {
        let values = fault::of_this_rank("SIMGPU_KILL");
        let after = values
            .and_then(|values| values.first().copied())
            .unwrap_or(i64::MAX);
        LEFT.store(after, Ordering::Relaxed);
    }
    if LEFT.fetch_sub(1, Ordering::Relaxed) == 0 {
        // SAFETY: a signal to this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}
