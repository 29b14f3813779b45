//! Members that meet: the protocol under a simulated network; `engines` has those in one process.

mod engines;

use std::collections::BTreeMap;
use std::time::Duration;

use ferrocomm_core::error::{Error, ErrorKind, Result};

use super::handle::PresenceId;
use super::machine::{Action, Round, Word};
use crate::random::{Random, rounds};

const LIMIT: Duration = Duration::from_secs(5);

/// One member of the simulation.
struct Actor {
    /// what it was called with
    list: Vec<PresenceId>,
    /// when it was called; never: it does not come
    called: Option<Duration>,
    /// when its process ends
    dies: Option<Duration>,
    round: Option<Round>,
    early: Vec<(PresenceId, Word)>,
    outcome: Option<Result<()>>,
}

enum Event {
    Call,
    Letter(PresenceId, Word),
    Lost(PresenceId),
}

/// Members by id, and what is on its way, by time.
struct Network {
    random: Random,
    now: Duration,
    actors: BTreeMap<PresenceId, Actor>,
    events: BTreeMap<(Duration, u64), (PresenceId, Event)>,
    count: u64,
    /// when the last letter of a pair comes: links keep their order
    links: BTreeMap<(PresenceId, PresenceId), Duration>,
}

fn ids(list: &[u64]) -> Vec<PresenceId> {
    list.iter().copied().map(PresenceId).collect()
}

