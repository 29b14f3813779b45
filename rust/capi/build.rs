//! Names the library for the loader and writes its header.
//!
//! The header goes to the build folder, where a test compares it with the committed one, and to
//! `FERROCOMM_INCLUDE_DIR` when that is set, which is how the committed one is made.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cbindgen.toml");
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=../abi/src");
    println!("cargo:rerun-if-env-changed=FERROCOMM_INCLUDE_DIR");
    // Without it, whoever links the library records the path it was built under.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libferrocomm.so");
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml"))?;
    let header = cbindgen::Builder::new()
        .with_crate(&root)
        .with_config(config)
        .generate()?;
    let asked = std::env::var_os("FERROCOMM_INCLUDE_DIR").map(PathBuf::from);
    for folder in [Some(PathBuf::from(std::env::var("OUT_DIR")?)), asked]
        .into_iter()
        .flatten()
    {
        std::fs::create_dir_all(&folder)?;
        header.write_to_file(folder.join("ferrocomm.h"));
    }
    Ok(())
}
