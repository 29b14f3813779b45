//! How a rank can be read, for what lies in the arena of it.

pub(crate) struct Readable {
    pub(crate) pid: u32,
    pub(crate) probe: u64,
    pub(crate) segments: u64,
}
