//! Where a machine stands: its data centre, zone and rack, as the user names them, from the largest to
//! the smallest. Ranks tell one another numbers that stand for the names. Must not know machines.

use std::collections::HashMap;

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::stable_hash;

const VARIABLE: &str = "FERROCOMM_LOCATION";
/// More would make no difference to the order of machines that anybody could measure.
pub(crate) const LEVELS: usize = 3;

/// A place; at each level a number that is the same for all who name the same places down to there.
/// Zero: not named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Location(pub(crate) [u32; LEVELS]);

impl Location {
    /// # Errors
    /// `InvalidArgument` when the variable names none.
    pub(crate) fn from_environment() -> Result<Self> {
        let text = std::env::var_os(VARIABLE).unwrap_or_default();
        Self::named(&text.to_string_lossy())
    }

    fn named(text: &str) -> Result<Self> {
        let mut levels = [0; LEVELS];
        if text.is_empty() {
            return Ok(Self(levels));
        }
        let names: Vec<&str> = text.split('/').collect();
        if names.len() > LEVELS || names.iter().any(|name| name.trim().is_empty()) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "FERROCOMM_LOCATION names no place",
            )
            .got(text)
            .expected("one to three names, as in zone-a/rack-7, the largest place first"));
        }
        let names: Vec<&[u8]> = names.iter().map(|name| name.trim().as_bytes()).collect();
        for (level, number) in levels.iter_mut().enumerate().take(names.len()) {
            let hash = stable_hash(&names[..=level]);
            *number = (hash ^ hash >> 32) as u32 | 1;
        }
        Ok(Self(levels))
    }
}

/// The order in which those at `places` stand next to their neighbours: places that begin alike follow
/// one another, and else what came first stays first.
pub(crate) fn neighbourly(places: &[Location]) -> Vec<usize> {
    let mut first: HashMap<(usize, u32), usize> = HashMap::new();
    let mut keys = Vec::with_capacity(places.len());
    for (index, place) in places.iter().enumerate() {
        let mut level = 0;
        keys.push(place.0.map(|number| {
            let key = (level, number);
            level += 1;
            *first.entry(key).or_insert(index)
        }));
    }
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|index| keys[*index]);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Location {
        Location::named(text).unwrap()
    }

    #[test]
    fn places_that_begin_alike_share_the_numbers_of_their_beginning() {
        let (one, other) = (at("east/rack 1"), at("east / rack 2"));
        assert_eq!(one.0[0], other.0[0]);
        assert_ne!(one.0[1], other.0[1]);
        assert_eq!(one.0[2], 0);
        // Racks are numbered anew in each zone.
        assert_ne!(at("west/rack 1").0[1], one.0[1]);
        assert_eq!(at(""), Location::default());
    }

    #[test]
    fn what_is_no_place_is_refused_in_words() {
        for text in ["a//b", "/a", "a/", " ", "a/b/c/d"] {
            let error = Location::named(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{text}");
            assert!(error.to_string().contains("zone-a/rack-7"), "{error}");
        }
    }

    #[test]
    fn neighbours_stand_together_and_the_first_stay_first() {
        let places = ["e/1", "w/1", "e/2", "", "w/1", "e/1", ""].map(at);
        assert_eq!(neighbourly(&places), [0, 5, 2, 1, 4, 3, 6]);
        assert_eq!(neighbourly(&[Location::default(); 3]), [0, 1, 2]);
    }
}
