//! What hints ask of the host engine. Must not know who gave them, nor what is done about them.

use ferrocomm_core::error::{Error, ErrorKind, Result};

/// Whether to connect to all ranks when a communicator is made; the last `eager` counts.
///
/// # Errors
/// `InvalidArgument` for a value that is no truth value.
pub(crate) fn eager(hints: &[(String, String)]) -> Result<bool> {
    let given = hints.iter().rev().find(|(key, _)| key == "eager");
    let Some((_, value)) = given else {
        return Ok(false);
    };
    match value.to_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(Error::new(
            ErrorKind::InvalidArgument,
            "a hint has a value that does not fit",
        )
        .got(format!("eager={value:?}"))
        .expected("true or false")
        .remedy("give every rank the same hints")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(values: &[&str]) -> Result<bool> {
        let hints: Vec<_> = values
            .iter()
            .map(|value| ("eager".to_owned(), (*value).to_owned()))
            .collect();
        eager(&hints)
    }

    #[test]
    fn the_last_one_counts_and_what_is_no_truth_value_is_named() {
        for (values, expected) in [
            (&[][..], false),
            (&["true"], true),
            (&["1", "0"], false),
            (&["False", "True"], true),
        ] {
            assert_eq!(asked(values).ok(), Some(expected), "{values:?}");
        }
        let error = asked(&["maybe"]).expect_err("no truth value").to_string();
        assert!(error.contains("eager=\"maybe\""), "{error}");
    }
}
