//! The flags of an arena: what is posted is seen with its payload, no place is used again while
//! somebody reads it, and no sleeper is left asleep.

use loom::sync::Arc;
use loom::thread;

use crate::arena::{Arena, INLINE};
use crate::barrier::Running;
use crate::bell::Bell;
use crate::budget::Budget;
use crate::choosing::Choice;
use crate::memory::Place;
use crate::print::Print;
use crate::sync::{Ordering, fence};

/// Whom a rank waits for in a round before it reads.
#[derive(Clone, Copy)]
enum Needs {
    All,
    Only(usize),
    Nobody,
}

/// What orders a post before the look for sleepers behind it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fences {
    /// a fence of whoever posts
    Own,
    /// the barrier that a sleeper puts into all others; who posts has none
    OfSleepers,
    /// nothing: a fault
    Nobodys,
}

impl Fences {
    /// How often a thread may be interrupted: asking each other for barriers has many orders.
    fn interruptions(self) -> usize {
        match self {
            Self::OfSleepers => 2,
            Self::Own | Self::Nobodys => crate::INTERRUPTIONS,
        }
    }
}

/// An arena whose words and places for `rounds` rounds are there.
fn arena(ranks: usize, rounds: u64) -> Arc<Arena> {
    let choice = Choice {
        past_caches_from: 0,
        direct_from: usize::MAX,
    };
    let (arena, _) = Arena::create(ranks, choice, &Budget::of_machine())
        .expect("memory is not short in a model");
    for rank in 0..ranks {
        for round in 0..=rounds {
            arena.posted(rank, round);
            arena.print(rank, round);
            for bytes in LENGTHS {
                arena.payload(rank, round, bytes);
            }
        }
    }
    arena.anybody_sleeps(false);
    Arc::new(arena)
}

const IN_SLOT: usize = INLINE + 1;
/// A payload beside the flag, and one in a slot.
const LENGTHS: [usize; 2] = [8, IN_SLOT];

fn place(arena: &Arena, rank: usize, round: u64, bytes: usize) -> &Place {
    let place = arena
        .payload(rank, round, bytes)
        .cast_const()
        .cast::<Place>();
    // SAFETY: the model's memory gives addresses of places, which live as long as it.
    unsafe { &*place }
}

fn put(arena: &Arena, rank: usize, round: u64, bytes: usize) {
    place(arena, rank, round, bytes).with_mut(|place| {
        // SAFETY: the checker has just found that no other thread uses this place now.
        unsafe { *place = round };
    });
}

fn take(arena: &Arena, rank: usize, round: u64, bytes: usize) -> u64 {
    place(arena, rank, round, bytes).with(|place| {
        // SAFETY: the checker has just found that no other thread writes this place now.
        unsafe { *place }
    })
}

fn print(round: u64) -> Print {
    Print {
        what: round,
        bytes: 2 * round,
        factor: 0,
    }
}

/// Waits until `rank` has posted `round`, and looks at what with.
fn agree(arena: &Arena, rank: usize, round: u64) {
    while !arena.posted(rank, round) {
        thread::yield_now();
    }
    assert_eq!(arena.print(rank, round), print(round));
}

/// Rank `me` of two in rounds `1..=rounds`, by the rule of `meeting`: a round is put when everybody
/// has posted the one before.
fn rounds(arena: &Arena, me: usize, rounds: u64, needs: Needs) {
    let other = 1 - me;
    for round in 1..=rounds {
        if round > 1 {
            agree(arena, other, round - 1);
        }
        put(arena, me, round, IN_SLOT);
        arena.post(me, round, print(round), &[round; INLINE / 8]);
        match needs {
            Needs::All => agree(arena, other, round),
            Needs::Only(rank) if rank != me => agree(arena, rank, round),
            Needs::Only(_) | Needs::Nobody => continue,
        }
        for bytes in LENGTHS {
            assert_eq!(take(arena, other, round, bytes), round);
        }
    }
}

fn two_ranks(count: u64, needs: [Needs; 2]) {
    crate::check(Some(crate::INTERRUPTIONS), move || {
        let arena = arena(2, count);
        let other = {
            let arena = arena.clone();
            thread::spawn(move || rounds(&arena, 1, count, needs[1]))
        };
        rounds(&arena, 0, count, needs[0]);
        other.join().expect("the other rank ends");
    });
}

