//! How ranks copy, for what lies in the arena of it; nothing is measured in a model.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) past_caches_from: usize,
    pub(crate) direct_from: usize,
}

#[cfg(test)]
impl Choice {
    pub(crate) const DEFAULT: Self = Self {
        past_caches_from: 2 << 10,
        direct_from: usize::MAX,
    };
}
