//! Models run where there is room.

pub(crate) type Processors = [u64; 16];

pub(crate) fn crowded(_: impl Iterator<Item = Processors>) -> bool {
    false
}
