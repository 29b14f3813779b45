//! The loops of every reduction, compiled once per level.
//!
//! Two inputs are combined straight into the output. Of more, one block of elements is combined
//! after the other, all inputs of a block before the next, in accumulators on the stack. Every input
//! is treated alike, wherever it stands: the bits of the result do not depend on which rank's input
//! lies in the output. Must not know whose inputs they are.

use std::slice::{ChunksExact, ChunksExactMut};

use crate::element::{Becomes, Element, Group};
use crate::level::{Instructions, Level};
use crate::number::{Combine, Terms};
use crate::processor::Processor;
#[cfg(target_arch = "x86_64")]
use crate::processor::{Avx2, Avx512};

/// One rank's input.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// these bytes, at any alignment
    Bytes(&'a [u8]),
    /// stands in the output already, and is overwritten by the result
    Output,
}

/// Combines inputs into an output; `run` for some elements and some way of combining.
pub type Kernel = fn(Level, &Terms, &mut [u8], &[Input<'_>]);

/// Combines `inputs`, each of as many elements `I` as `out` has elements `O`, into `out`, which holds
/// whole elements. Only where both are of one type may an input stand in the output. Allocates
/// nothing.
pub fn run<I: Becomes<O>, O: Element, C: Combine<I::Accumulator>>(
    level: Level,
    terms: &Terms,
    out: &mut [u8],
    inputs: &[Input<'_>],
) {
    match level.0 {
        Instructions::Scalar(processor) => combine::<I, O, C, _>(processor, terms, out, inputs),
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2(processor) => {
            // SAFETY: an `Avx2` exists, so the processor has these instructions.
            unsafe { combine_avx2::<I, O, C>(processor, terms, out, inputs) }
        }
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512(processor) => {
            // SAFETY: an `Avx512` exists, so the processor has these instructions.
            unsafe { combine_avx512::<I, O, C>(processor, terms, out, inputs) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn combine_avx2<I: Becomes<O>, O: Element, C: Combine<I::Accumulator>>(
    processor: Avx2,
    terms: &Terms,
    out: &mut [u8],
    inputs: &[Input<'_>],
) {
    combine::<I, O, C, _>(processor, terms, out, inputs);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn combine_avx512<I: Becomes<O>, O: Element, C: Combine<I::Accumulator>>(
    processor: Avx512,
    terms: &Terms,
    out: &mut [u8],
    inputs: &[Input<'_>],
) {
    combine::<I, O, C, _>(processor, terms, out, inputs);
}

// Inlined, like all it calls: that is what compiles it for the instructions of its caller.
#[inline(always)]
fn combine<I: Becomes<O>, O: Element, C: Combine<I::Accumulator>, P: Processor>(
    processor: P,
    terms: &Terms,
    out: &mut [u8],
    inputs: &[Input<'_>],
) {
    let both = |left, right| {
        let (left, right) = (C::prepare(left, terms), C::prepare(right, terms));
        C::finish(C::combine(left, right), terms)
    };
    match inputs {
        [Input::Bytes(left), Input::Bytes(right)] => {
            pair::<I, O, P>(processor, out, left, right, both)
        }
        [Input::Output, Input::Bytes(right)] if I::SIZE == O::SIZE => {
            in_place::<O, P>(processor, out, right, both);
        }
        [Input::Bytes(left), Input::Output] if I::SIZE == O::SIZE => {
            in_place::<O, P>(processor, out, left, |right, left| both(left, right));
        }
        _ => blocks::<I::InMemory, O::InMemory, C, P>(processor, terms, out, inputs),
    }
}

#[inline(always)]
fn pair<I: Becomes<O>, O: Element, P: Processor>(
    processor: P,
    out: &mut [u8],
    left: &[u8],
    right: &[u8],
    both: impl Fn(I::Accumulator, I::Accumulator) -> I::Accumulator,
) {
    let (groups, part) = split_mut::<O>(out);
    let (left_groups, left_part) = split::<I>(left);
    let (right_groups, right_part) = split::<I>(right);
    for ((out, left), right) in groups.zip(left_groups).zip(right_groups) {
        let (left, right) = (I::load(processor, left), I::load(processor, right));
        O::store(processor, left.zip(right, &both), out);
    }
    if !part.is_empty() {
        let left = load_part::<I, P>(processor, left_part);
        let right = load_part::<I, P>(processor, right_part);
        store_part::<O, P>(processor, left.zip(right, &both), part);
    }
}

/// As `pair`, with the first argument of `both` in the output already.
#[inline(always)]
fn in_place<E: Element, P: Processor>(
    processor: P,
    out: &mut [u8],
    other: &[u8],
    both: impl Fn(E::Accumulator, E::Accumulator) -> E::Accumulator,
) {
    let (groups, part) = split_mut::<E>(out);
    let (other_groups, other_part) = split::<E>(other);
    for (out, other) in groups.zip(other_groups) {
        let (own, other) = (E::load(processor, out), E::load(processor, other));
        E::store(processor, own.zip(other, &both), out);
    }
    if !part.is_empty() {
        let own = load_part::<E, P>(processor, part);
        let other = load_part::<E, P>(processor, other_part);
        store_part::<E, P>(processor, own.zip(other, &both), part);
    }
}

#[inline(always)]
fn blocks<I, O, C, P>(processor: P, terms: &Terms, out: &mut [u8], inputs: &[Input<'_>])
where
    I: Element,
    O: Element<Accumulator = I::Accumulator, Group = I::Group>,
    C: Combine<I::Accumulator>,
    P: Processor,
{
    let mut zero = I::ZERO;
    let accumulators = zero.as_mut();
    let mut start = 0;
    for block in out.chunks_mut(accumulators.len() * O::COUNT * O::SIZE) {
        let end = start + block.len() / O::SIZE * I::SIZE;
        for (position, input) in inputs.iter().enumerate() {
            let bytes = match input {
                Input::Bytes(bytes) => &bytes[start..end],
                Input::Output => {
                    assert!(I::SIZE == O::SIZE, "an input in the output has its type");
                    &*block
                }
            };
            if position == 0 {
                load::<I, P>(processor, bytes, accumulators, |_, value| {
                    value.map(|value| C::prepare(value, terms))
                });
            } else {
                load::<I, P>(processor, bytes, accumulators, |place, value| {
                    place.zip(value, |left, right| {
                        C::combine(left, C::prepare(right, terms))
                    })
                });
            }
        }
        store::<O, P>(processor, accumulators, block, |value| {
            C::finish(value, terms)
        });
        start = end;
    }
}

/// Reads the elements in `bytes`; `each` makes a new accumulator of the old one and them.
#[inline(always)]
fn load<E: Element, P: Processor>(
    processor: P,
    bytes: &[u8],
    accumulators: &mut [E::Group],
    each: impl Fn(E::Group, E::Group) -> E::Group,
) {
    let (groups, part) = split::<E>(bytes);
    let (whole, rest) = accumulators.split_at_mut(groups.len());
    for (place, bytes) in whole.iter_mut().zip(groups) {
        *place = each(*place, E::load(processor, bytes));
    }
    if let (Some(place), false) = (rest.first_mut(), part.is_empty()) {
        *place = each(*place, load_part::<E, P>(processor, part));
    }
}

/// Writes the accumulators, each changed by `finish`, to `bytes`.
#[inline(always)]
fn store<E: Element, P: Processor>(
    processor: P,
    accumulators: &[E::Group],
    bytes: &mut [u8],
    finish: impl Fn(E::Accumulator) -> E::Accumulator,
) {
    let (groups, part) = split_mut::<E>(bytes);
    let (whole, rest) = accumulators.split_at(groups.len());
    for (place, bytes) in whole.iter().zip(groups) {
        E::store(processor, place.map(&finish), bytes);
    }
    if let (Some(place), false) = (rest.first(), part.is_empty()) {
        store_part::<E, P>(processor, place.map(&finish), part);
    }
}

/// The whole groups in `bytes`, and the elements after them.
#[inline(always)]
fn split<E: Element>(bytes: &[u8]) -> (ChunksExact<'_, u8>, &[u8]) {
    let group = E::SIZE * E::COUNT;
    let (whole, part) = bytes.split_at(bytes.len() / group * group);
    // Known to the compiler: where a group is one element, nothing is left.
    (
        whole.chunks_exact(group),
        if E::COUNT == 1 { &[] } else { part },
    )
}

#[inline(always)]
fn split_mut<E: Element>(bytes: &mut [u8]) -> (ChunksExactMut<'_, u8>, &mut [u8]) {
    let group = E::SIZE * E::COUNT;
    let (whole, part) = bytes.split_at_mut(bytes.len() / group * group);
    (
        whole.chunks_exact_mut(group),
        if E::COUNT == 1 { &mut [] } else { part },
    )
}

/// No group has more bytes.
const MOST: usize = 64;

/// Reads less than a group; the rest is 0.
#[inline(always)]
fn load_part<E: Element, P: Processor>(processor: P, bytes: &[u8]) -> E::Group {
    let mut whole = [0; MOST];
    whole[..bytes.len()].copy_from_slice(bytes);
    E::load(processor, &whole[..E::SIZE * E::COUNT])
}

/// Writes less than a group.
#[inline(always)]
fn store_part<E: Element, P: Processor>(processor: P, group: E::Group, bytes: &mut [u8]) {
    let mut whole = [0; MOST];
    E::store(processor, group, &mut whole[..E::SIZE * E::COUNT]);
    bytes.copy_from_slice(&whole[..bytes.len()]);
}
