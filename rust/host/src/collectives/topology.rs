//! Which ranks share a machine, and which machines are near one another. Pure: numbers in, numbers
//! out. Must not know addresses or how a machine is told from another.

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
    /// The group whose rank `r` is on machine `machines[r]`. Machines stand in the order of their
    /// first ranks: launchers number neighbours one after another. Where racks or zones are known,
    /// this is the place to sort by them.
    pub(crate) fn of(machines: impl IntoIterator<Item = u64>) -> Self {
        let mut names = Vec::new();
        let mut grouped: Vec<Vec<usize>> = Vec::new();
        let mut seats = Vec::new();
        for (rank, name) in machines.into_iter().enumerate() {
            // Ranks of one machine usually follow one another.
            let known = names.iter().rposition(|known| *known == name);
            let machine = known.unwrap_or_else(|| {
                names.push(name);
                grouped.push(Vec::new());
                names.len() - 1
            });
            seats.push((machine, grouped[machine].len()));
            grouped[machine].push(rank);
        }
        Self {
            everyone: (0..seats.len()).collect(),
            columns: grouped.iter().map(Vec::len).max().unwrap_or(0),
            machines: grouped,
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
        let topology = Topology::of([7, 3, 7, 9, 3]);
        assert_eq!(topology.machines, [vec![0, 2], vec![1, 4], vec![3]]);
        assert_eq!(topology.seats, [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1)]);
        assert_eq!(topology.leaders(4), [0, 4, 3]);
    }

    #[test]
    fn every_column_has_one_rank_per_machine_and_every_rank_a_column() {
        for local in [[1, 1, 1], [4, 4, 4], [1, 4, 3], [5, 2, 8], [8, 3, 1]] {
            let names = (0..).zip(local).flat_map(|(name, count)| vec![name; count]);
            let topology = Topology::of(names);
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
