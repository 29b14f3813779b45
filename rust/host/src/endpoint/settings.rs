//! What users say about streams. Must not know streams.

use ferrocomm_core::error::{Error, ErrorKind, Result};

/// Which streams may be used, from `FERROCOMM_HOST_TRANSPORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransportChoice {
    Auto,
    Shm,
    Tcp,
}

impl TransportChoice {
    pub(crate) fn from_environment() -> Result<Self> {
        match std::env::var("FERROCOMM_HOST_TRANSPORT").as_deref() {
            Err(_) | Ok("" | "auto") => Ok(Self::Auto),
            Ok("shm") => Ok(Self::Shm),
            Ok("tcp") => Ok(Self::Tcp),
            Ok(other) => Err(Error::new(
                ErrorKind::InvalidArgument,
                "FERROCOMM_HOST_TRANSPORT names no transport",
            )
            .got(other)
            .expected("auto, shm or tcp")),
        }
    }
}

/// How many connections carry long messages to another process, from `FERROCOMM_TCP_STREAMS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamCount {
    /// one within a machine, some between machines
    Auto,
    Fixed(usize),
}

impl StreamCount {
    /// Enough where a network gives one connection a quarter of what it carries.
    const BETWEEN_MACHINES: usize = 4;
    const MOST: usize = 16;

    /// # Errors
    /// `InvalidArgument` when the variable has another value.
    pub(crate) fn from_environment() -> Result<Self> {
        let text = std::env::var_os("FERROCOMM_TCP_STREAMS").unwrap_or_default();
        Self::named(&text.to_string_lossy())
    }

    fn named(text: &str) -> Result<Self> {
        if matches!(text, "" | "auto") {
            return Ok(Self::Auto);
        }
        let count = text.parse().ok();
        count
            .filter(|count| (1..=Self::MOST).contains(count))
            .map(Self::Fixed)
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    "FERROCOMM_TCP_STREAMS has a value that it cannot have",
                )
                .got(text)
                .expected(format_args!("auto, or a number from 1 to {}", Self::MOST))
            })
    }

    pub(super) fn to(self, same_machine: bool) -> usize {
        match self {
            Self::Fixed(count) => count,
            Self::Auto if same_machine => 1,
            Self::Auto => Self::BETWEEN_MACHINES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_streams_are_bounded_and_words_refused() {
        let count = |text| StreamCount::named(text).map(|count| (count.to(true), count.to(false)));
        assert_eq!(count("").unwrap(), (1, 4));
        assert_eq!(count("auto").unwrap(), (1, 4));
        assert_eq!(count("16").unwrap(), (16, 16));
        for text in ["0", "17", "-1", "many"] {
            let error = count(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(text));
        }
    }
}
