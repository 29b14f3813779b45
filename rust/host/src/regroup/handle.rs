//! The handles by which the members of a group to come name one another.
//!
//! A handle is text: the form's name and version, the id of a communicator in hexadecimal digits, and
//! everything that is needed to reach it, in hexadecimal digits as well. Handles come from outside, so
//! whatever does not fit is refused. Must not know how members meet.

use std::cmp::Reverse;
use std::collections::HashMap;

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::CommId;
use ferrocomm_core::reconfigure::Handles;

use crate::bootstrap::Member;

/// What a handle of this version begins with.
const BEGIN: &str = "ferrocomm:1:";
/// What a handle of any version begins with.
const ANY_VERSION: &str = "ferrocomm:";
/// Longest handle; a member has at most 1024 bytes.
const LONGEST: usize = 4096;
/// Members at most: their ids travel in one frame.
const MOST: usize = 16 * 1024;

/// A communicator in its process: random, so that no other one is taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PresenceId(pub(crate) u64);

impl std::fmt::Display for PresenceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{BEGIN}{:016x}", self.0)
    }
}

/// Where a communicator was when its handle was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// in no group yet; the launcher gave its process this rank
    Launched(u32),
    /// in this group, as this rank
    Group(CommId, u32),
}

/// A handle, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) id: PresenceId,
    pub(crate) origin: Origin,
    /// version and transport in words; members whose words differ do not meet
    pub(crate) facts: String,
    pub(crate) member: Member,
}

impl Handle {
    /// Its text.
    pub(crate) fn encode(&self) -> String {
        let (kind, group, rank) = match self.origin {
            Origin::Launched(rank) => (0, 0, rank),
            Origin::Group(comm, rank) => (1, comm.0, rank),
        };
        let mut bytes = vec![kind];
        bytes.extend(group.to_le_bytes());
        bytes.extend(rank.to_le_bytes());
        bytes.push(u8::try_from(self.facts.len()).unwrap_or(u8::MAX));
        bytes.extend(self.facts.bytes().take(usize::from(u8::MAX)));
        bytes.extend(self.member.bytes());
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}:{digits}", self.id)
    }

    /// Reads the handle at `position` of its list.
    ///
    /// # Errors
    /// `InvalidArgument`, when it is none; `Mismatch`, when it is one of another version.
    pub(crate) fn decode(text: &str, position: usize) -> Result<Self> {
        Self::parse(text).ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            let got = if shown.len() == text.len() {
                shown
            } else {
                shown + "..."
            };
            let error = if text.starts_with(ANY_VERSION) && !text.starts_with(BEGIN) {
                Error::new(ErrorKind::Mismatch, "a handle has another version")
                    .remedy("install the same version of Ferrocomm on all ranks")
            } else {
                Error::new(ErrorKind::InvalidArgument, "a handle cannot be read")
                    .remedy("pass what get_init_handle() of each member returned, unchanged")
            };
            error
                .got(format!("{got:?} at position {position}"))
                .expected(format!("{BEGIN}..."))
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let (id, digits) = text.strip_prefix(BEGIN)?.split_once(':')?;
        if id.len() != 16 || digits.len() > LONGEST {
            return None;
        }
        let id = PresenceId(u64::from_str_radix(id, 16).ok()?);
        let bytes = from_digits(digits)?;
        let (kind, rest) = bytes.split_first()?;
        let (group, rest) = rest.split_first_chunk()?;
        let (rank, rest) = rest.split_first_chunk()?;
        let rank = u32::from_le_bytes(*rank);
        let origin = match kind {
            0 => Origin::Launched(rank),
            1 => Origin::Group(CommId(u64::from_le_bytes(*group)), rank),
            _ => return None,
        };
        let (length, rest) = rest.split_first()?;
        let (facts, rest) = rest.split_at_checked(usize::from(*length))?;
        Some(Self {
            id,
            origin,
            facts: String::from_utf8(facts.to_vec()).ok()?,
            member: Member::read(rest)?,
        })
    }
}

fn from_digits(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(pair).collect()
}

/// The members that `handles` name, in the order of their ranks.
///
/// # Errors
/// `InvalidArgument`, when they are no group; `Mismatch`, for a handle of another version.
pub(crate) fn members(handles: &Handles) -> Result<Vec<Handle>> {
    let (Handles::Ordered(texts) | Handles::Unordered(texts)) = handles;
    let invalid = |what| Error::new(ErrorKind::InvalidArgument, what);
    if texts.is_empty() || texts.len() > MOST {
        return Err(invalid("the number of handles cannot be a group's")
            .got(format!("{} handles", texts.len()))
            .expected(format!("1 to {MOST}")));
    }
    let mut members = Vec::with_capacity(texts.len());
    for (position, text) in texts.iter().enumerate() {
        members.push(Handle::decode(text, position)?);
    }
    if let Handles::Unordered(_) = handles {
        choose_order(&mut members);
    }
    let mut seen = HashMap::new();
    for (position, member) in members.iter().enumerate() {
        if let Some(before) = seen.insert(member.member.process, position) {
            let what = if members[before].id == member.id {
                "a handle is there twice"
            } else {
                "two handles are of one process"
            };
            return Err(invalid(what)
                .got(format!("{} and {}", members[before].id, member.id))
                .expected("one handle of each process"));
        }
    }
    Ok(members)
}

