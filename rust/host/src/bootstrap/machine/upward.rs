//! Whom a rank reports to: the ranks of its machine first, then the store.
//!
//! Every edge leads to a node with a lower first rank, or within a node to the process that leads
//! it or hosts its meeting. So there is no circle, whatever ranks believe of their nodes. Must not
//! know what is reported.

use std::time::Duration;

use super::root::Root;
use super::tree::Tree;
use super::{Action, Door, GREETING, Link, Lower, Machine, Meeting, Phase};
use crate::bootstrap::wire::{self, Hello, Message, Nonce};

/// Pause before something that led nowhere is tried again; it doubles, up to `LONGEST_REST`.
const REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_secs(1);
/// How long one look at the store may take: in between, the rank serves those below it.
const LOOK: Duration = Duration::from_secs(1);
/// The same where somebody below must not wait.
const GLANCE: Duration = Duration::from_millis(20);
/// How long the first node keeps away from the store while it is not complete.
const TOGETHER: Duration = Duration::from_secs(1);
/// How long it may take until a rank hosts its meeting or is welcome there.
const MEETING: Duration = Duration::from_secs(5);

/// Where a rank stands with those above it.
pub(super) enum Upward {
    /// there is nobody above
    Root(Root),
    /// comes to the local meeting
    Coming { link: Link, since: Duration },
    /// looking for the key of `rank`
    Seeking { rank: u32 },
    /// will try again
    Resting { until: Duration },
    /// the connection is on its way
    Dialing {
        link: Link,
        nonce: Nonce,
        since: Duration,
    },
    /// has greeted
    Greeting {
        link: Link,
        door: Door,
        since: Duration,
    },
    /// reports to `rank`
    Joined { rank: u32, link: Link },
}

/// Where a rank stands with the others of its machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Nearby {
    /// meets nobody
    Alone,
    /// is to meet them, or reports to one of them
    Meeting(Meeting),
    /// they come to this rank
    Hosting,
}

/// What a rank knows of the tree the root has in mind.
#[derive(Clone, Copy)]
enum Shape {
    Unknown,
    /// its own
    Same,
    /// this one: keys that the own tree leads to may never come
    Other(Tree),
}

/// What a rank has looked for.
pub(super) struct Search {
    /// whose key it looked for last
    sought: Option<u32>,
    shape: Shape,
    /// how long to rest the next time
    rest: Duration,
}

impl Default for Search {
    fn default() -> Self {
        Self {
            sought: None,
            shape: Shape::Unknown,
            rest: REST,
        }
    }
}

impl Machine {
    /// This rank has the local meeting point.
    pub(in crate::bootstrap) fn hosting(&mut self, now: Duration) {
        if let Upward::Coming { .. } = self.upward {
            self.nearby = Nearby::Hosting;
            self.settle(now);
        }
    }

    /// There is nobody to meet for this rank.
    pub(in crate::bootstrap) fn alone(&mut self, now: Duration) {
        if let Nearby::Meeting(_) = self.nearby {
            self.nearby = Nearby::Alone;
            self.settle(now);
        }
    }

    /// The key asked for has this value.
    pub(in crate::bootstrap) fn found(&mut self, now: Duration, value: &[u8]) {
        let Upward::Seeking { rank } = self.upward else {
            return;
        };
        // A key that cannot be read is as good as one of a rank that is gone.
        let Some((nonce, local, address)) = wire::read_key_value(value) else {
            return self.rest(now);
        };
        if rank == 0 && self.learns_shape(now) {
            let tree = Tree::of_nodes(local);
            self.search.shape = if tree == self.tree {
                Shape::Same
            } else {
                Shape::Other(tree)
            };
            return self.seek(now);
        }
        let link = self.new_link();
        self.upward = Upward::Dialing {
            link,
            nonce,
            since: now,
        };
        self.actions.push_back(Action::Dial { link, address });
    }

    /// The key asked for is not there yet.
    pub(in crate::bootstrap) fn absent(&mut self, now: Duration) {
        match self.upward {
            Upward::Seeking { .. } if self.is_awaited() => self.rest(now),
            Upward::Seeking { .. } => self.seek(now),
            _ => {}
        }
    }

