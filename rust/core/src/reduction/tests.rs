//! Every entry of the table against arithmetic written a second time, one element at a time.

use half::{bf16, f16};

use super::{Input, Reduction, Stage};
use crate::dtype::Dtype;
use crate::error::ErrorKind;
use crate::reduce_op::ReduceOp;

const OPS: [ReduceOp; 9] = [
    ReduceOp::Sum,
    ReduceOp::Average,
    ReduceOp::Product,
    ReduceOp::Min,
    ReduceOp::Max,
    ReduceOp::BitAnd,
    ReduceOp::BitOr,
    ReduceOp::BitXor,
    ReduceOp::PremulSum(0.3),
];

fn is_integer(dtype: Dtype) -> bool {
    (Dtype::Uint8.code()..=Dtype::Int64.code()).contains(&dtype.code())
}

fn is_float(dtype: Dtype) -> bool {
    (Dtype::Float16.code()..=Dtype::Float64.code()).contains(&dtype.code())
}

fn is_complex(dtype: Dtype) -> bool {
    (Dtype::Complex32.code()..=Dtype::Complex128.code()).contains(&dtype.code())
}

fn expect_supported(op: ReduceOp, dtype: Dtype) -> bool {
    match op.name() {
        "SUM" | "PRODUCT" => {
            is_integer(dtype) || is_float(dtype) || is_complex(dtype) || dtype == Dtype::Bool
        }
        "AVG" => is_integer(dtype) || is_float(dtype) || is_complex(dtype),
        "MIN" | "MAX" => is_integer(dtype) || is_float(dtype) || dtype == Dtype::Bool,
        "PREMUL_SUM" => is_float(dtype) || is_complex(dtype),
        _ => is_integer(dtype) || dtype == Dtype::Bool,
    }
}

/// The same bytes on every run.
struct Bytes(u64);

impl Bytes {
    fn next(&mut self) -> u8 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 56) as u8
    }

    /// Any bit pattern for integers and bool; for floats numbers around 1 and now and then NaN,
    /// an infinity, a zero of either sign or any pattern at all.
    fn element(&mut self, dtype: Dtype) -> Vec<u8> {
        let parts = if is_complex(dtype) { 2 } else { 1 };
        let part = dtype.size() / parts;
        let mut bytes = Vec::new();
        for _ in 0..parts {
            let number = (f64::from(self.next()) - 100.0) / 64.0 + f64::from(self.next()) / 8192.0;
            let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0];
            let pick = usize::from(self.next());
            let number = *special.get(pick).unwrap_or(&number);
            match dtype {
                _ if pick == 5 || !(is_float(dtype) || is_complex(dtype)) => {
                    bytes.extend((0..part).map(|_| self.next()));
                }
                Dtype::Float16 | Dtype::Complex32 => {
                    bytes.extend(f16::from_f64(number).to_ne_bytes())
                }
                Dtype::Bfloat16 => bytes.extend(bf16::from_f64(number).to_ne_bytes()),
                Dtype::Float32 | Dtype::Complex64 => bytes.extend((number as f32).to_ne_bytes()),
                _ => bytes.extend(number.to_ne_bytes()),
            }
        }
        bytes
    }

    fn elements(&mut self, dtype: Dtype, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| self.element(dtype)).collect()
    }
}

fn integer_reference(op: ReduceOp, dtype: Dtype, group: usize, inputs: &[&[u8]]) -> Vec<u8> {
    let bits = 8 * dtype.size() as u32;
    let signed = dtype.name().starts_with('i');
    let wrap = |value: i128| {
        let low = value & ((1_i128 << bits) - 1);
        if signed && low >> (bits - 1) == 1 {
            low - (1_i128 << bits)
        } else {
            low
        }
    };
    let read = |bytes: &&[u8]| {
        let mut wide = [0; 16];
        wide[..bytes.len()].copy_from_slice(bytes);
        wrap(i128::from_le_bytes(wide))
    };
    let values: Vec<i128> = inputs.iter().map(read).collect();
    let fold =
        |f: fn(i128, i128) -> i128| values[1..].iter().fold(values[0], |a, b| wrap(f(a, *b)));
    let result = match op.name() {
        "SUM" => fold(|a, b| a + b),
        "AVG" => fold(|a, b| a + b) / group as i128,
        "PRODUCT" => fold(|a, b| a.wrapping_mul(b)),
        "MIN" => fold(|a, b| a.min(b)),
        "MAX" => fold(|a, b| a.max(b)),
        "BAND" => fold(|a, b| a & b),
        "BOR" => fold(|a, b| a | b),
        _ => fold(|a, b| a ^ b),
    };
    result.to_le_bytes()[..dtype.size()].to_vec()
}