impl Network {
    fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            now: Duration::ZERO,
            actors: BTreeMap::new(),
            events: BTreeMap::new(),
            count: 0,
            links: BTreeMap::new(),
        }
    }

    fn member(&mut self, id: u64, list: &[u64]) -> &mut Actor {
        let called = Duration::from_micros(self.random.below(200_000));
        let actor = Actor {
            list: ids(list),
            called: Some(called),
            dies: None,
            round: None,
            early: Vec::new(),
            outcome: None,
        };
        self.actors.insert(PresenceId(id), actor);
        self.actors.get_mut(&PresenceId(id)).unwrap()
    }

    fn plan(&mut self, at: Duration, to: PresenceId, event: Event) {
        self.count += 1;
        self.events.insert((at, self.count), (to, event));
    }

    fn delay(&mut self) -> Duration {
        Duration::from_micros(20 + self.random.below(30_000))
    }

    fn is_dead(&self, id: PresenceId) -> bool {
        self.actors
            .get(&id)
            .is_none_or(|actor| actor.dies.is_some_and(|at| at <= self.now))
    }

    fn run(&mut self) -> BTreeMap<u64, Result<()>> {
        let known: Vec<PresenceId> = self.actors.keys().copied().collect();
        for id in &known {
            if let Some(at) = self.actors[id].called {
                self.plan(at, *id, Event::Call);
            }
            if let Some(at) = self.actors[id].dies {
                for other in &known {
                    let seen = at + self.delay();
                    self.plan(seen, *other, Event::Lost(*id));
                }
            }
        }
        while let Some((at, id)) = self.next_alarm_or_event() {
            self.now = at;
            match id {
                Some(id) => {
                    self.actor(id, |round, now| round.alarm(now));
                    self.act(id, None);
                }
                None => {
                    let (_, (to, event)) = self.events.pop_first().unwrap();
                    if !self.is_dead(to) {
                        self.happen(to, event);
                    }
                }
            }
        }
        let ended = |(id, actor): (&PresenceId, &Actor)| Some((id.0, actor.outcome.clone()?));
        self.actors.iter().filter_map(ended).collect()
    }

    /// The next thing: an alarm of somebody, or an event.
    fn next_alarm_or_event(&self) -> Option<(Duration, Option<PresenceId>)> {
        let event = self
            .events
            .first_key_value()
            .map(|((at, _), _)| (*at, None));
        let alarms = self.actors.iter().filter_map(|(id, actor)| {
            let round = actor.round.as_ref().filter(|_| actor.outcome.is_none())?;
            let at = actor.called? + round.alarm_at();
            let dead = actor.dies.is_some_and(|dies| dies <= at);
            (!dead).then_some((at, Some(*id)))
        });
        alarms.chain(event).min_by_key(|(at, _)| *at)
    }

    fn actor(&mut self, id: PresenceId, act: impl FnOnce(&mut Round, Duration)) {
        let now = self.now;
        let actor = self.actors.get_mut(&id).unwrap();
        if let (Some(round), Some(called)) = (&mut actor.round, actor.called) {
            act(round, now - called);
        }
    }

    fn happen(&mut self, to: PresenceId, event: Event) {
        match event {
            Event::Call => {
                let actor = self.actors.get_mut(&to).unwrap();
                let me = actor.list.iter().position(|id| *id == to).unwrap();
                actor.round = Some(Round::new(actor.list.clone(), me, LIMIT));
                let early = std::mem::take(&mut actor.early);
                self.act(to, None);
                for (from, word) in early {
                    self.happen(to, Event::Letter(from, word));
                }
            }
            Event::Letter(from, word) => {
                let actor = self.actors.get_mut(&to).unwrap();
                match (&actor.outcome, &actor.round) {
                    (Some(outcome), _) => {
                        // As the driver does: a late proposal hears how it ended.
                        if let (Word::Proposal(_), Err(error)) = (&word, outcome) {
                            let error = error.clone();
                            self.send(to, from, Word::Failed(error));
                        }
                    }
                    (None, None) => actor.early.push((from, word)),
                    (None, Some(_)) => {
                        self.actor(to, |round, _| round.heard(from, word));
                        self.act(to, Some(from));
                    }
                }
            }
            Event::Lost(lost) => {
                self.actor(to, |round, _| {
                    let cause = Error::new(ErrorKind::PeerLost, "it died");
                    if let Some(position) = round.ids().iter().position(|id| *id == lost) {
                        round.lost(position, &cause);
                    }
                });
                self.act(to, None);
            }
        }
    }

    fn send(&mut self, from: PresenceId, to: PresenceId, word: Word) {
        let earliest = self.now + self.delay();
        let last = self.links.entry((from, to)).or_default();
        let at = earliest.max(*last);
        *last = at;
        self.plan(at, to, Event::Letter(from, word));
    }

    fn act(&mut self, id: PresenceId, answer: Option<PresenceId>) {
        while let Some(action) = self
            .actors
            .get_mut(&id)
            .and_then(|actor| actor.round.as_mut()?.action())
        {
            match action {
                Action::Send(position, word) => {
                    let to = self.actors[&id].list[position];
                    if self.is_dead(to) {
                        let cause = Error::new(ErrorKind::PeerLost, "nobody listens");
                        self.actor(id, |round, _| round.lost(position, &cause));
                    } else {
                        self.send(id, to, word);
                    }
                }
                Action::Settle => self.actor(id, |round, _| round.settle()),
                Action::Answer(word) => self.send(id, answer.unwrap(), word),
                Action::End(outcome) => {
                    let actor = self.actors.get_mut(&id).unwrap();
                    assert!(actor.outcome.is_none(), "it ends twice");
                    actor.outcome = Some(outcome);
                }
            }
        }
    }
}

/// All failed, with this kind, and say `words`.
fn all_failed(outcomes: &BTreeMap<u64, Result<()>>, kind: ErrorKind, words: &[&str], seed: u64) {
    for (id, outcome) in outcomes {
        let error = outcome.as_ref().expect_err("it failed elsewhere");
        assert_eq!(error.kind(), kind, "member {id}, seed {seed}: {error}");
        for word in words {
            let text = error.to_string();
            assert!(text.contains(word), "member {id}, seed {seed}: {text}");
        }
    }
}

