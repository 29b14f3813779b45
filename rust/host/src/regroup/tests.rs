//! Members that meet: the protocol under a simulated network, and engines in one process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ferrocomm_core::call::{Call, Collective, Mode, Region, Task};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::group::Group;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reconfigure::{Handles, Presence, Reconfiguration, Request};
use ferrocomm_core::reduce_op::ReduceOp;

use super::handle::PresenceId;
use super::machine::{Action, Round, Word};
use crate::engine::HostEngine;
use crate::random::{Random, rounds};

const LIMIT: Duration = Duration::from_secs(5);
/// Room for a busy machine; reaching it fails the test.
const LONG: Duration = Duration::from_secs(60);

// ---- the protocol

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

// ---- engines

/// One rank of a job in this process.
struct Rank {
    presence: Arc<dyn Presence>,
    group: Option<Arc<dyn Group>>,
    // Last: the engine outlives what is in it.
    _engine: Arc<HostEngine>,
}

fn job(count: i32) -> Vec<Rank> {
    let name = Arc::from("job");
    let rank = |rank| {
        let engine = HostEngine::new().unwrap();
        Rank {
            presence: engine.presence(&name, rank).unwrap(),
            group: None,
            _engine: engine,
        }
    };
    (0..count).map(rank).collect()
}

fn request(uuid: i64, handles: &[String]) -> Request {
    Request {
        uuid,
        handles: Handles::Ordered(handles.to_vec()),
        timeout: LONG,
        hints: Vec::new(),
    }
}

fn handles(ranks: &[&mut Rank]) -> Vec<String> {
    ranks.iter().map(|rank| rank.presence.handle()).collect()
}

fn begin(rank: &Rank, request: Request) -> Arc<dyn Reconfiguration> {
    rank.presence.reconfigure(request, None).unwrap()
}

/// All of them meet; each then has its group.
fn meet(uuid: i64, ranks: &mut [&mut Rank]) {
    let handles = handles(ranks);
    let begun: Vec<_> = ranks
        .iter()
        .map(|rank| begin(rank, request(uuid, &handles)))
        .collect();
    for (rank, begun) in ranks.iter_mut().zip(begun) {
        begun.wait(begun.work(), Some(LONG)).unwrap();
        rank.group = Some(begun.group().unwrap());
    }
}

/// The sum over all ranks of `1 << rank`, on every rank.
fn sum_bits(ranks: &[&mut Rank], sequence: u64) {
    let size = ranks.len();
    std::thread::scope(|scope| {
        for rank in ranks {
            let group = rank.group.clone().unwrap();
            scope.spawn(move || {
                let mut value = [1_i64 << group.rank().get()];
                let region = Region {
                    address: value.as_mut_ptr() as usize,
                    bytes: 8,
                };
                let mut call = Call {
                    task: Task::Collective(Collective::AllReduce {
                        input: region,
                        output: region,
                        op: ReduceOp::Sum,
                    }),
                    dtype: Dtype::Int64,
                    sequence,
                    timeout: LONG,
                    mode: Mode::Sync,
                };
                assert_eq!(group.size(), size);
                let conditions = call.conditions();
                group.run(&mut call.task, &conditions, &mut || {}).unwrap();
                assert_eq!(value[0], (1 << size) - 1);
            });
        }
    });
}

#[test]
fn groups_follow_one_another_and_each_works() {
    let mut job = job(4);
    let [a, b, c, d] = job.as_mut_slice() else {
        unreachable!()
    };
    meet(1, &mut [a, b, c]);
    sum_bits(&[a, b, c], 1);
    // Shrink, grow with another order, one alone, all.
    meet(2, &mut [a, c]);
    sum_bits(&[a, c], 1);
    meet(3, &mut [d, c, b, a]);
    sum_bits(&[d, c, b, a], 1);
    assert_eq!(d.group.as_ref().unwrap().rank(), GroupRank::new(0));
    meet(4, &mut [b]);
    sum_bits(&[b], 1);
    meet(5, &mut [a, b, c, d]);
    sum_bits(&[a, b, c, d], 1);
}

#[test]
fn a_set_begins_with_the_survivors_on_all_members() {
    let mut job = job(3);
    let [a, b, c] = job.as_mut_slice() else {
        unreachable!()
    };
    meet(1, &mut [c, b]);
    let handles = handles(&[a, b, c]);
    let begun: Vec<_> = [&*a, &*b, &*c]
        .iter()
        .enumerate()
        .map(|(turn, rank)| {
            let mut handles = handles.clone();
            handles.rotate_left(turn);
            let request = Request {
                handles: Handles::Unordered(handles),
                ..request(2, &[])
            };
            begin(rank, request)
        })
        .collect();
    let ranks: Vec<u32> = begun
        .iter()
        .map(|begun| {
            begun.wait(begun.work(), Some(LONG)).unwrap();
            begun.group().unwrap().rank().get()
        })
        .collect();
    assert_eq!(ranks, [2, 1, 0]);
}

