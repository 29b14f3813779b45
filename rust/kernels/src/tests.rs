//! Every kernel at every level against one element at a time, bit for bit.

mod reference;

use half::{bf16, f16};

use crate::{
    Add, And, Input, Kernel, Larger, Level, Mean, Multiply, OneBfloat16, Or, Partial, ScaledAdd,
    Smaller, Terms, Truth, Xor, run, run_bfloat16_sum,
};
use reference::{Reference, narrowed, widened};

/// A kernel and what it is to do.
struct Case {
    name: &'static str,
    /// bytes of an element
    size: usize,
    /// bytes of a number in it; 0 where every pattern is as good as another
    part: usize,
    kernel: Kernel,
    reference: Reference,
}

macro_rules! cases {
    ($($element:ty, $part:literal: $($way:ident),*;)*) => {
        vec![$($(Case {
            name: concat!(stringify!($element), " ", stringify!($way)),
            size: reference::size::<$element>(),
            part: $part,
            kernel: run::<$element, $element, $way>,
            reference: reference::of::<$element, reference::$way>,
        }),*),*]
    };
}

fn integers() -> Vec<Case> {
    cases! {
        u8, 0: Add, Mean, Multiply, Smaller, Larger, And, Or, Xor;
        i8, 0: Add, Mean, Multiply, Smaller, Larger, And, Or, Xor;
        u16, 0: Add, Mean, Multiply, Smaller, Larger, And, Or, Xor;
        i16, 0: Add, Mean, Multiply, Smaller, Larger, And, Or, Xor;
        u32, 0: Add, Mean, Multiply, Smaller, Larger, And, Or, Xor;
        i32, 0: Add, Mean, Multiply, Smaller, Larger, And, Or, Xor;
        u64, 0: Add, Mean, Multiply, Smaller, Larger, And, Or, Xor;
        i64, 0: Add, Mean, Multiply, Smaller, Larger, And, Or, Xor;
        Truth, 0: And, Or, Xor;
    }
}

fn floats() -> Vec<Case> {
    let mut cases = cases! {
        f16, 2: Add, Mean, Multiply, Smaller, Larger, ScaledAdd;
        bf16, 2: Add, Mean, Multiply, Smaller, Larger, ScaledAdd;
        f32, 4: Add, Mean, Multiply, Smaller, Larger, ScaledAdd;
        f64, 8: Add, Mean, Multiply, Smaller, Larger, ScaledAdd;
        [f16; 2], 2: Multiply;
        [f32; 2], 4: Multiply;
        [f64; 2], 8: Multiply;
    };
    cases.push(bfloat16_sum());
    cases
}

fn bfloat16_sum() -> Case {
    Case {
        name: "sum of bf16",
        size: 2,
        part: 2,
        kernel: run_bfloat16_sum,
        reference: reference::of::<bf16, reference::Add>,
    }
}

/// All pairs of bfloat16 of some exponents, so that all ways of rounding occur, here and there beside a
/// number that is not normal.
#[test]
fn sums_of_bfloat16_are_rounded_alike() {
    let near_one = |at: u16| 0x3f00 + at % 0x0200;
    let left: Vec<u8> = (0..1 << 18)
        .flat_map(|at: u32| near_one(at as u16).to_ne_bytes())
        .collect();
    for sign in [0, 0x8000] {
        let right: Vec<u8> = (0..1 << 18)
            .flat_map(|at: u32| match at % 70_001 {
                70_000 => 0x0001_u16.to_ne_bytes(),
                _ => (near_one((at >> 9) as u16) - 0x0200 + sign).to_ne_bytes(),
            })
            .collect();
        let terms = Terms {
            group_size: 2,
            factor: 1.0,
        };
        let expected = (bfloat16_sum().reference)(&terms, &[&left, &right]);
        for level in Level::available() {
            let mut out = vec![0; left.len()];
            let pair = [Input::Bytes(&left), Input::Bytes(&right)];
            run_bfloat16_sum(level, &terms, &mut out, &pair);
            assert!(out == expected, "{}", level.name());
            out.copy_from_slice(&left);
            run_bfloat16_sum(
                level,
                &terms,
                &mut out,
                &[Input::Output, Input::Bytes(&right)],
            );
            assert!(out == expected, "{}, in place", level.name());
        }
    }
}

/// The same bytes on every run.
struct Bytes(u64);

