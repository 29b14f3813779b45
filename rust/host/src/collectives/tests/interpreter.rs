//! Runs the programs of all ranks in one thread, in a random interleaving, with mailboxes for
//! links. Addresses of regions are offsets into a rank's memory. It reports a deadlock, messages
//! that do not fit or that nobody took, and memory used while a transfer owns it.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;

use ferrocomm_core::reduction::{Input, Reduction};

use crate::program::{Operand, Place, Program, Step};
use crate::random::Random;

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// In the order sent, each when the receiver has asked for it; a send ends with its delivery.
    InOrder,
    /// In any order, each when the receiver has asked for it; a send ends with its delivery.
    Rendezvous,
    /// In any order; a send may end before the receiver has asked.
    Buffered,
}

type Outcome<T> = Result<T, String>;

struct Transfer {
    peer: usize,
    part: u32,
    place: Place,
    sends: bool,
    done: bool,
}

struct Message {
    part: u32,
    transfer: usize,
    /// its bytes, once it has left the sender's memory
    buffered: Option<Vec<u8>>,
}

struct Rank<'a> {
    program: &'a Program,
    at: usize,
    client: Vec<u8>,
    scratch: Vec<u8>,
    transfers: Vec<Transfer>,
    /// transfers that own their memory: started and not waited for
    owners: Vec<usize>,
    names: HashSet<(bool, usize, u32)>,
}

impl Rank<'_> {
    fn finished(&self) -> bool {
        self.at == self.program.steps.len()
    }

    fn read(&self, place: Place) -> &[u8] {
        match place {
            Place::Client(region) if region.bytes == 0 => &[],
            Place::Client(region) => &self.client[region.address..][..region.bytes],
            Place::Scratch { offset, bytes } => &self.scratch[offset..][..bytes],
        }
    }

    fn write(&mut self, place: Place, data: &[u8]) {
        match place {
            Place::Client(region) if region.bytes == 0 => {}
            Place::Client(region) => {
                self.client[region.address..][..region.bytes].copy_from_slice(data);
            }
            Place::Scratch { offset, bytes } => {
                self.scratch[offset..][..bytes].copy_from_slice(data)
            }
        }
    }

    /// Whether a use of `place` respects the transfers that own memory.
    fn claim(&self, place: Place, writes: bool) -> Outcome<()> {
        for &owner in &self.owners {
            let transfer = &self.transfers[owner];
            if overlap(place, transfer.place) && (writes || !transfer.sends) {
                let use_of = if writes { "write to" } else { "read of" };
                return Err(format!("{use_of} {place:?}, which transfer {owner} owns"));
            }
        }
        Ok(())
    }

    fn begin(&mut self, peer: usize, part: u32, place: Place, sends: bool) -> Outcome<()> {
        self.claim(place, !sends)?;
        if !self.names.insert((sends, peer, part)) {
            return Err(format!("part {part} with rank {peer} is used twice"));
        }
        self.owners.push(self.transfers.len());
        self.transfers.push(Transfer {
            peer,
            part,
            place,
            sends,
            done: false,
        });
        Ok(())
    }

    fn reduce(&mut self, reduction: Reduction, operands: &[Operand], out: Place) -> Outcome<()> {
        self.claim(out, true)?;
        for operand in operands {
            if let Operand::At(place) = operand {
                self.claim(*place, false)?;
                if overlap(*place, out) {
                    return Err(format!("operand {place:?} overlaps the output {out:?}"));
                }
            }
        }
        let mut result = self.read(out).to_vec();
        let inputs: Vec<Input<'_>> = operands
            .iter()
            .map(|operand| match operand {
                Operand::At(place) => Input::Bytes(self.read(*place)),
                Operand::Output => Input::Output,
            })
            .collect();
        reduction.reduce(&mut result, &inputs);
        self.write(out, &result);
        Ok(())
    }
}

fn span(place: Place) -> (bool, Range<usize>) {
    match place {
        Place::Client(region) => (false, region.address..region.address + region.bytes),
        Place::Scratch { offset, bytes } => (true, offset..offset + bytes),
    }
}

fn overlap(a: Place, b: Place) -> bool {
    let ((space_a, a), (space_b, b)) = (span(a), span(b));
    space_a == space_b && !a.is_empty() && !b.is_empty() && a.start < b.end && b.start < a.end
}

struct World<'a> {
    ranks: Vec<Rank<'a>>,
    /// by sender, then receiver
    links: Vec<Vec<VecDeque<Message>>>,
    delivery: Delivery,
    random: Random,
}

/// Memory of all ranks after their programs, which started on `memories`.
pub(super) fn run(
    programs: &[Program],
    memories: Vec<Vec<u8>>,
    delivery: Delivery,
    seed: u64,
) -> Outcome<Vec<Vec<u8>>> {
    let mut world = World::new(programs, memories, delivery, seed);
    world.drive()?;
    if let Some(stuck) = world.ranks.iter().position(|rank| !rank.finished()) {
        let at = world.ranks[stuck].at;
        return Err(format!("deadlock: rank {stuck} waits at step {at}"));
    }
    if world.links.iter().flatten().any(|link| !link.is_empty()) {
        return Err("messages were left over".into());
    }
    if let Some(rank) = world.ranks.iter().position(|rank| !rank.owners.is_empty()) {
        return Err(format!("rank {rank} did not wait for all its transfers"));
    }
    Ok(world.ranks.into_iter().map(|rank| rank.client).collect())
}