fn bool_reference(op: ReduceOp, inputs: &[&[u8]]) -> Vec<u8> {
    let values: Vec<bool> = inputs.iter().map(|bytes| bytes[0] != 0).collect();
    let result = match op.name() {
        "SUM" | "MAX" | "BOR" => values.iter().any(|value| *value),
        "PRODUCT" | "MIN" | "BAND" => values.iter().all(|value| *value),
        _ => values.iter().filter(|value| **value).count() % 2 == 1,
    };
    vec![u8::from(result)]
}

macro_rules! float_reference {
    ($name:ident, $type:ty) => {
        fn $name(op: ReduceOp, group: usize, inputs: &[[$type; 2]]) -> [$type; 2] {
            let scale = match op {
                ReduceOp::PremulSum(factor) => factor as $type,
                _ => 1.0,
            };
            let mut result = inputs[0].map(|part| part * scale);
            for [re, im] in &inputs[1..] {
                let [a, b] = result;
                result = match op.name() {
                    "SUM" | "AVG" | "PREMUL_SUM" => [a + re * scale, b + im * scale],
                    "PRODUCT" => [a * re - b * im, a * im + b * re],
                    "MIN" if a.is_nan() || re.is_nan() => [<$type>::NAN, 0.0],
                    "MAX" if a.is_nan() || re.is_nan() => [<$type>::NAN, 0.0],
                    "MIN" => [if *re < a { *re } else { a }, 0.0],
                    _ => [if *re > a { *re } else { a }, 0.0],
                };
            }
            let by = if op.name() == "AVG" {
                group as $type
            } else {
                1.0
            };
            result.map(|part| part / by)
        }
    };
}
float_reference!(reference_in_binary32, f32);
float_reference!(reference_in_binary64, f64);

/// One float or complex element; the parts of a float are itself and, as it were, 0.
fn float_element(op: ReduceOp, dtype: Dtype, group: usize, inputs: &[&[u8]]) -> Vec<u8> {
    let real = is_float(dtype);
    let part = if real { dtype.size() } else { dtype.size() / 2 };
    if part == 8 {
        let read = |bytes: &[u8]| f64::from_ne_bytes(bytes.try_into().unwrap());
        let values: Vec<[f64; 2]> = inputs
            .iter()
            .map(|bytes| {
                [
                    read(&bytes[..8]),
                    if real { 0.0 } else { read(&bytes[8..]) },
                ]
            })
            .collect();
        let result = product_or(op, real, &values, |op, values| {
            reference_in_binary64(op, group, values)
        });
        return result
            .iter()
            .flat_map(|part| part.to_ne_bytes())
            .take(dtype.size())
            .collect();
    }
    let read = |bytes: &[u8]| match (dtype, bytes) {
        (Dtype::Bfloat16, _) => bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f32(),
        (_, [a, b]) => f16::from_ne_bytes([*a, *b]).to_f32(),
        _ => f32::from_ne_bytes(bytes.try_into().unwrap()),
    };
    let values: Vec<[f32; 2]> = inputs
        .iter()
        .map(|bytes| {
            [
                read(&bytes[..part]),
                if real { 0.0 } else { read(&bytes[part..]) },
            ]
        })
        .collect();
    let result = product_or(op, real, &values, |op, values| {
        reference_in_binary32(op, group, values)
    });
    let write = |value: f32| match (dtype, part) {
        (Dtype::Bfloat16, _) => bf16::from_f32(value).to_ne_bytes().to_vec(),
        (_, 2) => f16::from_f32(value).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    };
    result
        .iter()
        .flat_map(|part| write(*part))
        .take(dtype.size())
        .collect()
}