impl Bytes {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ self.0 >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    }

    /// Numbers of `part` bytes: any pattern, but now and then with all bits of the exponent set (NaN
    /// with any payload, infinities) or none (subnormal numbers, zeros of both signs).
    fn numbers(&mut self, part: usize, bytes: usize) -> Vec<u8> {
        let mut list = Vec::with_capacity(bytes);
        while list.len() < bytes {
            let mut pattern = self.next().to_ne_bytes();
            let pick = self.next();
            if part > 0 {
                // The 15 bits after the sign contain the exponent of all but bfloat16's kin, whose
                // own lies there too.
                let upper = &mut pattern[part - 2..part];
                let word = u16::from_ne_bytes([upper[0], upper[1]]);
                let exponent = if part == 8 { 0x7ff0 } else { 0x7f80 };
                let exponent = if part == 2 && pick & 64 == 0 {
                    0x7c00
                } else {
                    exponent
                };
                let word = match pick % 16 {
                    0 | 1 => word | exponent,
                    2 => word & !exponent,
                    3 => word & 0x8000 | exponent,
                    4 => word & 0x8000,
                    // Near 1, so that sums and products stay finite.
                    5..12 => word & 0x81ff | exponent >> 1 & 0x3e00,
                    _ => word,
                };
                upper.copy_from_slice(&word.to_ne_bytes());
                if matches!(pick % 16, 3 | 4) {
                    pattern[..part - 2].fill(0);
                }
            }
            list.extend_from_slice(&pattern[..if part > 0 { part } else { 8 }]);
        }
        list.truncate(bytes);
        list
    }
}

/// Runs `case` on `count` elements of `ranks` inputs, in every position of the output and without,
/// with inputs and output at changing distances from whole elements.
fn check(case: &Case, ranks: usize, count: usize, bytes: &mut Bytes) {
    let length = case.size * count;
    let shift = |rank: usize| (rank * 3 + count) % 9;
    let inputs: Vec<Vec<u8>> = (0..ranks)
        .map(|rank| [vec![0xee; shift(rank)], bytes.numbers(case.part, length)].concat())
        .collect();
    let input = |rank: usize| &inputs[rank][shift(rank)..];
    let terms = Terms {
        // AVG divides by it, whatever the number of inputs here.
        group_size: [ranks, 1, 3, 300, 70_000, 1 << 31, 1 << 33, 1 << 40][count % 8],
        factor: [0.3, -1e30, f64::NAN][count % 3],
    };
    let all: Vec<&[u8]> = (0..ranks).map(input).collect();
    let expected = (case.reference)(&terms, &all);
    for level in Level::available() {
        for in_place in (0..ranks).map(Some).chain([None]) {
            let from = (count + 5) % 9;
            let mut out = vec![0xcc; from + length + 64];
            let list: Vec<Input<'_>> = (0..ranks)
                .map(|rank| {
                    if Some(rank) == in_place {
                        out[from..from + length].copy_from_slice(input(rank));
                        Input::Output
                    } else {
                        Input::Bytes(input(rank))
                    }
                })
                .collect();
            (case.kernel)(level, &terms, &mut out[from..from + length], &list);
            let what = || {
                let (name, level) = (case.name, level.name());
                format!("{name}, {level}, {ranks} inputs, {count} elements, {in_place:?} in place")
            };
            let result = &out[from..from + length];
            if result != expected {
                let at = (0..length).find(|at| result[*at] != expected[*at]).unwrap();
                let element = at / case.size * case.size..(at / case.size + 1) * case.size;
                let inputs: Vec<&[u8]> = (0..ranks)
                    .map(|rank| &input(rank)[element.clone()])
                    .collect();
                panic!(
                    "{}: element {} of {inputs:02x?} is {:02x?} and not {:02x?}",
                    what(),
                    at / case.size,
                    &result[element.clone()],
                    &expected[element]
                );
            }
            let outside = out[..from].iter().chain(&out[from + length..]);
            assert!(
                outside.copied().all(|byte| byte == 0xcc),
                "{}: writes outside",
                what()
            );
        }
    }
}

/// Under a sanitizer one length of so many: enough for all remainders of 64.
const STEP: usize = if cfg!(sanitized) { 7 } else { 1 };

/// All lengths up to 600 with one number of inputs each, and all numbers of inputs with some lengths.
fn check_all(cases: &[Case]) {
    for (seed, case) in cases.iter().enumerate() {
        let mut bytes = Bytes(seed as u64);
        for count in (0..=600).step_by(STEP) {
            check(case, 1 + count % 8, count, &mut bytes);
            check(case, 2, count, &mut bytes);
        }
        for ranks in 1..=8 {
            for count in [1, 15, 64, 259, 2049, 4100] {
                if STEP > 1 && count > 259 {
                    continue;
                }
                check(case, ranks, count, &mut bytes);
            }
        }
    }
}

#[test]
fn integers_are_the_same_at_every_level() {
    check_all(&integers());
}

#[test]
fn floats_are_the_same_at_every_level() {
    check_all(&floats());
}