/// The ranks whose programs end although rank `absent` never starts.
pub(super) fn finished_without(programs: &[Program], absent: usize) -> Vec<usize> {
    let memories = vec![Vec::new(); programs.len()];
    let mut world = World::new(programs, memories, Delivery::Buffered, 1);
    let idle = Program::default();
    world.ranks[absent].program = &idle;
    world.drive().unwrap();
    let done = |rank: &usize| *rank != absent && world.ranks[*rank].finished();
    (0..programs.len()).filter(done).collect()
}

impl<'a> World<'a> {
    fn new(programs: &'a [Program], memories: Vec<Vec<u8>>, delivery: Delivery, seed: u64) -> Self {
        let size = programs.len();
        let ranks = programs
            .iter()
            .zip(memories)
            .map(|(program, client)| Rank {
                program,
                at: 0,
                client,
                scratch: vec![0xdd; program.scratch],
                transfers: Vec::new(),
                owners: Vec::new(),
                names: HashSet::new(),
            })
            .collect();
        let links = (0..size)
            .map(|_| (0..size).map(|_| VecDeque::new()).collect())
            .collect();
        Self {
            ranks,
            links,
            delivery,
            random: Random::new(seed),
        }
    }

    /// Goes on, at a random place each time, until nothing moves any more.
    fn drive(&mut self) -> Outcome<()> {
        let size = self.ranks.len();
        let places = size + size * size;
        'moving: loop {
            // Ranks and links get even chances.
            let start = if self.random.below(2) == 0 {
                self.random.below(size as u64)
            } else {
                size as u64 + self.random.below((size * size) as u64)
            };
            for offset in 0..places {
                let place = (start as usize + offset) % places;
                let moved = if place < size {
                    self.step(place)?
                } else {
                    let link = place - size;
                    self.deliver(link / size, link % size)?
                };
                if moved {
                    continue 'moving;
                }
            }
            return Ok(());
        }
    }

    /// Lets a rank do a step; whether it could.
    fn step(&mut self, me: usize) -> Outcome<bool> {
        let rank = &mut self.ranks[me];
        let Some(step) = rank.program.steps.get(rank.at) else {
            return Ok(false);
        };
        match step {
            Step::Send { to, part, from } => {
                rank.begin(to.index(), *part, *from, true)?;
                let transfer = rank.transfers.len() - 1;
                let message = Message {
                    part: *part,
                    transfer,
                    buffered: None,
                };
                self.links[me][to.index()].push_back(message);
            }
            Step::Recv { from, part, into } => rank.begin(from.index(), *part, *into, false)?,
            Step::Wait(range) => {
                let (start, end) = (range.start as usize, range.end as usize);
                if end > rank.transfers.len() {
                    return Err(format!("rank {me} waits for transfers it has not started"));
                }
                if rank.transfers[start..end]
                    .iter()
                    .any(|transfer| !transfer.done)
                {
                    return Ok(false);
                }
                rank.owners.retain(|owner| !(start..end).contains(owner));
            }
            Step::Copy { from, to } => {
                rank.claim(*from, false)?;
                rank.claim(*to, true)?;
                if from != to && overlap(*from, *to) {
                    return Err(format!("copy from {from:?} to {to:?}, which overlap"));
                }
                let data = rank.read(*from).to_vec();
                rank.write(*to, &data);
            }
            Step::Reduce {
                reduction,
                operands,
                output,
            } => {
                rank.reduce(*reduction, operands, *output)?;
            }
        }
        self.ranks[me].at += 1;
        Ok(true)
    }

    /// Moves one message of a link on; whether there was one to move.
    fn deliver(&mut self, from: usize, to: usize) -> Outcome<bool> {
        let waiting = self.links[from][to].len();
        if waiting == 0 {
            return Ok(false);
        }
        let first = match self.delivery {
            Delivery::InOrder => 0,
            Delivery::Rendezvous | Delivery::Buffered => self.random.below(waiting as u64) as usize,
        };
        let candidates = if self.delivery == Delivery::InOrder {
            1
        } else {
            waiting
        };
        for offset in 0..candidates {
            if self.take(from, to, (first + offset) % waiting)? {
                return Ok(true);
            }
        }
        Ok(self.delivery == Delivery::Buffered && self.buffer(from, to, first))
    }

    /// Hands a message over, if its receiver has asked for it.
    fn take(&mut self, from: usize, to: usize, index: usize) -> Outcome<bool> {
        let part = self.links[from][to][index].part;
        let wanted = |transfer: &Transfer| {
            !transfer.sends && transfer.peer == from && transfer.part == part && !transfer.done
        };
        let Some(transfer) = self.ranks[to].transfers.iter().position(wanted) else {
            return Ok(false);
        };
        let Some(message) = self.links[from][to].remove(index) else {
            return Ok(false);
        };
        let data = message
            .buffered
            .unwrap_or_else(|| self.leave(from, message.transfer));
        let place = self.ranks[to].transfers[transfer].place;
        if data.len() != span(place).1.len() {
            let (sent, wanted) = (data.len(), span(place).1.len());
            return Err(format!(
                "rank {from} sent {sent} bytes, rank {to} expects {wanted}"
            ));
        }
        self.ranks[to].write(place, &data);
        self.ranks[to].transfers[transfer].done = true;
        Ok(true)
    }

    /// Ends a send whose receiver has not asked yet.
    fn buffer(&mut self, from: usize, to: usize, index: usize) -> bool {
        let message = &self.links[from][to][index];
        if message.buffered.is_some() {
            return false;
        }
        let data = self.leave(from, message.transfer);
        self.links[from][to][index].buffered = Some(data);
        true
    }

    /// Takes a message out of its sender's memory.
    fn leave(&mut self, from: usize, transfer: usize) -> Vec<u8> {
        let rank = &mut self.ranks[from];
        rank.transfers[transfer].done = true;
        rank.read(rank.transfers[transfer].place).to_vec()
    }
}
