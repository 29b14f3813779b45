//! Where a rank stands in the rounds of an arena: what it has posted, and what everybody has. Must not
//! know what a round is for.

use crate::arena::{Arena, Remarks};
use crate::choosing::WORTH_A_CALL;
use crate::print::Print;

/// Rounds whose fingerprints are remembered.
const REMEMBERED: usize = 4;

/// Where this rank stands on its arena.
pub(crate) struct Position {
    /// the round it posts next
    pub(super) next: u64,
    /// everybody has posted this round, and agrees
    settled: u64,
    /// fingerprints of its own last rounds
    prints: [Print; REMEMBERED],
    /// what it remarked with the last one
    remarks: Remarks,
    /// what everybody remarked with the round that is settled; of those, looks at lines that others
    /// write are spared
    pub(super) all: Remarks,
    /// whether all ranks read the memory of all others, once all have said so
    direct: Option<bool>,
}

impl Position {
    pub(crate) fn new() -> Self {
        Self {
            next: 1,
            settled: 0,
            prints: [Print::default(); REMEMBERED],
            remarks: Remarks::default(),
            all: Remarks::default(),
            direct: None,
        }
    }

    /// Whether everybody has posted once.
    pub(crate) fn has_begun(&self) -> bool {
        self.settled > 0
    }

    /// Whether ranks read one another's memory in a collective that is about to post its first round.
    /// Everybody has posted the round before, so all ranks answer alike; before the first round
    /// nobody knows.
    pub(super) fn reads_directly(&mut self, arena: &Arena) -> bool {
        if self.next == 1 {
            return false;
        }
        *self
            .direct
            .get_or_insert_with(|| (0..arena.ranks()).all(|rank| arena.peer(rank).1))
    }

    /// From how many bytes on it is worth to read others where their memory lies, in a collective that
    /// is about to post its first round; all ranks answer alike, as above. Segments that all of them
    /// share are read without asking the kernel.
    pub(super) fn direct_from(&self, arena: &Arena) -> usize {
        let chosen = arena.choice().direct_from;
        if self.all.shares {
            chosen.min(WORTH_A_CALL)
        } else {
            chosen
        }
    }

    /// Notes a round that this rank has posted.
    #[inline(always)]
    pub(super) fn posted(&mut self, round: u64, print: Print, remarks: Remarks) {
        self.prints[(round % REMEMBERED as u64) as usize] = print;
        self.remarks = remarks;
        self.next = round + 1;
    }

    pub(super) fn print(&self, round: u64) -> Print {
        self.prints[(round % REMEMBERED as u64) as usize]
    }

    /// Whether everybody has posted the last round this rank has, and agrees with it.
    pub(crate) fn settle_all(&mut self, arena: &Arena, me: usize) -> Settled {
        self.settle(arena, me, self.next - 1)
    }

    #[inline(always)]
    pub(super) fn settle(&mut self, arena: &Arena, me: usize, round: u64) -> Settled {
        if self.settled >= round {
            return Settled::Yes;
        }
        let mut all = self.remarks;
        for rank in (0..arena.ranks()).filter(|rank| *rank != me) {
            match agrees(arena, rank, round, self.print(round)) {
                Settled::Yes => all = all.and(arena.remarks(rank, round)),
                other => return other,
            }
        }
        self.settled = round;
        self.all = all;
        Settled::Yes
    }
}

/// How ranks stand to a round.
#[derive(Debug)]
pub(crate) enum Settled {
    Yes,
    /// somebody has not come yet
    Open,
    /// `rank` called something else
    Differs {
        rank: usize,
        theirs: Print,
        ours: Print,
    },
}

#[inline(always)]
pub(super) fn agrees(arena: &Arena, rank: usize, round: u64, ours: Print) -> Settled {
    if !arena.posted(rank, round) {
        return Settled::Open;
    }
    let theirs = arena.print(rank, round);
    if theirs == ours {
        Settled::Yes
    } else {
        Settled::Differs { rank, theirs, ours }
    }
}
