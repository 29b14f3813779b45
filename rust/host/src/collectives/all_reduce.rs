//! All-reduce: one exchange when small, reduced slices handed to everyone when large.
//!
//! Between machines: when small, each rank combines its machine's inputs and exchanges that; when
//! large, each rank combines a slice of them, exchanges it with those of its column, and hands the
//! result to the others of its machine. Must not know how messages travel.

use ferrocomm_core::call::Region;
use ferrocomm_core::reduction::{Reduction, Stage};

use super::Scene;
use super::builder::{Builder, bytes, slice};
use super::lane::{self, Lane, Reach};
use super::pipeline::{self, Finished};
use super::slices::slices;
use crate::program::Place;

pub(super) fn build(
    b: &mut Builder,
    scene: Scene<'_>,
    input: Region,
    output: Region,
    reduction: Reduction,
) {
    let input = b.apart(input, output, []);
    let output = Place::Client(output);
    let length = bytes(output);
    let machines = scene.topology.machines();
    if scene.has_levels() || machines > scene.limits.direct {
        return if length * scene.topology.columns() <= scene.limits.one_shot {
            whole_machines(b, scene, input, output, reduction)
        } else {
            columns(b, scene, input, output, reduction)
        };
    }
    if scene.size == 1 || length <= scene.limits.one_shot {
        return one_shot(b, scene, input, output, reduction);
    }
    let cuts = slices(length, scene.dtype.size(), scene.size);
    let cut = |place| {
        cuts.iter()
            .map(|range| slice(place, range.start, range.len()))
            .collect()
    };
    pipeline::build(
        b,
        scene,
        reduction,
        cut(input),
        Finished::Spread(cut(output)),
    );
}

/// Everyone sends all it has to everyone. Also of zero bytes, so that ranks whose lengths differ
/// notice.
fn one_shot(b: &mut Builder, scene: Scene<'_>, input: Place, output: Place, reduction: Reduction) {
    let length = bytes(output);
    let mut operands = vec![input; scene.size];
    for rank in scene.senders() {
        operands[rank] = b.scratch(length);
        b.recv(scene.at(rank), operands[rank]);
    }
    let received = b.mark();
    for rank in scene.receivers() {
        b.send(scene.at(rank), input);
    }
    // In place, the result overwrites what the sends read.
    b.wait(0..if input == output { b.mark() } else { received });
    b.reduce(reduction, &operands, output);
}

/// Memory for partials of `elements` elements whose results go to `output`: there, if they fit.
fn workplace(b: &mut Builder, reduction: Reduction, output: Place) -> Place {
    let (width, width_out) = reduction.at(Stage::Last).widths();
    if width == width_out {
        output
    } else {
        b.scratch(bytes(output) / width_out * width)
    }
}

/// What this machine has in `inputs`, in the order of its ranks, combined. One input that is a
/// partial as it stands stays where it is.
fn partial_of(b: &mut Builder, reduction: Reduction, inputs: &[Place], work: Place) -> Place {
    match inputs {
        [alone] if reduction.is_partial() => *alone,
        _ => {
            b.reduce(reduction.at(Stage::First), inputs, work);
            work
        }
    }
}

/// Every rank combines all its machine has, then exchanges that.
fn whole_machines(
    b: &mut Builder,
    scene: Scene<'_>,
    input: Place,
    output: Place,
    reduction: Reduction,
) {
    let home = scene.at_home();
    let mut inputs = vec![input; home.size];
    for number in home.senders() {
        inputs[number] = b.scratch(bytes(input));
        b.recv(home.at(number), inputs[number]);
    }
    for number in home.receivers() {
        b.send(home.at(number), input);
    }
    b.wait_all();
    let work = workplace(b, reduction, output);
    let partial = partial_of(b, reduction, &inputs, work);
    let lane = Lane {
        reach: Reach::Machine,
        partial,
        work,
        output,
    };
    lane::all_reduce(b, scene, &[lane], bytes(partial), reduction);
}

/// Every rank combines a slice of what its machine has, exchanges that, and hands it out.
fn columns(b: &mut Builder, scene: Scene<'_>, input: Place, output: Place, reduction: Reduction) {
    let topology = scene.topology;
    let home = scene.at_home();
    let (width, width_out) = reduction.at(Stage::Last).widths();
    let cuts = slices(bytes(output), width_out, topology.columns());
    // The columns of the rank at a place of this machine, which follow one another.
    let range = |place: usize| {
        let columns = topology.columns_of(scene.machine(), place);
        cuts[columns.start].start..cuts[columns.end - 1].end
    };
    let cut = |whole: Place, place: usize| slice(whole, range(place).start, range(place).len());
    let own = cut(output, home.me);
    let work = workplace(b, reduction, own);
    let partial = if home.size == 1 {
        partial_of(b, reduction, &[input], work)
    } else {
        let inputs = (0..home.size).map(|place| cut(input, place)).collect();
        let first = reduction.at(Stage::First);
        pipeline::build(b, home, first, inputs, Finished::Keep(work));
        work
    };
    let longest = cuts.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    let start = range(home.me).start;
    let lanes: Vec<Lane> = topology
        .columns_of(scene.machine(), home.me)
        .map(|column| {
            let (first, length) = (cuts[column].start - start, cuts[column].len());
            let part = |place: Place, width: usize| {
                slice(place, first / width_out * width, length / width_out * width)
            };
            Lane {
                reach: Reach::Column(column),
                partial: part(partial, width),
                work: part(work, width),
                output: part(own, width_out),
            }
        })
        .collect();
    lane::all_reduce(b, scene, &lanes, longest / width_out * width, reduction);
    for number in home.senders() {
        b.recv(home.at(number), cut(output, number));
    }
    for number in home.receivers() {
        b.send(home.at(number), own);
    }
}
