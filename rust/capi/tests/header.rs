//! The committed header is what cbindgen writes today.

const FRESH: &str = include_str!(concat!(env!("OUT_DIR"), "/ferrocomm.h"));
const COMMITTED: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../include/ferrocomm.h"
));

#[test]
fn the_committed_header_is_current() {
    let mut lines = FRESH.lines().zip(COMMITTED.lines()).enumerate();
    let differing = lines.find(|(_, (fresh, committed))| fresh != committed);
    assert!(
        FRESH == COMMITTED,
        "include/ferrocomm.h differs from what cbindgen writes, first at {differing:?}; build \
         ferrocomm-capi with FERROCOMM_INCLUDE_DIR set to the include folder and commit the header"
    );
}
