//! How many processors the ranks of a machine have between them: spinning helps only where each has
//! one of its own. And two that have caches of their own. Must not know who spins, or measures.

use std::mem::MaybeUninit;
use std::sync::LazyLock;

/// Words of a set of processors.
pub(crate) const WORDS: usize = 4;

/// The processors this process may run on, as a set of up to 256; higher numbers share places.
pub(crate) type Processors = [u64; WORDS];

/// The processors this process may run on. Where a quota leaves it fewer, so many of them.
pub(crate) fn own() -> Processors {
    let mut set = allowed();
    let mut left = usable();
    for word in &mut set {
        for bit in 0..64 {
            if *word >> bit & 1 == 1 {
                if left == 0 {
                    *word &= !(1 << bit);
                } else {
                    left -= 1;
                }
            }
        }
    }
    set
}

/// How many processors this process can use at one time: those it may run on, or fewer where a quota
/// says so. Asked once, since it reads several files.
pub(crate) fn usable() -> usize {
    static USABLE: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    *USABLE
}

fn allowed() -> Processors {
    let mut words = [0; WORDS];
    for cpu in Affinity::own().iter().flat_map(Affinity::processors) {
        words[cpu / 64 % WORDS] |= 1 << (cpu % 64);
    }
    words
}

/// Processors a thread may run on, in the form the kernel takes.
#[derive(Clone, Copy)]
pub(crate) struct Affinity(libc::cpu_set_t);

impl Affinity {
    /// Of the calling thread; `None` when the kernel does not tell.
    fn own() -> Option<Self> {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: `set` has the size that is passed, and all its bit patterns are valid.
        let (outcome, set) = unsafe {
            let outcome =
                libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr());
            (outcome, set.assume_init())
        };
        (outcome == 0).then_some(Self(set))
    }

    fn of(processors: impl Iterator<Item = usize>) -> Self {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: all bit patterns of a set are valid; every number comes from a set of this size.
        unsafe {
            for cpu in processors.filter(|cpu| *cpu < Self::MOST) {
                libc::CPU_SET(cpu, set.assume_init_mut());
            }
            Self(set.assume_init())
        }
    }

    const MOST: usize = 8 * size_of::<libc::cpu_set_t>();

    fn processors(&self) -> impl Iterator<Item = usize> {
        // SAFETY: the number is below that of the bits of the set.
        (0..Self::MOST).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &self.0) })
    }

    /// Keeps the calling thread to these processors; `None` when the kernel refuses.
    pub(crate) fn apply(&self) -> Option<()> {
        // SAFETY: the set has the size that is passed.
        let outcome =
            unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.0) };
        (outcome == 0).then_some(())
    }
}

/// Where to run two threads that are not to disturb one another: the processor of the caller, which
/// waits meanwhile, and all with other caches, or at least all others. `None` where there is one only.
pub(crate) fn two_apart() -> Option<[Affinity; 2]> {
    let all = Affinity::own().filter(|_| usable() > 1)?;
    // SAFETY: a plain system call without arguments.
    let here = usize::try_from(unsafe { libc::sched_getcpu() }).ok()?;
    let list = format!("/sys/devices/system/cpu/cpu{here}/topology/thread_siblings_list");
    let siblings = std::fs::read_to_string(list).unwrap_or_default();
    let (one, others) = one_and_others(here, &siblings, || all.processors())?;
    Some([
        Affinity::of([one].into_iter()),
        Affinity::of(others.into_iter()),
    ])
}

/// `here`, and those of `all` that are not in `siblings`, a list such as `0-1,8`, or at least others.
fn one_and_others<I: Iterator<Item = usize>>(
    here: usize,
    siblings: &str,
    all: impl Fn() -> I,
) -> Option<(usize, Vec<usize>)> {
    let is_sibling = |cpu: usize| {
        siblings.trim().split(',').any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.parse::<usize>(), last.parse::<usize>());
            first.is_ok_and(|first| first <= cpu) && last.is_ok_and(|last| cpu <= last)
        })
    };
    let others = || all().filter(|cpu| *cpu != here);
    let mut far: Vec<usize> = others().filter(|cpu| !is_sibling(*cpu)).collect();
    if far.is_empty() {
        far.extend(others());
    }
    (!far.is_empty()).then_some((here, far))
}

/// Whether ranks with these processors have to share some.
pub(crate) fn crowded(ranks: impl Iterator<Item = Processors>) -> bool {
    let (mut all, mut count) = ([0; WORDS], 0);
    for set in ranks {
        count += 1;
        for (word, more) in all.iter_mut().zip(set) {
            *word |= more;
        }
    }
    all.iter().map(|word| word.count_ones()).sum::<u32>() < count
}

/// Whether two ranks have no processor in common.
pub(crate) fn apart(one: Processors, other: Processors) -> bool {
    one.iter().zip(other).all(|(one, other)| one & other == 0)
}

/// How many processors the machine has. Asked once, since it reads a file.
pub(crate) fn online() -> usize {
    static ONLINE: LazyLock<usize> = LazyLock::new(|| {
        // SAFETY: a plain number; no memory is passed.
        let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        usize::try_from(count).map_or(1, |count| count.max(1))
    });
    *ONLINE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_a_processor_each_are_not_crowded() {
        let only = |cpu: u32| [1 << cpu, 0, 0, 0];
        assert!(!crowded([only(0), only(1)].into_iter()));
        assert!(crowded([only(1), only(1)].into_iter()));
        assert!(!crowded([[3, 0, 0, 0]; 2].into_iter()));
        assert!(crowded([[3, 0, 0, 0]; 3].into_iter()));
        assert!(!crowded([own()].into_iter()));
        assert!(apart(only(0), only(1)) && !apart([3, 0, 0, 0], only(1)));
    }

    #[test]
    fn two_threads_are_kept_apart_where_there_is_room() {
        let both =
            |here, siblings, all: &[usize]| one_and_others(here, siblings, || all.iter().copied());
        assert_eq!(both(0, "0-1\n", &[0, 1, 2, 3]), Some((0, vec![2, 3])));
        assert_eq!(both(2, "2,6\n", &[0, 2, 6]), Some((2, vec![0])));
        assert_eq!(both(1, "", &[0, 1]), Some((1, vec![0])));
        assert_eq!(both(0, "0-1", &[0, 1]), Some((0, vec![1])));
        assert_eq!(both(0, "0", &[0]), None);
    }

    #[test]
    fn a_set_of_processors_holds_what_was_put_in() {
        let set = Affinity::of([0, 5, 700].into_iter());
        assert_eq!(set.processors().collect::<Vec<_>>(), [0, 5, 700]);
        assert!(Affinity::own().unwrap().processors().count() >= usable());
    }
}
