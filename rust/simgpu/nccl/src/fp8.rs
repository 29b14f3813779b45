//! The two eight-bit floats. Results that are too large become the largest finite number, as they
//! do in NCCL's kernels; halves go to the even neighbour.

/// Four bits of exponent, three of fraction; no infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct E4M3(pub u8);

/// Five bits of exponent, two of fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct E5M2(pub u8);

struct Format {
    fraction: u32,
    bias: i32,
    /// The bits of the largest finite number.
    largest: u8,
    /// The bits of a number that is none.
    nan: u8,
}

const FOUR_THREE: Format = Format {
    fraction: 3,
    bias: 7,
    largest: 0x7e,
    nan: 0x7f,
};
const FIVE_TWO: Format = Format {
    fraction: 2,
    bias: 15,
    largest: 0x7b,
    nan: 0x7f,
};

impl Format {
    /// The value of a positive finite pattern.
    fn value(&self, bits: u8) -> f32 {
        let exponent = i32::from(bits >> self.fraction);
        let fraction =
            f32::from(bits & ((1 << self.fraction) - 1)) / (1u32 << self.fraction) as f32;
        match exponent {
            0 => fraction * 2f32.powi(1 - self.bias),
            _ => (1.0 + fraction) * 2f32.powi(exponent - self.bias),
        }
    }

    fn to_f32(&self, bits: u8) -> f32 {
        let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
        let rest = bits & 0x7f;
        if rest > self.largest {
            let infinite = self.fraction == 2 && rest == self.largest + 1;
            return if infinite {
                sign * f32::INFINITY
            } else {
                f32::NAN
            };
        }
        sign * self.value(rest)
    }

    fn nearest(&self, value: f32) -> u8 {
        if value.is_nan() {
            return self.nan;
        }
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let size = value.abs();
        if size >= self.value(self.largest) {
            return sign | self.largest;
        }
        // Patterns of positive numbers are in the order of their values.
        let (mut below, mut above) = (0, self.largest);
        while above - below > 1 {
            let middle = below + (above - below) / 2;
            if self.value(middle) <= size {
                below = middle
            } else {
                above = middle
            }
        }
        let (down, up) = (size - self.value(below), self.value(above) - size);
        let nearest = if down < up || (down == up && below % 2 == 0) {
            below
        } else {
            above
        };
        sign | nearest
    }
}

impl E4M3 {
    /// Its value.
    pub fn to_f32(self) -> f32 {
        FOUR_THREE.to_f32(self.0)
    }
    /// The nearest one.
    pub fn from_f32(value: f32) -> Self {
        E4M3(FOUR_THREE.nearest(value))
    }
}

impl E5M2 {
    /// Its value.
    pub fn to_f32(self) -> f32 {
        FIVE_TWO.to_f32(self.0)
    }
    /// The nearest one.
    pub fn from_f32(value: f32) -> Self {
        E5M2(FIVE_TWO.nearest(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_pattern_comes_back() {
        for bits in 0..=255u8 {
            if bits & 0x7f <= 0x7e {
                assert_eq!(E4M3::from_f32(E4M3(bits).to_f32()).0, bits);
            }
            if bits & 0x7f <= 0x7b {
                assert_eq!(E5M2::from_f32(E5M2(bits).to_f32()).0, bits);
            }
        }
    }

    #[test]
    fn the_ends_are_those_of_the_formats() {
        assert_eq!(E4M3(0x7e).to_f32(), 448.0);
        assert_eq!(E5M2(0x7b).to_f32(), 57344.0);
        assert_eq!(E4M3::from_f32(1e9).0, 0x7e);
        assert_eq!(E5M2::from_f32(-1e9).0, 0xfb);
        assert!(E4M3::from_f32(f32::NAN).to_f32().is_nan());
        assert_eq!(E5M2(0x7c).to_f32(), f32::INFINITY);
        assert_eq!(E4M3(0x01).to_f32(), 2f32.powi(-9));
    }

    #[test]
    fn halves_go_to_the_even_neighbour() {
        assert_eq!(E4M3::from_f32(17.0).to_f32(), 16.0);
        assert_eq!(E4M3::from_f32(19.0).to_f32(), 20.0);
    }
}
