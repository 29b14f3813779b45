//! Tables by names that are random numbers themselves: part of such a number is as good a hash as any,
//! and costs nothing. Must not know what is numbered.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table by ids of communicators or processes.
pub(crate) type Numbered<K, V> = HashMap<K, V, BuildHasherDefault<First>>;

/// Takes the first eight bytes of a number for its hash.
#[derive(Default)]
pub(crate) struct First(u64);

impl Hasher for First {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    /// A length, which is the same for all.
    fn write_usize(&mut self, _length: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrocomm_core::ids::{CommId, ProcessId};

    #[test]
    fn what_is_put_under_a_number_is_found_under_it_alone() {
        let mut processes: Numbered<ProcessId, u8> = Numbered::default();
        let mut comms: Numbered<CommId, u8> = Numbered::default();
        for number in 0..200_u8 {
            // The same first half: ids that are not random are slow, not wrong.
            let mut id = [1; 16];
            id[15] = number;
            processes.insert(ProcessId(id), number);
            comms.insert(CommId(u64::from(number)), number);
        }
        for number in 0..200_u8 {
            let mut id = [1; 16];
            id[15] = number;
            assert_eq!(processes.get(&ProcessId(id)), Some(&number));
            assert_eq!(comms.get(&CommId(u64::from(number))), Some(&number));
        }
        assert_eq!(comms.get(&CommId(200)), None);
    }
}
