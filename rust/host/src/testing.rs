//! Ranks of a job in one process, each with an engine of its own, for tests. Must not know what is
//! tested.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferrocomm_core::call::{Call, Collective, Mode, Region, Task};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::Result;
use ferrocomm_core::group::Group;
use ferrocomm_core::ids::{CommId, GroupRank};
use ferrocomm_core::reduce_op::ReduceOp;

use crate::bootstrap::Member;
use crate::engine::{HostEngine, HostGroup};

/// Room for a busy machine; reaching it fails a test.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// As many engines.
pub(crate) fn engines(count: usize) -> Vec<Arc<HostEngine>> {
    (0..count).map(|_| HostEngine::new().unwrap()).collect()
}

/// The groups of so many ranks on a communicator that no other test has.
pub(crate) fn groups(count: usize) -> Vec<HostGroup> {
    static NUMBER: AtomicU64 = AtomicU64::new(4000);
    let comm = CommId(NUMBER.fetch_add(1, Ordering::Relaxed));
    let engines = engines(count);
    let members: Vec<Member> = engines.iter().map(|engine| engine.member()).collect();
    let members = Arc::new(members);
    (0u32..)
        .zip(&engines)
        .map(|(rank, engine)| engine.group(comm, GroupRank::new(rank), &members))
        .collect()
}

/// The memory of `values`.
pub(crate) fn region<T>(values: &mut [T]) -> Region {
    Region {
        address: values.as_mut_ptr() as usize,
        bytes: size_of_val(values),
    }
}

/// A collective that has time enough.
pub(crate) fn collective(collective: Collective, dtype: Dtype, sequence: u64, mode: Mode) -> Call {
    Call {
        task: Task::Collective(collective),
        dtype,
        sequence,
        timeout: LONG,
        mode,
    }
}

/// A barrier that is only started.
pub(crate) fn barrier(sequence: u64) -> Call {
    collective(Collective::Barrier, Dtype::Byte, sequence, Mode::Async)
}

/// Runs `call` on this thread until it is over.
pub(crate) fn run(group: &dyn Group, mut call: Call) -> Result<()> {
    let conditions = call.conditions();
    group.run(&mut call.task, &conditions, &mut || {})
}

/// What the ranks of `group` have in `values`, added up, in place.
pub(crate) fn sum(group: &dyn Group, sequence: u64, values: &mut [i64]) {
    let region = region(values);
    let sums = Collective::AllReduce {
        input: region,
        output: region,
        op: ReduceOp::Sum,
    };
    run(group, collective(sums, Dtype::Int64, sequence, Mode::Sync)).unwrap();
}