/// Both read each other: payloads are whole, and no place is written while it is read, however
/// often places are used again.
pub fn payloads_come_with_their_flag(count: u64) {
    two_ranks(count, [Needs::All, Needs::All]);
}

/// One only gives, as the root of a broadcast does, and runs ahead as far as the rule lets it.
pub fn who_waits_for_nobody_overwrites_nothing(count: u64) {
    two_ranks(count, [Needs::Nobody, Needs::Only(0)]);
}

/// What a rank does when it has posted, as `seat` does it: whoever posts last, or is waited for
/// alone, wakes all who sleep.
fn post_and_wake(
    fences: Fences,
    arena: &Arena,
    me: usize,
    round: u64,
    alone: bool,
    bells: &[Arc<Bell>],
) {
    let ordered = fences != Fences::Own;
    arena.post(me, round, print(round), &[round; INLINE / 8]);
    let is_last = || {
        // Sleepers order a post before the look for sleepers, not two posts before two looks for both.
        fence(Ordering::SeqCst);
        (0..arena.ranks()).all(|rank| arena.posted(rank, round))
    };
    if arena.anybody_sleeps(ordered) && (alone || is_last()) {
        for rank in arena.take_sleepers() {
            if rank != me {
                bells[rank].ring();
            }
        }
    }
}

/// Sleeps until `awaited` have posted `round`, as the progress engine does: it announces itself,
/// looks once more, and sleeps.
fn sleep_until(arena: &Arena, me: usize, round: u64, awaited: &[usize], bells: &[Arc<Bell>]) {
    let come = || awaited.iter().all(|rank| arena.posted(*rank, round));
    while !come() {
        arena.lie_down(me);
        if !come() {
            bells[me].sleep();
        }
        arena.get_up(me);
    }
}

/// Rank 0 of three sleeps until it has what it waits for; `posters`, each waited for alone or not,
/// post and go. Nobody sleeps for ever.
fn one_sleeps(fences: Fences, awaited: &'static [usize], posters: &'static [(usize, bool)]) {
    crate::check(Some(fences.interruptions()), move || {
        let arena = arena(3, 1);
        let bells: Vec<Arc<Bell>> = (0..3).map(|_| Bell::new()).collect();
        let start = |(rank, alone): &(usize, bool)| {
            let (arena, bells) = (arena.clone(), bells.clone());
            let (rank, alone) = (*rank, *alone);
            thread::spawn(move || {
                let _running = (fences != Fences::Own).then(|| Running::new(rank));
                post_and_wake(fences, &arena, rank, 1, alone, &bells);
            })
        };
        let others: Vec<_> = posters.iter().map(start).collect();
        {
            let _running = (fences == Fences::OfSleepers).then(|| Running::new(0));
            post_and_wake(fences, &arena, 0, 1, false, &bells);
            sleep_until(&arena, 0, 1, awaited, &bells);
        }
        for other in others {
            other.join().expect("the others end");
        }
    });
}

/// It waits for all: of those who post at one time, one sees that it is the last.
pub fn the_last_to_post_wakes_who_waits_for_all(fences: Fences) {
    one_sleeps(fences, &[1, 2], &[(1, false), (2, false)]);
}

/// It waits for one rank; the third never comes.
pub fn who_is_waited_for_alone_wakes(fences: Fences) {
    one_sleeps(fences, &[1], &[(1, true)]);
}

/// One is woken for nothing by a rank that others wait for alone, and lies down again.
pub fn who_was_woken_too_early_is_woken_again(fences: Fences) {
    one_sleeps(fences, &[1, 2], &[(1, true), (2, false)]);
}

/// Two ranks in `count` rounds, asleep whenever the other is late.
pub fn two_who_sleep_in_turn_go_on(fences: Fences, count: u64) {
    crate::check(Some(crate::INTERRUPTIONS), move || {
        let arena = arena(2, count);
        let bells: Vec<Arc<Bell>> = (0..2).map(|_| Bell::new()).collect();
        let run = move |arena: &Arena, me: usize, bells: &[Arc<Bell>]| {
            let _running = (fences == Fences::OfSleepers).then(|| Running::new(me));
            for round in 1..=count {
                post_and_wake(fences, arena, me, round, false, bells);
                sleep_until(arena, me, round, &[1 - me], bells);
            }
        };
        let other = {
            let (arena, bells) = (arena.clone(), bells.clone());
            thread::spawn(move || run(&arena, 1, &bells))
        };
        run(&arena, 0, &bells);
        other.join().expect("the other rank ends");
    });
}
