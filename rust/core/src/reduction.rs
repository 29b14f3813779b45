//! Combining the inputs of several ranks into one output: the one table of what each op does to
//! each dtype.
//!
//! Inputs are combined in rank order, so the bits of the result depend on nothing else. float16 and
//! bfloat16 (and the halves of complex32) are combined in binary32 and rounded once, at the end,
//! to nearest even. This module must not know where inputs come from, nor how the loops are compiled.

mod partial;
#[cfg(test)]
mod tests;

use ferrocomm_kernels::{
    Add, And, Becomes, Complex, Element, Float, Integer, Kernel, Larger, Mean, Multiply,
    OneBfloat16, Or, Partial, ScaledAdd, Smaller, Terms, Truth, Xor, run, run_bfloat16_sum,
};
pub use ferrocomm_kernels::{Input, Level};
use half::{bf16, f16};

use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::reduce_op::ReduceOp;
pub use partial::Stage;

/// A reduce op on a dtype in a group: known to be supported, cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct Reduction {
    op: ReduceOp,
    dtype: Dtype,
    terms: Terms,
    stage: Stage,
    kernel: Kernel,
    level: Level,
}

impl Reduction {
    /// `op` on elements of `dtype` in a group of `group_size` ranks (at least 1; `Average` divides
    /// by it).
    ///
    /// # Errors
    /// `Unsupported` when the table has no entry for the pair.
    #[inline(always)]
    pub fn new(op: ReduceOp, dtype: Dtype, group_size: usize) -> Result<Self> {
        let kernel = looked_up(&op, dtype).ok_or_else(|| refusal(op, dtype))?;
        let factor = match op {
            ReduceOp::PremulSum(factor) => factor,
            ReduceOp::Sum
            | ReduceOp::Average
            | ReduceOp::Product
            | ReduceOp::Min
            | ReduceOp::Max
            | ReduceOp::BitAnd
            | ReduceOp::BitOr
            | ReduceOp::BitXor
            | ReduceOp::PremulSumAt(_) => 1.0,
        };
        Ok(Self {
            op,
            dtype,
            terms: Terms {
                group_size: group_size.max(1),
                factor,
            },
            stage: Stage::Whole,
            kernel,
            level: Level::chosen(),
        })
    }

    /// Whether the table has an entry for the pair; costs less than `new`.
    ///
    /// # Errors
    /// As `new`.
    #[inline(always)]
    pub fn check(op: &ReduceOp, dtype: Dtype) -> Result<()> {
        match looked_up(op, dtype) {
            Some(_) => Ok(()),
            None => Err(refusal(*op, dtype)),
        }
    }

    /// The same reduction, of which one stage is done. First, middle and last stages in any number
    /// come to what the whole does, up to the order in which floats are added.
    #[must_use]
    pub fn at(self, stage: Stage) -> Self {
        // Every supported pair has all its stages; a test looks at each.
        let kernel = stage.kernel(self.op, self.dtype).unwrap_or(self.kernel);
        Self {
            stage,
            kernel,
            ..self
        }
    }

    /// Whether one rank's input is a partial as it stands.
    pub fn is_partial(&self) -> bool {
        let (takes, leaves) = Stage::First.types(self.dtype);
        takes == leaves && !matches!(self.op, ReduceOp::PremulSum(_))
    }

    /// Bytes of an element of an input, and of the output.
    pub fn widths(&self) -> (usize, usize) {
        let (takes, leaves) = self.stage.types(self.dtype);
        (takes.size(), leaves.size())
    }

