//! How this process reaches the window of another rank: by an address, through the kernel, or not.
//!
//! Must not know signals' meaning or when a copy is due.

use std::ptr::NonNull;

use ferrocomm_core::call::Region;
use ferrocomm_core::error::Result;
use ferrocomm_core::ids::GroupRank;

use super::board::{self, Face};
use super::registering::Record;
use crate::pulling;
use crate::views::Mapped;

/// The way to the window of a rank.
pub(super) enum Reach {
    /// it is this rank's own
    Own,
    /// of this machine, and direct
    Near(Near),
    /// its engine does what it is asked to
    Far,
}

/// A window of another process of this machine.
pub(super) struct Near {
    pid: u32,
    address: u64,
    /// none: the kernel copies
    memory: Option<Mapped>,
    board: Face,
    /// what the board lies in
    _board: Mapped,
}

impl Near {
    /// The window that `record` tells of, if this process, rank `me` of `ranks`, can use it directly.
    pub(super) fn find(record: &Record, me: GroupRank, ranks: usize) -> Option<Self> {
        let mapped = Mapped::find(record.who, record.board, board::bytes_for(ranks))?;
        // SAFETY: the other rank told where its board lies, and it is as long; the mapping goes with
        // this value. Blocks are aligned to a line.
        let face = unsafe { Face::new(NonNull::new(mapped.pointer())?, ranks) };
        let near = Self {
            pid: record.who.pid,
            address: record.address,
            memory: Mapped::find(record.who, record.address, record.bytes),
            board: face,
            _board: mapped,
        };
        (near.memory.is_some() || record.bytes == 0 || near.may_write(record.board, me))
            .then_some(near)
    }

    /// Whether the kernel lets this process write to that one: it writes a word that both can see.
    fn may_write(&self, board: u64, me: GroupRank) -> bool {
        let word = 0x4643_5749_4e44_4f57_u64;
        let from = Region {
            address: (&raw const word) as usize,
            bytes: size_of::<u64>(),
        };
        let at = board + board::probe_offset(me) as u64;
        // SAFETY: `word` lives for the call.
        let written = unsafe { pulling::push(self.pid, at, from) };
        written.is_ok() && self.board.probe(me) == word
    }

    pub(super) fn board(&self) -> &Face {
        &self.board
    }

    /// Where the memory lies here.
    pub(super) fn memory(&self) -> Option<&Mapped> {
        self.memory.as_ref()
    }

    /// Writes `source` at `offset`.
    ///
    /// # Safety
    /// `source` belongs to the running call, and lies within the window from `offset` on.
    pub(super) unsafe fn put(&self, source: Region, offset: usize) -> Result<()> {
        match &self.memory {
            _ if source.bytes == 0 => Ok(()),
            Some(memory) => {
                // SAFETY: by the caller's promise both are valid for so many bytes. They are different
                // mappings; where both show the same memory, the client races with itself.
                unsafe {
                    std::ptr::copy(
                        source.address as *const u8,
                        memory.pointer().add(offset),
                        source.bytes,
                    );
                }
                Ok(())
            }
            // SAFETY: by the caller's promise.
            None => unsafe { pulling::push(self.pid, self.address + offset as u64, source) },
        }
    }

    /// Reads what lies at `offset` into `target`.
    ///
    /// # Safety
    /// `target` belongs to the running call, and lies within the window from `offset` on.
    pub(super) unsafe fn get(&self, target: Region, offset: usize) -> Result<()> {
        match &self.memory {
            _ if target.bytes == 0 => Ok(()),
            Some(memory) => {
                // SAFETY: as in `put`.
                unsafe {
                    std::ptr::copy(
                        memory.pointer().add(offset).cast_const(),
                        target.address as *mut u8,
                        target.bytes,
                    );
                }
                Ok(())
            }
            // SAFETY: by the caller's promise.
            None => unsafe { pulling::pull(self.pid, self.address + offset as u64, target) },
        }
    }
}
