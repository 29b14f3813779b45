//! Which kernels copy between ranks of this machine: from how many bytes on what a rank puts is
//! stored past the caches, and from how many on the others read it where it lies instead.
//!
//! Processors differ in this by factors, so it is measured, once per machine, and kept in a file.
//! Whoever makes an arena chooses for all its ranks. Must not know arenas or collectives.

mod kept;
mod measuring;

use std::sync::{Mutex, PoisonError};

use ferrocomm_core::error::{Error, ErrorKind, Result};

use crate::cores;

/// A length that no payload has.
pub(crate) const NEVER: usize = usize::MAX;
/// From so many bytes on it is worth telling addresses instead of bytes: where a read is a system call
/// (`FERROCOMM_DIRECT_READS=on`), and where all ranks share segments.
pub(crate) const WORTH_A_CALL: usize = 24 << 10;

/// From which lengths on a kernel is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// what ranks put is stored past the caches
    pub(crate) past_caches_from: usize,
    /// ranks read one another's memory
    pub(crate) direct_from: usize,
}

impl Choice {
    /// Of a machine that nothing is known of.
    pub(crate) const DEFAULT: Self = Self {
        past_caches_from: 2 << 10,
        direct_from: NEVER,
    };
}

/// What `FERROCOMM_DIRECT_READS` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectReads {
    /// where it was measured to be faster
    Auto,
    /// never
    Off,
    /// wherever the kernel allows it
    On,
}

impl DirectReads {
    /// # Errors
    /// `InvalidArgument` when the variable has another value.
    pub(crate) fn from_environment() -> Result<Self> {
        Self::named(&variable("FERROCOMM_DIRECT_READS"))
    }

    fn named(name: &str) -> Result<Self> {
        match name {
            "" | "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            other => Err(Error::new(
                ErrorKind::InvalidArgument,
                "FERROCOMM_DIRECT_READS has a value that it cannot have",
            )
            .got(other)
            .expected("auto, on or off")),
        }
    }

    fn applied_to(self, choice: Choice) -> Choice {
        let direct_from = match self {
            Self::Auto => choice.direct_from,
            Self::Off => NEVER,
            Self::On => WORTH_A_CALL,
        };
        Choice {
            direct_from,
            ..choice
        }
    }
}

/// The choice for an arena of `ranks` ranks that this process makes. Takes as long as a measurement
/// where nothing is known of the machine yet.
///
/// # Errors
/// `InvalidArgument` when a variable of the environment has a value that it cannot have.
pub(crate) fn for_arena(ranks: usize) -> Result<Choice> {
    let reads = DirectReads::from_environment()?;
    let choice = if may_be_measured(&variable("FERROCOMM_COPY_KERNELS"))? {
        KNOWN.get(ranks, kept::File::of_user)
    } else {
        Choice::DEFAULT
    };
    Ok(reads.applied_to(choice))
}

fn may_be_measured(name: &str) -> Result<bool> {
    match name {
        "" | "auto" => Ok(true),
        "default" => Ok(false),
        other => Err(Error::new(
            ErrorKind::InvalidArgument,
            "FERROCOMM_COPY_KERNELS has a value that it cannot have",
        )
        .got(other)
        .expected("auto or default")),
    }
}

fn variable(name: &str) -> String {
    // What is no text is a wrong value all the same.
    std::env::var_os(name).map_or_else(String::new, |value| value.to_string_lossy().into_owned())
}

/// What this process knows of its machine.
static KNOWN: Known = Known(Mutex::new(None));

struct Known(Mutex<Option<Choice>>);

impl Known {
    /// `file` is where it is kept for other processes.
    fn get(&self, ranks: usize, file: impl FnOnce() -> Option<kept::File>) -> Choice {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(choice) = *known {
            return choice;
        }
        let file = file();
        if let Some(choice) = file.as_ref().and_then(kept::File::read) {
            *known = Some(choice);
            return choice;
        }
        // Where ranks share processors a measurement would tell of their turns. One that is made
        // later by a process with room is as good.
        if cores::usable() < ranks.max(2) {
            return Choice::DEFAULT;
        }
        let measured = measuring::measure(measuring::LIMIT);
        let choice = measured.unwrap_or(Choice::DEFAULT);
        tracing::debug!(
            measured = measured.is_some(),
            past_caches_from = choice.past_caches_from,
            direct_from = choice.direct_from,
            "copy kernels chosen"
        );
        if let (Some(file), Some(choice)) = (file, measured) {
            file.write(choice);
        }
        *known = Some(choice);
        choice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_overrules_what_was_measured() {
        let measured = Choice {
            past_caches_from: 4096,
            direct_from: 1 << 20,
        };
        let chosen = |name| DirectReads::named(name).unwrap().applied_to(measured);
        assert_eq!(chosen(""), measured);
        assert_eq!(chosen("auto"), measured);
        assert_eq!(chosen("off").direct_from, NEVER);
        assert_eq!(chosen("on").direct_from, WORTH_A_CALL);
        assert_eq!(chosen("on").past_caches_from, 4096);
        assert!(may_be_measured("").unwrap() && may_be_measured("auto").unwrap());
        assert!(!may_be_measured("default").unwrap());
    }

    #[test]
    fn a_wrong_value_is_an_error_that_names_variable_and_values() {
        let error = DirectReads::named("yes").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = error.to_string();
        assert!(text.contains("FERROCOMM_DIRECT_READS"), "{text}");
        assert!(text.contains("got yes; expected auto, on or off"), "{text}");
        let text = may_be_measured("fast").unwrap_err().to_string();
        assert!(text.contains("FERROCOMM_COPY_KERNELS"), "{text}");
        assert!(
            text.contains("got fast; expected auto or default"),
            "{text}"
        );
    }

    #[test]
    fn without_room_nothing_is_measured_and_nothing_decided() {
        let known = Known(Mutex::new(None));
        assert_eq!(known.get(NEVER, || None), Choice::DEFAULT);
        assert_eq!(*known.0.lock().unwrap(), None);
    }

    #[test]
    fn what_is_kept_is_used_without_room_and_read_once() {
        let folder = std::env::temp_dir().join(format!("ferrocomm-known-{}", std::process::id()));
        let file = || kept::File::at(folder.join("copy-kernels"), "boot", "processor");
        let choice = Choice {
            past_caches_from: 4096,
            direct_from: 1 << 20,
        };
        file().write(choice);
        let known = Known(Mutex::new(None));
        assert_eq!(known.get(NEVER, || Some(file())), choice);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(known.get(2, || Some(file())), choice);
    }
}
