//! Broadcast: a binomial tree when small; when large, a slice to each rank, which passes it on to
//! the others, so that every rank's link carries its share. Must not know how messages travel.

use ferrocomm_core::call::Region;

use super::Scene;
use super::builder::{Builder, bytes, slice};
use super::slices::slices;
use crate::program::Place;

pub(super) fn build(b: &mut Builder, scene: Scene<'_>, buffer: Region, root: usize) {
    let place = Place::Client(buffer);
    if scene.has_levels() {
        return if buffer.bytes <= scene.limits.one_shot {
            let leaders = scene.topology.leaders(root);
            let home = scene.at_home();
            let leader = leaders[scene.machine()];
            if leader == scene.rank() {
                let home_of_root = scene.topology.seat(root).0;
                tree(b, scene.among(&leaders), place, home_of_root);
            }
            tree(b, home, place, scene.topology.seat(leader).1);
        } else {
            chain(b, scene, place, root);
        };
    }
    if scene.size <= 2 || buffer.bytes <= scene.limits.one_shot {
        return tree(b, scene, place, root);
    }
    // Slice `j` belongs to the rank `j + 1` places behind the root.
    let cuts = slices(buffer.bytes, scene.dtype.size(), scene.size - 1);
    let longest = cuts.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    let piece = scene.piece(longest, scene.dtype.size());
    let cut: Vec<Vec<Place>> = cuts
        .iter()
        .map(|range| pieces(slice(place, range.start, range.len()), piece))
        .collect();
    if scene.me == root {
        hand_out(b, scene, &cut)
    } else {
        pass_on(b, scene, root, &cut)
    }
}

/// Binomial tree over the distance from the root: a rank hears from the one at its distance without
/// the lowest bit, and tells those that add a lower one, the farthest first.
fn tree(b: &mut Builder, scene: Scene<'_>, place: Place, root: usize) {
    let Scene { me, size, .. } = scene;
    let distance = (me + size - root) % size;
    let at = |distance: usize| scene.at((root + distance) % size);
    let lowest = if distance == 0 {
        size.next_power_of_two()
    } else {
        let lowest = distance & distance.wrapping_neg();
        let before = b.mark();
        b.recv(at(distance - lowest), place);
        b.wait(before..b.mark());
        lowest
    };
    let mut step = lowest >> 1;
    while step > 0 {
        if distance + step < size {
            b.send(at(distance + step), place);
        }
        step >>= 1;
    }
}

/// The pieces of one slice.
fn pieces(whole: Place, piece: usize) -> Vec<Place> {
    let length = bytes(whole);
    (0..length)
        .step_by(piece)
        .map(|start| slice(whole, start, piece.min(length - start)))
        .collect()
}

/// The root's side: the pieces of all slices, in turn.
fn hand_out(b: &mut Builder, scene: Scene<'_>, cut: &[Vec<Place>]) {
    let rounds = cut.iter().map(Vec::len).max().unwrap_or(0);
    for round in 0..rounds {
        for (rank, slice) in scene.receivers().zip(cut) {
            if let Some(piece) = slice.get(round) {
                b.send(scene.at(rank), *piece);
            }
        }
    }
}

/// Another rank's side: its own slice comes from the root, the others' from them.
fn pass_on(b: &mut Builder, scene: Scene<'_>, root: usize, cut: &[Vec<Place>]) {
    let Scene { me, size, .. } = scene;
    let slice_of = |rank: usize| &cut[(rank + size - root) % size - 1];
    let others = |rank: &usize| *rank != root;
    let first = b.mark();
    for piece in slice_of(me) {
        b.recv(scene.at(root), *piece);
    }
    for rank in scene.senders().filter(others) {
        for piece in slice_of(rank) {
            b.recv(scene.at(rank), *piece);
        }
    }
    for (received, piece) in (first..).zip(slice_of(me)) {
        b.wait(received..received + 1);
        for rank in scene.receivers().filter(others) {
            b.send(scene.at(rank), *piece);
        }
    }
}

/// Columns pass their slices on, piece by piece, along the machines from the root's on.
fn chain(b: &mut Builder, scene: Scene<'_>, place: Place, root: usize) {
    let topology = scene.topology;
    let machine = scene.machine();
    let (machines, home) = (topology.machines(), scene.at_home());
    let first = topology.seat(root).0;
    let cuts = slices(bytes(place), scene.dtype.size(), topology.columns());
    let longest = cuts.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    let piece = scene.piece(longest, scene.dtype.size());
    let cut: Vec<Vec<Place>> = cuts
        .iter()
        .map(|range| pieces(slice(place, range.start, range.len()), piece))
        .collect();
    let rounds = cut.iter().map(Vec::len).max().unwrap_or(0);
    let next = (machine + 1) % machines;
    // All receives at once, in the order in which each rank sends; those of the own columns are
    // waited for one by one.
    let mut arriving = Vec::new();
    for round in 0..rounds {
        for (column, pieces) in cut.iter().enumerate() {
            let Some(piece) = pieces.get(round).filter(|_| scene.rank() != root) else {
                continue;
            };
            let owner = topology.rank_in(machine, column);
            let from = if owner != scene.rank() {
                owner
            } else if machine == first {
                root
            } else {
                topology.rank_in((machine + machines - 1) % machines, column)
            };
            if owner == scene.rank() {
                arriving.push(b.mark());
            }
            b.recv(from, *piece);
        }
    }
    let mut arriving = arriving.into_iter();
    for round in 0..rounds {
        for (column, pieces) in cut.iter().enumerate() {
            let Some(piece) = pieces.get(round) else {
                continue;
            };
            let owner = topology.rank_in(machine, column);
            if owner != scene.rank() {
                if scene.rank() == root {
                    b.send(owner, *piece);
                }
                continue;
            }
            if let Some(received) = arriving.next() {
                b.wait(received..received + 1);
            }
            if next != first {
                b.send(topology.rank_in(next, column), *piece);
            }
            for number in home.receivers().filter(|number| home.at(*number) != root) {
                b.send(home.at(number), *piece);
            }
        }
    }
}