    /// How elements are combined.
    pub fn op(&self) -> ReduceOp {
        self.op
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Combines `inputs`, given in rank order, and writes the result to `out`. Allocates nothing.
    ///
    /// # Panics
    /// When there is no input, inputs and output differ in their number of elements, `out` does not
    /// hold whole elements, or an input in the output is not of the output's type.
    #[inline]
    pub fn reduce(&self, out: &mut [u8], inputs: &[Input<'_>]) {
        assert!(!inputs.is_empty(), "a reduction needs an input");
        let (takes, leaves) = self.stage.types(self.dtype);
        assert!(leaves.divides(out.len()), "the output holds whole elements");
        let expected = leaves.elements(out.len()) * takes.size();
        for input in inputs {
            match input {
                Input::Bytes(bytes) => {
                    assert!(bytes.len() == expected, "inputs are as long as the output");
                }
                Input::Output => assert!(takes == leaves, "an input in the output has its type"),
            }
        }
        (self.kernel)(self.level, &self.terms, out, inputs);
    }
}

/// Number of the codes of reduce ops.
const OPS: usize = 9;

/// What `straight` says, by dtype and op: short operations look twice.
static STRAIGHT: [[Option<Kernel>; OPS]; Dtype::ALL.len()] = {
    let mut table = [[None; OPS]; Dtype::ALL.len()];
    let mut dtype = 0;
    while dtype < table.len() {
        let mut code = 0;
        while code < OPS {
            if let Some(op) = ReduceOp::from_code(code as u32, 1.0) {
                table[dtype][code] = straight(&op, Dtype::ALL[dtype]);
            }
            code += 1;
        }
        dtype += 1;
    }
    table
};

/// The entry of `STRAIGHT`.
#[inline(always)]
fn looked_up(op: &ReduceOp, dtype: Dtype) -> Option<Kernel> {
    if matches!(op, ReduceOp::PremulSumAt(_)) {
        return None;
    }
    STRAIGHT[dtype as usize][op.code() as usize]
}

/// The table: `op` on inputs of type `takes`, to an output of type `leaves`. `None`: not supported.
fn kernel_of(op: &ReduceOp, takes: Dtype, leaves: Dtype) -> Option<Kernel> {
    match (takes, leaves) {
        (Dtype::Float16, Dtype::Float32) => float::<f16, Partial<f16>>(op),
        (Dtype::Float32, Dtype::Float16) => float::<Partial<f16>, f16>(op),
        (Dtype::Bfloat16, Dtype::Float32) => float::<OneBfloat16, Partial<OneBfloat16>>(op),
        (Dtype::Float32, Dtype::Bfloat16) => float::<Partial<OneBfloat16>, OneBfloat16>(op),
        (Dtype::Complex32, Dtype::Complex64) => {
            complex::<f16, Partial<f16>, [f16; 2], Partial<[f16; 2]>>(op)
        }
        (Dtype::Complex64, Dtype::Complex32) => {
            complex::<Partial<f16>, f16, Partial<[f16; 2]>, [f16; 2]>(op)
        }
        _ if takes == leaves => looked_up(op, takes),
        _ => None,
    }
}

/// Inputs and output of one type.
const fn straight(op: &ReduceOp, dtype: Dtype) -> Option<Kernel> {
    match dtype {
        Dtype::Uint8 => integer::<u8>(op),
        Dtype::Int8 => integer::<i8>(op),
        Dtype::Uint16 => integer::<u16>(op),
        Dtype::Int16 => integer::<i16>(op),
        Dtype::Uint32 => integer::<u32>(op),
        Dtype::Int32 => integer::<i32>(op),
        Dtype::Uint64 => integer::<u64>(op),
        Dtype::Int64 => integer::<i64>(op),
        Dtype::Float16 => float::<f16, f16>(op),
        Dtype::Bfloat16 if matches!(op, ReduceOp::Sum) => Some(run_bfloat16_sum),
        Dtype::Bfloat16 => float::<bf16, bf16>(op),
        Dtype::Float32 => float::<f32, f32>(op),
        Dtype::Float64 => float::<f64, f64>(op),
        Dtype::Bool => boolean(op),
        Dtype::Complex32 => complex::<f16, f16, [f16; 2], [f16; 2]>(op),
        Dtype::Complex64 => complex::<f32, f32, [f32; 2], [f32; 2]>(op),
        Dtype::Complex128 => complex::<f64, f64, [f64; 2], [f64; 2]>(op),
        Dtype::Byte
        | Dtype::Float8E4m3fn
        | Dtype::Float8E5m2
        | Dtype::Float8E4m3fnuz
        | Dtype::Float8E5m2fnuz
        | Dtype::Float8E8m0fnu => None,
    }
}

/// Integers wrap; the mean is the wrapped sum, divided and truncated toward zero.
const fn integer<T: Element<Accumulator = T> + Integer>(op: &ReduceOp) -> Option<Kernel> {
    Some(match op {
        ReduceOp::Sum => run::<T, T, Add>,
        ReduceOp::Average => run::<T, T, Mean>,
        ReduceOp::Product => run::<T, T, Multiply>,
        ReduceOp::Min => run::<T, T, Smaller>,
        ReduceOp::Max => run::<T, T, Larger>,
        ReduceOp::BitAnd => run::<T, T, And>,
        ReduceOp::BitOr => run::<T, T, Or>,
        ReduceOp::BitXor => run::<T, T, Xor>,
        ReduceOp::PremulSum(_) | ReduceOp::PremulSumAt(_) => return None,
    })
}

/// NaN wins a comparison.
const fn float<I: Becomes<O>, O: Element<Accumulator: Float>>(op: &ReduceOp) -> Option<Kernel> {
    Some(match op {
        ReduceOp::Sum => run::<I, O, Add>,
        ReduceOp::Average => run::<I, O, Mean>,
        ReduceOp::Product => run::<I, O, Multiply>,
        ReduceOp::Min => run::<I, O, Smaller>,
        ReduceOp::Max => run::<I, O, Larger>,
        ReduceOp::PremulSum(_) => run::<I, O, ScaledAdd>,
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor | ReduceOp::PremulSumAt(_) => {
            return None;
        }
    })
}

/// Complex numbers have no order. All but the product treats the parts alike, so those kernels see
/// a list of real numbers twice as long, `I` to `O`; the product sees numbers, `N` to `M`.
const fn complex<I, O, N, M>(op: &ReduceOp) -> Option<Kernel>
where
    I: Becomes<O>,
    O: Element<Accumulator: Float>,
    N: Becomes<M>,
    M: Element<Accumulator = Complex<O::Accumulator>>,
{
    Some(match op {
        ReduceOp::Sum => run::<I, O, Add>,
        ReduceOp::Average => run::<I, O, Mean>,
        ReduceOp::Product => run::<N, M, Multiply>,
        ReduceOp::PremulSum(_) => run::<I, O, ScaledAdd>,
        ReduceOp::Min
        | ReduceOp::Max
        | ReduceOp::BitAnd
        | ReduceOp::BitOr
        | ReduceOp::BitXor
        | ReduceOp::PremulSumAt(_) => return None,
    })
}

/// Truth values: every byte but 0 reads as true, and results are 0 or 1.
const fn boolean(op: &ReduceOp) -> Option<Kernel> {
    Some(match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => run::<Truth, Truth, Or>,
        ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd => run::<Truth, Truth, And>,
        ReduceOp::BitXor => run::<Truth, Truth, Xor>,
        ReduceOp::Average | ReduceOp::PremulSum(_) | ReduceOp::PremulSumAt(_) => return None,
    })
}

fn refusal(op: ReduceOp, dtype: Dtype) -> Error {
    let ops: Vec<&str> = (0..)
        .map_while(|code| ReduceOp::from_code(code, 1.0))
        .filter(|op| kernel_of(op, dtype, dtype).is_some())
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
