//! The search for the library, on tiny libraries that each test compiles with the C compiler.

#![expect(clippy::expect_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::Command;

use ferrocomm_nccl_sys::{Nccl, Origin, Search, symbol};

/// A folder of the test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fc-nccl-sys-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    /// A library of version `code` that has `functions`, under the soname `name`.
    fn library(&self, folder: &str, name: &str, code: i32, functions: &[&str]) -> PathBuf {
        let folder = self.0.join(folder);
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let source = folder.join("nccl.c");
        let mut text = format!("int ncclGetVersion(int* v) {{ *v = {code}; return 0; }}\n");
        for function in functions {
            text += &format!("int {function}(void) {{ return 0; }}\n");
        }
        std::fs::write(&source, text).expect("writing a source");
        compile(&source, &folder.join(name), name);
        folder.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("removing a temporary folder");
    }
}

fn compile(source: &Path, library: &Path, soname: &str) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(compiler)
        .args(["-shared", "-fPIC", "-o"])
        .arg(library)
        .arg(source)
        .arg(format!("-Wl,-soname,{soname}"))
        .status()
        .expect("a C compiler");
    assert!(status.success());
}

fn search(soname: &str) -> Search {
    Search {
        chosen: None,
        wheel: None,
        soname: soname.into(),
    }
}

fn mapped_files(part: &str) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the list of mapped files");
    let mut files: Vec<String> = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .filter(|file| file.contains(part))
        .map(str::to_owned)
        .collect();
    files.sort();
    files.dedup();
    files
}

#[test]
fn a_missing_library_is_reported_with_every_place_and_the_loaders_words() {
    let mut search = search("libfcabsent.so.2");
    search.wheel = Some("/nowhere/nvidia/nccl/lib/libnccl.so.2".into());
    let text = Nccl::load(&search)
        .expect_err("no such library")
        .to_string();
    let places = [
        "libfcabsent.so.2 in this process: not mapped",
        "/nowhere/nvidia/nccl/lib/libnccl.so.2: ",
        "libfcabsent.so.2 on the loader's path: ",
    ];
    let at: Vec<usize> = places
        .iter()
        .map(|place| {
            text.find(place)
                .unwrap_or_else(|| panic!("{place} in {text}"))
        })
        .collect();
    assert!(at.is_sorted(), "{text}");
    assert_eq!(
        text.matches("cannot open shared object file").count(),
        2,
        "{text}"
    );
}

#[test]
fn the_users_choice_comes_first_and_alone() {
    let folder = Folder::new("chosen");
    let chosen = folder.library("a", "libfcchosen.so.2", 23_007, &[]);
    let wheel = folder.library("b", "libfcwheel.so.2", 22_809, &[]);
    let mut search = search("libfcchosen-other.so.2");
    search.wheel = Some(wheel);
    search.chosen = Some(chosen.clone());
    let nccl = Nccl::load(&search).expect("the chosen library");
    assert_eq!(nccl.origin(), Origin::Chosen);
    assert_eq!(nccl.path(), chosen);
    assert_eq!(nccl.version().to_string(), "2.30.7");
    // A choice that cannot be used is an error, though the wheel would serve.
    search.chosen = Some("/nowhere/libnccl.so.2".into());
    let error = Nccl::load(&search).expect_err("the choice does not exist");
    assert_eq!(error.tried.len(), 1);
    assert!(
        error
            .to_string()
            .contains("FERROCOMM_NCCL_LIB=/nowhere/libnccl.so.2: ")
    );
}

#[test]
fn a_copy_that_is_mapped_is_used_though_the_wheel_has_another() {
    let folder = Folder::new("mapped");
    let first = folder.library("torch", "libfcmapped.so.2", 23_007, &[]);
    let second = folder.library("wheel", "libfcmapped.so.2", 22_809, &[]);
    let mut search = search("libfcmapped.so.2");
    search.wheel = Some(second);
    // SAFETY: a library of two functions and no initialisers.
    let torch = unsafe { libloading::Library::new(&first) }.expect("a library");
    let nccl = Nccl::load(&search).expect("the mapped library");
    assert_eq!(nccl.origin(), Origin::Mapped);
    assert_eq!(nccl.path(), first);
    assert_eq!(
        mapped_files("libfcmapped.so.2"),
        [first.display().to_string()]
    );
    drop((nccl, torch));
}

#[test]
fn the_wheel_serves_where_nothing_is_mapped() {
    let folder = Folder::new("wheel");
    let wheel = folder.library("wheel", "libfconly.so.2", 23_203, &[]);
    let mut search = search("libfconly.so.2");
    search.wheel = Some(wheel.clone());
    let nccl = Nccl::load(&search).expect("the wheel's library");
    assert_eq!(
        (nccl.origin(), nccl.path()),
        (Origin::Wheel, wheel.as_path())
    );
}

#[test]
fn a_missing_function_is_an_error_with_the_version_that_has_it() {
    let folder = Folder::new("old");
    let old = folder.library("old", "libfcold.so.2", 22_703, &["ncclCommSplit"]);
    let mut search = search("libfcold.so.2");
    search.chosen = Some(old);
    let nccl = Nccl::load(&search).expect("an old library");
    assert!(symbol!(nccl, ncclCommSplit).is_ok());
    let missing = symbol!(nccl, ncclAlltoAll).expect_err("newer than the library");
    assert_eq!(
        missing.to_string(),
        "ncclAlltoAll needs NCCL >= 2.28.3, found 2.27.3"
    );
}

#[test]
fn a_library_that_is_not_nccl_is_refused() {
    let folder = Folder::new("other");
    let source = folder.0.join("other.c");
    std::fs::write(&source, "int other(void) { return 0; }\n").expect("writing a source");
    let library = folder.0.join("libfcother.so.2");
    compile(&source, &library, "libfcother.so.2");
    let mut search = search("libfcother.so.2");
    search.chosen = Some(library);
    let error = Nccl::load(&search).expect_err("not NCCL").to_string();
    assert!(
        error.contains("not NCCL: ") && error.contains("ncclGetVersion"),
        "{error}"
    );
}
