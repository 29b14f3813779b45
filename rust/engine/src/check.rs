//! What is refused before a byte moves.
//!
//! Pure: looks at one rank's arguments alone. Whether ranks agree is found out by the engines. Must
//! not know how data moves.

use ferrocomm_core::call::{Collective, PointToPoint, Region, Regions, Source, Task};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::{Error, ErrorKind, Result};

use crate::backend::Backend;

/// The group a task is checked against.
#[derive(Clone, Copy)]
pub(crate) struct Checker {
    pub(crate) backend: Backend,
    pub(crate) rank: GroupRank,
    pub(crate) size: usize,
}

pub(crate) fn invalid(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidArgument, what)
}

impl Checker {
    /// Checks everything about `task`.
    #[inline(always)]
    pub(crate) fn task(self, task: &Task, dtype: Dtype) -> Result<()> {
        match task {
            Task::Collective(collective) => self.collective(collective, dtype),
            Task::PointToPoint(part) => self.point_to_point(part, dtype),
            Task::Batch(parts) => parts
                .iter()
                .try_for_each(|(part, dtype)| self.point_to_point(part, *dtype)),
        }
    }

    /// Checks the ranks of a sub-group and returns this rank's place in it.
    pub(crate) fn members(self, ranks: &[i32]) -> Result<(Vec<GroupRank>, bool)> {
        let mut seen = vec![false; self.size];
        let mut members = Vec::with_capacity(ranks.len());
        for &rank in ranks {
            let member = self.rank("ranks", rank)?;
            if std::mem::replace(&mut seen[member.index()], true) {
                return Err(invalid("a rank stands twice in the list")
                    .got(format!("{ranks:?}"))
                    .expected("every rank at most once"));
            }
            members.push(member);
        }
        Ok((members, seen[self.rank.index()]))
    }

    /// A rank given by a client.
    pub(crate) fn rank(self, name: &'static str, rank: i32) -> Result<GroupRank> {
        let known = u32::try_from(rank).ok().map(GroupRank::new);
        known
            .filter(|rank| rank.index() < self.size)
            .ok_or_else(|| {
                invalid(format!("{name} is not a rank of this communicator"))
                    .got(format!("{name} {rank}"))
                    .expected(format!("0 to {}", self.size - 1))
            })
    }

    fn inside(self, name: &'static str, rank: GroupRank) -> Result<()> {
        self.rank(name, i32::try_from(rank.get()).unwrap_or(i32::MAX))
            .map(drop)
    }

    fn point_to_point(self, part: &PointToPoint, dtype: Dtype) -> Result<()> {
        match part {
            PointToPoint::Send { buffer, to, .. } => {
                whole("buffer", *buffer, dtype)?;
                self.inside("dst", *to)
            }
            PointToPoint::Recv { buffer, from, .. } => {
                whole("buffer", *buffer, dtype)?;
                match from {
                    Source::Rank(rank) => self.inside("src", *rank),
                    Source::Any => Ok(()),
                }
            }
        }
    }

    #[inline(always)]
    fn collective(self, collective: &Collective, dtype: Dtype) -> Result<()> {
        if let Some(root) = collective.root() {
            self.inside("root", root)?;
        }
        if let Some(op) = collective.reduce_op() {
            self.backend.reduction_supported(op, dtype)?;
        }
        match collective {
            Collective::Broadcast { buffer, .. } => whole("buffer", *buffer, dtype),
            Collective::AllReduce { input, output, .. } => {
                whole("input", *input, dtype)?;
                same_length(*output, *input)?;
                same_or_apart(*input, *output)
            }
            Collective::Reduce {
                input,
                output,
                root,
                ..
            } => {
                whole("input", *input, dtype)?;
                let Some(output) = self.at_root("output", *root, output.as_ref())? else {
                    return Ok(());
                };
                same_length(*output, *input)?;
                same_or_apart(*input, *output)
            }
            Collective::AllGather { input, outputs } => {
                self.parts("outputs", outputs, dtype)?;
                self.own_part("input", *input, outputs)
            }
            Collective::ReduceScatter { inputs, output, .. } => {
                self.parts("inputs", inputs, dtype)?;
                self.own_part("output", *output, inputs)
            }
            Collective::AllToAll { inputs, outputs } => self.all_to_all(inputs, outputs, dtype),
            Collective::Gather {
                input,
                outputs,
                root,
            } => {
                whole("input", *input, dtype)?;
                let outputs = self.at_root("outputs", *root, outputs.as_ref())?;
                outputs.map_or(Ok(()), |outputs| {
                    self.equal_parts("outputs", outputs, *input, dtype)
                })
            }
            Collective::Scatter {
                inputs,
                output,
                root,
            } => {
                whole("output", *output, dtype)?;
                let inputs = self.at_root("inputs", *root, inputs.as_ref())?;
                inputs.map_or(Ok(()), |inputs| {
                    self.equal_parts("inputs", inputs, *output, dtype)
                })
            }
            Collective::Barrier => Ok(()),
        }
    }

