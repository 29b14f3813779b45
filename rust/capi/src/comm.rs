//! Communicators: made, split, asked, closed. Must not know how ranks meet, nor what moves data.

use std::ffi::{CString, c_char};
use std::sync::Arc;
use std::time::Duration;

use ferrocomm_abi::*;
use ferrocomm_core::Result;
use ferrocomm_engine::{Backend, Communicator, CommunicatorOptions, Reconfigurable};

use crate::ffi::{
    self, Handle, Out, SizeTagged, guard, guard_poisoning, guard_value, invalid, null,
};
use crate::status::c_string;
use crate::store::TableStore;
use crate::text::{fc_string, give_text};

/// A communicator: a group of ranks that call operations together. Owned by the caller; given back
/// with `fc_comm_destroy`. Any thread may use it.
pub struct fc_comm {
    _opaque: [u8; 0],
}

/// What is behind a `fc_comm`.
pub(crate) struct CommHandle {
    body: Body,
    name: CString,
    backend: CString,
}

/// Whether the members of a communicator change.
enum Body {
    Fixed(Arc<Communicator>),
    Changing(Arc<Reconfigurable>),
}

/// A communicator in use by one call: a reconfiguration meanwhile does not change it.
pub(crate) struct Using<'a> {
    pub(crate) communicator: &'a Arc<Communicator>,
    /// what it is now one after the other of, if its members change
    pub(crate) changing: Option<&'a Arc<Reconfigurable>>,
}

impl Handle for fc_comm {
    type Value = CommHandle;
    const NOUN: &'static str = "communicator";
}

impl CommHandle {
    fn give(communicator: Arc<Communicator>) -> *mut fc_comm {
        let name = c_string(communicator.name());
        let backend = c_string(communicator.backend().name());
        ffi::give(Self {
            body: Body::Fixed(communicator),
            name,
            backend,
        })
    }

    /// Gives out one whose members change.
    pub(crate) fn give_changing(reconfigurable: Arc<Reconfigurable>) -> *mut fc_comm {
        let communicator = reconfigurable.current();
        let name = c_string(communicator.name());
        let backend = c_string(communicator.backend().name());
        ffi::give(Self {
            body: Body::Changing(reconfigurable),
            name,
            backend,
        })
    }