#[test]
fn members_that_come_whenever_they_like_meet() {
    for seed in 0..rounds(300, 30) {
        let mut network = Network::new(seed);
        let size = 1 + seed % 9;
        let list: Vec<u64> = (0..size).map(|at| 100 + at * 7 % 11).collect();
        for id in &list {
            network.member(*id, &list);
        }
        let outcomes = network.run();
        assert_eq!(outcomes.len(), list.len(), "seed {seed}");
        assert!(
            outcomes.values().all(Result::is_ok),
            "seed {seed}: {outcomes:?}"
        );
    }
}

#[test]
fn whoever_does_not_come_is_named_to_all_that_do() {
    for seed in 0..rounds(300, 30) {
        let mut network = Network::new(seed);
        let absent = 1 + seed % 4;
        for id in 1..=4 {
            let actor = network.member(id, &[1, 2, 3, 4]);
            if id == absent {
                actor.called = None;
            }
        }
        let outcomes = network.run();
        assert_eq!(outcomes.len(), 3, "seed {seed}");
        let named = format!(
            "position {}, ferrocomm:1:000000000000000{absent}",
            absent - 1
        );
        all_failed(&outcomes, ErrorKind::Timeout, &[&named], seed);
        assert!(network.now < LIMIT + Duration::from_secs(3), "seed {seed}");
    }
}

#[test]
fn whoever_dies_is_named_at_once_or_has_been_met() {
    for seed in 0..rounds(500, 50) {
        let mut network = Network::new(seed);
        let victim = 1 + seed % 4;
        let dies = Duration::from_micros(seed * 997 % 300_000);
        for id in 1..=4 {
            let actor = network.member(id, &[1, 2, 3, 4]);
            if id == victim {
                actor.dies = Some(dies);
                actor.called = actor.called.filter(|at| *at < dies);
            }
        }
        let mut outcomes = network.run();
        outcomes.remove(&victim);
        assert_eq!(outcomes.len(), 3, "seed {seed}");
        for (id, outcome) in outcomes {
            if let Err(error) = outcome {
                assert_eq!(
                    error.kind(),
                    ErrorKind::PeerLost,
                    "member {id}, seed {seed}"
                );
                let named = format!("position {}", victim - 1);
                assert!(error.to_string().contains(&named), "seed {seed}: {error}");
            }
        }
        assert!(
            network.now < LIMIT,
            "seed {seed}: nobody waits for the dead"
        );
    }
}

#[test]
fn members_called_with_other_lists_learn_where_they_differ() {
    // What member 3 is called with where the others are called with 1, 2, 3.
    let lists: [&[u64]; 5] = [&[1, 3, 2], &[3, 2, 1], &[3, 1], &[2, 3, 1, 4], &[2, 3, 1]];
    for seed in 0..rounds(500, 50) {
        let other = lists[(seed % 5) as usize];
        let mut network = Network::new(seed);
        network.member(1, &[1, 2, 3]);
        network.member(2, &[1, 2, 3]);
        network.member(3, other);
        if other.contains(&4) {
            network.member(4, other).called = None;
        }
        let outcomes = network.run();
        assert_eq!(outcomes.len(), 3, "seed {seed}");
        let words = ["members, position"];
        all_failed(&outcomes, ErrorKind::Mismatch, &words, seed);
        assert!(network.now < LIMIT, "seed {seed}: at {:?}", network.now);
    }
}

#[test]
fn who_is_not_a_member_cannot_disturb_those_who_are() {
    for seed in 0..rounds(300, 30) {
        let mut network = Network::new(seed);
        network.member(1, &[1, 2]);
        network.member(2, &[1, 2]);
        network.member(3, &[1, 2, 3]);
        let mut outcomes = network.run();
        let stranger = outcomes.remove(&3);
        assert!(
            outcomes.values().all(Result::is_ok),
            "seed {seed}: {outcomes:?}"
        );
        // Told by a member, or, where that had met the others already, by nobody here: the driver
        // tells it that the uuid was used.
        let error = stranger.unwrap().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Mismatch | ErrorKind::Timeout),
            "seed {seed}: {error}"
        );
    }
}