/// Every pattern of a 16-bit float, alone and beside one other.
#[test]
fn every_half_is_converted_alike() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    let terms = Terms {
        group_size: 1,
        factor: 1.0,
    };
    for case in floats().iter().filter(|case| case.size == 2) {
        for level in Level::available() {
            let mut out = all.clone();
            (case.kernel)(level, &terms, &mut out, &[Input::Output]);
            assert!(
                out == (case.reference)(&terms, &[&all]),
                "{} alone, {}",
                case.name,
                level.name()
            );
            for other in [0x0001_u16, 0x3c01, 0x3f81, 0x7e01, 0xff83] {
                let other = other.to_ne_bytes();
                let others = other.repeat(all.len() / 2);
                (case.kernel)(
                    level,
                    &terms,
                    &mut out,
                    &[Input::Bytes(&all), Input::Bytes(&others)],
                );
                let (name, level) = (case.name, level.name());
                assert!(
                    out == (case.reference)(&terms, &[&all, &others]),
                    "{name} with {other:02x?}, {level}"
                );
            }
        }
    }
}

/// To partials and from them, and what is between: the same way on binary32.
struct Stages {
    name: &'static str,
    /// bytes of a narrow element
    size: usize,
    first: Kernel,
    last: Kernel,
    wide: Reference,
    widen: fn(&[u8]) -> Vec<u8>,
    narrow: fn(&[u8]) -> Vec<u8>,
}

fn stages() -> Vec<Stages> {
    macro_rules! stages {
        ($($narrow:ty, $half:ty, $wide:ty: $($way:ident),*;)*) => {
            vec![$($(Stages {
                name: concat!(stringify!($narrow), " ", stringify!($way)),
                size: reference::size::<$wide>() / 2,
                first: run::<$narrow, Partial<$narrow>, $way>,
                last: run::<Partial<$narrow>, $narrow, $way>,
                wide: reference::of::<$wide, reference::$way>,
                widen: widened::<$half>,
                narrow: narrowed::<$half>,
            }),*),*]
        };
    }
    stages! {
        f16, f16, f32: Add, Mean, Multiply, Smaller, Larger, ScaledAdd;
        OneBfloat16, bf16, f32: Add, Mean, Multiply, Smaller, Larger, ScaledAdd;
        [f16; 2], f16, [f32; 2]: Multiply;
    }
}

#[test]
fn partials_are_the_same_at_every_level() {
    let mut bytes = Bytes(29);
    for case in stages() {
        for count in (0..=70).chain([600, 2049]) {
            let ranks = 1 + count % 4;
            let terms = Terms {
                group_size: 3,
                factor: 0.3,
            };
            let narrow: Vec<Vec<u8>> = (0..ranks)
                .map(|_| bytes.numbers(2, case.size * count))
                .collect();
            let wide: Vec<Vec<u8>> = narrow.iter().map(|input| (case.widen)(input)).collect();
            let views: Vec<&[u8]> = wide.iter().map(Vec::as_slice).collect();
            let partial = (case.wide)(&terms, &views);
            // Not what halves come to alone, so that rounding is seen.
            let any: Vec<Vec<u8>> = (0..ranks)
                .map(|_| bytes.numbers(4, case.size * 2 * count))
                .collect();
            let views: Vec<&[u8]> = any.iter().map(Vec::as_slice).collect();
            let result = (case.narrow)(&(case.wide)(&terms, &views));
            for level in Level::available() {
                let runs = |kernel: Kernel, inputs: &[Vec<u8>], length: usize| {
                    let list: Vec<Input<'_>> = inputs.iter().map(|i| Input::Bytes(i)).collect();
                    let mut out = vec![0xcc; length];
                    kernel(level, &terms, &mut out, &list);
                    out
                };
                let what = format!("{}, {}, {count} elements", case.name, level.name());
                let first = runs(case.first, &narrow, partial.len());
                assert!(first == partial, "to partials: {what}");
                let last = runs(case.last, &any, result.len());
                assert!(last == result, "from partials: {what}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "an input in the output has its type")]
fn a_partial_does_not_stand_in_a_result() {
    let terms = Terms {
        group_size: 2,
        factor: 1.0,
    };
    let kernel: Kernel = run::<f16, Partial<f16>, Add>;
    kernel(
        Level::SCALAR,
        &terms,
        &mut [0; 4],
        &[Input::Output, Input::Bytes(&[0; 2])],
    );
}

#[test]
fn the_first_choice_of_a_level_stands() {
    assert_eq!(Level::chosen(), Level::best());
    Level::SCALAR.choose();
    Level::best().choose();
    assert_eq!(Level::chosen(), Level::SCALAR);
}

#[test]
fn levels_have_the_names_they_are_found_by() {
    for level in Level::available() {
        assert!(Level::NAMES.contains(&level.name()));
        assert_eq!(Level::named(level.name()), Some(level));
    }
    assert_eq!(Level::available().next(), Some(Level::SCALAR));
    assert_eq!(Level::named("neither"), None);
}
