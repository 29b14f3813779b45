//! Barrier by dissemination: after round `k` a rank knows of the `2^(k+1)` ranks up to itself.
//!
//! Where ranks share machines, one of each speaks for the others, so that few messages cross. Must
//! not know how messages travel.

use ferrocomm_core::call::Region;

use super::Scene;
use super::builder::Builder;
use crate::program::Place;

const NOTHING: Place = Place::Client(Region::EMPTY);

pub(super) fn build(b: &mut Builder, scene: Scene<'_>) {
    if !scene.has_levels() {
        return dissemination(b, scene);
    }
    let home = scene.at_home();
    if home.me > 0 {
        b.send(home.at(0), NOTHING);
        return b.recv(home.at(0), NOTHING);
    }
    for number in home.senders() {
        b.recv(home.at(number), NOTHING);
    }
    b.wait_all();
    dissemination(b, scene.among(&scene.topology.leaders(scene.rank())));
    for number in home.receivers() {
        b.send(home.at(number), NOTHING);
    }
}

fn dissemination(b: &mut Builder, scene: Scene<'_>) {
    let Scene { me, size, .. } = scene;
    let mut step = 1;
    while step < size {
        let before = b.mark();
        b.recv(scene.at((me + size - step) % size), NOTHING);
        b.send(scene.at((me + step) % size), NOTHING);
        b.wait(before..b.mark());
        step *= 2;
    }
}
