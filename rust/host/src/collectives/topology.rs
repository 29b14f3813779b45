//! Which ranks share a machine, and which machines are near one another. Pure: numbers in, numbers
//! out. Must not know addresses or how a machine is told from another.

use crate::location::{Location, neighbourly};

/// The ranks of a group by machine. Every rank makes the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    /// ranks of each machine, ascending; machines that stand close together are near
    machines: Vec<Vec<usize>>,
    /// of each rank its machine and its place among that machine's ranks
    seats: Vec<(usize, usize)>,
    everyone: Vec<usize>,
    columns: usize,
}

impl Topology {
    /// The group whose rank `r` is on the machine and at the place that `ranks` has at `r`. Machines of
    /// one place follow one another; else they stand in the order of their first ranks, since launchers
    /// number neighbours one after another. A machine stands where its first rank says.
    pub(crate) fn of(ranks: impl IntoIterator<Item = (u64, Location)>) -> Self {
        let mut names = Vec::new();
        let mut places = Vec::new();
        let mut grouped: Vec<Vec<usize>> = Vec::new();
        for (rank, (name, place)) in ranks.into_iter().enumerate() {
            // Ranks of one machine usually follow one another.
            let known = names.iter().rposition(|known| *known == name);
            let machine = known.unwrap_or_else(|| {
                names.push(name);
                places.push(place);
                grouped.push(Vec::new());
                names.len() - 1
            });
            grouped[machine].push(rank);
        }
        let order = neighbourly(&places);
        let machines: Vec<Vec<usize>> = order
            .into_iter()
            .map(|machine| std::mem::take(&mut grouped[machine]))
            .collect();
        Self::seated(machines)
    }

    fn seated(machines: Vec<Vec<usize>>) -> Self {
        let size = machines.iter().map(Vec::len).sum();
        let mut seats = vec![(0, 0); size];
        for (machine, ranks) in machines.iter().enumerate() {
            for (place, rank) in ranks.iter().enumerate() {
                seats[*rank] = (machine, place);
            }
        }
        Self {
            everyone: (0..size).collect(),
            columns: machines.iter().map(Vec::len).max().unwrap_or(0),
            machines,
            seats,
        }
    }

    /// All ranks.
    pub(super) fn everyone(&self) -> &[usize] {
        &self.everyone
    }

    /// Number of machines.
    pub(super) fn machines(&self) -> usize {
        self.machines.len()
    }

    /// Ranks of a machine.
    pub(super) fn ranks(&self, machine: usize) -> &[usize] {
        &self.machines[machine]
    }

    /// Machine of a rank and its place there.
    pub(super) fn seat(&self, rank: usize) -> (usize, usize) {
        self.seats[rank]
    }

    /// As many columns as the fullest machine has ranks. Each machine has one rank in each column;
    /// on one with fewer ranks, a rank stands in several that follow one another.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// The place, among the ranks of `machine`, of the one in `column`.
    pub(super) fn place_in(&self, machine: usize, column: usize) -> usize {
        column * self.machines[machine].len() / self.columns
    }

    /// The rank of `machine` in `column`.
    pub(super) fn rank_in(&self, machine: usize, column: usize) -> usize {
        self.machines[machine][self.place_in(machine, column)]
    }

    /// The columns of the rank at `place` on `machine`.
    pub(super) fn columns_of(&self, machine: usize, place: usize) -> std::ops::Range<usize> {
        let local = self.machines[machine].len();
        (place * self.columns).div_ceil(local)..((place + 1) * self.columns).div_ceil(local)
    }

    /// The rank of `machine` that deals with `rank`: takes in what it sends there, or speaks to it.
    pub(super) fn partner(&self, rank: usize, machine: usize) -> usize {
        let (home, place) = self.seats[rank];
        self.rank_in(machine, self.columns_of(home, place).start)
    }

    /// The ranks of `machine` whose partner is `rank`; on its own machine, itself alone.
    pub(super) fn dealt_with(
        &self,
        rank: usize,
        machine: usize,
    ) -> impl Iterator<Item = usize> + '_ {
        let home = self.seats[rank].0;
        let theirs = self.machines[machine].iter().copied();
        theirs.filter(move |other| self.partner(*other, home) == rank)
    }

    /// One rank per machine, `root` on its own.
    pub(super) fn leaders(&self, root: usize) -> Vec<usize> {
        let home = self.seats[root].0;
        (0..self.machines())
            .map(|machine| {
                if machine == home {
                    root
                } else {
                    self.machines[machine][0]
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_grouped_by_machine_in_the_order_of_first_ranks() {
        let topology = Topology::of([7, 3, 7, 9, 3].map(|name| (name, Location::default())));
        assert_eq!(topology.machines, [vec![0, 2], vec![1, 4], vec![3]]);
        assert_eq!(topology.seats, [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1)]);
        assert_eq!(topology.leaders(4), [0, 4, 3]);
    }

    #[test]
    fn machines_of_one_place_follow_one_another() {
        let (east, west) = (Location([1, 0, 0]), Location([3, 0, 0]));
        // What a later rank of a machine says is not asked.
        let topology = Topology::of([(7, east), (3, west), (9, east), (7, west), (3, west)]);
        assert_eq!(topology.machines, [vec![0, 3], vec![2], vec![1, 4]]);
        assert_eq!(topology.seats, [(0, 0), (2, 0), (1, 0), (0, 1), (2, 1)]);
    }

    #[test]
    fn every_column_has_one_rank_per_machine_and_every_rank_a_column() {
        for local in [[1, 1, 1], [4, 4, 4], [1, 4, 3], [5, 2, 8], [8, 3, 1]] {
            let names = (0..).zip(local).flat_map(|(name, count)| vec![name; count]);
            let topology = Topology::of(names.map(|name| (name, Location::default())));
            for (machine, count) in local.into_iter().enumerate() {
                let mut next = 0;
                for place in 0..count {
                    let columns = topology.columns_of(machine, place);
                    assert_eq!(columns.start, next);
                    assert!(!columns.is_empty(), "{local:?}");
                    next = columns.end;
                    for column in columns {
                        assert_eq!(topology.place_in(machine, column), place);
                    }
                }
                assert_eq!(next, topology.columns());
            }
        }
    }
}
