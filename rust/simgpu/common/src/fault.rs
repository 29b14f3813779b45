//! Faults that tests ask for by environment variables. A fault of one rank is written
//! `RANK:VALUE`, and the launcher tells each process its rank in `SIMGPU_RANK`.

use std::env;

/// The rank of this process, as the launcher or torch's own launcher says it.
pub fn rank() -> Option<i64> {
    ["SIMGPU_RANK", "RANK"]
        .iter()
        .find_map(|name| env::var(name).ok()?.parse().ok())
}

/// The value of a variable as a number; text that is none ends the process, because a test whose
/// fault is not understood would pass for nothing.
pub fn number(name: &str) -> Option<i64> {
    let text = env::var(name).ok()?;
    match text.parse() {
        Ok(value) => Some(value),
        Err(_) => refuse(name, &text, "a number"),
    }
}

/// The values after the rank in `RANK:VALUE[:VALUE]`, when the rank is this one's.
pub fn of_this_rank(name: &str) -> Option<Vec<i64>> {
    let text = env::var(name).ok()?;
    match parse(&text) {
        Some((who, values)) => (Some(who) == rank()).then_some(values),
        None => refuse(name, &text, "RANK:VALUE"),
    }
}

fn parse(text: &str) -> Option<(i64, Vec<i64>)> {
    let mut numbers = text.split(':').map(|part| part.parse().ok());
    let who = numbers.next()??;
    let values = numbers.collect::<Option<Vec<i64>>>()?;
    Some((who, values))
}

fn refuse(name: &str, text: &str, expected: &str) -> ! {
    crate::report("fault", &format!("{name} is {text:?}, expected {expected}"));
    std::process::exit(2);
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_fault_names_its_rank_first() {
        assert_eq!(parse("1:250"), Some((1, vec![250])));
        assert_eq!(parse("0:6:3"), Some((0, vec![6, 3])));
        assert_eq!(parse("2"), Some((2, vec![])));
    }

    #[test]
    fn text_that_is_no_number_is_no_fault() {
        assert_eq!(parse("one:2"), None);
        assert_eq!(parse("1:"), None);
        assert_eq!(parse(""), None);
    }
}
