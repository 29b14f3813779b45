//! The file that keeps what was measured of a machine until it boots anew, another version of the
//! library comes or the processor is another one. Must not know how it was measured.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::{Choice, NEVER};

/// Of what the file looks like.
const FORMAT: u32 = 1;
/// Longer files are none of ours.
const LONGEST: u64 = 4096;
/// What tells processors apart, as the kernel calls it on the architectures there are.
const MODEL: [&str; 4] = ["model name", "CPU implementer", "CPU part", "cpu\t"];

/// The file, and which machine it has to be of.
pub(super) struct File {
    path: PathBuf,
    head: String,
}

impl File {
    /// That of this user for this machine; `None` where no folder for it is named or the machine
    /// cannot be told from others.
    pub(super) fn of_user() -> Option<Self> {
        let path = path(
            std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from),
            std::env::var_os("HOME").map(PathBuf::from),
        )?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let processor = model(BufReader::new(fs::File::open("/proc/cpuinfo").ok()?));
        Some(Self::at(path, boot.trim(), &processor))
    }

    pub(super) fn at(path: PathBuf, boot: &str, processor: &str) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let head = format!(
            "ferrocomm copy kernels {FORMAT}\nversion {version}\nboot {boot}\nprocessor {processor}\n"
        );
        Self { path, head }
    }

    /// What was kept; `None` when there is nothing, or of another machine, boot or version.
    pub(super) fn read(&self) -> Option<Choice> {
        let mut text = String::new();
        let file = fs::File::open(&self.path).ok()?;
        file.take(LONGEST).read_to_string(&mut text).ok()?;
        let mut lines = text.strip_prefix(&self.head)?.lines();
        let choice = Choice {
            past_caches_from: length(lines.next()?.strip_prefix("past-caches-from ")?)?,
            direct_from: length(lines.next()?.strip_prefix("direct-from ")?)?,
        };
        lines.next().is_none().then_some(choice)
    }

    /// Keeps `choice`. That it cannot be kept is no fault: the next process measures.
    pub(super) fn write(&self, choice: Choice) {
        if let Err(error) = self.try_write(choice) {
            let path = self.path.display();
            tracing::debug!(%error, %path, "the choice of copy kernels is not kept");
        }
    }

    fn try_write(&self, choice: Choice) -> io::Result<()> {
        let text = format!(
            "{}past-caches-from {}\ndirect-from {}\n",
            self.head,
            words(choice.past_caches_from),
            words(choice.direct_from)
        );
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        // Whoever reads meanwhile finds the old file or the new one, never a part.
        let new = self.path.with_extension(std::process::id().to_string());
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &self.path))
            .inspect_err(|_| {
                // The error that counts is the one that led here.
                fs::remove_file(&new).unwrap_or(());
            })
    }
}

/// Below the user's folder for caches; what is not absolute is ignored, as the standard for it says.
fn path(cache: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let folder = cache
        .filter(absolute)
        .or_else(|| Some(home.filter(absolute)?.join(".cache")))?;
    Some(folder.join(Path::new("ferrocomm/copy-kernels")))
}

/// The model of the first processor.
fn model(info: impl BufRead) -> String {
    let lines = info.lines().map_while(io::Result::ok);
    let values = lines
        .take_while(|line| !line.is_empty())
        .filter(|line| MODEL.iter().any(|name| line.starts_with(name)))
        .filter_map(|line| Some(line.split_once(':')?.1.trim().to_owned()));
    let mut words = vec![std::env::consts::ARCH.to_owned()];
    words.extend(values);
    words.join(" ")
}

fn length(word: &str) -> Option<usize> {
    if word == "never" {
        return Some(NEVER);
    }
    word.parse().ok()
}

fn words(length: usize) -> String {
    if length == NEVER {
        "never".to_owned()
    } else {
        length.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that ends with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("ferrocomm-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn file(&self, boot: &str, processor: &str) -> File {
            File::at(self.0.join("a/copy-kernels"), boot, processor)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    const CHOICE: Choice = Choice {
        past_caches_from: 4096,
        direct_from: 1 << 20,
    };

    #[test]
    fn what_was_written_is_read_and_leaves_no_other_file() {
        let folder = Folder::new("kept");
        let file = folder.file("boot", "x86_64 One");
        assert_eq!(file.read(), None);
        for choice in [CHOICE, Choice::DEFAULT] {
            file.write(choice);
            assert_eq!(file.read(), Some(choice));
        }
        let left = fs::read_dir(folder.0.join("a")).unwrap();
        assert_eq!(left.count(), 1);
    }

    #[test]
    fn another_boot_or_processor_is_refused_and_replaced() {
        let folder = Folder::new("stale");
        folder.file("boot", "x86_64 One").write(CHOICE);
        assert_eq!(folder.file("another", "x86_64 One").read(), None);
        assert_eq!(folder.file("boot", "x86_64 Two").read(), None);
        // Not as the beginning of another name either.
        assert_eq!(folder.file("boot", "x86_64 On").read(), None);
        folder.file("another", "x86_64 One").write(Choice::DEFAULT);
        let kept = folder.file("another", "x86_64 One").read();
        assert_eq!(kept, Some(Choice::DEFAULT));
    }

    #[test]
    fn another_version_and_damage_are_refused() {
        let folder = Folder::new("damaged");
        let file = folder.file("boot", "x86_64 One");
        file.write(CHOICE);
        let good = fs::read_to_string(&file.path).unwrap();
        let version = concat!("version ", env!("CARGO_PKG_VERSION"));
        let bad = [
            good.replace("copy kernels 1", "copy kernels 2"),
            good.replace(version, "version 0.0.0"),
            good.replace("4096", "many"),
            good.replace("4096", "-1"),
            good.replace("direct-from", "direct"),
            good[..good.len() - "direct-from 1048576\n".len()].to_owned(),
            format!("{good}more\n"),
            String::new(),
        ];
        for text in bad {
            assert_ne!(text, good);
            fs::write(&file.path, &text).unwrap();
            assert_eq!(file.read(), None, "{text}");
        }
        fs::write(&file.path, [0xff; 10_000]).unwrap();
        assert_eq!(file.read(), None);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_fault() {
        let folder = Folder::new("no-folder");
        fs::write(folder.0.join("a"), "a file").unwrap();
        let file = folder.file("boot", "x86_64 One");
        assert!(file.try_write(CHOICE).is_err());
        file.write(CHOICE);
        assert_eq!(file.read(), None);
    }

    #[test]
    fn it_lies_in_the_users_folder_for_caches() {
        let some = |path: &str| Some(PathBuf::from(path));
        let file = "ferrocomm/copy-kernels";
        let path_of = |cache, home| path(cache, home);
        assert_eq!(path_of(some("/c"), some("/h")), some(&format!("/c/{file}")));
        let in_home = some(&format!("/h/.cache/{file}"));
        assert_eq!(path_of(None, some("/h")), in_home);
        assert_eq!(path_of(some(""), some("/h")), in_home);
        assert_eq!(path_of(some("relative"), None), None);
    }

    #[test]
    fn processors_are_told_apart_by_their_model() {
        let intel =
            "processor\t: 0\nmodel\t\t: 143\nmodel name\t: Some CPU @ 2 GHz\n\nmodel name\t: B\n";
        let arch = std::env::consts::ARCH;
        assert_eq!(model(intel.as_bytes()), format!("{arch} Some CPU @ 2 GHz"));
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n\n";
        assert_eq!(model(arm.as_bytes()), format!("{arch} 0x41 0xd40"));
        assert_eq!(model(&b""[..]), arch);
    }
}