/// The product of reals is not a complex product: infinity times 0 would turn up in it.
fn product_or<T: Copy + std::ops::Mul<Output = T>>(
    op: ReduceOp,
    real: bool,
    values: &[[T; 2]],
    otherwise: impl Fn(ReduceOp, &[[T; 2]]) -> [T; 2],
) -> [T; 2] {
    if real && op.name() == "PRODUCT" {
        let product = values[1..].iter().fold(values[0][0], |a, [b, _]| a * *b);
        return [product, values[0][1]];
    }
    otherwise(op, values)
}

fn reference(op: ReduceOp, dtype: Dtype, group: usize, inputs: &[&[u8]]) -> Vec<u8> {
    if is_integer(dtype) {
        integer_reference(op, dtype, group, inputs)
    } else if dtype == Dtype::Bool {
        bool_reference(op, inputs)
    } else {
        float_element(op, dtype, group, inputs)
    }
}

/// The bytes, with every NaN replaced by one and the same.
fn one_nan(dtype: Dtype, bytes: &[u8]) -> Vec<u8> {
    let part = if is_complex(dtype) {
        dtype.size() / 2
    } else {
        dtype.size()
    };
    let mut same = bytes.to_vec();
    for chunk in same.chunks_exact_mut(part) {
        let nan = match (dtype, &*chunk) {
            (Dtype::Bfloat16, [a, b]) => bf16::from_ne_bytes([*a, *b]).is_nan(),
            (Dtype::Float16 | Dtype::Complex32, [a, b]) => f16::from_ne_bytes([*a, *b]).is_nan(),
            (Dtype::Float32 | Dtype::Complex64, _) => {
                f32::from_ne_bytes((&*chunk).try_into().unwrap()).is_nan()
            }
            (Dtype::Float64 | Dtype::Complex128, _) => {
                f64::from_ne_bytes((&*chunk).try_into().unwrap()).is_nan()
            }
            _ => false,
        };
        if nan {
            chunk.fill(0xff);
        }
    }
    same
}

fn check(op: ReduceOp, dtype: Dtype, ranks: usize, count: usize) {
    let size = dtype.size();
    let mut bytes = Bytes(u64::from(dtype.code()) << 32 | (ranks * 8192 + count) as u64);
    // One byte in front puts every input at an odd address.
    let inputs: Vec<Vec<u8>> = (0..ranks)
        .map(|_| [vec![0xee], bytes.elements(dtype, count)].concat())
        .collect();
    let expected: Vec<u8> = (0..count)
        .flat_map(|at| {
            let element: Vec<&[u8]> = inputs
                .iter()
                .map(|input| &input[1 + at * size..1 + (at + 1) * size])
                .collect();
            reference(op, dtype, ranks, &element)
        })
        .collect();
    let reduction = Reduction::new(op, dtype, ranks).unwrap();
    let mut first: Option<Vec<u8>> = None;
    for in_place in (0..ranks).map(Some).chain([None]) {
        let mut out = vec![0xcc; count * size + 2];
        let list: Vec<Input<'_>> = (0..ranks)
            .map(|rank| {
                if Some(rank) == in_place {
                    out[1..=count * size].copy_from_slice(&inputs[rank][1..]);
                    Input::Output
                } else {
                    Input::Bytes(&inputs[rank][1..])
                }
            })
            .collect();
        reduction.reduce(&mut out[1..=count * size], &list);
        let case = format!("{op} {dtype}, {ranks} ranks, {count} elements, {in_place:?} in place");
        assert_eq!(
            (out[0], out[count * size + 1]),
            (0xcc, 0xcc),
            "{case}: writes outside"
        );
        let result = &out[1..=count * size];
        assert_eq!(one_nan(dtype, result), one_nan(dtype, &expected), "{case}");
        // Bits of NaN included.
        let first = first.get_or_insert_with(|| result.to_vec());
        assert_eq!(result, first, "{case}: differs from another place");
    }
}

#[test]
fn every_entry_agrees_with_the_reference() {
    for dtype in Dtype::ALL {
        for op in OPS {
            if expect_supported(op, dtype) {
                for (ranks, count) in [(1, 7), (2, 0), (2, 1), (2, 259), (3, 1025), (5, 33)] {
                    check(op, dtype, ranks, count);
                }
            }
        }
    }
}

