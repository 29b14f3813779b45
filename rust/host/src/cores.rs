//! How many processors the ranks of a machine have between them: spinning helps only where each has
//! one of its own. Must not know who spins.

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
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: `set` has the size that is passed, and all its bit patterns are valid.
    let (outcome, set) = unsafe {
        let outcome = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr());
        (outcome, set.assume_init())
    };
    let mut words = [0; WORDS];
    if outcome != 0 {
        return words;
    }
    for cpu in 0..8 * size_of::<libc::cpu_set_t>() {
        // SAFETY: `cpu` is below the number of bits of the set.
        if unsafe { libc::CPU_ISSET(cpu, &set) } {
            words[cpu / 64 % WORDS] |= 1 << (cpu % 64);
        }
    }
    words
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
}
