//! Broadcast: the root puts piece after piece, everyone else takes it.

use ferrocomm_core::Result;
use ferrocomm_core::call::Region;

use super::places::{part, put, rounds, take};
use super::{Needs, Plan, Round, Scene};

/// Pieces are so long at most, so that taking one overlaps putting the next.
const PIECE: usize = 128 << 10;

pub(super) struct Broadcast {
    buffer: Region,
    root: usize,
    am_root: bool,
    step: usize,
}

impl Broadcast {
    pub(super) fn new(scene: Scene, buffer: Region, root: usize) -> Self {
        Self {
            buffer,
            root,
            am_root: scene.me == root,
            step: scene.slot.min(PIECE),
        }
    }

    fn piece(&self, index: u64) -> Region {
        part(self.buffer, index as usize * self.step, self.step)
    }
}

impl Plan for Broadcast {
    fn rounds(&self) -> u64 {
        rounds(self.buffer.bytes, self.step)
    }

    fn needs(&self, _: u64) -> Needs {
        if self.am_root {
            Needs::Nobody
        } else {
            Needs::Only(self.root)
        }
    }

    fn put(&mut self, round: &Round<'_>) {
        if self.am_root {
            let piece = self.piece(round.index);
            // SAFETY: the buffer belongs to this call; this rank alone writes its payload now.
            unsafe { put(piece, round.mine(piece.bytes)) }
        }
    }

    fn take(&mut self, round: &Round<'_>) -> Result<()> {
        if !self.am_root {
            let piece = self.piece(round.index);
            // SAFETY: as above; the root has posted and writes there no more.
            unsafe { take(round.of(self.root, piece.bytes), piece) }
        }
        Ok(())
    }
}
