//! By which of NCCL's calls the members of a new communicator get it: out of the one that all or some
//! of them have, or afresh. Everybody decides by the same facts. Must not know NCCL.

/// What a member had so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// a number that the ranks of its communicator share with nobody else; 0: it has none
    pub(super) origin: u64,
    /// its rank there
    pub(super) rank: u32,
    /// ranks there
    pub(super) size: u32,
    pub(super) able: Able,
}

/// What a member can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Able {
    /// its communicator is idle, or was stopped, and no graph uses it
    pub(super) spare: bool,
    /// it never failed
    pub(super) sound: bool,
    pub(super) shrink: bool,
    pub(super) grow: bool,
}

/// How.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// all come out of one communicator, which these ranks of it leave
    Shrink(Vec<u32>),
    /// to the whole of one communicator, of so many ranks, others come
    Grow(u32),
    Fresh,
}

impl Facts {
    pub(super) const BYTES: usize = 17;

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let Able {
            spare,
            sound,
            shrink,
            grow,
        } = self.able;
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.origin.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.rank.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.size.to_le_bytes());
        bytes[16] =
            u8::from(spare) | u8::from(sound) << 1 | u8::from(shrink) << 2 | u8::from(grow) << 3;
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let four = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let half = |at| u64::from(u32::from_le_bytes(four(at)));
        let flag = |bit: u8| bytes[16] & (1 << bit) != 0;
        Self {
            origin: half(0) | half(4) << 32,
            rank: u32::from_le_bytes(four(8)),
            size: u32::from_le_bytes(four(12)),
            able: Able {
                spare: flag(0),
                sound: flag(1),
                shrink: flag(2),
                grow: flag(3),
            },
        }
    }
}

/// The way for members with these facts, in the order of their new ranks.
pub(super) fn way(members: &[Facts]) -> Way {
    let Some(first) = members.first().filter(|first| first.origin != 0) else {
        return Way::Fresh;
    };
    let together = |member: &Facts| (member.origin, member.size) == (first.origin, first.size);
    let shrinks = |member: &Facts| together(member) && member.able.spare && member.able.shrink;
    let rising = members.windows(2).all(|pair| pair[0].rank < pair[1].rank);
    if members.len() < first.size as usize && rising && members.iter().all(shrinks) {
        let stays = |rank: &u32| members.iter().any(|member| member.rank == *rank);
        return Way::Shrink((0..first.size).filter(|rank| !stays(rank)).collect());
    }
    let Some((old, new)) = members.split_at_checked(first.size as usize) else {
        return Way::Fresh;
    };
    let grows = |(place, member): (usize, &Facts)| {
        let able = member.able;
        together(member) && member.rank as usize == place && able.spare && able.sound && able.grow
    };
    let comes = |member: &Facts| member.origin != first.origin && member.able.grow;
    if !new.is_empty() && old.iter().enumerate().all(grows) && new.iter().all(comes) {
        return Way::Grow(first.size);
    }
    Way::Fresh
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Able = Able {
        spare: true,
        sound: true,
        shrink: true,
        grow: true,
    };

    fn of(origin: u64, rank: u32, size: u32) -> Facts {
        Facts {
            origin,
            rank,
            size,
            able: ALL,
        }
    }

    fn new() -> Facts {
        of(0, 0, 0)
    }

    #[test]
    fn facts_are_read_as_they_were_written() {
        for bit in 0..4 {
            let able = Able {
                spare: bit == 0,
                sound: bit == 1,
                shrink: bit == 2,
                grow: bit == 3,
            };
            let facts = Facts {
                able,
                ..of(u64::MAX - 7, 3, 70_000)
            };
            assert_eq!(Facts::from_bytes(&facts.to_bytes()), facts);
        }
    }

    #[test]
    fn members_of_one_communicator_in_their_order_shrink_it() {
        assert_eq!(way(&[of(9, 0, 3), of(9, 2, 3)]), Way::Shrink(vec![1]));
        assert_eq!(way(&[of(9, 1, 3)]), Way::Shrink(vec![0, 2]));
        // In another order, out of two communicators, or where one cannot: afresh.
        assert_eq!(way(&[of(9, 2, 3), of(9, 0, 3)]), Way::Fresh);
        assert_eq!(way(&[of(9, 0, 3), of(8, 2, 3)]), Way::Fresh);
        for able in [
            Able {
                spare: false,
                ..ALL
            },
            Able {
                shrink: false,
                ..ALL
            },
        ] {
            let unable = Facts {
                able,
                ..of(9, 2, 3)
            };
            assert_eq!(way(&[of(9, 0, 3), unable]), Way::Fresh);
        }
        // One that failed was stopped, and shrinks all the same.
        let failed = Facts {
            able: Able {
                sound: false,
                ..ALL
            },
            ..of(9, 2, 3)
        };
        assert_eq!(way(&[of(9, 0, 3), failed]), Way::Shrink(vec![1]));
    }

    #[test]
    fn a_whole_communicator_at_the_head_grows() {
        let two = [of(9, 0, 2), of(9, 1, 2)];
        assert_eq!(way(&[two[0], two[1], new()]), Way::Grow(2));
        assert_eq!(way(&[two[0], two[1], of(7, 0, 4)]), Way::Grow(2));
        for members in [
            [two[0], new(), two[1]],
            [two[1], two[0], new()],
            [new(), two[0], two[1]],
            [of(9, 0, 3), of(9, 1, 3), new()],
        ] {
            assert_eq!(way(&members), Way::Fresh, "{members:?}");
        }
        let failed = Facts {
            able: Able {
                sound: false,
                ..ALL
            },
            ..two[1]
        };
        assert_eq!(way(&[two[0], failed, new()]), Way::Fresh);
    }

    #[test]
    fn the_same_members_again_and_members_without_a_past_meet_afresh() {
        assert_eq!(way(&[of(9, 0, 2), of(9, 1, 2)]), Way::Fresh);
        assert_eq!(way(&[new(), new()]), Way::Fresh);
        assert_eq!(way(&[]), Way::Fresh);
    }
}
