//! NCCL's version numbers, and which version brought which function. Must not know how the
//! library is found.

use std::fmt;

/// A version as `ncclGetVersion` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    /// The version `major.minor.patch`.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }

    /// The version behind NCCL's number for it. Up to 2.8 the major part counted thousands.
    pub const fn from_code(code: u32) -> Self {
        let thousands = if code < 10_000 { 1_000 } else { 10_000 };
        Self::new(
            code / thousands,
            code % thousands / 100,
            code % thousands % 100,
        )
    }

    /// NCCL's number for it.
    pub const fn code(self) -> u32 {
        if self.major < 2 || (self.major == 2 && self.minor <= 8) {
            self.major * 1_000 + self.minor * 100 + self.patch
        } else {
            self.major * 10_000 + self.minor * 100 + self.patch
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Functions that not every NCCL 2 has, each with the first version that has it.
const FIRST: [(&str, Version); 36] = [
    ("ncclRedOpCreatePreMulSum", Version::new(2, 11, 4)),
    ("ncclRedOpDestroy", Version::new(2, 11, 4)),
    ("ncclGetLastError", Version::new(2, 13, 4)),
    ("ncclCommInitRankConfig", Version::new(2, 14, 3)),
    ("ncclCommFinalize", Version::new(2, 14, 3)),
    ("ncclCommSplit", Version::new(2, 18, 1)),
    ("ncclMemAlloc", Version::new(2, 19, 1)),
    ("ncclMemFree", Version::new(2, 19, 1)),
    ("ncclCommRegister", Version::new(2, 19, 1)),
    ("ncclCommDeregister", Version::new(2, 19, 1)),
    ("ncclGroupSimulateEnd", Version::new(2, 22, 3)),
    ("ncclCommInitRankScalable", Version::new(2, 23, 4)),
    ("ncclCommShrink", Version::new(2, 27, 3)),
    ("ncclCommWindowRegister", Version::new(2, 27, 3)),
    ("ncclCommWindowDeregister", Version::new(2, 27, 3)),
    ("ncclAlltoAll", Version::new(2, 28, 3)),
    ("ncclGather", Version::new(2, 28, 3)),
    ("ncclScatter", Version::new(2, 28, 3)),
    ("ncclCommRevoke", Version::new(2, 28, 7)),
    ("ncclCommGrow", Version::new(2, 29, 2)),
    ("ncclCommGetUniqueId", Version::new(2, 29, 2)),
    ("ncclPutSignal", Version::new(2, 29, 2)),
    ("ncclSignal", Version::new(2, 29, 2)),
    ("ncclWaitSignal", Version::new(2, 29, 2)),
    ("ncclWinGetUserPtr", Version::new(2, 29, 2)),
    ("ncclCommSuspend", Version::new(2, 29, 7)),
    ("ncclCommResume", Version::new(2, 29, 7)),
    ("ncclCommMemStats", Version::new(2, 29, 7)),
    ("ncclAllReduceConfig", Version::new(2, 32, 3)),
    ("ncclBroadcastConfig", Version::new(2, 32, 3)),
    ("ncclReduceConfig", Version::new(2, 32, 3)),
    ("ncclAllGatherConfig", Version::new(2, 32, 3)),
    ("ncclReduceScatterConfig", Version::new(2, 32, 3)),
    ("ncclAlltoAllConfig", Version::new(2, 32, 3)),
    ("ncclGatherConfig", Version::new(2, 32, 3)),
    ("ncclScatterConfig", Version::new(2, 32, 3)),
];

/// The first version with the function `name`; `None` for those that every NCCL 2 has.
pub fn first_version(name: &str) -> Option<Version> {
    FIRST
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, version)| *version)
}

/// A function that the loaded library does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// the function
    pub symbol: &'static str,
    /// the first version that has it, where it is known
    pub needs: Option<Version>,
    /// the version that was found
    pub found: Version,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.needs {
            Some(needs) if needs > self.found => write!(
                f,
                "{} needs NCCL >= {needs}, found {}",
                self.symbol, self.found
            ),
            _ => write!(
                f,
                "{} is missing in the NCCL that was found, {}",
                self.symbol, self.found
            ),
        }
    }
}

impl std::error::Error for Missing {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_to_versions_and_back() {
        for (code, text) in [
            (2_708, "2.7.8"),
            (2_804, "2.8.4"),
            (20_906, "2.9.6"),
            (23_007, "2.30.7"),
            (23_203, "2.32.3"),
        ] {
            let version = Version::from_code(code);
            assert_eq!(version.to_string(), text);
            assert_eq!(version.code(), code);
        }
        assert!(Version::from_code(2_804) < Version::from_code(20_906));
    }

    #[test]
    fn a_missing_function_names_the_version_that_has_it() {
        let missing = |symbol, found| {
            Missing {
                symbol,
                needs: first_version(symbol),
                found: Version::from_code(found),
            }
            .to_string()
        };
        assert_eq!(
            missing("ncclCommGrow", 22_809),
            "ncclCommGrow needs NCCL >= 2.29.2, found 2.28.9"
        );
        // A build that leaves functions out says nothing about versions.
        assert_eq!(
            missing("ncclAllReduce", 22_809),
            "ncclAllReduce is missing in the NCCL that was found, 2.28.9"
        );
    }
}
