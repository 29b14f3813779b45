//! Nothing lies in shared segments in a model.

use crate::pulling::Readable;

#[derive(Default)]
pub(crate) struct Views;

impl Views {
    pub(crate) fn find(&mut self, _: Readable, _: u64, _: u64, _: usize) -> Option<*const u8> {
        None
    }
}
