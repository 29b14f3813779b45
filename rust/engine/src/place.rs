//! The place in which one communicator follows another, when its members change. Must not
//! know how they meet.

use std::sync::Arc;
use std::time::Duration;

use ferrocomm_core::group::Group;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::{Error, Result};

use crate::abort_hook::AbortHook;
use crate::backend::Backend;
use crate::communicator::{Communicator, CommunicatorOptions, DEFAULT_TIMEOUT, checked, positive};
use crate::process::process;
use crate::recorder::Label;
use crate::state::Event;

/// What communicators that follow one another in one place have in common.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) backend: Backend,
    pub(crate) name: Arc<str>,
    pub(crate) rank: GroupRank,
    pub(crate) size: usize,
    pub(crate) timeout: Duration,
    /// the client's, who set it once
    pub(crate) abort_hook: Option<AbortHook>,
}

impl Place {
    /// The place of a communicator that nobody has joined yet.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(crate) fn of(options: &CommunicatorOptions) -> Result<Self> {
        let (rank, size) = checked(&options.name, options.rank, options.size)?;
        Ok(Self {
            backend: options.backend,
            name: options.name.clone(),
            rank,
            size,
            timeout: positive(options.timeout.unwrap_or(DEFAULT_TIMEOUT))?,
            abort_hook: None,
        })
    }

    /// A communicator without members.
    pub(crate) fn vacant(&self) -> Arc<Communicator> {
        let label = Label {
            number: process().number(),
            name: self.name.clone(),
            engine: self.backend.name(),
            rank: self.rank,
            size: self.size,
            members: None,
        };
        let communicator = Communicator::unconfigured(self.backend, label, self.timeout);
        communicator.set_abort_hook(self.abort_hook.clone());
        communicator
    }

    /// One of `group`.
    pub(crate) fn occupied(mut self, group: Arc<dyn Group>) -> Arc<Communicator> {
        (self.rank, self.size) = (group.rank(), group.size());
        self.vacant().joined(group)
    }

    /// One that has failed. The hook is not told.
    pub(crate) fn failed(mut self, cause: Error) -> Arc<Communicator> {
        let hook = self.abort_hook.take();
        let communicator = self.vacant();
        communicator.shared().apply(Event::Failure(cause));
        communicator.set_abort_hook(hook);
        communicator
    }

    pub(crate) fn aborted(&self) -> Arc<Communicator> {
        let communicator = self.vacant();
        communicator.shared().apply(Event::Abort);
        communicator
    }
}