    fn all_to_all(self, inputs: &Regions, outputs: &Regions, dtype: Dtype) -> Result<()> {
        self.parts("inputs", inputs, dtype)?;
        self.parts("outputs", outputs, dtype)?;
        let own = self.rank.index();
        same_length(outputs.of(own), inputs.of(own)).map_err(|error| {
            error.remedy("what a rank gives itself is what it gets from itself")
        })?;
        for rank in 0..self.size {
            if overlap(inputs.of(own), outputs.of(rank))
                || overlap(inputs.of(rank), outputs.of(own))
            {
                return Err(overlapping());
            }
        }
        Ok(())
    }

    /// A list with one region of whole elements per rank.
    fn parts(self, name: &'static str, regions: &Regions, dtype: Dtype) -> Result<()> {
        let count = match regions {
            Regions::List(list) => list.len(),
            // Parts of no bytes say nothing about their number.
            Regions::Equal { whole, each: 0 } if whole.bytes == 0 => self.size,
            Regions::Equal { whole, each } if *each > 0 && whole.bytes % each == 0 => {
                whole.bytes / each
            }
            Regions::Equal { .. } => 0,
        };
        if count != self.size {
            return Err(invalid(format!("{name} does not have one buffer per rank"))
                .got(format!("{count} buffers"))
                .expected(format!("{} buffers", self.size)));
        }
        (0..self.size).try_for_each(|rank| whole(name, regions.of(rank), dtype))
    }

    /// The rank's own buffer beside a list: as long as its part, and that part or apart from all.
    fn own_part(self, name: &'static str, own: Region, parts: &Regions) -> Result<()> {
        let part = parts.of(self.rank.index());
        same_length(own, part)
            .map_err(|error| error.remedy(format!("{name} is this rank's part")))?;
        let others = (0..self.size).filter(|rank| *rank != self.rank.index());
        if others.into_iter().any(|rank| overlap(own, parts.of(rank))) {
            return Err(overlapping());
        }
        same_or_apart(own, part)
    }

    /// A list whose parts are all as long as the rank's own buffer.
    fn equal_parts(
        self,
        name: &'static str,
        parts: &Regions,
        own: Region,
        dtype: Dtype,
    ) -> Result<()> {
        self.parts(name, parts, dtype)?;
        (0..self.size).try_for_each(|rank| same_length(parts.of(rank), own))?;
        self.own_part("the own buffer", own, parts)
    }

    /// What only the root gives.
    fn at_root<T>(
        self,
        name: &'static str,
        root: GroupRank,
        given: Option<T>,
    ) -> Result<Option<T>> {
        match (root == self.rank, given) {
            (true, None) => Err(invalid(format!("the root gave no {name}"))),
            (false, Some(_)) => Err(invalid(format!("{name} is the root's alone"))
                .got(format!("{name} on rank {}", self.rank))
                .expected(format!("none, as the root is {root}"))),
            (_, given) => Ok(given),
        }
    }
}

/// Whether a region holds whole elements.
#[inline(always)]
pub(crate) fn whole(name: &'static str, region: Region, dtype: Dtype) -> Result<()> {
    if dtype.divides(region.bytes) {
        return Ok(());
    }
    Err(broken(name, region, dtype))
}

