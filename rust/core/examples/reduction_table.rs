//! Prints the table of `docs/reductions.md`: `cargo run -p ferrocomm-core --example reduction_table`.

use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::reduce_op::ReduceOp;
use ferrocomm_core::reduction::Reduction;

/// The table of reductions as markdown.
pub(crate) fn table() -> String {
    let ops: Vec<ReduceOp> = (0..)
        .map_while(|code| ReduceOp::from_code(code, 1.0))
        .collect();
    let row = |first: &str, cells: Vec<&str>| format!("| {first} | {} |\n", cells.join(" | "));
    let mut text = row("dtype", ops.iter().map(|op| op.name()).collect());
    text += &row("---", ops.iter().map(|_| "---").collect());
    for dtype in Dtype::ALL {
        let cell = |op: &ReduceOp| match Reduction::new(*op, dtype, 2) {
            Ok(_) => "yes",
            Err(_) => "–",
        };
        text += &row(dtype.name(), ops.iter().map(cell).collect());
    }
    text
}

#[allow(dead_code, reason = "the test of the page needs the table alone")]
fn main() {
    print!("{}", table());
}
