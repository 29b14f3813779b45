//! The checker knows no barrier that one thread puts into others: in a model nobody takes part.

pub(crate) fn take_part() -> bool {
    false
}

pub(crate) fn order_all() -> bool {
    false
}