#[cold]
fn broken(name: &'static str, region: Region, dtype: Dtype) -> Error {
    invalid(format!("{name} does not hold whole elements"))
        .got(format!("{} bytes", region.bytes))
        .expected(format!(
            "a multiple of {}, the size of {}",
            dtype.size(),
            dtype.name()
        ))
}

#[inline(always)]
fn same_length(got: Region, expected: Region) -> Result<()> {
    if got.bytes == expected.bytes {
        return Ok(());
    }
    Err(different(got, expected))
}

#[cold]
fn different(got: Region, expected: Region) -> Error {
    invalid("input and output differ in length")
        .got(format!("{} bytes", got.bytes))
        .expected(format!("{} bytes", expected.bytes))
}

#[inline(always)]
fn overlap(a: Region, b: Region) -> bool {
    a.bytes > 0
        && b.bytes > 0
        && a.address < b.address.saturating_add(b.bytes)
        && b.address < a.address.saturating_add(a.bytes)
}

#[inline(always)]
fn same_or_apart(a: Region, b: Region) -> Result<()> {
    if a != b && overlap(a, b) {
        Err(overlapping())
    } else {
        Ok(())
    }
}

#[cold]
fn overlapping() -> Error {
    invalid("input and output overlap").remedy("use buffers that lie apart")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrocomm_core::reduce_op::ReduceOp;

    const CHECKER: Checker = Checker {
        backend: Backend::Host,
        rank: GroupRank::new(1),
        size: 3,
    };

    fn at(address: usize, bytes: usize) -> Region {
        Region { address, bytes }
    }

    fn check(collective: Collective) -> Result<()> {
        CHECKER.task(&Task::Collective(collective), Dtype::Float32)
    }

    fn refused(collective: Collective, words: &str) {
        let shown = format!("{collective:?}");
        let error = check(collective).expect_err(&shown);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{shown}");
        assert!(
            error.to_string().contains(words),
            "{error} does not say {words}"
        );
    }

    fn list(lengths: &[usize]) -> Regions {
        Regions::List(
            lengths
                .iter()
                .enumerate()
                .map(|(i, n)| at(4096 * (i + 1), *n))
                .collect(),
        )
    }

    #[test]
    fn ranks_are_of_the_group() {
        let root = GroupRank::new(3);
        refused(
            Collective::Broadcast {
                buffer: at(64, 8),
                root,
            },
            "got root 3; expected 0 to 2",
        );
        let send = PointToPoint::Send {
            buffer: at(64, 8),
            to: root,
            tag: 0,
        };
        let error = CHECKER
            .task(&Task::PointToPoint(send), Dtype::Int8)
            .unwrap_err();
        assert!(error.to_string().contains("dst"));
        let recv = PointToPoint::Recv {
            buffer: at(64, 8),
            from: Source::Rank(root),
            tag: 0,
        };
        assert!(
            CHECKER
                .task(&Task::Batch(vec![(recv, Dtype::Int8)]), Dtype::Byte)
                .is_err()
        );
        let own = PointToPoint::Send {
            buffer: at(64, 8),
            to: CHECKER.rank,
            tag: 0,
        };
        assert!(CHECKER.task(&Task::PointToPoint(own), Dtype::Int8).is_ok());
        assert!(CHECKER.rank("root", -1).is_err());
    }

    #[test]
    fn regions_hold_whole_elements() {
        let root = GroupRank::new(0);
        refused(
            Collective::Broadcast {
                buffer: at(64, 6),
                root,
            },
            "a multiple of 4",
        );
    }

    #[test]
    fn lengths_agree_within_the_rank() {
        let (op, root) = (ReduceOp::Sum, GroupRank::new(1));
        refused(
            Collective::AllReduce {
                input: at(64, 8),
                output: at(1024, 12),
                op,
            },
            "got 12 bytes; expected 8 bytes",
        );
        refused(
            Collective::Reduce {
                input: at(64, 8),
                output: Some(at(1024, 4)),
                op,
                root,
            },
            "differ in length",
        );
        refused(
            Collective::AllGather {
                input: at(64, 8),
                outputs: list(&[8, 4, 8]),
            },
            "differ in length",
        );
        refused(
            Collective::ReduceScatter {
                inputs: list(&[4, 4, 4]),
                output: at(64, 8),
                op,
            },
            "differ in length",
        );
        refused(
            Collective::Gather {
                input: at(64, 4),
                outputs: Some(list(&[4, 4, 8])),
                root,
            },
            "differ in length",
        );
        refused(
            Collective::AllToAll {
                inputs: list(&[4, 8, 4]),
                outputs: list(&[4, 4, 4]),
            },
            "gives itself",
        );
        assert!(
            check(Collective::AllGather {
                input: at(64, 4),
                outputs: list(&[8, 4, 0])
            })
            .is_ok()
        );
    }

    #[test]
    fn lists_have_one_buffer_per_rank() {
        refused(
            Collective::AllGather {
                input: at(64, 8),
                outputs: list(&[8, 8]),
            },
            "got 2 buffers; expected 3 buffers",
        );
        let outputs = Regions::Equal {
            whole: at(4096, 16),
            each: 8,
        };
        refused(
            Collective::AllGather {
                input: at(64, 8),
                outputs,
            },
            "got 2 buffers",
        );
        let outputs = Regions::Equal {
            whole: Region::EMPTY,
            each: 0,
        };
        assert!(
            check(Collective::AllGather {
                input: Region::EMPTY,
                outputs
            })
            .is_ok()
        );
    }

    #[test]
    fn what_is_the_roots_is_there_on_the_root_alone() {
        let (own, other, op) = (GroupRank::new(1), GroupRank::new(0), ReduceOp::Sum);
        let (input, output) = (at(64, 8), Some(at(1024, 8)));
        refused(
            Collective::Reduce {
                input,
                output: None,
                op,
                root: own,
            },
            "the root gave no output",
        );
        refused(
            Collective::Reduce {
                input,
                output,
                op,
                root: other,
            },
            "the root's alone",
        );
        refused(
            Collective::Scatter {
                inputs: None,
                output: input,
                root: own,
            },
            "no inputs",
        );
        assert!(
            check(Collective::Scatter {
                inputs: None,
                output: input,
                root: other
            })
            .is_ok()
        );
    }

    #[test]
    fn buffers_are_the_same_or_lie_apart() {
        let op = ReduceOp::Sum;
        refused(
            Collective::AllReduce {
                input: at(64, 8),
                output: at(68, 8),
                op,
            },
            "overlap",
        );
        assert!(
            check(Collective::AllReduce {
                input: at(64, 8),
                output: at(64, 8),
                op
            })
            .is_ok()
        );
        assert!(
            check(Collective::AllReduce {
                input: at(64, 8),
                output: at(72, 8),
                op
            })
            .is_ok()
        );
        let whole = Regions::Equal {
            whole: at(4096, 24),
            each: 8,
        };
        let gather = |input| Collective::AllGather {
            input,
            outputs: whole.clone(),
        };
        assert!(check(gather(at(4104, 8))).is_ok());
        refused(gather(at(4096, 8)), "overlap");
        refused(gather(at(4108, 8)), "overlap");
        refused(
            Collective::AllToAll {
                inputs: whole.clone(),
                outputs: whole.clone(),
            },
            "overlap",
        );
    }

    #[test]
    fn reductions_follow_the_table() {
        let (input, op) = (at(64, 8), ReduceOp::BitAnd);
        let error = check(Collective::AllReduce {
            input,
            output: input,
            op,
        })
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn members_are_distinct_ranks() {
        let ranks = |list: &[u32]| {
            list.iter()
                .map(|rank| GroupRank::new(*rank))
                .collect::<Vec<_>>()
        };
        assert_eq!(CHECKER.members(&[2, 1]).unwrap(), (ranks(&[2, 1]), true));
        assert_eq!(CHECKER.members(&[2, 0]).unwrap(), (ranks(&[2, 0]), false));
        assert_eq!(CHECKER.members(&[]).unwrap(), (vec![], false));
        assert!(
            CHECKER
                .members(&[1, 1])
                .unwrap_err()
                .to_string()
                .contains("twice")
        );
        assert!(CHECKER.members(&[3]).is_err());
    }
}
