//! Who reports to whom: nodes of consecutive ranks, of which the first ranks form a heap.
//!
//! Must not know who has come, or how ranks meet.

/// Children of a node.
const WIDTH: u32 = 16;

/// The tree over nodes of so many ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    local: u32,
}

impl Tree {
    /// Over nodes of `local` ranks; of none is of one.
    pub(super) fn of_nodes(local: u32) -> Self {
        Self {
            local: local.max(1),
        }
    }

    /// Ranks per node.
    pub(super) fn local(self) -> u32 {
        self.local
    }

    /// The first rank of the node of `rank`, under whose key the node is found.
    pub(super) fn first(self, rank: u32) -> u32 {
        rank - rank % self.local
    }

    /// The first rank of the node to which the node of `rank` reports.
    pub(super) fn above(self, rank: u32) -> Option<u32> {
        let before = (rank / self.local).checked_sub(1)?;
        Some(before / WIDTH * self.local)
    }

    /// Whether any node reports to the node of `rank`.
    pub(super) fn is_inner(self, rank: u32, size: u32) -> bool {
        let below = u64::from(rank / self.local) * u64::from(WIDTH) + 1;
        below * u64::from(self.local) < u64::from(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_but_the_first_reports_to_an_inner_one_before_it() {
        for (local, size) in [(1, 1), (1, 40), (8, 8), (8, 32), (3, 300), (16, 16 * 400)] {
            let tree = Tree::of_nodes(local);
            let mut inner = Vec::new();
            for rank in 0..size {
                let first = tree.first(rank);
                assert!(first <= rank && rank - first < local && first.is_multiple_of(local));
                match tree.above(rank) {
                    None => assert!(rank < local),
                    Some(above) => {
                        assert!(above < first && above % local == 0);
                        inner.push(above);
                    }
                }
            }
            for first in (0..size).step_by(local as usize) {
                assert_eq!(
                    tree.is_inner(first, size),
                    inner.contains(&first),
                    "{first}"
                );
            }
        }
    }
}
