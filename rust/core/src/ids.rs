//! Names of things that must never be mistaken for one another. Must not know what they name.

use std::fmt;

/// A rank inside one communicator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupRank(u32);

/// A rank inside the communicator that was joined through a store; splits keep it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GlobalRank(u32);

/// A communicator, the same number on all its ranks, different from every other one in the job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u64);

/// A process (or, in tests, one of several endpoints in a process): random, so that a stale
/// address is recognised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub [u8; 16]);

macro_rules! rank {
    ($name:ident) => {
        impl $name {
            /// The rank with this number.
            pub const fn new(rank: u32) -> Self {
                Self(rank)
            }
            /// Its number.
            pub const fn get(self) -> u32 {
                self.0
            }
            /// Its number, to index with.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}
rank!(GroupRank);
rank!(GlobalRank);

impl fmt::Debug for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommId({:016x})", self.0)
    }
}

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProcessId(")?;
        for byte in &self.0[..4] {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

/// FNV-1a, 64 bit: names that every rank must derive alike, on every build and machine, which the
/// standard library's hasher does not promise.
pub fn stable_hash(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for &byte in (part.len() as u64).to_le_bytes().iter().chain(part.iter()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash
}