    /// Runs `body` on the communicator as it is now.
    fn using<R>(&self, body: impl FnOnce(Using<'_>) -> Result<R>) -> Result<R> {
        match &self.body {
            Body::Fixed(communicator) => {
                communicator.check_process()?;
                body(Using {
                    communicator,
                    changing: None,
                })
            }
            Body::Changing(changing) => {
                changing.check_process()?;
                body(Using {
                    communicator: &changing.current(),
                    changing: Some(changing),
                })
            }
        }
    }

    /// The same for what a child of the process may ask, too.
    fn look<R>(&self, body: impl FnOnce(&Communicator) -> R) -> Result<R> {
        match &self.body {
            Body::Fixed(communicator) => Ok(body(communicator)),
            Body::Changing(_) => self.using(|using| Ok(body(using.communicator))),
        }
    }

    fn fail_with_panic(&self, message: &str) {
        let failed = self.using(|using| {
            using.communicator.fail_with_panic(message);
            Ok(())
        });
        // Only a child of its process has none to fail.
        drop(failed);
    }

    fn close(&self) {
        match &self.body {
            Body::Fixed(communicator) => communicator.close(),
            Body::Changing(changing) => changing.close(),
        }
    }
}

// SAFETY: `repr(C)`, starts with its size; pointers and numbers may be zero.
unsafe impl SizeTagged for fc_comm_options {
    const NAME: &'static str = "fc_comm_options";
}

/// Runs `body` on a communicator; a panic puts the communicator out of use.
///
/// # Safety
/// `comm` is NULL or a live communicator.
#[inline(always)]
pub(crate) unsafe fn with_comm(
    comm: *const fc_comm,
    body: impl FnOnce(Using<'_>) -> Result<()>,
) -> fc_status {
    // SAFETY: by the caller's promise.
    let handle = unsafe { ffi::value(comm) };
    let poisoned = handle.as_ref().ok().copied();
    guard_poisoning(
        || handle?.using(body),
        |message| {
            if let Some(handle) = poisoned {
                handle.fail_with_panic(message);
            }
        },
    )
}

/// Sets `options` to defaults: the host engine, everything else zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_options_init(options: *mut fc_comm_options) {
    guard_value((), || {
        // SAFETY: the caller passes NULL or a place for the struct.
        let out = unsafe { Out::new(options, "options") }?;
        out.set(fc_comm_options {
            size: size_of::<fc_comm_options>(),
            backend: c"host".as_ptr(),
            name: std::ptr::null(),
            rank: 0,
            comm_size: 0,
            timeout_ns: 0,
            hints: std::ptr::null(),
            hint_count: 0,
            device: 0,
        });
        Ok(())
    });
}

/// Reads what C asks for.
///
/// # Safety
/// `options` is NULL or an initialised struct whose pointers are NULL or valid.
pub(crate) unsafe fn options_of(options: *const fc_comm_options) -> Result<CommunicatorOptions> {
    if options.is_null() {
        return Err(null("options"));
    }
    // SAFETY: not NULL; the rest is the caller's promise, here and below.
    let options = unsafe { ffi::read_sized(options) }?;
    // SAFETY: as above.
    let hints = unsafe { hints_of(options.hints, options.hint_count) }?;
    Ok(CommunicatorOptions {
        // SAFETY: as above.
        backend: Backend::named(unsafe { ffi::text(options.backend, "backend") }?)?,
        // SAFETY: as above.
        name: unsafe { ffi::text(options.name, "name") }?.into(),
        rank: options.rank,
        size: options.comm_size,
        timeout: ffi::timeout(options.timeout_ns)?,
        device: i32::try_from(options.device).map_err(|_| {
            invalid("there is no such device").got(format!("device {}", options.device))
        })?,
        hints,
    })
}

/// Reads hints.
///
/// # Safety
/// `hints` is NULL or points to `count` hints whose texts are NULL or nul-terminated.
pub(crate) unsafe fn hints_of(
    hints: *const fc_hint,
    count: usize,
) -> Result<Vec<(String, String)>> {
    // SAFETY: by the caller's promise, here and below.
    let hints = unsafe { ffi::list(hints, count, "hints") }?;
    let owned = |hint: &fc_hint| {
        // SAFETY: as above.
        let key = unsafe { ffi::text(hint.key, "hint key") }?;
        // SAFETY: as above.
        let value = unsafe { ffi::text(hint.value, "hint value") }?;
        Ok((key.to_owned(), value.to_owned()))
    };
    hints.iter().map(owned).collect()
}

/// Makes a communicator; every rank calls it. Returns when all ranks have joined, or fails on all
/// of them: `FC_ERR_TIMEOUT` names the ranks that did not come. `store` is used until this returns;
/// its `release` is called exactly once, also on failure. `*out` receives an owned communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_create(
    options: *const fc_comm_options,
    store: *const fc_store_table,
    out: *mut *mut fc_comm,
) -> fc_status {
    guard(|| {
        // First of all, so that the store is released whatever else is wrong.
        // SAFETY: the caller passes NULL or a table that is valid until released.
        let store = unsafe { TableStore::new(store) }?;
        // SAFETY: the caller passes NULL or a place for one pointer.
        let out = unsafe { Out::new(out, "out") }?;
        // SAFETY: the caller passes NULL or initialised options.
        let communicator = Communicator::create(unsafe { options_of(options) }?, &store)?;
        out.set(CommHandle::give(communicator));
        Ok(())
    })
}

