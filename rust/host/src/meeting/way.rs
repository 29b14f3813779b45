//! Which way long pieces take from one rank of a pair to the other: past the caches, or through the one
//! that both share. Must not know plans.

use ferrocomm_core::call::Collective;

use super::Scene;

/// Where processors share a cache, pieces of so many bytes are better put through the caches than past
/// them: with what is read beside them they leave the processor's own for the shared one before the
/// other rank wants them. Of shorter ones it would fetch line after line from the other's own.
pub(super) const SETTLED: usize = 512 << 10;
/// Where two ranks put so many bytes it is worth a look how near they are.
pub(super) const LOOKED_FROM: usize = 128 << 10;

/// How a rank puts what it stores past the caches where processors are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// as the arena's choice says
    Chosen,
    /// the same, but for the first lines, by which the other rank of two tells whether they are near
    Looked,
    /// through the caches
    Near,
}

impl Way {
    /// Of a collective in which the two ranks of a pair put `bytes` bytes each.
    pub(super) fn of(scene: Scene, bytes: usize) -> Self {
        if scene.near && bytes >= SETTLED {
            Self::Near
        } else if scene.looks && bytes >= LOOKED_FROM {
            Self::Looked
        } else {
            Self::Chosen
        }
    }
}

/// How many bytes a rank puts for another one, where that is much.
pub(super) fn share(collective: &Collective, scene: Scene) -> usize {
    match collective {
        Collective::AllReduce { input, .. } | Collective::Reduce { input, .. } => {
            input.bytes / scene.ranks
        }
        Collective::Broadcast { buffer, .. } => buffer.bytes / 2,
        Collective::AllGather { input, .. } => input.bytes,
        Collective::ReduceScatter { output, .. } => output.bytes,
        Collective::AllToAll { inputs, .. } => inputs.of((scene.me + 1) % scene.ranks).bytes,
        Collective::Gather { .. } | Collective::Scatter { .. } | Collective::Barrier => 0,
    }
}
