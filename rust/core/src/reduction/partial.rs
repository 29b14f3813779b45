//! Reductions that go by way of partials: what the ranks of one machine combine to, before machines
//! are combined with one another.
//!
//! A partial of float16, bfloat16 or complex32 is binary32, so that a result is rounded once however
//! many machines took part. Built from the table's own entries, so both ways of combining are the
//! same arithmetic. Must not know where partials travel.

use half::{bf16, f16};

use super::element::Element;
use super::kernel::{BLOCK, Kernel};
use super::number::Terms;
use super::{Input, kernel_of};
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

    /// How this stage of `op` on `dtype` is done; `None`: not supported.
    pub(super) fn course(self, op: ReduceOp, dtype: Dtype) -> Option<Course> {
        let (takes, leaves) = self.types(dtype);
        let kernel = kernel_of(
            self.op(op),
            if takes == leaves {
                takes
            } else {
                carrier(dtype)
            },
        )?;
        if takes == leaves {
            return Some(Course::Straight(kernel));
        }
        // One input alone goes through `kernel` for what an op does to each input, or to the end
        // result; inputs are joined by the plain form of the op.
        let join = kernel_of(Self::Middle.op(op), carrier(dtype))?;
        let halves = match dtype {
            Dtype::Bfloat16 => Halves::Bfloat16,
            _ => Halves::Float16,
        };
        Some(if self == Self::First {
            Course::Widening {
                halves,
                kernel,
                join,
            }
        } else {
            Course::Narrowing {
                halves,
                kernel,
                join,
            }
        })
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

/// The 16-bit numbers that are combined in binary32.
#[derive(Clone, Copy, Debug)]
pub(super) enum Halves {
    Float16,
    Bfloat16,
}

/// How a stage is done.
#[derive(Clone, Copy, Debug)]
pub(super) enum Course {
    /// inputs and output are of one type
    Straight(Kernel),
    /// from 16-bit numbers to binary32
    Widening {
        halves: Halves,
        kernel: Kernel,
        join: Kernel,
    },
    /// from binary32 to 16-bit numbers
    Narrowing {
        halves: Halves,
        kernel: Kernel,
        join: Kernel,
    },
}

impl Course {
    pub(super) fn run(self, terms: &Terms, out: &mut [u8], inputs: &[Input<'_>]) {
        match self {
            Self::Straight(kernel) => kernel(terms, out, inputs),
            Self::Widening {
                halves,
                kernel,
                join,
            } => {
                let mut wide = [0; WIDE];
                for (index, out) in out.chunks_mut(WIDE).enumerate() {
                    let wide = &mut wide[..out.len()];
                    for (place, input) in inputs.iter().enumerate() {
                        halves.widen(bytes(input, index * NARROW, out.len() / 2), wide);
                        if place == 0 {
                            kernel(terms, out, &[Input::Bytes(wide)]);
                        } else {
                            kernel(terms, wide, &[Input::Output]);
                            join(terms, out, &[Input::Output, Input::Bytes(wide)]);
                        }
                    }
                }
            }
            Self::Narrowing {
                halves,
                kernel,
                join,
            } => {
                let mut wide = [0; WIDE];
                for (index, out) in out.chunks_mut(NARROW).enumerate() {
                    let wide = &mut wide[..out.len() * 2];
                    for (place, input) in inputs.iter().enumerate() {
                        let input = bytes(input, index * WIDE, wide.len());
                        if place == 0 {
                            wide.copy_from_slice(input);
                        } else {
                            join(terms, wide, &[Input::Output, Input::Bytes(input)]);
                        }
                    }
                    kernel(terms, wide, &[Input::Output]);
                    halves.narrow(wide, out);
                }
            }
        }
    }
}

/// Bytes of a block of 16-bit numbers, and of the same block in binary32.
const NARROW: usize = BLOCK * 2;
const WIDE: usize = BLOCK * 4;

fn bytes<'a>(input: &Input<'a>, start: usize, length: usize) -> &'a [u8] {
    match input {
        Input::Bytes(bytes) => &bytes[start..start + length],
        // `Reduction::reduce` refuses it: the output is of another type than the inputs.
        Input::Output => &[],
    }
}

impl Halves {
    /// At most `BLOCK` numbers.
    fn widen(self, from: &[u8], into: &mut [u8]) {
        let mut values = [0.0_f32; BLOCK];
        let values = &mut values[..from.len() / 2];
        let set = |place: &mut f32, value| *place = value;
        match self {
            Self::Float16 => f16::load(from, values, set),
            Self::Bfloat16 => bf16::load(from, values, set),
        }
        f32::store(values, into);
    }

    /// At most `BLOCK` numbers.
    fn narrow(self, from: &[u8], into: &mut [u8]) {
        let mut values = [0.0_f32; BLOCK];
        let values = &mut values[..from.len() / 4];
        f32::load(from, values, |place, value| *place = value);
        match self {
            Self::Float16 => f16::store(values, into),
            Self::Bfloat16 => bf16::store(values, into),
        }
    }
}
