//! What a collective means, without ranks in parallel: one look at everybody's memory.

use ferrocomm_core::call::{Collective, Region};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::reduce_op::ReduceOp;
use half::{bf16, f16};

/// An element of `dtype` that holds a small number.
pub(super) fn element(dtype: Dtype, value: u64) -> Vec<u8> {
    let signed = value as i32 - 50;
    match dtype {
        Dtype::Int32 => signed.to_ne_bytes().to_vec(),
        Dtype::Float32 => (signed as f32 / 7.0).to_ne_bytes().to_vec(),
        Dtype::Float64 => (f64::from(signed) / 7.0).to_ne_bytes().to_vec(),
        Dtype::Uint8 | Dtype::Byte => vec![value as u8],
        other => panic!("the tests do not use {other:?}"),
    }
}

/// An element of `dtype` that holds a small whole number: sums of these are exact in any order.
pub(super) fn whole(dtype: Dtype, value: u64) -> Vec<u8> {
    let signed = (value as i32 - 50) as f32;
    match dtype {
        Dtype::Float16 => f16::from_f32(signed).to_ne_bytes().to_vec(),
        Dtype::Bfloat16 => bf16::from_f32(signed / 8.0).to_ne_bytes().to_vec(),
        Dtype::Float32 => signed.to_ne_bytes().to_vec(),
        Dtype::Float64 => f64::from(signed).to_ne_bytes().to_vec(),
        other => element(other, value),
    }
}

/// Memory of all ranks after the collective.
pub(super) fn after(calls: &[Collective], before: &[Vec<u8>], dtype: Dtype) -> Vec<Vec<u8>> {
    let mut after = before.to_vec();
    let read = |rank: usize, region: Region| &before[rank][region.address..][..region.bytes];
    for (me, call) in calls.iter().enumerate() {
        let mut write = |region: Region, bytes: &[u8]| {
            after[me][region.address..][..region.bytes].copy_from_slice(bytes);
        };
        let combine = |op: ReduceOp, inputs: Vec<&[u8]>| combine(dtype, op, &inputs);
        match call {
            Collective::Broadcast { buffer, root } => {
                let Collective::Broadcast { buffer: source, .. } = &calls[root.index()] else {
                    unreachable!()
                };
                write(*buffer, read(root.index(), *source));
            }
            Collective::AllReduce { output, op, .. }
            | Collective::Reduce {
                output: Some(output),
                op,
                ..
            } => {
                write(*output, &combine(*op, inputs(calls, read)));
            }
            Collective::AllGather { outputs, .. }
            | Collective::Gather {
                outputs: Some(outputs),
                ..
            } => {
                for (rank, input) in inputs(calls, read).into_iter().enumerate() {
                    write(outputs.of(rank), input);
                }
            }
            Collective::ReduceScatter { output, op, .. } => {
                let parts = (0..calls.len())
                    .map(|rank| read(rank, part(&calls[rank], me)))
                    .collect();
                write(*output, &combine(*op, parts));
            }
            Collective::AllToAll { outputs, .. } => {
                for (rank, call) in calls.iter().enumerate() {
                    write(outputs.of(rank), read(rank, part(call, me)));
                }
            }
            Collective::Scatter { output, root, .. } => {
                write(*output, read(root.index(), part(&calls[root.index()], me)));
            }
            Collective::Reduce { output: None, .. }
            | Collective::Gather { outputs: None, .. }
            | Collective::Barrier => {}
        }
    }
    after
}

fn inputs<'a>(calls: &[Collective], read: impl Fn(usize, Region) -> &'a [u8]) -> Vec<&'a [u8]> {
    let input = |(rank, call): (usize, &Collective)| match call {
        Collective::AllReduce { input, .. }
        | Collective::Reduce { input, .. }
        | Collective::AllGather { input, .. }
        | Collective::Gather { input, .. } => read(rank, *input),
        other => panic!("{other:?} has no single input"),
    };
    calls.iter().enumerate().map(input).collect()
}

fn part(call: &Collective, rank: usize) -> Region {
    match call {
        Collective::ReduceScatter { inputs, .. }
        | Collective::AllToAll { inputs, .. }
        | Collective::Scatter {
            inputs: Some(inputs),
            ..
        } => inputs.of(rank),
        other => panic!("{other:?} has no parts"),
    }
}

/// Combines in rank order, with arithmetic of its own.
fn combine(dtype: Dtype, op: ReduceOp, inputs: &[&[u8]]) -> Vec<u8> {
    macro_rules! fold {
        ($type:ty, $add:expr, $larger:expr, $divide:expr) => {{
            let width = size_of::<$type>();
            let at = |input: &[u8], index: usize| {
                <$type>::from_ne_bytes(input[index * width..][..width].try_into().unwrap())
            };
            (0..inputs[0].len() / width)
                .flat_map(|index| {
                    let values = inputs.iter().map(|input| at(input, index));
                    let folded = match op {
                        ReduceOp::Sum => values.reduce($add),
                        ReduceOp::Average => values.reduce($add).map($divide),
                        ReduceOp::Max => values.reduce($larger),
                        _ => panic!("the tests do not use {op:?}"),
                    };
                    folded.unwrap().to_ne_bytes()
                })
                .collect()
        }};
    }
    let size = inputs.len();
    // 16-bit floats are combined in binary32 and rounded at the end.
    let widened = |widen: fn([u8; 2]) -> f32, narrow: fn(f32) -> [u8; 2]| -> Vec<u8> {
        let wide: Vec<Vec<u8>> = inputs
            .iter()
            .map(|input| {
                let pairs = input.chunks(2);
                pairs
                    .flat_map(|pair| widen([pair[0], pair[1]]).to_ne_bytes())
                    .collect()
            })
            .collect();
        let wide: Vec<&[u8]> = wide.iter().map(Vec::as_slice).collect();
        combine(Dtype::Float32, op, &wide)
            .chunks(4)
            .flat_map(|four| narrow(f32::from_ne_bytes(four.try_into().unwrap())))
            .collect()
    };
    match dtype {
        Dtype::Float16 => widened(
            |bytes| f16::from_ne_bytes(bytes).to_f32(),
            |value| f16::from_f32(value).to_ne_bytes(),
        ),
        Dtype::Bfloat16 => widened(
            |bytes| bf16::from_ne_bytes(bytes).to_f32(),
            |value| bf16::from_f32(value).to_ne_bytes(),
        ),
        Dtype::Int32 => fold!(i32, i32::wrapping_add, i32::max, |sum| sum / size as i32),
        Dtype::Uint8 => fold!(u8, u8::wrapping_add, u8::max, |sum| sum / size as u8),
        Dtype::Float32 => fold!(f32, |a, b| a + b, f32::max, |sum| sum / size as f32),
        Dtype::Float64 => fold!(f64, |a, b| a + b, f64::max, |sum| sum / size as f64),
        other => panic!("the tests do not use {other:?}"),
    }
}
