//! Combining the inputs of several ranks into one output: the one table of what each op does to
//! each dtype.
//!
//! Inputs are combined in rank order, so the bits of the result depend on nothing else. float16 and
//! bfloat16 (and the halves of complex32) are combined in binary32 and rounded once, at the end,
//! to nearest even. This module must not know where inputs come from, nor how the loops are compiled.

#[cfg(test)]
mod tests;

use ferrocomm_kernels::{
    Add, And, Complex, Element, Float, Integer, Kernel, Larger, Mean, Multiply, Or, ScaledAdd,
    Smaller, Terms, Truth, Xor, run,
};
pub use ferrocomm_kernels::{Input, Level};
use half::{bf16, f16};

use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::reduce_op::ReduceOp;

/// A reduce op on a dtype in a group: known to be supported, cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct Reduction {
    op: ReduceOp,
    dtype: Dtype,
    terms: Terms,
    kernel: Kernel,
    level: Level,
}

impl Reduction {
    /// `op` on elements of `dtype` in a group of `group_size` ranks (at least 1; `Average` divides
    /// by it).
    ///
    /// # Errors
    /// `Unsupported` when the table has no entry for the pair.
    pub fn new(op: ReduceOp, dtype: Dtype, group_size: usize) -> Result<Self> {
        let kernel = kernel_of(op, dtype).ok_or_else(|| refusal(op, dtype))?;
        let factor = match op {
            ReduceOp::PremulSum(factor) => factor,
            ReduceOp::Sum
            | ReduceOp::Average
            | ReduceOp::Product
            | ReduceOp::Min
            | ReduceOp::Max
            | ReduceOp::BitAnd
            | ReduceOp::BitOr
            | ReduceOp::BitXor => 1.0,
        };
        Ok(Self {
            op,
            dtype,
            terms: Terms {
                group_size: group_size.max(1),
                factor,
            },
            kernel,
            level: Level::best(),
        })
    }

    /// The same reduction with the instructions of `level` and not the best of this processor. The
    /// bits of results do not depend on it.
    #[must_use]
    pub fn with_level(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// How elements are combined.
    pub fn op(&self) -> ReduceOp {
        self.op
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Combines `inputs`, given in rank order, and writes the finished result to `out`. Allocates
    /// nothing.
    ///
    /// # Panics
    /// When there is no input, lengths differ, or `out` does not hold whole elements.
    pub fn reduce(&self, out: &mut [u8], inputs: &[Input<'_>]) {
        assert!(!inputs.is_empty(), "a reduction needs an input");
        assert!(
            out.len().is_multiple_of(self.dtype.size()),
            "the output holds whole elements"
        );
        for input in inputs {
            if let Input::Bytes(bytes) = input {
                assert!(bytes.len() == out.len(), "inputs are as long as the output");
            }
        }
        (self.kernel)(self.level, &self.terms, out, inputs);
    }
}

/// The table. `None`: not supported.
fn kernel_of(op: ReduceOp, dtype: Dtype) -> Option<Kernel> {
    match dtype {
        Dtype::Uint8 => integer::<u8>(op),
        Dtype::Int8 => integer::<i8>(op),
        Dtype::Uint16 => integer::<u16>(op),
        Dtype::Int16 => integer::<i16>(op),
        Dtype::Uint32 => integer::<u32>(op),
        Dtype::Int32 => integer::<i32>(op),
        Dtype::Uint64 => integer::<u64>(op),
        Dtype::Int64 => integer::<i64>(op),
        Dtype::Float16 => float::<f16>(op),
        Dtype::Bfloat16 => float::<bf16>(op),
        Dtype::Float32 => float::<f32>(op),
        Dtype::Float64 => float::<f64>(op),
        Dtype::Bool => boolean(op),
        Dtype::Complex32 => complex::<f16>(op),
        Dtype::Complex64 => complex::<f32>(op),
        Dtype::Complex128 => complex::<f64>(op),
        Dtype::Byte
        | Dtype::Float8E4m3fn
        | Dtype::Float8E5m2
        | Dtype::Float8E4m3fnuz
        | Dtype::Float8E5m2fnuz
        | Dtype::Float8E8m0fnu => None,
    }
}

/// Integers wrap; the mean is the wrapped sum, divided and truncated toward zero.
fn integer<T: Element<Accumulator = T> + Integer>(op: ReduceOp) -> Option<Kernel> {
    Some(match op {
        ReduceOp::Sum => run::<T, Add>,
        ReduceOp::Average => run::<T, Mean>,
        ReduceOp::Product => run::<T, Multiply>,
        ReduceOp::Min => run::<T, Smaller>,
        ReduceOp::Max => run::<T, Larger>,
        ReduceOp::BitAnd => run::<T, And>,
        ReduceOp::BitOr => run::<T, Or>,
        ReduceOp::BitXor => run::<T, Xor>,
        ReduceOp::PremulSum(_) => return None,
    })
}

/// NaN wins a comparison.
fn float<T: Element<Accumulator: Float>>(op: ReduceOp) -> Option<Kernel> {
    Some(match op {
        ReduceOp::Sum => run::<T, Add>,
        ReduceOp::Average => run::<T, Mean>,
        ReduceOp::Product => run::<T, Multiply>,
        ReduceOp::Min => run::<T, Smaller>,
        ReduceOp::Max => run::<T, Larger>,
        ReduceOp::PremulSum(_) => run::<T, ScaledAdd>,
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => return None,
    })
}

/// Complex numbers have no order. All but the product treats the parts alike, so those kernels see
/// a list of real numbers twice as long.
fn complex<T>(op: ReduceOp) -> Option<Kernel>
where
    T: Element<Accumulator: Float>,
    [T; 2]: Element<Accumulator = Complex<T::Accumulator>>,
{
    Some(match op {
        ReduceOp::Sum => run::<T, Add>,
        ReduceOp::Average => run::<T, Mean>,
        ReduceOp::Product => run::<[T; 2], Multiply>,
        ReduceOp::PremulSum(_) => run::<T, ScaledAdd>,
        ReduceOp::Min | ReduceOp::Max | ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => {
            return None;
        }
    })
}

/// Truth values: every byte but 0 reads as true, and results are 0 or 1.
fn boolean(op: ReduceOp) -> Option<Kernel> {
    Some(match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => run::<Truth, Or>,
        ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd => run::<Truth, And>,
        ReduceOp::BitXor => run::<Truth, Xor>,
        ReduceOp::Average | ReduceOp::PremulSum(_) => return None,
    })
}

fn refusal(op: ReduceOp, dtype: Dtype) -> Error {
    let ops: Vec<&str> = (0..)
        .map_while(|code| ReduceOp::from_code(code, 1.0))
        .filter(|op| kernel_of(*op, dtype).is_some())
        .map(ReduceOp::name)
        .collect();
    let error = Error::new(
        ErrorKind::Unsupported,
        "this dtype cannot be reduced with this op",
    )
    .got(format_args!("{op} on {dtype}"));
    if ops.is_empty() {
        error
            .expected("a dtype with arithmetic")
            .remedy("convert the tensor, for instance to float32")
    } else {
        error.expected(format_args!("one of {} for {dtype}", ops.join(", ")))
    }
}
