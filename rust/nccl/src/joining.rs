//! Making a communicator: what it needs, and the calls that may take as long as its slowest rank.
//! Must not know operations.

use std::ffi::CString;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::group::Group;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::store::Store;
use ferrocomm_core::{Error, ErrorKind, Result, interrupt};
use ferrocomm_nccl_sys::sys::{ncclComm_t, ncclResult_t, ncclUniqueId};
use ferrocomm_nccl_sys::{Nccl, symbol};

use crate::bootstrap::{ID_BYTES, Id, Meeting, roots};
use crate::bounded::bounded_unless;
use crate::comm::Core;
use crate::driver::Device;
use crate::errors;
use crate::group::NcclGroup;
use crate::handle::{Comm, Handle, finished};
use crate::hints::Hints;
use crate::library::library;

/// Told of a failure before it ends the process.
pub type OnFatal = Arc<dyn Fn(&Error) + Send + Sync>;

/// What a group is made with.
#[derive(Clone)]
pub struct GroupOptions {
    /// the same on all ranks
    pub name: Arc<str>,
    /// this rank
    pub rank: GroupRank,
    /// number of ranks
    pub size: usize,
    /// how long joining, and later splitting, may take
    pub timeout: Duration,
    /// number of the device, as CUDA counts them in this process
    pub device: i32,
    /// see `docs/environment.md`
    pub hints: Vec<(String, String)>,
    /// told when a time-out or an error is about to end the process
    pub on_fatal: OnFatal,
}

/// Joins the ranks into a group; returns when all have come.
///
/// # Errors
/// `Unsupported` without a driver or NCCL; `Timeout` naming the ranks that did not come; the store's
/// errors; NCCL's; `Interrupted`.
pub fn create(options: &GroupOptions, store: &dyn Store) -> Result<Arc<dyn Group>> {
    let deadline = Deadline::after(options.timeout);
    let meeting = Meeting::new(store, &options.name, options.rank, options.size, deadline);
    let prepared = Seat::prepare(options).inspect_err(|error| meeting.decline(error))?;
    let nccl = prepared.nccl;
    let roots = roots(
        options.size,
        symbol!(nccl, ncclCommInitRankScalable).is_ok(),
    );
    let ids = meeting.ids(roots, || fresh_id(nccl))?;
    let (size, rank) = (options.size, options.rank);
    let comm = prepared
        .join(deadline, move |nccl, config, comm| {
            init(nccl, config, comm, size, rank, &ids)
        })
        .map_err(|error| match error.kind() {
            ErrorKind::Timeout => meeting.late(),
            _ => error,
        })?;
    let core = Core::open(prepared, comm, size, rank)?;
    Ok(Arc::new(NcclGroup::new(core)))
}

/// A new id of NCCL's.
///
/// # Errors
/// NCCL's.
pub(crate) fn fresh_id(nccl: &Nccl) -> Result<Id> {
    let ask = symbol!(nccl, ncclGetUniqueId).map_err(|error| errors::missing(&error))?;
    let mut id = ncclUniqueId {
        internal: [0; ID_BYTES],
    };
    // SAFETY: a place for one id.
    let result = unsafe { ask(&raw mut id) };
    if result == ncclResult_t::ncclSuccess {
        return Ok(id.internal.map(|byte| byte.to_ne_bytes()[0]));
    }
    // SAFETY: no communicator is asked about.
    Err(unsafe { errors::failed(nccl, ptr::null_mut(), "ncclGetUniqueId", result, None) })
}

