//! The committed header is what cbindgen writes today.

use std::path::Path;

#[test]
fn the_committed_header_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut fresh = Vec::new();
    cbindgen::Builder::new()
        .with_crate(root)
        .with_config(config)
        .generate()
        .expect("cbindgen parses the crate")
        .write(&mut fresh);
    let fresh = String::from_utf8(fresh).expect("UTF-8");
    let committed = std::fs::read_to_string(root.join("../../include/ferrocomm.h"))
        .expect("include/ferrocomm.h");
    let mut lines = fresh.lines().zip(committed.lines()).enumerate();
    let differing = lines.find(|(_, (fresh, committed))| fresh != committed);
    assert!(
        fresh == committed,
        "include/ferrocomm.h differs from what cbindgen writes, first at {differing:?}; build \
         ferrocomm-capi with FERROCOMM_INCLUDE_DIR set to the include folder and commit the header"
    );
}
