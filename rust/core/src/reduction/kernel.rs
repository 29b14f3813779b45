//! The loop of every reduction: one block of elements after the other, all inputs of a block
//! before the next, in accumulators on the stack.
//!
//! Every input takes the same path, wherever it stands: the bits of the result do not depend on
//! which rank's input lies in the output.

use super::Input;
use super::element::Element;
use super::number::{Combine, Terms};

/// Elements whose accumulators are kept at a time: few enough to stay in the first-level cache.
pub(super) const BLOCK: usize = 256;

pub(super) type Kernel = fn(&Terms, &mut [u8], &[Input<'_>]);

/// Combines `inputs` into `out`.
pub(super) fn run<E: Element, C: Combine<E::Accumulator>>(
    terms: &Terms,
    out: &mut [u8],
    inputs: &[Input<'_>],
) {
    let mut accumulators = [E::ZERO; BLOCK];
    let mut start = 0;
    for block in out.chunks_mut(BLOCK * E::SIZE) {
        let accumulators = &mut accumulators[..block.len() / E::SIZE];
        let end = start + block.len();
        for (position, input) in inputs.iter().enumerate() {
            let bytes = match input {
                Input::Bytes(bytes) => &bytes[start..end],
                Input::Output => &*block,
            };
            if position == 0 {
                E::load(bytes, accumulators, |place, value| {
                    *place = C::prepare(value, terms)
                });
            } else {
                E::load(bytes, accumulators, |place, value| {
                    *place = C::combine(*place, C::prepare(value, terms));
                });
            }
        }
        for place in accumulators.iter_mut() {
            *place = C::finish(*place, terms);
        }
        E::store(accumulators, block);
        start = end;
    }
}
