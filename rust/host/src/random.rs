//! How long tests go on, and random numbers for them: small, fast, repeatable from a seed.
//! For tests alone: nothing that ships may need it. Must not know what is tested.

/// How often a test does something: `usual`, or `sanitized` times under a sanitizer, where each time
/// takes tens of times as long.
pub(crate) fn rounds<T>(usual: T, sanitized: T) -> T {
    if cfg!(sanitized) { sanitized } else { usual }
}

/// Whether the case of this number is run: each, and under a sanitizer one of seven, a step that
/// meets all values of lists of other lengths.
pub(crate) fn is_run(number: usize) -> bool {
    number.is_multiple_of(rounds(1, 7))
}

/// xorshift64*
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A seed that differs from run to run, so that runs add up; tests print it when they fail.
    pub(crate) fn of_now() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self::new(now.unwrap().as_nanos() as u64)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.next())
    }
}
