//! Reading the memory of another process of this machine, and writing it: one copy, made by the kernel,
//! straight to where the bytes belong.
//!
//! It is allowed where the other process belongs to the same user and nothing forbids it (Yama, a
//! container's filter); whoever wants to rely on it tries it first. Must not know collectives.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrocomm_core::call::Region;
use ferrocomm_core::error::{Error, ErrorKind, Result};

use crate::segments;

/// Bytes one system call may be asked for.
const MOST: usize = 1 << 30;

/// A word of this process that others read to see whether they may. Every process of this program
/// has it, at an address that it tells.
static PROBE: AtomicU64 = AtomicU64::new(0x4643_5052_4f42_4500);

/// A process, as others of its machine read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Readable {
    pub(crate) pid: u32,
    /// where its probe lies
    pub(crate) probe: u64,
    /// where its table of shared segments lies
    pub(crate) segments: u64,
}

impl Readable {
    /// This process.
    pub(crate) fn own() -> Self {
        Self {
            pid: std::process::id(),
            probe: (&raw const PROBE) as u64,
            segments: segments::table(),
        }
    }

    /// Whether this process may read that one.
    pub(crate) fn can_be_read(self) -> bool {
        let mut word = 0_u64;
        let to = Region {
            address: (&raw mut word) as usize,
            bytes: size_of::<u64>(),
        };
        // SAFETY: `word` lives for the call.
        let read = unsafe { pull(self.pid, self.probe, to) };
        read.is_ok() && word == PROBE.load(Ordering::Relaxed)
    }
}

/// Fills `to` with the memory of process `pid` from `address` on.
///
/// # Errors
/// `PeerLost` when that process is gone, `Transport` when the kernel refuses or the memory is not
/// there.
///
/// # Safety
/// `to` is memory that belongs to the running call.
pub(crate) unsafe fn pull(pid: u32, address: u64, to: Region) -> Result<()> {
    let mut done = 0;
    while done < to.bytes {
        let bytes = (to.bytes - done).min(MOST);
        let local = libc::iovec {
            iov_base: (to.address + done) as *mut libc::c_void,
            iov_len: bytes,
        };
        let remote = libc::iovec {
            iov_base: (address + done as u64) as *mut libc::c_void,
            iov_len: bytes,
        };
        // SAFETY: one entry each; the kernel writes at most `bytes` bytes into `to`, which belongs to
        // the call, and checks the other process's memory itself.
        let read = unsafe {
            libc::process_vm_readv(
                pid.cast_signed(),
                &raw const local,
                1,
                &raw const remote,
                1,
                0,
            )
        };
        match usize::try_from(read) {
            Ok(0) | Err(_) => return Err(refused(pid, "read", &io::Error::last_os_error())),
            Ok(read) => done += read,
        }
    }
    Ok(())
}

/// Writes `from` to the memory of process `pid` from `address` on.
///
/// # Errors
/// As `pull`.
///
/// # Safety
/// `from` is memory that belongs to the running call.
pub(crate) unsafe fn push(pid: u32, address: u64, from: Region) -> Result<()> {
    let mut done = 0;
    while done < from.bytes {
        let bytes = (from.bytes - done).min(MOST);
        let local = libc::iovec {
            iov_base: (from.address + done) as *mut libc::c_void,
            iov_len: bytes,
        };
        let remote = libc::iovec {
            iov_base: (address + done as u64) as *mut libc::c_void,
            iov_len: bytes,
        };
        // SAFETY: one entry each; the kernel reads at most `bytes` bytes of `from`, which belongs to the
        // call, and checks the other process's memory itself.
        let written = unsafe {
            libc::process_vm_writev(
                pid.cast_signed(),
                &raw const local,
                1,
                &raw const remote,
                1,
                0,
            )
        };
        match usize::try_from(written) {
            Ok(0) | Err(_) => return Err(refused(pid, "written", &io::Error::last_os_error())),
            Ok(written) => done += written,
        }
    }
    Ok(())
}

fn refused(pid: u32, done: &str, error: &io::Error) -> Error {
    if error.raw_os_error() == Some(libc::ESRCH) {
        let what = format!("a peer died while its memory was {done}");
        return Error::new(ErrorKind::PeerLost, what)
            .got(format_args!("process {pid} is gone"))
            .remedy("look at what the named rank printed before it ended");
    }
    Error::new(
        ErrorKind::Transport,
        format!("the memory of another rank could not be {done}"),
    )
    .got(format_args!("process {pid}: {error}"))
    .remedy("set FERROCOMM_DIRECT_READS=off on all ranks")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_gone_is_a_lost_peer() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let mut word = 0_u64;
        let to = Region {
            address: (&raw mut word) as usize,
            bytes: 8,
        };
        // SAFETY: `word` lives for the call.
        let error = unsafe { pull(pid, Readable::own().probe, to) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost);
    }

    #[test]
    fn the_own_process_can_be_read_and_nonsense_cannot() {
        assert!(Readable::own().can_be_read());
        let nowhere = Readable {
            probe: 8,
            ..Readable::own()
        };
        assert!(!nowhere.can_be_read());
        let from: Vec<u8> = (0..100_000_u32).map(|byte| byte as u8).collect();
        let mut to = vec![0; from.len()];
        let region = Region {
            address: to.as_mut_ptr() as usize,
            bytes: to.len(),
        };
        // SAFETY: `to` lives for the call.
        unsafe { pull(std::process::id(), from.as_ptr() as u64, region) }.unwrap();
        assert_eq!(to, from);
        // SAFETY: as above.
        let error = unsafe { pull(std::process::id(), 8, region) }.unwrap_err();
        assert!(error.to_string().contains("FERROCOMM_DIRECT_READS"));
        from_the_other_side(&from, region);
        assert_eq!(to, from);
    }

    /// Writes `from` to `to`, memory of this process, which no longer holds it.
    fn from_the_other_side(from: &[u8], to: Region) {
        let source = Region {
            address: from.as_ptr() as usize,
            bytes: from.len(),
        };
        // SAFETY: both live for the call; nothing else uses them.
        unsafe {
            std::ptr::write_bytes(to.address as *mut u8, 0, to.bytes);
            push(std::process::id(), to.address as u64, source).unwrap();
        }
        // SAFETY: as above.
        let error = unsafe { push(std::process::id(), 8, source) }.unwrap_err();
        assert!(error.to_string().contains("could not be written"));
    }
}