#[test]
fn what_was_pending_on_the_old_group_fails() {
    let mut job = job(2);
    let [a, b] = job.as_mut_slice() else {
        unreachable!()
    };
    meet(1, &mut [a, b]);
    let old = a.group.clone().unwrap();
    let call = Call {
        task: Task::Collective(Collective::Barrier),
        dtype: Dtype::Byte,
        sequence: 1,
        timeout: LONG,
        mode: Mode::Async,
    };
    let work = old.issue(call).unwrap();
    meet(2, &mut [a, b]);
    let error = old.wait(&work, Some(LONG)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    sum_bits(&[a, b], 1);
}

#[test]
fn an_attempt_that_is_aborted_fails_elsewhere_too_and_another_may_follow() {
    let mut job = job(2);
    let [a, b] = job.as_mut_slice() else {
        unreachable!()
    };
    let handles = handles(&[a, b]);
    let waits = begin(b, request(1, &handles));
    waits.abort();
    let error = waits.wait(waits.work(), Some(LONG)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    // The leader comes afterwards, and reads what was said before.
    let late = begin(a, request(1, &handles));
    let error = late.wait(late.work(), Some(LONG)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    meet(2, &mut [a, b]);
    sum_bits(&[a, b], 1);
}

#[test]
fn a_group_that_a_member_gave_up_just_before_fails_at_once() {
    let mut job = job(2);
    let [a, b] = job.as_mut_slice() else {
        unreachable!()
    };
    let handles = handles(&[a, b]);
    let waits = begin(b, request(1, &handles));
    let late = begin(a, request(1, &handles));
    late.wait(late.work(), Some(LONG)).unwrap();
    let group = late.group().unwrap();
    // The leader's word is on its way, or has come: then there was nothing left to give up.
    waits.abort();
    if waits
        .work()
        .outcome()
        .is_some_and(|outcome| outcome.is_ok())
    {
        return;
    }
    let call = Call {
        task: Task::Collective(Collective::Barrier),
        dtype: Dtype::Byte,
        sequence: 1,
        timeout: LONG,
        mode: Mode::Async,
    };
    let barrier = group.issue(call).unwrap();
    while barrier.outcome().is_none() {
        a._engine.step();
        b._engine.step();
    }
    let error = group.wait(&barrier, Some(LONG)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    assert_eq!(error.peer_ranks(), [GroupRank::new(1)], "{error}");
}

#[test]
fn a_member_that_has_seen_the_uuid_refuses_it_for_all() {
    let mut job = job(3);
    let [a, b, c] = job.as_mut_slice() else {
        unreachable!()
    };
    meet(1, &mut [a, b]);
    for leader_first in [true, false] {
        let mut handles = handles(&[a, b, c]);
        if !leader_first {
            handles.reverse();
        }
        // Before the newcomer comes, or afterwards; nobody drives those that refuse.
        let uuid = if leader_first { 1 } else { -1 };
        let list = Handles::Ordered(handles.clone());
        let begun = if leader_first {
            a.presence.refuse(uuid, &list);
            begin(c, request(uuid, &handles))
        } else {
            let begun = begin(c, request(uuid, &handles));
            b.presence.refuse(uuid, &list);
            begun
        };
        let error = begun.wait(begun.work(), Some(LONG)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(error.to_string().contains("used before"), "{error}");
    }
}

#[test]
fn a_handle_of_a_communicator_that_is_gone_is_named() {
    let mut job = job(2);
    let [a, b] = job.as_mut_slice() else {
        unreachable!()
    };
    let handles = handles(&[a, b]);
    b.presence.leave();
    let begun = begin(a, request(1, &handles));
    // Somebody has to drive the other engine, as its program would.
    let ended = std::sync::atomic::AtomicBool::new(false);
    let error = std::thread::scope(|scope| {
        let (b, ended) = (&*b, &ended);
        scope.spawn(move || {
            while !ended.load(std::sync::atomic::Ordering::Acquire) {
                b._engine.step();
                std::thread::yield_now();
            }
        });
        let error = begun.wait(begun.work(), Some(LONG)).unwrap_err();
        ended.store(true, std::sync::atomic::Ordering::Release);
        error
    });
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    assert_eq!(error.peer_ranks(), [GroupRank::new(1)], "{error}");
}

#[test]
fn a_process_that_is_gone_is_named() {
    let mut job = job(3);
    let gone = job.remove(1);
    let mut handles: Vec<String> = job.iter().map(|rank| rank.presence.handle()).collect();
    handles.insert(1, gone.presence.handle());
    drop(gone);
    let begun: Vec<_> = job
        .iter()
        .map(|rank| begin(rank, request(1, &handles)))
        .collect();
    for begun in begun {
        let error = begun.wait(begun.work(), Some(LONG)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        let text = error.to_string();
        assert!(text.contains("position 1, ferrocomm:1:"), "{text}");
    }
}

#[test]
fn what_cannot_be_asked_changes_nothing() {
    let mut job = job(3);
    let [a, b, c] = job.as_mut_slice() else {
        unreachable!()
    };
    meet(1, &mut [a, b]);
    let handles = handles(&[b, c]);
    let refused = |handles: Handles| {
        let request = Request {
            handles,
            ..request(2, &[])
        };
        a.presence.reconfigure(request, None).err().unwrap().kind()
    };
    let kind = refused(Handles::Ordered(handles.clone()));
    assert_eq!(
        kind,
        ErrorKind::InvalidArgument,
        "its own handle is missing"
    );
    let kind = refused(Handles::Ordered(vec!["nonsense".into()]));
    assert_eq!(kind, ErrorKind::InvalidArgument);
    let other = a.presence.handle().replace(":1:", ":9:");
    assert_eq!(refused(Handles::Ordered(vec![other])), ErrorKind::Mismatch);
    sum_bits(&[a, b], 1);
}
