//! All-gather: everyone's part straight to everyone.
//!
//! Where ranks share machines, a part goes to one rank of each other machine, which passes it on
//! there. Must not know how messages travel.

use ferrocomm_core::call::{Region, Regions};

use super::Scene;
use super::builder::{Builder, bytes};
use crate::program::Place;

pub(super) fn build(b: &mut Builder, scene: Scene<'_>, input: Region, outputs: &Regions) {
    if outputs.bytes() == 0 {
        return exchange_nothing(b, scene);
    }
    let own = outputs.of(scene.me);
    let input = b.apart(input, own, (0..scene.size).map(|rank| outputs.of(rank)));
    if scene.has_levels() {
        b.copy(input, Place::Client(own));
        return by_machine(b, scene, outputs);
    }
    for rank in scene.senders() {
        let output = outputs.of(rank);
        if output.bytes > 0 {
            b.recv(scene.at(rank), Place::Client(output));
        }
    }
    if own.bytes > 0 {
        for rank in scene.receivers() {
            b.send(scene.at(rank), input);
        }
    }
    b.copy(input, Place::Client(own));
}

/// In place: the own part stands in `outputs`.
fn by_machine(b: &mut Builder, scene: Scene<'_>, outputs: &Regions) {
    let topology = scene.topology;
    let (me, home) = (scene.rank(), scene.at_home());
    let (machines, machine) = (topology.machines(), scene.machine());
    let part_of = |rank: usize| {
        let part = Place::Client(outputs.of(rank));
        (bytes(part) > 0).then_some(part)
    };
    // Ranks of other machines whose parts `rank` of this machine takes in: parts are sent to the next
    // machine first, so those of the one before come first.
    let taken = |rank: usize| {
        (1..machines)
            .map(move |step| (machine + machines - step) % machines)
            .flat_map(move |other| topology.dealt_with(rank, other))
    };
    let mut arriving = Vec::new();
    for rank in taken(me) {
        if let Some(part) = part_of(rank) {
            arriving.push((b.mark(), part));
            b.recv(rank, part);
        }
    }
    for number in home.senders() {
        let from = home.at(number);
        for part in std::iter::once(from).chain(taken(from)).filter_map(part_of) {
            b.recv(from, part);
        }
    }
    if let Some(part) = part_of(me) {
        for other in (1..machines).map(|step| (machine + step) % machines) {
            b.send(topology.partner(me, other), part);
        }
        for number in home.receivers() {
            b.send(home.at(number), part);
        }
    }
    for (received, part) in arriving {
        b.wait(received..received + 1);
        for number in home.receivers() {
            b.send(home.at(number), part);
        }
    }
}

/// The exchange of a collective in which nobody has anything: every pair's empty message shows a
/// rank that thinks otherwise.
pub(super) fn exchange_nothing(b: &mut Builder, scene: Scene<'_>) {
    for rank in scene.senders() {
        b.recv(scene.at(rank), Place::Client(Region::EMPTY));
    }
    for rank in scene.receivers() {
        b.send(scene.at(rank), Place::Client(Region::EMPTY));
    }
}
