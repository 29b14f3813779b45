//! Segments of another process, mapped here and read where they lie.
//!
//! A segment is mapped through the descriptor its maker has open, which the kernel allows to whoever
//! may read that process's memory. Must not know who wants to read, or why.

use std::fs::{self, OpenOptions};
use std::os::fd::OwnedFd;

use ferrocomm_core::call::Region;

use crate::memory::Memory;
use crate::pulling::{self, Readable};
use crate::segments::{Announced, HEADER, WORDS};

/// What the kernel calls a segment.
const NAME: &str = "/memfd:ferrocomm";

struct View {
    of: Announced,
    memory: Memory,
}

/// The mapped segments of one process.
#[derive(Default)]
pub(crate) struct Views {
    /// of its table, when it was last read
    version: u64,
    views: Vec<View>,
}

impl Views {
    /// Where `bytes` bytes of `who` from `address` on can be read here; `None` when they lie in no
    /// segment that can be mapped. `version`: of its table, as it told along with the address. Valid
    /// until the next call, and longer while `who` keeps the memory.
    pub(crate) fn find(
        &mut self,
        who: Readable,
        version: u64,
        address: u64,
        bytes: usize,
    ) -> Option<*const u8> {
        if version != self.version {
            self.refresh(who)?;
            self.version = version;
        }
        self.views.iter().find_map(|view| {
            let offset = usize::try_from(address.checked_sub(view.of.start)?).ok()?;
            let end = offset.checked_add(bytes)?;
            (offset >= HEADER && end <= view.memory.len())
                .then(|| view.memory.pointer(offset, bytes).cast_const())
        })
    }

    /// Reads the table of `who` again: unmaps what is gone, maps what is new. `None` when it cannot be
    /// read.
    fn refresh(&mut self, who: Readable) -> Option<()> {
        let words = table_of(who)?;
        let mut kept = Vec::new();
        for announced in Announced::all(&words) {
            let known = self.views.iter().position(|view| view.of == announced);
            let view = match known {
                Some(index) => Some(self.views.swap_remove(index)),
                None => open(who.pid, announced),
            };
            kept.extend(view);
        }
        self.views = kept;
        Some(())
    }
}

/// The table of a process, as it is now.
fn table_of(who: Readable) -> Option<Box<[u64; WORDS]>> {
    let mut words = Box::new([0_u64; WORDS]);
    let to = Region {
        address: words.as_mut_ptr() as usize,
        bytes: size_of_val(&*words),
    };
    // SAFETY: the words live for the call.
    unsafe { pulling::pull(who.pid, who.segments, to) }.ok()?;
    Some(words)
}

/// A stretch of a segment of another process, mapped here as long as the value lives, whatever becomes
/// of the segment.
pub(crate) struct Mapped {
    memory: Memory,
    offset: usize,
    bytes: usize,
}

impl Mapped {
    /// The `bytes` bytes of `who` from `address` on; `None` when they lie in no segment that can be
    /// mapped.
    pub(crate) fn find(who: Readable, address: u64, bytes: usize) -> Option<Self> {
        let words = table_of(who)?;
        let (announced, offset) = Announced::all(&words).find_map(|announced| {
            let offset = address.checked_sub(announced.start)?;
            let end = offset.checked_add(bytes as u64)?;
            (offset >= HEADER as u64 && end <= announced.bytes).then_some((announced, offset))
        })?;
        Some(Self {
            memory: open(who.pid, announced)?.memory,
            offset: usize::try_from(offset).ok()?,
            bytes,
        })
    }

    /// Where it lies here.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.memory.pointer(self.offset, self.bytes)
    }
}

/// Maps a segment of process `pid`; `None` when it is not there, or not what was announced.
fn open(pid: u32, announced: Announced) -> Option<View> {
    let path = format!("/proc/{pid}/fd/{}", announced.descriptor);
    // Nothing else is opened, should the process have closed it.
    if !fs::read_link(&path).ok()?.to_str()?.starts_with(NAME) {
        return None;
    }
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    let bytes = usize::try_from(announced.bytes).ok()?;
    let memory = Memory::open(&OwnedFd::from(file), bytes.max(HEADER), bytes).ok()?;
    announced.is(&memory).then_some(View {
        of: announced,
        memory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::segments::{self, Segment};

    #[test]
    fn a_segment_is_found_while_it_is_there() {
        let who = Readable::own();
        let mut views = Views::default();
        let segment = Segment::create(8192, &Budget::of_machine()).unwrap();
        let address = segment.start() as u64 + 5000;
        let found = views.find(who, segments::version(), address, 3192).unwrap();
        // SAFETY: inside the segment and its other mapping, which nobody else uses.
        unsafe {
            assert_ne!(found as u64, address);
            (address as *mut u8).write(77);
            assert_eq!(found.read(), 77);
        }
        let mut misses = |address, bytes| {
            views
                .find(who, segments::version(), address, bytes)
                .is_none()
        };
        assert!(misses(address, 3193));
        assert!(misses(address, usize::MAX));
        assert!(misses(segment.start() as u64, 8));
        assert!(misses(8, 8));
        let before = segments::version();
        let gone = views
            .views
            .iter()
            .find(|view| view.of.start == segment.start() as u64);
        let gone = gone.unwrap().of;
        drop(segment);
        assert!(segments::version() > before);
        views.find(who, segments::version(), 8, 8);
        assert!(views.views.iter().all(|view| view.of.mark != gone.mark));
    }

    #[test]
    fn a_stretch_stays_mapped_when_its_segment_is_gone() {
        let who = Readable::own();
        let segment = Segment::create(8192, &Budget::of_machine()).unwrap();
        let address = segment.start() as u64 + 5000;
        assert!(Mapped::find(who, address, 3193).is_none());
        assert!(Mapped::find(who, segment.start() as u64, 8).is_none());
        let mapped = Mapped::find(who, address, 3192).unwrap();
        // SAFETY: inside the segment and its other mapping, which nobody else uses.
        unsafe {
            mapped.pointer().write(78);
            assert_eq!((address as *const u8).read(), 78);
            drop(segment);
            assert_eq!(mapped.pointer().read(), 0);
        }
    }

    #[test]
    fn a_line_that_says_something_else_than_the_segment_is_not_believed() {
        let (_memory, fd) = Memory::create(8192, &Budget::of_machine()).unwrap();
        let line = Announced {
            mark: 3,
            start: 4096,
            bytes: 8192,
            descriptor: u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&fd)).unwrap(),
        };
        assert!(open(std::process::id(), line).is_none());
        let (reader, _writer) = std::io::pipe().unwrap();
        let other = Announced {
            descriptor: u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&reader)).unwrap(),
            ..line
        };
        assert!(open(std::process::id(), other).is_none());
    }
}
