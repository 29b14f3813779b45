//! The loops that combine elements, for every set of instructions a processor may have.
//!
//! The arithmetic is written once, in `number`; the loops are written once, in `kernel`; both are
//! compiled per [`Level`], and all levels give the same bits. This crate must not know which op goes
//! with which dtype, nor where inputs come from.

mod bfloat16;
mod element;
mod kernel;
mod level;
mod number;
mod processor;
#[cfg(test)]
mod tests;

pub use bfloat16::run_bfloat16_sum;
pub use element::{Becomes, Element, Group, OneBfloat16, Partial, Truth};
pub use kernel::{Input, Kernel, run};
pub use level::Level;
pub use number::{
    Add, And, Combine, Complex, Float, Integer, Larger, Mean, Multiply, Number, Or, Real,
    ScaledAdd, Smaller, Terms, Xor,
};
pub use processor::Processor;