/// Makes a communicator of some ranks of `parent`. Every rank of `parent` calls it, in the same
/// order as its collectives, each with the `n` ranks of the group it will be in, in the order they
/// will have there. `*out` receives an owned communicator, or NULL on a rank that is not in
/// `ranks`. Asks no store; `host` moves no data either, `nccl` waits for all ranks. `timeout_ns` is the new communicator's default
/// time-out; 0: the parent's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_split(
    parent: *mut fc_comm,
    ranks: *const i32,
    n: usize,
    name: *const c_char,
    timeout_ns: i64,
    out: *mut *mut fc_comm,
) -> fc_status {
    // SAFETY: the caller passes NULL or what is valid for the call, here and in the closure.
    unsafe {
        split(parent, ranks, n, out, || {
            Ok(Wishes {
                name: ffi::text(name, "name")?.into(),
                timeout: ffi::timeout(timeout_ns)?,
                hints: Vec::new(),
            })
        })
    }
}

/// As `fc_comm_split`, with the name, the time-out and the hints of `options`; nothing else of them
/// is read. A hint counts for the new communicator beside those of `parent`, whose value it replaces.
/// `FC_ERR_INVALID_ARGUMENT` on every rank for one with a value that does not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_split_with(
    parent: *mut fc_comm,
    ranks: *const i32,
    n: usize,
    options: *const fc_comm_options,
    out: *mut *mut fc_comm,
) -> fc_status {
    // SAFETY: the caller passes NULL or what is valid for the call, here and in the closure.
    unsafe {
        split(parent, ranks, n, out, || {
            let options = options_of(options)?;
            Ok(Wishes {
                name: options.name,
                timeout: options.timeout,
                hints: options.hints,
            })
        })
    }
}

/// What a part of a communicator is to be, besides its ranks.
struct Wishes {
    name: Arc<str>,
    timeout: Option<Duration>,
    hints: Vec<(String, String)>,
}

/// Both ways to split; `wishes` reads what is peculiar to one of them.
///
/// # Safety
/// `parent` is NULL or a live communicator, `ranks` NULL or `n` numbers, `out` NULL or a place for one
/// pointer.
unsafe fn split(
    parent: *mut fc_comm,
    ranks: *const i32,
    n: usize,
    out: *mut *mut fc_comm,
    wishes: impl FnOnce() -> Result<Wishes>,
) -> fc_status {
    // SAFETY: by the caller's promise.
    unsafe {
        with_comm(parent, |parent| {
            let out = Out::new(out, "out")?;
            let ranks = ffi::list(ranks, n, "ranks")?;
            let Wishes {
                name,
                timeout,
                hints,
            } = wishes()?;
            let child = parent.communicator.split(ranks, &name, timeout, &hints)?;
            out.set(child.map_or(std::ptr::null_mut(), CommHandle::give));
            Ok(())
        })
    }
}

/// This process's rank in the communicator; -1 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_rank(comm: *const fc_comm) -> i32 {
    guard_value(-1, || {
        // SAFETY: the caller passes NULL or a live communicator.
        unsafe { ffi::value(comm) }?.look(|communicator| communicator.rank().get() as i32)
    })
}

/// Number of ranks; -1 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_size(comm: *const fc_comm) -> i32 {
    guard_value(-1, || {
        // SAFETY: the caller passes NULL or a live communicator.
        unsafe { ffi::value(comm) }?.look(|communicator| communicator.size() as i32)
    })
}

/// Its name, valid while the communicator lives; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_name(comm: *const fc_comm) -> *const c_char {
    guard_value(std::ptr::null(), || {
        // SAFETY: the caller passes NULL or a live communicator.
        Ok(unsafe { ffi::value(comm) }?.name.as_ptr())
    })
}

/// The engine that serves it, such as "host", valid while the communicator lives; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_backend(comm: *const fc_comm) -> *const c_char {
    guard_value(std::ptr::null(), || {
        // SAFETY: the caller passes NULL or a live communicator.
        Ok(unsafe { ffi::value(comm) }?.backend.as_ptr())
    })
}

/// Its state: "ready", "failed", "aborted", "finalized", or "unconfigured" while it has no members. `*state` receives static text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_state(
    comm: *const fc_comm,
    state: *mut *const c_char,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator, and NULL or a place for a pointer.
    unsafe {
        with_comm(comm, |handle| {
            Out::new(state, "state")?.set(handle.communicator.state_name().as_ptr());
            Ok(())
        })
    }
}

