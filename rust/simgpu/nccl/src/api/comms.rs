//! Communicators: making, asking, ending.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::OnceLock;
use std::time::Duration;

use simgpu_common::fault;

use super::{nccl_api, not_null, put};
use crate::comm::Comm;
use crate::config::{Config, RawConfig};
use crate::failure::{Code, Failure, Outcome, last_text};
use crate::group;
use crate::management::{self, ID, UniqueId};

/// The version of the API that is simulated.
pub const VERSION: c_int = 23_007;

/// The version that is told: `SIMGPU_NCCL_VERSION`, or the true one.
pub fn told_version() -> c_int {
    static TOLD: OnceLock<c_int> = OnceLock::new();
    *TOLD.get_or_init(|| {
        let other = fault::number("SIMGPU_NCCL_VERSION");
        other
            .and_then(|version| c_int::try_from(version).ok())
            .unwrap_or(VERSION)
    })
}

/// For tests: how many communicators this process has.
#[unsafe(no_mangle)]
pub extern "C" fn simgpuNcclComms() -> c_int {
    c_int::try_from(Comm::count()).unwrap_or(c_int::MAX)
}

fn default_config() -> Config {
    let blocking = std::env::var("NCCL_COMM_BLOCKING").map_or(true, |value| value != "0");
    Config {
        blocking,
        ..Config::default()
    }
}

/// Reads a configuration.
fn config(raw: *const RawConfig, inherited: &Config) -> Outcome<Config> {
    // SAFETY: callers pass NULL or a configuration that begins with its size.
    unsafe { Config::read(raw, inherited) }
}

fn give(out: *mut usize, made: Outcome<(usize, Code)>) -> Outcome<Code> {
    let (handle, code) = made?;
    put(out, "newcomm", handle)?;
    Ok(code)
}

fn ids<'a>(raw: *const UniqueId, count: c_int) -> Outcome<&'a [UniqueId]> {
    not_null(raw, "commIds")?;
    let count = usize::try_from(count).map_err(|_| Failure::argument("nId is negative"))?;
    // SAFETY: not null, and the caller passes `count` ids.
    Ok(unsafe { std::slice::from_raw_parts(raw, count) })
}

/// As in NCCL's header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUniqueId(UniqueId);

/// As in NCCL's header.
#[repr(C)]
pub struct Properties {
    size: usize,
    magic: c_uint,
    version: c_uint,
    rank: c_int,
    ranks: c_int,
    cuda_dev: c_int,
    nvml_dev: c_int,
    device_api: bool,
    multimem: bool,
    gin_type: c_int,
    lsa_teams: c_int,
    host_rma: bool,
    railed_gin_type: c_int,
}