#[test]
fn the_table_refuses_the_rest() {
    for dtype in Dtype::ALL {
        for op in OPS {
            let outcome = Reduction::new(op, dtype, 2);
            assert_eq!(outcome.is_ok(), expect_supported(op, dtype), "{op} {dtype}");
            if let Err(error) = outcome {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                let text = error.to_string();
                assert!(
                    text.contains(op.name()) && text.contains(dtype.name()),
                    "{text}"
                );
            }
        }
    }
}

fn reduce<const N: usize>(op: ReduceOp, dtype: Dtype, inputs: &[[u8; N]]) -> [u8; N] {
    let list: Vec<Input<'_>> = inputs.iter().map(|bytes| Input::Bytes(bytes)).collect();
    let mut out = [0; N];
    Reduction::new(op, dtype, inputs.len())
        .unwrap()
        .reduce(&mut out, &list);
    out
}

#[test]
fn integers_wrap_and_their_mean_truncates_toward_zero() {
    let int8 = |op, inputs: &[i8]| {
        let bytes: Vec<[u8; 1]> = inputs.iter().map(|value| value.to_ne_bytes()).collect();
        i8::from_ne_bytes(reduce(op, Dtype::Int8, &bytes))
    };
    assert_eq!(int8(ReduceOp::Sum, &[100, 100]), -56);
    assert_eq!(int8(ReduceOp::Product, &[64, 4]), 0);
    assert_eq!(int8(ReduceOp::Average, &[-3, -3, -1]), -2);
    assert_eq!(int8(ReduceOp::Average, &[3, 3, 1]), 2);
    assert_eq!(int8(ReduceOp::Average, &[100, 100]), -28);
    assert_eq!(int8(ReduceOp::Average, &[1; 300]), 0);
    let most = u64::MAX.to_ne_bytes();
    let sum = u64::from_ne_bytes(reduce(
        ReduceOp::Sum,
        Dtype::Uint64,
        &[most, 2_u64.to_ne_bytes()],
    ));
    assert_eq!(sum, 1);
    let mean = i64::from_ne_bytes(reduce(ReduceOp::Average, Dtype::Int64, &[most, most]));
    assert_eq!(mean, -1);
}

#[test]
fn halves_round_once_and_to_even() {
    let float16 = |op, inputs: &[f32]| {
        let bytes: Vec<[u8; 2]> = inputs
            .iter()
            .map(|value| f16::from_f32(*value).to_ne_bytes())
            .collect();
        f16::from_ne_bytes(reduce(op, Dtype::Float16, &bytes)).to_f32()
    };
    // Rounded at each step, the ones would be lost: 2049 is not a binary16.
    assert_eq!(float16(ReduceOp::Sum, &[2048.0, 1.0, 1.0]), 2050.0);
    assert_eq!(float16(ReduceOp::Sum, &[2048.0, 1.0]), 2048.0);
    assert_eq!(float16(ReduceOp::Sum, &[2050.0, 1.0]), 2052.0);
    // The sum overflows binary16, the mean does not.
    assert_eq!(float16(ReduceOp::Average, &[60000.0, 60000.0]), 60000.0);

    let bfloat16 = |op, inputs: &[f32]| {
        let bytes: Vec<[u8; 2]> = inputs
            .iter()
            .map(|value| bf16::from_f32(*value).to_ne_bytes())
            .collect();
        bf16::from_ne_bytes(reduce(op, Dtype::Bfloat16, &bytes)).to_f32()
    };
    assert_eq!(bfloat16(ReduceOp::Sum, &[256.0, 1.0, 1.0]), 258.0);
    assert_eq!(bfloat16(ReduceOp::Sum, &[256.0, 1.0]), 256.0);
    assert_eq!(bfloat16(ReduceOp::Sum, &[258.0, 1.0]), 260.0);
}

#[test]
fn nan_wins_wherever_it_stands() {
    for op in [ReduceOp::Min, ReduceOp::Max] {
        for inputs in [
            [f32::NAN, 1.0, 2.0],
            [1.0, f32::NAN, 2.0],
            [1.0, 2.0, f32::NAN],
        ] {
            let bytes = inputs.map(f32::to_ne_bytes);
            assert!(f32::from_ne_bytes(reduce(op, Dtype::Float32, &bytes)).is_nan());
        }
    }
}

