//! How ranks copy, for what lies in the arena of it; nothing is measured in a model.

#[derive(Clone, Copy)]
pub(crate) struct Choice {
    pub(crate) past_caches_from: usize,
    pub(crate) direct_from: usize,
}
