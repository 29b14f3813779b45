//! Barrier by dissemination: after round `k` a rank knows of the `2^(k+1)` ranks up to itself.

use ferrocomm_core::call::Region;

use super::Scene;
use super::builder::Builder;
use crate::program::Place;

pub(super) fn build(b: &mut Builder, scene: Scene<'_>) {
    let Scene { me, size, .. } = scene;
    let nothing = Place::Client(Region::EMPTY);
    let mut step = 1;
    let mut round = 0;
    while step < size {
        let before = b.mark();
        b.recv((me + size - step) % size, round, nothing);
        b.send((me + step) % size, round, nothing);
        b.wait(before..b.mark());
        step *= 2;
        round += 1;
    }
}