pub(crate) type Config = ferrocomm_nccl_sys::sys::ncclConfig_t;
pub(crate) type Made = (&'static str, ncclResult_t);

/// An id as NCCL has it.
pub(crate) fn unique_id(id: &Id) -> ncclUniqueId {
    ncclUniqueId {
        internal: id.map(|byte| std::ffi::c_char::from_ne_bytes([byte])),
    }
}

/// The call that makes a communicator out of ids.
pub(crate) fn init(
    nccl: &Nccl,
    config: *mut Config,
    comm: *mut ncclComm_t,
    size: usize,
    rank: GroupRank,
    ids: &[Id],
) -> Result<Made> {
    let mut ids: Vec<ncclUniqueId> = ids.iter().map(unique_id).collect();
    let size = int(size)?;
    let rank = int(rank.index())?;
    if let [id] = ids[..] {
        let call =
            symbol!(nccl, ncclCommInitRankConfig).map_err(|error| errors::missing(&error))?;
        // SAFETY: places for a communicator and its configuration, which live during the call.
        return Ok(("ncclCommInitRankConfig", unsafe {
            call(comm, size, id, rank, config)
        }));
    }
    let call = symbol!(nccl, ncclCommInitRankScalable).map_err(|error| errors::missing(&error))?;
    let count = int(ids.len())?;
    // SAFETY: as above, and `count` ids.
    Ok(("ncclCommInitRankScalable", unsafe {
        call(comm, size, rank, count, ids.as_mut_ptr(), config)
    }))
}

pub(crate) fn int(number: usize) -> Result<i32> {
    i32::try_from(number).map_err(|_| {
        Error::new(ErrorKind::InvalidArgument, "more ranks than NCCL can count").got(number)
    })
}

/// What a communicator needs before it exists, and takes along.
pub(crate) struct Seat {
    pub(crate) nccl: &'static Nccl,
    pub(crate) device: Device,
    pub(crate) hints: Arc<Hints>,
    pub(crate) name: Arc<str>,
    pub(crate) timeout: Duration,
    pub(crate) on_fatal: OnFatal,
}

/// A place that a call on another thread writes a communicator to.
pub(crate) struct Slot(pub(crate) Comm);

impl Seat {
    /// What `options` ask for, once everything is there that it takes.
    ///
    /// # Errors
    /// `Unsupported` without a driver or NCCL; `InvalidArgument` for hints and devices.
    pub(crate) fn prepare(options: &GroupOptions) -> Result<Self> {
        Ok(Self {
            device: Device::open(options.device)?,
            nccl: library()?,
            hints: Arc::new(Hints::read(&options.hints)?),
            name: options.name.clone(),
            timeout: options.timeout,
            on_fatal: options.on_fatal.clone(),
        })
    }

    /// One for another communicator.
    pub(crate) fn like(&self, name: &Arc<str>, hints: Arc<Hints>) -> Self {
        Self {
            hints,
            name: name.clone(),
            on_fatal: self.on_fatal.clone(),
            ..*self
        }
    }

    pub(crate) fn text(&self) -> CString {
        CString::new(self.name.replace('\0', "")).unwrap_or_default()
    }

    /// Makes a communicator with `call`, on another thread, and waits for it.
    pub(crate) fn join(
        &self,
        deadline: Deadline,
        call: impl FnOnce(&Nccl, *mut Config, *mut ncclComm_t) -> Result<Made> + Send + 'static,
    ) -> Result<Arc<Handle>> {
        self.join_unless(deadline, interrupt::check, call)
    }

    /// As `join`; `go_on` is asked now and then, and ends the wait with its error.
    pub(crate) fn join_unless(
        &self,
        deadline: Deadline,
        go_on: impl Fn() -> Result<()>,
        call: impl FnOnce(&Nccl, *mut Config, *mut ncclComm_t) -> Result<Made> + Send + 'static,
    ) -> Result<Arc<Handle>> {
        let (nccl, device, hints, name) = (self.nccl, self.device, self.hints.clone(), self.text());
        bounded_unless("joining", deadline, go_on, move || {
            let _entered = device.enter()?;
            let mut config = hints.config(nccl.version(), &name);
            let mut slot = Slot(Comm(ptr::null_mut()));
            let (call, result) = call(nccl, &raw mut config, &raw mut slot.0.0)?;
            let Slot(comm) = slot;
            // SAFETY: made above, and nobody else knows it yet.
            if let Err(error) = unsafe { finished(nccl, comm.0, call, result, deadline) } {
                // What was begun is given up with its owner.
                drop((!comm.0.is_null()).then(|| Handle::new(nccl, device, comm, hints, name)));
                return Err(error);
            }
            Ok(Handle::new(nccl, device, comm, hints, name))
        })
    }
}