#[test]
fn a_complex_product_is_one() {
    let i = [0_f32.to_ne_bytes(), 1_f32.to_ne_bytes()].concat();
    let i: [u8; 8] = i.try_into().unwrap();
    let square = reduce(ReduceOp::Product, Dtype::Complex64, &[i, i]);
    assert_eq!(square[..4], (-1_f32).to_ne_bytes());
    assert_eq!(square[4..], 0_f32.to_ne_bytes());
}

#[test]
fn truth_is_stored_as_one() {
    assert_eq!(reduce(ReduceOp::Sum, Dtype::Bool, &[[2], [4]]), [1]);
    assert_eq!(reduce(ReduceOp::Product, Dtype::Bool, &[[2], [4]]), [1]);
    assert_eq!(reduce(ReduceOp::BitXor, Dtype::Bool, &[[2], [4]]), [0]);
}

#[test]
#[should_panic(expected = "as long as the output")]
fn lengths_must_agree() {
    let reduction = Reduction::new(ReduceOp::Sum, Dtype::Int8, 2).unwrap();
    reduction.reduce(&mut [0; 2], &[Input::Output, Input::Bytes(&[0])]);
}

/// Combines `inputs` by way of partials: the first `cut` of them, the rest, and both results.
fn by_partials(reduction: Reduction, inputs: &[Vec<u8>], cut: usize) -> Vec<u8> {
    let part = |inputs: &[Vec<u8>]| {
        let first = reduction.at(Stage::First);
        let (takes, leaves) = first.widths();
        let mut out = vec![0xee; inputs[0].len() / takes * leaves];
        let inputs: Vec<Input<'_>> = inputs.iter().map(|bytes| Input::Bytes(bytes)).collect();
        first.reduce(&mut out, &inputs);
        out
    };
    let mut lower = part(&inputs[..cut]);
    let upper = part(&inputs[cut..]);
    // A partial alone stays what it is.
    let before = lower.clone();
    reduction
        .at(Stage::Middle)
        .reduce(&mut lower, &[Input::Output]);
    assert_eq!(lower, before, "{reduction:?}");
    let mut out = vec![0xee; inputs[0].len()];
    let partials = [Input::Bytes(&lower), Input::Bytes(&upper)];
    reduction.at(Stage::Last).reduce(&mut out, &partials);
    out
}

#[test]
fn partials_come_to_the_whole() {
    let mut bytes = Bytes(11);
    for dtype in Dtype::ALL {
        for op in OPS.into_iter().filter(|op| expect_supported(*op, dtype)) {
            let inputs: Vec<Vec<u8>> = (0..3).map(|_| bytes.elements(dtype, 700)).collect();
            let reduction = Reduction::new(op, dtype, 3).unwrap();
            // With the cut behind two inputs, the order of addition is that of the whole.
            let mut whole = vec![0; inputs[0].len()];
            let given: Vec<Input<'_>> = inputs.iter().map(|bytes| Input::Bytes(bytes)).collect();
            reduction.reduce(&mut whole, &given);
            let parts = by_partials(reduction, &inputs, 2);
            // Bits of NaN included.
            assert_eq!(parts, whole, "{op} on {dtype}");
        }
    }
}

#[test]
fn partials_of_halves_are_not_rounded() {
    // 2048 + 1 is no float16 and 256 + 1 no bfloat16; with both ones the sums are.
    for (dtype, large, one, sum) in [
        (
            Dtype::Float16,
            f16::from_f32(2048.0).to_ne_bytes(),
            f16::ONE.to_ne_bytes(),
            f16::from_f32(2050.0).to_ne_bytes(),
        ),
        (
            Dtype::Bfloat16,
            bf16::from_f32(256.0).to_ne_bytes(),
            bf16::ONE.to_ne_bytes(),
            bf16::from_f32(258.0).to_ne_bytes(),
        ),
    ] {
        let inputs = [large.to_vec(), one.to_vec(), one.to_vec()];
        let reduction = Reduction::new(ReduceOp::Sum, dtype, 3).unwrap();
        assert_eq!(by_partials(reduction, &inputs, 2), sum, "{dtype}");
    }
}

#[test]
fn a_mean_of_partials_divides_once() {
    let inputs = [[7_i32], [8], [-1]].map(|[value]| value.to_ne_bytes().to_vec());
    let reduction = Reduction::new(ReduceOp::Average, Dtype::Int32, 3).unwrap();
    assert_eq!(by_partials(reduction, &inputs, 1), 4_i32.to_ne_bytes());
}
