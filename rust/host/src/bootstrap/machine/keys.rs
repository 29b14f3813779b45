//! Under which keys others find this process: that of the node it leads, and, where the root counts
//! nodes in another way, those of ranks here at which ranks that count like the root look.
//!
//! Must not know who looks.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::tree::Tree;
use super::{Action, Door, Link, Lower, Machine};
use crate::bootstrap::wire::{self, Message};

/// The keys of a process.
#[derive(Default)]
pub(super) struct Keys {
    /// ranks whose keys lead here, or will once there is an address
    ranks: BTreeSet<u32>,
    /// where this process listens
    address: Option<SocketAddr>,
    /// ranks per node, as the root counts them
    shape: Option<u32>,
}

impl Keys {
    /// Whether the key of `rank` leads here.
    pub(super) fn has(&self, rank: u32) -> bool {
        self.ranks.contains(&rank)
    }
}

impl Machine {
    /// Other machines can connect at `address`.
    pub(in crate::bootstrap) fn listening(&mut self, address: SocketAddr) {
        self.keys.address = Some(address);
        for rank in self.keys.ranks.clone() {
            self.set_key(rank, address);
        }
    }

    fn set_key(&mut self, rank: u32, address: SocketAddr) {
        let value = wire::key_value(&self.setup.nonce, self.tree.local(), address);
        self.actions.push_back(Action::Publish { rank, value });
    }

    /// Lets others find this process under the key of `rank`, which is here.
    pub(super) fn publish(&mut self, rank: u32) {
        let listens = !self.keys.ranks.is_empty();
        if !self.keys.ranks.insert(rank) {
            return;
        }
        match self.keys.address {
            Some(address) => self.set_key(rank, address),
            None if listens => {}
            None => self.actions.push_back(Action::Listen),
        }
    }

    /// The root counts `local` ranks per node.
    pub(super) fn learn_shape(&mut self, local: u32) {
        if self.keys.shape.replace(local).is_none() {
            let links: Vec<Link> = self.lower.keys().copied().collect();
            links.into_iter().for_each(|link| self.tell_shape(link));
            self.fill_in();
        }
    }

    /// Passes on how the root counts. The ranks of this node have no keys of their own.
    pub(super) fn tell_shape(&mut self, link: Link) {
        let is_remote = matches!(
            self.lower.get(&link),
            Some(Lower::Child {
                door: Door::Remote,
                ..
            })
        );
        if let Some(local) = self.keys.shape.filter(|_| is_remote) {
            let bytes = Message::Shape { local }.encode();
            self.actions.push_back(Action::Send { link, bytes });
        }
    }

    /// Sets the keys at which ranks that count like the root look for ranks of this node.
    pub(super) fn fill_in(&mut self) {
        let Some(tree) = self.keys.shape.map(Tree::of_nodes) else {
            return;
        };
        if tree == self.tree {
            return;
        }
        let absent: BTreeSet<u32> = self.absent_nearby().collect();
        let first = self.first();
        let sought = (first..first.saturating_add(self.tree.local()))
            .filter(|rank| tree.first(*rank) == *rank && tree.is_inner(*rank, self.setup.size))
            .filter(|rank| !absent.contains(rank));
        for rank in sought.collect::<Vec<u32>>() {
            self.publish(rank);
        }
    }
}