nccl_api! {
    /// The version.
    fn ncclGetVersion(version: *mut c_int) {
        put(version, "version", told_version())?;
        Ok(Code::SUCCESS)
    }

    /// A unique id.
    fn ncclGetUniqueId(id: *mut UniqueId) {
        put(id, "uniqueId", management::unique_id()?)?;
        Ok(Code::SUCCESS)
    }

    /// Joins.
    fn ncclCommInitRank(comm: *mut usize, ranks: c_int, id: CUniqueId, rank: c_int) {
        not_null(comm, "comm")?;
        give(comm, management::init(rank, ranks, &[id.0], default_config()))
    }

    /// Joins with a configuration.
    fn ncclCommInitRankConfig(
        comm: *mut usize, ranks: c_int, id: CUniqueId, rank: c_int, raw: *const RawConfig,
    ) {
        not_null(comm, "comm")?;
        let config = config(raw, &default_config())?;
        give(comm, management::init(rank, ranks, &[id.0], config))
    }

    /// Joins by several ids.
    fn ncclCommInitRankScalable(
        comm: *mut usize, ranks: c_int, rank: c_int, count: c_int, all: *const UniqueId,
        raw: *const RawConfig,
    ) {
        not_null(comm, "newcomm")?;
        let config = config(raw, &default_config())?;
        give(comm, management::init(rank, ranks, ids(all, count)?, config))
    }

    /// Makes a communicator of this process's devices.
    fn ncclCommInitAll(comms: *mut usize, count: c_int, devices: *const c_int) {
        not_null(comms, "comms")?;
        let id = management::unique_id()?;
        let before = crate::comm::current_device()?;
        group::start();
        for rank in 0..count.max(0) {
            let place = rank.unsigned_abs() as usize;
            // SAFETY: the caller passes `count` devices, or NULL.
            let device = if devices.is_null() { rank } else { unsafe { *devices.add(place) } };
            crate::comm::use_device(device)?;
            let (handle, _) = management::init(rank, count, &[id], default_config())?;
            // SAFETY: the caller has room for `count` handles.
            unsafe { comms.add(place).write(handle) };
        }
        crate::comm::use_device(before)?;
        group::end()
    }

    /// Splits.
    fn ncclCommSplit(
        comm: usize, color: c_int, key: c_int, new: *mut usize, raw: *const RawConfig,
    ) {
        put(new, "newcomm", 0)?;
        let parent = Comm::from_handle(comm)?;
        let config = config(raw, &parent.config)?;
        give(new, management::split(parent, color, key, config))
    }

    /// Shrinks.
    fn ncclCommShrink(
        comm: usize, excluded: *const c_int, count: c_int, new: *mut usize, raw: *const RawConfig,
        flags: c_int,
    ) {
        put(new, "newcomm", 0)?;
        not_null(excluded, "excludeRanksList")?;
        let parent = Comm::from_handle(comm)?;
        let config = config(raw, &parent.config)?;
        // SAFETY: not null, and the caller passes `count` ranks.
        let list = unsafe { std::slice::from_raw_parts(excluded, count.unsigned_abs() as usize) };
        let list: Vec<_> = list
            .iter()
            .map(|rank| usize::try_from(*rank).map_err(|_| Failure::argument("negative rank")))
            .collect::<Outcome<_>>()?;
        if !(0..=1).contains(&flags) {
            return Err(Failure::argument(format!("shrinkFlags {flags}")));
        }
        give(new, management::shrink(parent, list, flags == 1, config))
    }

    /// An id for growing.
    fn ncclCommGetUniqueId(comm: usize, id: *mut UniqueId) {
        not_null(id, "uniqueId")?;
        put(id, "uniqueId", management::growth_id(&*Comm::from_handle(comm)?)?)?;
        Ok(Code::SUCCESS)
    }

    /// Grows.
    fn ncclCommGrow(
        comm: usize, ranks: c_int, id: *const UniqueId, rank: c_int, new: *mut usize,
        raw: *const RawConfig,
    ) {
        put(new, "newcomm", 0)?;
        // SAFETY: NULL, or an id of the caller's.
        let id = unsafe { id.as_ref() };
        if comm == 0 {
            let id = id.ok_or_else(|| Failure::argument("a new rank needs the unique id"))?;
            let config = config(raw, &default_config())?;
            return give(new, management::grow_into(rank, ranks, id, config));
        }
        if rank != -1 {
            return Err(Failure::argument("a rank that is in already passes rank -1"));
        }
        let parent = Comm::from_handle(comm)?;
        let config = config(raw, &parent.config)?;
        give(new, management::grow_from(parent, ranks, id.copied(), config))
    }

    /// Takes no more operations.
    fn ncclCommFinalize(comm: usize) {
        let comm = Comm::from_handle(comm)?;
        comm.ready()?;
        if comm.is_revoked() {
            return Err(Failure::usage("ncclCommFinalize after ncclCommRevoke"));
        }
        comm.finalize()?;
        comm.perform(|comm| {
            comm.wait_until_idle();
            Ok(())
        })
    }

    /// Ends a communicator after its operations.
    fn ncclCommDestroy(comm: usize) {
        if comm == 0 {
            return Ok(Code::SUCCESS);
        }
        let comm = Comm::from_handle(comm)?;
        comm.wait_until_idle();
        comm.forget();
        comm.stop();
        Ok(Code::SUCCESS)
    }

    /// Ends a communicator and the operations under way.
    fn ncclCommAbort(comm: usize) {
        if comm == 0 {
            return Ok(Code::SUCCESS);
        }
        let comm = Comm::from_handle(comm)?;
        comm.stop();
        comm.forget();
        Ok(Code::SUCCESS)
    }

    /// Ends the operations under way. The fault makes the call itself take long.
    fn ncclCommRevoke(comm: usize, flags: c_int) {
        let comm = Comm::from_handle(comm)?;
        if flags != 0 {
            return Err(Failure::argument(format!("revokeFlags {flags}, expected 0")));
        }
        comm.revoke();
        if let Some(&[milliseconds]) = fault::of_this_rank("SIMGPU_SLOW_REVOKE").as_deref() {
            std::thread::sleep(Duration::from_millis(milliseconds.unsigned_abs()));
        }
        comm.perform(|comm| {
            comm.wait_until_idle();
            Ok(())
        })
    }

    /// What polling tells.
    fn ncclCommGetAsyncError(comm: usize, error: *mut c_int) {
        let comm = Comm::from_handle(comm)?;
        if let Some(code) = failing_poll() {
            return Err(Failure::new(code, "ncclCommGetAsyncError fails as it was asked to"));
        }
        put(error, "asyncError", comm.state().0)?;
        Ok(Code::SUCCESS)
    }

    /// How many ranks there are.
    fn ncclCommCount(comm: usize, count: *mut c_int) {
        let comm = Comm::from_handle(comm)?;
        comm.ready()?;
        put(count, "count", comm.arena()?.ranks as c_int)?;
        Ok(Code::SUCCESS)
    }

    /// This rank.
    fn ncclCommUserRank(comm: usize, rank: *mut c_int) {
        let comm = Comm::from_handle(comm)?;
        comm.ready()?;
        put(rank, "rank", comm.arena()?.rank as c_int)?;
        Ok(Code::SUCCESS)
    }

    /// The device.
    fn ncclCommCuDevice(comm: usize, device: *mut c_int) {
        let comm = Comm::from_handle(comm)?;
        comm.ready()?;
        put(device, "devid", comm.device)?;
        Ok(Code::SUCCESS)
    }

    /// What a communicator can do.
    fn ncclCommQueryProperties(comm: usize, all: *mut Properties) {
        let comm = Comm::from_handle(comm)?;
        comm.ready()?;
        not_null(all, "props")?;
        // SAFETY: not null, and made with the initializer.
        let all = unsafe { &mut *all };
        if all.magic != 0xcafe_beef {
            return Err(Failure::argument("props: not made with its initializer"));
        }
        let arena = comm.arena()?;
        (all.rank, all.ranks) = (arena.rank as c_int, arena.ranks as c_int);
        (all.cuda_dev, all.nvml_dev) = (comm.device, comm.device);
        (all.device_api, all.multimem, all.host_rma) = (false, false, true);
        (all.gin_type, all.railed_gin_type, all.lsa_teams) = (0, 0, 1);
        Ok(Code::SUCCESS)
    }

    /// Gives memory up.
    fn ncclCommSuspend(comm: usize, flags: c_int) {
        let comm = Comm::from_handle(comm)?;
        comm.ready()?;
        if flags != 1 {
            return Err(Failure::argument(format!("suspend flags {flags}, expected 1")));
        }
        comm.wait_until_idle();
        comm.suspend(true)?;
        Ok(Code::SUCCESS)
    }

    /// Takes it again.
    fn ncclCommResume(comm: usize) {
        let comm = Comm::from_handle(comm)?;
        comm.suspend(false)?;
        Ok(Code::SUCCESS)
    }

    /// How much memory: 0 that can be given up, 1 whether it is, 2 that cannot, 3 all.
    fn ncclCommMemStats(comm: usize, stat: c_int, value: *mut u64) {
        let comm = Comm::from_handle(comm)?;
        let (movable, fixed) = (crate::arena::SLOT as u64, 2 << 20);
        let known = match stat {
            0 => movable,
            1 => u64::from(comm.is_suspended()),
            2 => fixed,
            3 => movable + fixed,
            _ => return Err(Failure::argument(format!("no such statistic: {stat}"))),
        };
        put(value, "value", known)?;
        Ok(Code::SUCCESS)
    }

    /// Begins a group.
    fn ncclGroupStart() {
        group::start();
        Ok(Code::SUCCESS)
    }

    /// Ends a group.
    fn ncclGroupEnd() { group::end() }

    /// Ends a group without effect. The estimate is a made-up number.
    fn ncclGroupSimulateEnd(info: *mut SimInfo) {
        group::cancel()?;
        if !info.is_null() {
            // SAFETY: not null, and made with the initializer.
            unsafe { (*info).estimated_time = 1.0 };
        }
        Ok(Code::SUCCESS)
    }
}