    /// Whether a look at the store is of use.
    pub(in crate::bootstrap) fn is_seeking(&self) -> bool {
        matches!(self.upward, Upward::Seeking { .. }) && !matches!(self.phase, Phase::Ended(_))
    }

    /// A connection asked for is there.
    pub(in crate::bootstrap) fn dialed(&mut self, now: Duration, dialed: Link) {
        let (nonce, door) = match (&self.upward, &self.nearby) {
            (Upward::Dialing { link, nonce, .. }, _) if *link == dialed => (*nonce, Door::Remote),
            (Upward::Coming { link, .. }, Nearby::Meeting(meeting)) if *link == dialed => {
                (meeting.name, Door::Local)
            }
            _ => return self.actions.push_back(Action::Close { link: dialed }),
        };
        self.upward = Upward::Greeting {
            link: dialed,
            door,
            since: now,
        };
        self.from_above.clear();
        let hello = Hello {
            nonce,
            rank: self.setup.rank,
            facts: self.setup.facts.clone(),
        };
        self.actions.push_back(Action::Send {
            link: dialed,
            bytes: hello.encode(),
        });
    }

    /// The first rank of this rank's node.
    pub(super) fn first(&self) -> u32 {
        self.tree.first(self.setup.rank)
    }

    pub(super) fn link_above(&self) -> Option<Link> {
        match self.upward {
            Upward::Greeting { link, .. } | Upward::Joined { link, .. } => Some(link),
            _ => None,
        }
    }

    /// Finds a way up, at the start.
    pub(super) fn start(&mut self) {
        match self.nearby {
            Nearby::Meeting(_) => self.go_up(Duration::ZERO),
            Nearby::Alone | Nearby::Hosting => self.settle(Duration::ZERO),
        }
    }

    /// Tries again.
    fn go_up(&mut self, now: Duration) {
        match self.nearby {
            Nearby::Meeting(_) if now >= self.meeting_ends() => self.alone(now),
            Nearby::Meeting(_) => {
                let link = self.new_link();
                self.upward = Upward::Coming { link, since: now };
                self.actions.push_back(Action::Meet { link });
            }
            Nearby::Alone | Nearby::Hosting => self.seek(now),
        }
    }

    /// Goes on without anybody of this machine to report to.
    fn settle(&mut self, now: Duration) {
        self.search.rest = REST;
        if self.first() == self.setup.rank && !self.leads {
            self.lead(now);
        }
        match self.upward {
            Upward::Root(_) => {}
            // Likely the first rank is on its way to this machine.
            _ if self.is_awaited() && now < self.together_ends() => {
                self.upward = Upward::Resting {
                    until: self.together_ends(),
                };
            }
            _ => self.seek(now),
        }
    }

    /// Acts for the node.
    fn lead(&mut self, now: Duration) {
        self.leads = true;
        if self.first() == 0 && !matches!(self.upward, Upward::Joined { .. }) {
            self.leave();
            self.become_root(now);
        }
        if self.tree.is_inner(self.setup.rank, self.setup.size) {
            self.publish(self.first());
        }
    }

    /// The first rank of the node reports here, and leaves it to this rank to act for the node.
    pub(super) fn yielded(&mut self, now: Duration, link: Link) {
        let is_first = matches!(
            self.lower.get(&link),
            Some(Lower::Child { rank, door: Door::Local, .. }) if *rank == self.first()
        );
        if is_first && !self.leads {
            self.lead(now);
            if let Upward::Resting { .. } = self.upward {
                self.seek(now);
            }
            self.judge(now);
        }
    }

