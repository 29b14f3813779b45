//! Reductions that go by way of partials: what the ranks of one machine combine to, before machines
//! are combined with one another.
//!
//! A partial of float16, bfloat16 or complex32 is binary32, so that a result is rounded once however
//! many machines took part. Built from the table's own entries, so both ways of combining are the
//! same arithmetic. Must not know where partials travel.

use ferrocomm_kernels::Kernel;

use super::kernel_of;
use crate::dtype::Dtype;
use crate::reduce_op::ReduceOp;

/// Which inputs a reduction takes and what it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// elements of ranks to the finished result
    Whole,
    /// elements of ranks to a partial
    First,
    /// partials to a partial
    Middle,
    /// partials to the finished result
    Last,
}

impl Stage {
    fn takes_partials(self) -> bool {
        matches!(self, Self::Middle | Self::Last)
    }

    fn leaves_partial(self) -> bool {
        matches!(self, Self::First | Self::Middle)
    }

    /// Type of the inputs and of the output of this stage, for elements of `dtype`.
    pub(super) fn types(self, dtype: Dtype) -> (Dtype, Dtype) {
        let of = |partial| if partial { carrier(dtype) } else { dtype };
        (of(self.takes_partials()), of(self.leaves_partial()))
    }

    /// The op whose table entry does this stage's part of `op`.
    fn op(self, op: ReduceOp) -> ReduceOp {
        match op {
            ReduceOp::Average if self.leaves_partial() => ReduceOp::Sum,
            ReduceOp::PremulSum(_) if self.takes_partials() => ReduceOp::Sum,
            op => op,
        }
    }

    /// What does this stage of `op` on `dtype`; `None`: not supported.
    pub(super) fn kernel(self, op: ReduceOp, dtype: Dtype) -> Option<Kernel> {
        let (takes, leaves) = self.types(dtype);
        kernel_of(&self.op(op), takes, leaves)
    }
}

/// The dtype that holds partials of `dtype`.
fn carrier(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::Float16 | Dtype::Bfloat16 => Dtype::Float32,
        Dtype::Complex32 => Dtype::Complex64,
        other => other,
    }
}