/// Why the communicator has failed; empty text when it has not. `*cause` receives an owned string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_error(
    comm: *const fc_comm,
    cause: *mut *mut fc_string,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator, and NULL or a place for a pointer.
    unsafe {
        with_comm(comm, |handle| {
            let out = Out::new(cause, "cause")?;
            let cause = handle.communicator.failure();
            out.set(give_text(
                &cause.map(|cause| cause.to_string()).unwrap_or_default(),
            ));
            Ok(())
        })
    }
}

/// Sets the default time-out, in nanoseconds and positive, of operations that start from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_set_timeout(comm: *mut fc_comm, timeout_ns: i64) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator.
    unsafe {
        with_comm(comm, |handle| {
            let timeout = ffi::timeout(timeout_ns)?.unwrap_or_default();
            handle.communicator.set_timeout(timeout)
        })
    }
}

/// The default time-out in nanoseconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_timeout(comm: *const fc_comm, timeout_ns: *mut i64) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator, and NULL or a place for a number.
    unsafe {
        with_comm(comm, |handle| {
            let nanoseconds = handle.communicator.timeout().as_nanos();
            Out::new(timeout_ns, "timeout_ns")?.set(i64::try_from(nanoseconds).unwrap_or(i64::MAX));
            Ok(())
        })
    }
}

/// Number of collectives and splits issued so far, which is the sequence number of the last; 0 for
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_sequence(comm: *const fc_comm) -> u64 {
    guard_value(0, || {
        // SAFETY: the caller passes NULL or a live communicator.
        unsafe { ffi::value(comm) }?.look(Communicator::sequence)
    })
}

/// The communicator as JSON: {"name", "engine", "rank", "size", "state", "error", "transport",
/// "sequence", "timeout_ms", "operations": {operation: {"count", "bytes"}}}. Bytes are what this
/// rank gave, or took where it gave nothing. `*json` receives an owned string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_info(
    comm: *const fc_comm,
    json: *mut *mut fc_string,
) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator, and NULL or a place for a pointer.
    unsafe {
        with_comm(comm, |handle| {
            Out::new(json, "json")?.set(give_text(&handle.communicator.info()));
            Ok(())
        })
    }
}

/// Waits for everything issued, then closes the communicator; every rank calls it. Fails with what
/// a peer reported and no call has raised yet; the communicator is finalized all the same. Calling
/// it again does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_finalize(comm: *mut fc_comm) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator.
    unsafe {
        with_comm(comm, |handle| match handle.changing {
            Some(changing) => changing.finalize(),
            None => handle.communicator.finalize(),
        })
    }
}

/// Waits until every asynchronous operation is over that was started before, whatever came of it:
/// works have the outcomes. Functions given to `fc_work_on_complete` may still run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_wait_pending(comm: *mut fc_comm) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator.
    unsafe { with_comm(comm, |handle| handle.communicator.wait_pending()) }
}

/// Fails everything pending on this rank with `FC_ERR_ABORTED` and wakes its waiters. Never waits
/// for a peer: the others learn of it by their time-out or the end of the connection. Any thread;
/// calling it again does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_abort(comm: *mut fc_comm) -> fc_status {
    // SAFETY: the caller passes NULL or a live communicator.
    unsafe {
        with_comm(comm, |handle| {
            match handle.changing {
                Some(changing) => changing.abort(),
                None => handle.communicator.abort(),
            }
            Ok(())
        })
    }
}

/// Gives the communicator back. Without `fc_comm_finalize` before, what is pending is aborted.
/// Works of the communicator may outlive it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_comm_destroy(comm: *mut fc_comm) {
    guard_value((), || {
        // SAFETY: the caller gives up its communicator, once.
        if let Some(handle) = unsafe { ffi::take(comm) } {
            handle.close();
        }
        Ok(())
    });
}
