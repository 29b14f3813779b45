//! Waits for signals inside the progress engine: those that a spin did not end.
//!
//! Part of the progress engine's state, under the same lock. Must not know how signals travel.

use std::sync::Arc;

use ferrocomm_core::error::Result;
use ferrocomm_core::ids::{CommId, GroupRank};
use ferrocomm_core::window::WindowCall;
use ferrocomm_core::work::Work;

use super::Pane;
use crate::core::Core;
use crate::op::Course;

impl Core {
    /// Lets the engine wait for a signal of `from`, behind the waits before.
    ///
    /// # Errors
    /// The cause of failure of the communicator.
    pub(super) fn await_signal(
        &mut self,
        pane: &Arc<Pane>,
        from: GroupRank,
        call: &WindowCall,
    ) -> Result<Arc<Work>> {
        let (comm, _) = pane.id;
        self.open_group(comm)?;
        let work = Arc::new(Work::new(call.task.operation(), call.sequence));
        let body = Course::Awaiting {
            pane: pane.clone(),
            from,
        };
        pane.enqueue(from);
        let op = self.add_op(&work, comm, call.sequence, call.timeout, call.mode, body);
        self.set_deadline(op);
        self.awaiting.push(op);
        if !self.serve_waits() {
            self.notice_end_of(comm, from);
        }
        Ok(work)
    }

    /// Makes sure that it is noticed when `rank`, which is waited for, dies. A rank of this machine is
    /// looked at once the wait takes long.
    fn notice_end_of(&mut self, comm: CommId, rank: GroupRank) {
        let Some(group) = self.groups.get(&comm) else {
            return;
        };
        let own = self.endpoint.me.machine;
        let far = group
            .members
            .get(rank.index())
            .is_some_and(|member| member.machine != own);
        if far && let Err(error) = self.link_to(comm, rank) {
            self.fail(comm, error);
        }
    }

    /// Gives signals to those that wait for them, in their order; whether there was one.
    pub(crate) fn serve_waits(&mut self) -> bool {
        let mut served = Vec::new();
        for key in &self.awaiting {
            if let Some(op) = self.ops.get(*key)
                && let Course::Awaiting { pane, from } = &op.body
                && pane.take_for_queued(*from)
            {
                served.push(*key);
            }
        }
        for key in &served {
            self.finish(*key, Ok(()));
        }
        !served.is_empty()
    }

    /// Whether an operation of this communicator awaits a signal of `rank`.
    pub(crate) fn awaits(&self, comm: CommId, rank: GroupRank) -> bool {
        self.awaiting.iter().any(|key| {
            self.ops.get(*key).is_some_and(|op| {
                op.comm == comm && matches!(op.body, Course::Awaiting { from, .. } if from == rank)
            })
        })
    }

    /// Tells those that signal that this process sleeps, where it waits.
    pub(crate) fn lie_down_at_windows(&mut self) {
        let mut panes: Vec<Arc<Pane>> = Vec::new();
        for key in &self.awaiting {
            if let Some(op) = self.ops.get(*key)
                && let Course::Awaiting { pane, .. } = &op.body
                && !panes.iter().any(|other| Arc::ptr_eq(other, pane))
            {
                pane.board.lie_down();
                panes.push(pane.clone());
            }
        }
        self.lying_at = panes;
    }

    /// Takes that back, also where nobody waits any more: else every signal would ring a bell.
    pub(crate) fn get_up_at_windows(&mut self) {
        for pane in std::mem::take(&mut self.lying_at) {
            pane.board.get_up();
        }
    }
}
