//! Makes the version node that programs built against CUDA 13 ask for, and functions that refuse
//! for every name of the runtime that no module here defines.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs, io};

const VERSION: &str = "libcudart.so.13";

fn defined(folder: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        for line in fs::read_to_string(entry?.path())?.lines() {
            if let Some((_, rest)) = line.split_once("fn ")
                && let Some((name, _)) = rest.split_once('(')
            {
                names.insert(name.to_owned());
            }
        }
    }
    Ok(names)
}

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=symbols.txt");
    println!("cargo:rerun-if-changed=build.rs");
    let Some(out) = env::var_os("OUT_DIR") else {
        return Err(io::Error::other("no OUT_DIR"));
    };
    let out = Path::new(&out);

    // Symbols name the node themselves, so that it can be empty and rustc's own list stays valid.
    let script = out.join("versions.map");
    fs::write(&script, format!("{VERSION} {{ }};\n"))?;
    println!(
        "cargo:rustc-cdylib-link-arg=-Wl,--version-script={}",
        script.display()
    );
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{VERSION}");

    let written = defined(Path::new("src"))?;
    let all = fs::read_to_string("symbols.txt")?;
    let refused: Vec<_> = all
        .lines()
        .filter(|name| !written.contains(*name))
        .collect();
    fs::write(
        out.join("refused.rs"),
        format!("refused! {{ {} }}\n", refused.join("\n")),
    )
}