    fn become_root(&mut self, now: Duration) {
        let size = self.setup.size as usize;
        let read = |bytes: &Vec<u8>| Message::take(&mut bytes.clone(), size).ok().flatten();
        let messages: Vec<Message> = self.gathered.iter().filter_map(read).collect();
        // Whatever process the root is in, all are to believe what rank 0 does.
        let of_rank_0 = messages.iter().find_map(|message| match message {
            Message::Facts { rank: 0, facts } => Some(facts.clone()),
            _ => None,
        });
        let own = self.setup.facts.clone();
        let mut root = Root::new(size, of_rank_0.unwrap_or_else(|| own.clone()));
        let own = Message::Facts {
            rank: self.setup.rank,
            facts: own,
        };
        for message in messages.into_iter().chain([own]) {
            root.take(now, message);
        }
        self.upward = Upward::Root(root);
        self.learn_shape(self.tree.local());
    }

    /// Gives up a connection that has not led to a welcome.
    fn leave(&mut self) {
        match self.upward {
            Upward::Greeting { link, .. }
            | Upward::Dialing { link, .. }
            | Upward::Coming { link, .. } => self.actions.push_back(Action::Close { link }),
            _ => {}
        }
    }

    pub(super) fn closed_above(&mut self, now: Duration, closed: Link) {
        match self.upward {
            Upward::Dialing { link, .. }
            | Upward::Coming { link, .. }
            | Upward::Greeting { link, .. }
                if link == closed =>
            {
                self.rest(now);
            }
            Upward::Joined { rank, link } if link == closed => {
                let error = self.lost(rank);
                self.end(Err(error));
            }
            _ => {}
        }
    }

    /// When the way up needs `tick`.
    pub(super) fn upward_due(&self) -> Option<Duration> {
        let step = match &self.upward {
            Upward::Root(root) => root.settles_at(),
            Upward::Resting { until } => Some(*until),
            _ => self.step_ends(),
        };
        let opens = self.is_incomplete().then(|| self.together_ends());
        step.into_iter().chain(opens).min()
    }

    /// When the current step up has taken too long.
    fn step_ends(&self) -> Option<Duration> {
        match self.upward {
            Upward::Coming { since, .. }
            | Upward::Greeting {
                since,
                door: Door::Local,
                ..
            } => Some(self.meeting_ends().max(since)),
            Upward::Dialing { since, .. } | Upward::Greeting { since, .. } => {
                Some(since + GREETING)
            }
            _ => None,
        }
    }

    pub(super) fn tick_above(&mut self, now: Duration) {
        match self.upward {
            Upward::Resting { until } if until <= now => self.go_up(now),
            _ if self.step_ends().is_some_and(|end| end <= now) => {
                self.leave();
                self.rest(now);
            }
            _ => {}
        }
        // After the way up, which may just have made this rank its node's.
        if self.is_incomplete() && self.together_ends() <= now {
            self.publish(0);
        }
    }

    pub(super) fn read_above(&mut self, now: Duration) {
        while let Some(link) = self.link_above() {
            match Message::take(&mut self.from_above, self.setup.size as usize) {
                Ok(Some(message)) => self.heed_above(now, link, message),
                Ok(None) => return,
                Err(wire::Garbage) => {
                    self.actions.push_back(Action::Close { link });
                    return self.closed(now, link);
                }
            }
        }
    }

    fn heed_above(&mut self, now: Duration, link: Link, message: Message) {
        if matches!(self.phase, Phase::Ended(_)) {
            return;
        }
        match (message, &self.upward) {
            (Message::Welcome { rank }, Upward::Greeting { door, .. }) => {
                let is_local = *door == Door::Local;
                self.upward = Upward::Joined { rank, link };
                self.report(link, is_local && self.first() == self.setup.rank);
            }
            (Message::Shape { local }, Upward::Joined { .. }) => self.learn_shape(local),
            (Message::Failure(error), Upward::Joined { .. }) => self.end(Err(error)),
            (Message::Table { seed, members }, Upward::Joined { .. }) => self.arrive(seed, members),
            // A parent that does not welcome first is none.
            (_, Upward::Greeting { .. }) => {
                self.actions.push_back(Action::Close { link });
                self.rest(now);
            }
            _ => {}
        }
    }