/// Gives members their ranks, by what their handles say alone. First those that come out of one
/// group, in their order there; where there are several groups, the one most members come out of.
/// Then the other groups, and last those that come out of none, as the launcher counted them.
fn choose_order(members: &mut [Handle]) {
    let mut sizes: HashMap<CommId, usize> = HashMap::new();
    for member in members.iter() {
        if let Origin::Group(comm, _) = member.origin {
            *sizes.entry(comm).or_default() += 1;
        }
    }
    members.sort_by_key(|member| match member.origin {
        Origin::Group(comm, rank) => {
            let size = sizes.get(&comm).copied().unwrap_or(0);
            (Reverse(size), comm, rank, member.id)
        }
        Origin::Launched(rank) => (Reverse(0), CommId(0), rank, member.id),
    });
}

/// In words, where two lists of members differ: this rank's, and another one's.
pub(crate) fn difference(ours: &[PresenceId], theirs: &[PresenceId]) -> (String, String) {
    let at = ours
        .iter()
        .zip(theirs)
        .position(|(one, other)| one != other)
        .unwrap_or_else(|| ours.len().min(theirs.len()));
    (describe(ours, theirs, at), describe(theirs, ours, at))
}

fn describe(list: &[PresenceId], other: &[PresenceId], at: usize) -> String {
    const NAMED: usize = 4;
    let there = list
        .get(at)
        .map_or_else(|| "nobody".into(), ToString::to_string);
    let mut text = format!("{} members, position {at} is {there}", list.len());
    let alone: Vec<String> = list
        .iter()
        .filter(|id| !other.contains(id))
        .map(ToString::to_string)
        .collect();
    if !alone.is_empty() {
        text += &format!(", only here: {}", alone[..alone.len().min(NAMED)].join(" "));
        if alone.len() > NAMED {
            text += &format!(" and {} more", alone.len() - NAMED);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::Location;
    use ferrocomm_core::ids::ProcessId;

    fn handle(id: u64, origin: Origin) -> Handle {
        let mut process = [0; 16];
        process[..8].copy_from_slice(&id.to_le_bytes());
        Handle {
            id: PresenceId(id),
            origin,
            facts: "ferrocomm 0.1.0, transport auto".into(),
            member: Member {
                process: ProcessId(process),
                machine: 5,
                location: Location::default(),
                unix: "ferrocomm-x".into(),
                addresses: vec!["127.0.0.1:9".parse().unwrap(), "[::1]:9".parse().unwrap()],
                nonce: [3; 16],
            },
        }
    }

    fn ids(members: &[Handle]) -> Vec<u64> {
        members.iter().map(|member| member.id.0).collect()
    }

    #[test]
    fn a_handle_is_read_as_it_was_written() {
        for origin in [Origin::Launched(7), Origin::Group(CommId(u64::MAX), 3)] {
            let handle = handle(0xab, origin);
            let text = handle.encode();
            assert!(text.starts_with("ferrocomm:1:00000000000000ab:"), "{text}");
            assert!(!text.contains(char::is_whitespace));
            assert_eq!(Handle::decode(&text, 0).unwrap(), handle);
        }
    }

    #[test]
    fn no_part_and_no_other_text_is_a_handle() {
        let text = handle(1, Origin::Launched(0)).encode();
        for end in 0..text.len() {
            assert!(Handle::decode(&text[..end], 0).is_err(), "{end}");
        }
        for wrong in [
            "",
            "x",
            "ferrocomm:1:",
            "ferrocomm:1:0:",
            &(text.clone() + "00"),
        ] {
            let error = Handle::decode(wrong, 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{wrong}");
        }
        let newer = text.replace(":1:", ":2:");
        let error = Handle::decode(&newer, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
    }

    #[test]
    fn a_list_keeps_its_order_and_a_set_begins_with_the_survivors() {
        let group = CommId(9);
        let texts: Vec<String> = [
            handle(1, Origin::Launched(1)),
            handle(2, Origin::Group(group, 3)),
            handle(3, Origin::Launched(0)),
            handle(4, Origin::Group(CommId(1), 0)),
            handle(5, Origin::Group(group, 1)),
        ]
        .iter()
        .map(Handle::encode)
        .collect();
        let ordered = members(&Handles::Ordered(texts.clone())).unwrap();
        assert_eq!(ids(&ordered), [1, 2, 3, 4, 5]);
        for turn in 0..texts.len() {
            let mut texts = texts.clone();
            texts.rotate_left(turn);
            let chosen = members(&Handles::Unordered(texts)).unwrap();
            assert_eq!(ids(&chosen), [5, 2, 4, 3, 1]);
        }
    }

    #[test]
    fn what_cannot_be_a_group_is_refused() {
        let one = handle(1, Origin::Launched(0));
        let mut neighbour = handle(2, Origin::Launched(1));
        neighbour.member.process = one.member.process;
        for texts in [
            vec![],
            vec![one.encode(), one.encode()],
            vec![one.encode(), neighbour.encode()],
            vec![one.encode(), "nonsense".into()],
        ] {
            let error = members(&Handles::Ordered(texts)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }

    #[test]
    fn a_difference_is_named_from_both_sides() {
        let list =
            |ids: &[u64]| -> Vec<PresenceId> { ids.iter().copied().map(PresenceId).collect() };
        let (ours, theirs) = difference(&list(&[1, 2, 3]), &list(&[1, 2]));
        assert!(
            ours.starts_with("3 members, position 2 is ferrocomm:1:0000000000000003, only here")
        );
        assert_eq!(theirs, "2 members, position 2 is nobody");
        let (ours, theirs) = difference(&list(&[1, 2]), &list(&[2, 1]));
        assert!(
            ours.ends_with("position 0 is ferrocomm:1:0000000000000001"),
            "{ours}"
        );
        assert!(
            theirs.ends_with("position 0 is ferrocomm:1:0000000000000002"),
            "{theirs}"
        );
    }
}
