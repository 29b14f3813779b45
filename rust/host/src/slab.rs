//! A table whose keys are never valid again once their entry was removed.
//! Must not know what is in it.

/// Place and generation of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// As one number, to cross a connection.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The key with these bits; it need not name an entry.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the two halves are taken apart"
    )]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self {
            index: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// The table.
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Key {
                index,
                generation: slot.generation,
            };
        }
        #[allow(
            clippy::cast_possible_truncation,
            reason = "memory ends before 2^32 entries"
        )]
        let index = self.slots.len() as u32;
        self.slots.push(Slot {
            generation: 0,
            value: Some(value),
        });
        Key {
            index,
            generation: 0,
        }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        self.slots
            .get(key.index as usize)
            .filter(|slot| slot.generation == key.generation)
            .and_then(|slot| slot.value.as_ref())
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.slots
            .get_mut(key.index as usize)
            .filter(|slot| slot.generation == key.generation)
            .and_then(|slot| slot.value.as_mut())
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    /// Places an entry may be at, from 0.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    /// The entry at a place, if there is one.
    pub(crate) fn key_at(&self, place: usize) -> Option<Key> {
        let slot = self.slots.get(place)?;
        slot.value.as_ref()?;
        let index = u32::try_from(place).ok()?;
        Some(Key {
            index,
            generation: slot.generation,
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        (0u32..).zip(&self.slots).filter_map(|(index, slot)| {
            Some((
                Key {
                    index,
                    generation: slot.generation,
                },
                slot.value.as_ref()?,
            ))
        })
    }
}
