//! Which instructions the loops may use. Must not know loops or numbers.

use std::sync::OnceLock;

use crate::processor::Baseline;
#[cfg(target_arch = "x86_64")]
use crate::processor::{Avx2, Avx512};

/// A set of instructions that this processor has: a value is the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(pub(crate) Instructions);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instructions {
    Scalar(Baseline),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

/// The level of the process.
static CHOSEN: OnceLock<Level> = OnceLock::new();

impl Level {
    /// The names of all levels, on whatever processor, each one faster than those before it.
    pub const NAMES: [&'static str; 3] = ["scalar", "avx2", "avx512"];

    /// What every processor of this architecture has.
    pub const SCALAR: Self = Self(Instructions::Scalar(Baseline));

    /// The levels of this processor, each one faster than those before it. The processor is asked
    /// once; later calls are a few loads.
    pub fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let more = [
            Avx2::detect().map(Instructions::Avx2),
            Avx512::detect().map(Instructions::Avx512),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let more = [];
        std::iter::once(Self::SCALAR).chain(more.into_iter().flatten().map(Self))
    }

    /// The fastest level of this processor.
    pub fn best() -> Self {
        Self::available().last().unwrap_or(Self::SCALAR)
    }

    /// Makes this the level of the process. The first choice stands.
    pub fn choose(self) {
        CHOSEN.get_or_init(|| self);
    }

    /// The level of the process: the one chosen, or else the fastest.
    pub fn chosen() -> Self {
        CHOSEN.get().copied().unwrap_or_else(Self::best)
    }

    /// The level of that name, if this processor has it.
    pub fn named(name: &str) -> Option<Self> {
        Self::available().find(|level| level.name() == name)
    }

    /// One of `NAMES`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Instructions::Scalar(_) => "scalar",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512(_) => "avx512",
        }
    }
}
