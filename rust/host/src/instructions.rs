//! Which instructions reductions use, from `FERROCOMM_SIMD`. Must not know what they are used for.

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::reduction::Level;

/// The level the environment names, or the best of this processor.
pub(crate) fn from_environment() -> Result<Level> {
    chosen(std::env::var("FERROCOMM_SIMD").as_deref().unwrap_or("auto"))
}

fn chosen(name: &str) -> Result<Level> {
    if name.is_empty() || name == "auto" {
        return Ok(Level::best());
    }
    Level::named(name).ok_or_else(|| {
        let what = if Level::NAMES.contains(&name) {
            "FERROCOMM_SIMD names instructions that this processor lacks"
        } else {
            "FERROCOMM_SIMD names no instructions"
        };
        let names: Vec<&str> = Level::available().map(Level::name).collect();
        Error::new(ErrorKind::InvalidArgument, what)
            .got(name)
            .expected(format_args!("auto, or one of {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_of_the_processor_can_be_named() {
        assert_eq!(chosen("auto").unwrap(), Level::best());
        assert_eq!(chosen("").unwrap(), Level::best());
        for level in Level::available() {
            assert_eq!(chosen(level.name()).unwrap(), level);
        }
    }

    #[test]
    fn another_name_is_an_error_that_lists_them() {
        let error = chosen("sse9").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = error.to_string();
        assert!(
            text.contains("FERROCOMM_SIMD names no instructions; got sse9"),
            "{text}"
        );
        assert!(text.contains("expected auto, or one of scalar"), "{text}");
    }

    #[test]
    fn what_the_processor_lacks_is_refused() {
        for name in Level::NAMES {
            if Level::named(name).is_none() {
                let text = chosen(name).unwrap_err().to_string();
                assert!(text.contains("this processor lacks"), "{text}");
            }
        }
    }
}
