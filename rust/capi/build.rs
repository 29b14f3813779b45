//! Names the library for the loader and, when asked, writes its header.
//!
//! `FERROCOMM_INCLUDE_DIR`: folder to write `ferrocomm.h` to. Unset, nothing is written: the
//! committed header is the one to use, and a test compares it.

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
    let Some(folder) = std::env::var_os("FERROCOMM_INCLUDE_DIR").map(PathBuf::from) else {
        return Ok(());
    };
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml"))?;
    let header = cbindgen::Builder::new()
        .with_crate(&root)
        .with_config(config)
        .generate()?;
    std::fs::create_dir_all(&folder)?;
    header.write_to_file(folder.join("ferrocomm.h"));
    Ok(())
}
