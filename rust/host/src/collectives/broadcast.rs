//! Broadcast: a binomial tree when small; when large, a slice to each rank, which passes it on to
//! the others, so that every rank's link carries its share.

use ferrocomm_core::call::Region;

use super::Scene;
use super::builder::{Builder, bytes, slice};
use super::slices::slices;
use crate::program::Place;

pub(super) fn build(b: &mut Builder, scene: Scene<'_>, buffer: Region, root: usize) {
    let place = Place::Client(buffer);
    if scene.size <= 2 || buffer.bytes <= scene.limits.one_shot {
        return tree(b, scene, place, root);
    }
    // Slice `j` belongs to the rank `j + 1` places behind the root.
    let cuts = slices(buffer.bytes, scene.dtype.size(), scene.size - 1);
    let longest = cuts.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    let piece = scene.piece(longest);
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
    let at = |distance: usize| (root + distance) % size;
    let lowest = if distance == 0 {
        size.next_power_of_two()
    } else {
        let lowest = distance & distance.wrapping_neg();
        b.recv(at(distance - lowest), 0, place);
        b.wait(0..1);
        lowest
    };
    let mut step = lowest >> 1;
    while step > 0 {
        if distance + step < size {
            b.send(at(distance + step), 0, place);
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
                b.send(rank, round as u32, *piece);
            }
        }
    }
}

/// Another rank's side: its own slice comes from the root, the others' from them.
fn pass_on(b: &mut Builder, scene: Scene<'_>, root: usize, cut: &[Vec<Place>]) {
    let Scene { me, size, .. } = scene;
    let slice_of = |rank: usize| &cut[(rank + size - root) % size - 1];
    let others = |rank: &usize| *rank != root;
    for (round, piece) in slice_of(me).iter().enumerate() {
        b.recv(root, round as u32, *piece);
    }
    for rank in scene.senders().filter(others) {
        for (round, piece) in slice_of(rank).iter().enumerate() {
            b.recv(rank, round as u32, *piece);
        }
    }
    for (round, piece) in slice_of(me).iter().enumerate() {
        // The first receives were those of the own slice.
        b.wait(round as u32..round as u32 + 1);
        for rank in scene.receivers().filter(others) {
            b.send(rank, round as u32, *piece);
        }
    }
}
