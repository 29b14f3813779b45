//! Cuts a buffer into one slice per rank. Every rank cuts alike. Must not know what is in it.

use std::ops::Range;

/// Slices start at multiples of a cache line where the buffer is long enough for that not to
/// matter, so that two ranks seldom write to one line.
const LINE: usize = 64;

/// Byte ranges of `parts` slices of `bytes` bytes of elements of `element` bytes: whole elements,
/// in order, nearly equal, some of them empty when there are fewer elements than parts.
pub(super) fn slices(bytes: usize, element: usize, parts: usize) -> Vec<Range<usize>> {
    let grain = if bytes >= parts * LINE * 4 {
        LINE
    } else {
        element
    };
    let grains = bytes / grain;
    let each = grains / parts;
    let longer = grains % parts;
    let mut start = 0;
    (0..parts)
        .map(|part| {
            let length = (each + usize::from(part < longer)) * grain;
            let end = if part + 1 == parts {
                bytes
            } else {
                start + length
            };
            let slice = start..end;
            start = end;
            slice
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_the_buffer_with_whole_elements() {
        for element in [1, 2, 4, 8, 16] {
            for parts in 1..20 {
                for count in [0, 1, 2, 3, 17, 63, 64, 65, 1000, 4099] {
                    let bytes = count * element;
                    let all = slices(bytes, element, parts);
                    assert_eq!(all.len(), parts);
                    assert_eq!((all[0].start, all[parts - 1].end), (0, bytes));
                    for pair in all.windows(2) {
                        assert_eq!(pair[0].end, pair[1].start);
                    }
                    let lengths: Vec<usize> = all.iter().map(ExactSizeIterator::len).collect();
                    assert!(lengths.iter().all(|length| length % element == 0));
                    let spread = lengths.iter().max().unwrap() - lengths.iter().min().unwrap();
                    assert!(spread <= 2 * LINE, "{bytes} bytes in {parts}: {lengths:?}");
                }
            }
        }
    }
}