    /// Reports all that is known so far. Only to a rank that has welcomed this one: until then it may
    /// turn elsewhere, and whoever counts on it would leave it behind.
    fn report(&mut self, link: Link, leads: bool) {
        let leads = leads.then(|| Message::Leads.encode());
        // What happened below while nobody above could be told.
        let failure = match &self.phase {
            Phase::Appealing { fallback, .. } => Some(Message::Failure(fallback.clone()).encode()),
            Phase::Gathering | Phase::Ended(_) => None,
        };
        let messages = leads.iter().chain(&self.gathered).chain(&failure);
        let bytes = messages.flatten().copied().collect();
        self.actions.push_back(Action::Send { link, bytes });
    }

    /// Looks for a key again: the parent's while it may still come, then those of all ranks above
    /// in turn.
    fn seek(&mut self, now: Duration) {
        let (rank, patience) = self.next_sought(now);
        self.search.sought = Some(rank);
        self.upward = Upward::Seeking { rank };
        self.actions.push_back(Action::Fetch { rank, patience });
    }

    fn next_sought(&self, now: Duration) -> (u32, Duration) {
        let late_at = self.late_at();
        if now >= late_at {
            return (self.further(), LOOK.min(self.setup.limit / 32));
        }
        let longest = if self.is_awaited() { GLANCE } else { LOOK };
        let patience = longest.min(late_at - now);
        let parent = self.parent_in(self.tree);
        match self.search.shape {
            // The parent is late, or has no key because the root counts nodes in another way.
            Shape::Unknown if self.search.sought == Some(parent) && parent != 0 => {
                (0, GLANCE.min(patience))
            }
            Shape::Unknown | Shape::Same => (parent, patience),
            Shape::Other(_) => (self.further(), patience),
        }
    }

    /// Whether the key of rank 0 was looked for to learn its tree.
    fn learns_shape(&self, now: Duration) -> bool {
        matches!(self.search.shape, Shape::Unknown)
            && self.parent_in(self.tree) != 0
            && now < self.late_at()
    }

    fn parent_in(&self, tree: Tree) -> u32 {
        let above = tree.above(self.setup.rank);
        above.filter(|above| *above < self.first()).unwrap_or(0)
    }

    /// The rank above the one looked for last; after the root, the parent.
    fn further(&self) -> u32 {
        let tree = match self.search.shape {
            Shape::Other(tree) => tree,
            Shape::Unknown | Shape::Same => self.tree,
        };
        let above = self.search.sought.and_then(|sought| tree.above(sought));
        above.unwrap_or_else(|| self.parent_in(tree))
    }

    fn late_at(&self) -> Duration {
        self.setup.limit.mul_f64(0.75)
    }

    /// Until when a rank tries to meet the others.
    fn meeting_ends(&self) -> Duration {
        MEETING.min(self.setup.limit / 4)
    }

    /// Until when the first node waits for its ranks at its meeting alone.
    fn together_ends(&self) -> Duration {
        TOGETHER.min(self.setup.limit / 8)
    }

    /// Whether ranks elsewhere hang on the first rank of this node, which has yet to come here.
    fn is_awaited(&self) -> bool {
        let first = self.first();
        self.nearby == Nearby::Hosting
            && !self.leads
            && (first == 0 || self.tree.is_inner(first, self.setup.size))
    }

    /// Whether ranks of the first node may be elsewhere, and could not find it.
    fn is_incomplete(&self) -> bool {
        self.leads
            && !self.keys.has(0)
            && self.first() == 0
            && self.absent_nearby().next().is_some()
    }

    /// Ranks of the node that have not come to this one.
    pub(super) fn absent_nearby(&self) -> impl Iterator<Item = u32> {
        let here = |wanted: u32| {
            wanted == self.setup.rank
                || self.lower.values().any(|lower| {
                    matches!(lower, Lower::Child { rank, door: Door::Local, .. } if *rank == wanted)
                })
        };
        let first = self.first();
        (first..first.saturating_add(self.tree.local())).filter(move |rank| !here(*rank))
    }

    fn rest(&mut self, now: Duration) {
        self.upward = Upward::Resting {
            until: now + self.search.rest,
        };
        self.search.rest = LONGEST_REST.min(self.search.rest * 2);
    }
}
