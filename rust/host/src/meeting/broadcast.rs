//! Broadcast: the root puts piece after piece, everyone else takes it; or all read the root's
//! memory. Must not know who waits, or for how long.

use ferrocomm_core::Result;
use ferrocomm_core::call::Region;

use super::places::{part, put, rounds, take, worth_pulling};
use super::{Needs, Plan, Round, SETTLED, Scene};

/// Pieces are so long at most, so that taking one overlaps putting the next.
const PIECE: usize = 128 << 10;

pub(super) struct Broadcast {
    buffer: Region,
    root: usize,
    am_root: bool,
    step: usize,
    /// everyone reads where the buffer lies
    direct: bool,
}

impl Broadcast {
    pub(super) fn new(scene: Scene, buffer: Region, root: usize) -> Self {
        Self {
            buffer,
            root,
            am_root: scene.me == root,
            step: if scene.near && buffer.bytes >= 2 * SETTLED {
                scene.slot.min(SETTLED)
            } else {
                scene.slot.min(PIECE)
            },
            direct: worth_pulling(scene, buffer.bytes),
        }
    }

    fn piece(&self, index: u64) -> Region {
        part(self.buffer, index as usize * self.step, self.step)
    }
}

impl Plan for Broadcast {
    fn rounds(&self) -> u64 {
        if self.direct {
            return 2;
        }
        rounds(self.buffer.bytes, self.step)
    }

    fn needs(&self, index: u64) -> Needs {
        match (self.direct && index == 1, self.am_root) {
            // The root keeps its buffer until all have read it.
            (true, true) => Needs::All,
            (true, false) | (false, true) => Needs::Nobody,
            (false, false) => Needs::Only(self.root),
        }
    }

    fn leads(&self, index: u64) -> bool {
        self.am_root && !(self.direct && index == 1)
    }

    fn put(&mut self, round: &Round<'_>) {
        if self.direct {
            if self.am_root && round.index == 0 {
                round.put_addresses([self.buffer.address as u64].into_iter());
            }
        } else if self.am_root {
            let piece = self.piece(round.index);
            // SAFETY: the buffer belongs to this call; this rank alone writes its payload now.
            unsafe { put(round, piece, round.mine(piece.bytes)) }
        }
    }

    fn take(&mut self, round: &Round<'_>) -> Result<()> {
        if self.direct {
            if !self.am_root && round.index == 0 {
                let address = round.address_of(self.root, 0, 1);
                // SAFETY: the buffer belongs to this call.
                unsafe { round.pull(self.root, address, self.buffer)? }
            }
        } else if !self.am_root {
            let piece = self.piece(round.index);
            // SAFETY: as above; the root has posted and writes there no more.
            unsafe {
                let from = round.of(self.root, piece.bytes);
                round.look(from, piece.bytes);
                take(round, from, piece);
            }
        }
        Ok(())
    }
}
