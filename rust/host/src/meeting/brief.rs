//! Collectives of one round in which everyone needs everyone: barriers, and all-reduces so short that
//! everyone combines everything. They take the same round as a `Meeting`, which takes over what does
//! not end soon, and nothing of what longer ones need. Must not know how long anybody waits.

use std::cell::Cell;

use ferrocomm_core::call::{Collective, Region};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::Result;
use ferrocomm_core::reduce_op::ReduceOp;
use ferrocomm_core::reduction::Reduction;

use super::all_reduce::is_short;
use super::places::{combine, overlap, put};
use super::{Position, Round, Settled, Stepped, Way};
use crate::arena::{Arena, Inline, Remarks};
use crate::choosing::WORTH_A_CALL;
use crate::collectives;
use crate::print::Print;

enum What {
    Barrier,
    AllReduce {
        input: Region,
        output: Region,
        op: ReduceOp,
    },
}

/// One of them, on its arena.
pub(crate) struct Brief<'a> {
    arena: &'a Arena,
    me: usize,
    print: Print,
    dtype: Dtype,
    what: What,
}

/// One whose round this rank has posted, ready to take what the others post.
pub(crate) struct Ready<'a> {
    brief: &'a Brief<'a>,
    /// of an all-reduce
    reduction: Option<Reduction>,
}

impl<'a> Brief<'a> {
    /// `None` when `collective` is none of them.
    #[inline(always)]
    pub(crate) fn of(
        collective: &Collective,
        dtype: Dtype,
        arena: &'a Arena,
        me: usize,
    ) -> Option<Self> {
        let what = match collective {
            Collective::Barrier => What::Barrier,
            Collective::AllReduce { input, output, op } => {
                let ranks = arena.ranks();
                let direct_from = arena.choice().direct_from.min(WORTH_A_CALL);
                let direct = input.bytes >= direct_from.saturating_mul(ranks);
                let same = input.address == output.address;
                if !is_short(input.bytes, ranks, arena.slot_bytes())
                    || direct
                    || input.bytes != output.bytes
                    || !same && overlap(*input, *output)
                {
                    return None;
                }
                What::AllReduce {
                    input: *input,
                    output: *output,
                    op: *op,
                }
            }
            _ => return None,
        };
        Some(Self {
            arena,
            me,
            print: Print::from(collectives::fingerprint(collective, dtype)),
            dtype,
            what,
        })
    }

    fn round<'b>(&'b self, number: u64, inline: Option<&'b Cell<Inline>>) -> Round<'b> {
        Round {
            arena: self.arena,
            me: self.me,
            number,
            index: 0,
            inline,
            is_large: false,
            way: Way::Chosen,
        }
    }

    /// Bytes that each rank puts.
    pub(crate) fn bytes(&self) -> usize {
        match &self.what {
            What::Barrier => 0,
            What::AllReduce { input, .. } => input.bytes,
        }
    }

    /// Puts its round, and tells its number; `None` while the round before is not settled.
    #[inline(always)]
    pub(crate) fn post(&self, position: &mut Position) -> Option<u64> {
        let number = position.next;
        let Settled::Yes = position.settle(self.arena, self.me, number - 1) else {
            return None;
        };
        let remarks = match &self.what {
            What::Barrier => self
                .arena
                .post(self.me, number, self.print, &Inline::default()),
            What::AllReduce { input, .. } => self.post_input(number, *input),
        };
        position.posted(number, self.print, remarks);
        Some(number)
    }

    #[inline(always)]
    fn post_input(&self, number: u64, input: Region) -> Remarks {
        // SAFETY: the input belongs to this call.
        if let Some(word) = unsafe { word_of(input) } {
            let inline = std::array::from_fn(|index| if index == 0 { word } else { 0 });
            return self.arena.post(self.me, number, self.print, &inline);
        }
        let inline = Cell::default();
        let round = self.round(number, Some(&inline));
        // SAFETY: as above; this rank alone writes its payload now.
        unsafe { put(&round, input, round.mine(input.bytes)) }
        self.arena.post(self.me, number, self.print, &inline.get())
    }

    /// Lets the flags of the others come to this processor, once it is posted: where all come at one
    /// time, they are on their way while this rank does what it has to do anyway.
    #[inline(always)]
    pub(crate) fn expect(&self, position: &Position) {
        for rank in (0..self.arena.ranks()).filter(|rank| *rank != self.me) {
            self.arena.expect(rank, position.next - 1);
        }
    }

    /// Lets this rank's next flag come to this processor, once this one is posted.
    #[inline(always)]
    pub(crate) fn fetch_ahead(&self, position: &Position) {
        self.arena.fetch_ahead(self.me, position.next - 1);
    }

    /// What is left to do once it is posted and needs no one else.
    ///
    /// # Errors
    /// `Unsupported` when the reduction is not in the table.
    #[inline(always)]
    pub(crate) fn ready(&self) -> Result<Ready<'_>> {
        let reduction = match self.what {
            What::Barrier => None,
            What::AllReduce { op, .. } => Some(Reduction::new(op, self.dtype, self.arena.ranks())?),
        };
        Ok(Ready {
            brief: self,
            reduction,
        })
    }
}

impl Ready<'_> {
    /// Takes what the others have put, once all have.
    #[inline(always)]
    pub(crate) fn step(&self, position: &mut Position) -> Stepped {
        let Brief {
            arena, me, what, ..
        } = self.brief;
        let number = position.next - 1;
        match position.settle(arena, *me, number) {
            Settled::Yes => {}
            Settled::Open => return Stepped::Waiting(false),
            Settled::Differs { rank, theirs, ours } => {
                return Stepped::Differs { rank, theirs, ours };
            }
        }
        if let (What::AllReduce { input, output, .. }, Some(reduction)) = (what, &self.reduction) {
            let round = self.brief.round(number, None);
            // SAFETY: input and output belong to this call and are the same or apart, see `of`; the
            // others have posted and write there no more.
            unsafe {
                combine(reduction, arena.ranks(), *me, *input, *output, |rank| {
                    round.of(rank, input.bytes)
                });
            }
        }
        Stepped::Done
    }
}

/// One element or two of the usual types, in a register: on its way through memory a short payload
/// waits for its own stores.
///
/// # Safety
/// `region` is valid to read.
#[inline(always)]
unsafe fn word_of(region: Region) -> Option<u64> {
    let from = region.address as *const u8;
    // SAFETY: by the caller's promise; of any alignment.
    unsafe {
        match region.bytes {
            8 => Some(from.cast::<u64>().read_unaligned()),
            4 => {
                let [a, b, c, d] = from.cast::<[u8; 4]>().read();
                Some(u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]))
            }
            _ => None,
        }
    }
}
