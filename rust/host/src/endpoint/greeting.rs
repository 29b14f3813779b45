//! What a connection begins with: what it is for, who dials, and the proof that this is a rank of
//! the job. Must not know sockets.

use ferrocomm_core::ids::{CommId, ProcessId};

/// Bytes of a greeting: purpose, the dialler's process, the listener's nonce, the communicator.
pub(super) const GREETING: usize = 8 + 16 + 16 + 8;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// to carry frames
    Link,
    /// to hand over the arena of a communicator
    Arena,
    /// only to see who listens
    Watch,
}

/// A greeting but for the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) purpose: Purpose,
    /// who dials
    pub(super) process: ProcessId,
    /// 0: it concerns none
    pub(super) comm: CommId,
}

/// What a connection has said so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// the beginning of a greeting
    Part,
    Whole(Greeting),
    /// something else; it is not a rank of this job
    Wrong(&'static str),
}

impl Purpose {
    pub(super) const ALL: [Self; 3] = [Self::Link, Self::Arena, Self::Watch];

    /// What a greeting begins with; the last byte is the version of this protocol.
    pub(super) fn magic(self) -> &'static [u8; 8] {
        match self {
            Self::Link => b"FERROCM2",
            Self::Arena => b"FERROCA2",
            Self::Watch => b"FERROCW2",
        }
    }
}

impl Greeting {
    /// Its bytes for the owner of `nonce`.
    pub(super) fn encode(&self, nonce: &[u8; 16]) -> [u8; GREETING] {
        let mut bytes = [0; GREETING];
        bytes[..8].copy_from_slice(self.purpose.magic());
        bytes[8..24].copy_from_slice(&self.process.0);
        bytes[24..40].copy_from_slice(nonce);
        bytes[40..].copy_from_slice(&self.comm.0.to_le_bytes());
        bytes
    }
}

/// Reads the beginning of a connection to the owner of `nonce`. A stranger is known by its first byte
/// that no rank would send. The nonce is judged as a whole: who learns which of its bytes is wrong
/// can guess it.
pub(super) fn read_greeting(bytes: &[u8], nonce: &[u8; 16]) -> Said {
    let begins_like = |purpose: &Purpose| {
        let mut pairs = bytes.iter().zip(purpose.magic());
        pairs.all(|(got, wanted)| got == wanted)
    };
    let Some(purpose) = Purpose::ALL.into_iter().find(begins_like) else {
        return Said::Wrong("it speaks another language");
    };
    let Some(rest) = bytes.get(8..GREETING) else {
        return Said::Part;
    };
    let (process, rest) = rest.split_at(16);
    let (shown, comm) = rest.split_at(16);
    match (process.try_into(), comm.try_into()) {
        (Ok(process), Ok(comm)) if shown == nonce => Said::Whole(Greeting {
            purpose,
            process: ProcessId(process),
            comm: CommId(u64::from_le_bytes(comm)),
        }),
        _ => Said::Wrong("it does not know this job's secret"),
    }
}

/// For `crate::fuzzing`: what a connection may begin with, read as it comes in.
#[cfg(any(test, fuzzing))]
pub fn fuzz_greeting(bytes: &[u8]) {
    const NONCE: [u8; 16] = *b"the secret here!";
    let ranks = Purpose::ALL.map(|purpose| Greeting {
        purpose,
        process: ProcessId([5; 16]),
        comm: CommId(6),
    });
    let mut wrong = false;
    for end in 0..=bytes.len().min(GREETING) {
        match read_greeting(&bytes[..end], &NONCE) {
            Said::Part => assert!(!wrong && end < GREETING, "a stranger is heard again"),
            Said::Wrong(why) => {
                wrong = true;
                assert!(!why.is_empty());
                for rank in &ranks {
                    assert!(bytes[..end] != rank.encode(&NONCE)[..end]);
                }
            }
            Said::Whole(greeting) => {
                assert_eq!(end, GREETING);
                assert_eq!(greeting.encode(&NONCE), bytes[..end]);
            }
        }
    }
    // A rank always comes in.
    for rank in ranks {
        assert_eq!(
            read_greeting(&rank.encode(&NONCE), &NONCE),
            Said::Whole(rank)
        );
    }
}
