//! How much memory may still be reserved: what the machine has available and what the control
//! groups of this process allow.
//!
//! Shared memory is reserved only within this budget: beyond it the kernel kills processes instead
//! of refusing. This module must not know what the memory is for.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferrocomm_core::error::{Error, ErrorKind, Result};

/// Left to everybody else, in bytes.
const MARGIN: u64 = 16 << 20;

/// Where the figures come from.
#[derive(Clone, Debug)]
pub(crate) enum Budget {
    /// the kernel's files below this directory: `/`, or a copy of some of them in tests
    Machine(PathBuf),
    /// so many bytes, for tests
    #[cfg_attr(not(test), expect(dead_code, reason = "tests inject a budget"))]
    Fixed(u64),
}

impl Budget {
    /// The budget of this process on this machine, read anew at each check.
    pub(crate) fn of_machine() -> Self {
        Self::Machine(PathBuf::from("/"))
    }

    /// Bytes that may be reserved now; `None` when the kernel does not say.
    pub(crate) fn available(&self) -> Option<u64> {
        match self {
            Self::Fixed(bytes) => Some(*bytes),
            Self::Machine(root) => {
                let limits = [machine_available(root), group_available(root)];
                let available = limits.into_iter().flatten().min()?;
                Some(available.saturating_sub(MARGIN))
            }
        }
    }

    /// Whether `bytes` bytes fit.
    ///
    /// # Errors
    /// `Resources` with both numbers when they do not.
    pub(crate) fn check(&self, bytes: u64) -> Result<()> {
        if let Self::Machine(root) = self
            && root == Path::new("/")
            && Recent::covers(bytes)
        {
            return Ok(());
        }
        match self.available() {
            Some(available) if bytes > available => {
                Err(shortage(bytes).got(format_args!("{available} bytes that may be reserved")))
            }
            Some(available) => {
                Recent::note(available - bytes);
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// What was left when the machine was last asked. Asking reads a dozen files: small requests in quick
/// succession live on one answer.
struct Recent {
    at: Instant,
    /// of a share of what was left: others take memory, too
    left: u64,
}

static RECENT: Mutex<Option<Recent>> = Mutex::new(None);

impl Recent {
    const FRESH: Duration = Duration::from_secs(1);
    const SHARE: u64 = 16;

    fn note(available: u64) {
        *RECENT.lock().unwrap_or_else(PoisonError::into_inner) = Some(Self {
            at: Instant::now(),
            left: available / Self::SHARE,
        });
    }

    /// Whether `bytes` bytes fit by the last answer; they are taken from it.
    fn covers(bytes: u64) -> bool {
        let mut recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *recent {
            Some(recent) if recent.at.elapsed() < Self::FRESH && recent.left >= bytes => {
                recent.left -= bytes;
                true
            }
            _ => false,
        }
    }
}

/// The error for `bytes` bytes of shared memory that are not to be had.
pub(crate) fn shortage(bytes: u64) -> Error {
    Error::new(
        ErrorKind::Resources,
        "not enough memory for the shared memory of a connection",
    )
    .expected(format_args!("{bytes} bytes"))
    .remedy(
        "free memory, raise the memory limit of the container or control group, or set \
             FERROCOMM_HOST_TRANSPORT=tcp",
    )
}

/// What the whole machine can give without swapping.
fn machine_available(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    Some(field(&text, "MemAvailable:")?.saturating_mul(1024))
}

/// The tightest limit of the control groups this process is in, of either version.
fn group_available(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mut tightest: Option<u64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (mount, names) = if controllers.is_empty() {
            ("sys/fs/cgroup", &VERSION_2)
        } else if controllers.split(',').any(|name| name == "memory") {
            ("sys/fs/cgroup/memory", &VERSION_1)
        } else {
            continue;
        };
        // Every group on the way up limits; inside a container the lower ones may be out of sight.
        for directory in Path::new(path.trim_start_matches('/')).ancestors() {
            let left = names.left(&root.join(mount).join(directory));
            tightest = tightest.into_iter().chain(left).min();
        }
    }
    tightest
}

/// Names of a control group's files.
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// the part of the usage the kernel gives up when asked, in `memory.stat`
    reclaimable: &'static str,
}

const VERSION_1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};
const VERSION_2: Names = Names {
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: "inactive_file",
};

impl Names {
    /// What the group in `directory` may still take; `None` without a limit.
    fn left(&self, directory: &Path) -> Option<u64> {
        let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
        let limit: u64 = read(self.limit)?.trim().parse().ok()?;
        let usage: u64 = read(self.usage)?.trim().parse().ok()?;
        let reclaimable = read("memory.stat")
            .and_then(|text| field(&text, self.reclaimable))
            .unwrap_or(0);
        Some(limit.saturating_sub(usage.saturating_sub(reclaimable)))
    }
}

/// The number behind `name` at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        if words.next() == Some(name) {
            words.next()?.parse().ok()
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Files of a pretended machine, removed at the end.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("ferrocomm-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }

        fn available(&self) -> Option<u64> {
            Budget::Machine(self.0.clone()).available()
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal: 9 kB\nMemAvailable:    8388608 kB\nCached: 1 kB\n",
    );

    #[test]
    fn without_groups_the_machine_limits() {
        let machine = Machine::new("plain", &[MEMINFO]);
        assert_eq!(machine.available(), Some(8 * GIB - MARGIN));
    }

    #[test]
    fn the_tightest_group_of_version_2_limits() {
        let machine = Machine::new(
            "v2",
            &[
                MEMINFO,
                ("proc/self/cgroup", "0::/outer/inner\n"),
                ("sys/fs/cgroup/outer/memory.max", "2147483648\n"),
                ("sys/fs/cgroup/outer/memory.current", "1610612736\n"),
                (
                    "sys/fs/cgroup/outer/memory.stat",
                    "anon 1\ninactive_file 536870912\n",
                ),
                ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
                ("sys/fs/cgroup/outer/inner/memory.current", "5\n"),
            ],
        );
        assert_eq!(machine.available(), Some(GIB - MARGIN));
    }

    #[test]
    fn a_group_of_version_1_limits_from_its_root_when_the_rest_is_out_of_sight() {
        let machine = Machine::new(
            "v1",
            &[
                MEMINFO,
                (
                    "proc/self/cgroup",
                    "5:cpu:/a\n4:memory:/docker/0123\n0::/\n",
                ),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n"),
            ],
        );
        assert_eq!(machine.available(), Some(0));
    }

    #[test]
    fn shortage_names_the_numbers() {
        let text = Budget::Fixed(1000).check(2000).unwrap_err().to_string();
        assert!(text.contains("1000") && text.contains("2000"), "{text}");
        assert!(Budget::Fixed(1000).check(1000).is_ok());
    }

    #[test]
    fn this_machine_says_what_it_has() {
        assert!(Budget::of_machine().available().is_some());
    }
}