/// As in NCCL's header.
#[repr(C)]
pub struct SimInfo {
    size: usize,
    magic: c_uint,
    version: c_uint,
    estimated_time: f32,
}

/// The fault "failing poll": `SIMGPU_ASYNC_ERROR_FAILS=RANK:CODE`.
fn failing_poll() -> Option<Code> {
    static FAULT: OnceLock<Option<Code>> = OnceLock::new();
    *FAULT.get_or_init(|| {
        let values = fault::of_this_rank("SIMGPU_ASYNC_ERROR_FAILS")?;
        Some(Code(
            values
                .first()
                .and_then(|code| c_int::try_from(*code).ok())
                .unwrap_or(3),
        ))
    })
}

/// What a result code says.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let text = match code {
        0 => c"no error",
        1 => c"unhandled cuda error (simulated NCCL)",
        2 => c"unhandled system error (simulated NCCL)",
        3 => c"internal error (simulated NCCL)",
        4 => c"invalid argument (simulated NCCL)",
        5 => c"invalid usage (simulated NCCL)",
        6 => c"remote process exited or there was a network error (simulated NCCL)",
        7 => c"NCCL operation in progress",
        8 => c"operation timed out (simulated NCCL)",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// The text of the last failure of this process.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: usize) -> *const c_char {
    last_text()
}

const _: () = assert!(ID == size_of::<CUniqueId>());
