//! Prints GB/s (inputs and output counted) of every kernel at every level of this processor:
//! `cargo run --release -p ferrocomm-kernels --example throughput [INPUTS] [FILTER]`.
//!
//! INPUTS: how many, 2 without it. FILTER: only lines that contain it, such as `float16 SUM`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ferrocomm_kernels::{
    Add, And, Input, Kernel, Larger, Level, Mean, Multiply, Or, ScaledAdd, Smaller, Terms, Truth,
    Xor, run,
};
use half::{bf16, f16};

/// Bytes per input: about half the first-level cache for three of them, the second-level cache, more.
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
/// How long one figure is measured, and in how many parts, of which the best counts.
const PART: Duration = Duration::from_millis(4);
const PARTS: u32 = 8;

macro_rules! kernels {
    ($($dtype:literal $element:ty: $($op:literal $way:ty),*;)*) => {
        [$($(($dtype, $op, run::<$element, $element, $way> as Kernel)),*),*]
    };
}

macro_rules! table {
    (integers $($integer:literal $int:ty),*; floats $($float:literal $real:ty),*; $($rest:tt)*) => {
        kernels! {
            $($integer $int: "SUM" Add, "AVG" Mean, "PRODUCT" Multiply, "MIN" Smaller, "MAX" Larger,
                "BAND" And, "BOR" Or, "BXOR" Xor;)*
            $($float $real: "SUM" Add, "AVG" Mean, "PRODUCT" Multiply, "MIN" Smaller,
                "MAX" Larger, "PREMUL_SUM" ScaledAdd;)*
            $($rest)*
        }
    };
}

/// The best rate of several, in GB/s.
fn rate(kernel: Kernel, level: Level, inputs: &[Vec<u8>], out: &mut [u8]) -> f64 {
    let list: Vec<Input<'_>> = inputs.iter().map(|bytes| Input::Bytes(bytes)).collect();
    let terms = Terms {
        group_size: inputs.len(),
        factor: 0.5,
    };
    let moved = ((inputs.len() + 1) * out.len()) as f64;
    let mut best = 0.0_f64;
    for _ in 0..PARTS {
        let (start, mut rounds) = (Instant::now(), 0);
        while start.elapsed() < PART {
            for _ in 0..8 {
                kernel(level, &terms, black_box(&mut *out), black_box(&list));
            }
            rounds += 8;
        }
        let seconds = start.elapsed().as_secs_f64();
        best = best.max(moved * f64::from(rounds) / seconds / 1e9);
    }
    best
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let count: usize = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2);
    let filter = arguments.next().unwrap_or_default();
    let table = table! {
        integers "uint8" u8, "int8" i8, "uint16" u16, "int16" i16, "uint32" u32, "int32" i32,
            "uint64" u64, "int64" i64;
        floats "float16" f16, "bfloat16" bf16, "float32" f32, "float64" f64;
        "bool" Truth: "BOR" Or, "BAND" And, "BXOR" Xor;
        "complex32" [f16; 2]: "PRODUCT" Multiply;
        "complex64" [f32; 2]: "PRODUCT" Multiply;
        "complex128" [f64; 2]: "PRODUCT" Multiply;
    };
    println!("GB/s, {count} inputs of     4 KB    64 KB     1 MB");
    for (dtype, op, kernel) in table {
        for level in Level::available() {
            let name = format!("{dtype} {op}");
            if !name.contains(&filter) {
                continue;
            }
            let rates: Vec<String> = SIZES
                .iter()
                .map(|size| {
                    // Ordinary numbers as floats of every width: subnormal ones are slow.
                    let input = |rank| {
                        (0..*size)
                            .map(|at| 0x3c | (at * 7 + rank) as u8 & 3)
                            .collect()
                    };
                    let inputs: Vec<Vec<u8>> = (0..count).map(input).collect();
                    let mut out = vec![0; *size];
                    format!("{:8.1}", rate(kernel, level, &inputs, &mut out))
                })
                .collect();
            println!("{name:<16} {:<7}{}", level.name(), rates.join(" "));
        }
    }
}
