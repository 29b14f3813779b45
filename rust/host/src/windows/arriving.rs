//! Windows inside the progress engine: opened and closed, and the frames through which ranks that do not
//! reach one another directly put, signal and get.
//!
//! Part of the progress engine's state, under the same lock. Must not know how streams are read and
//! written; `traffic` does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ferrocomm_core::call::{Mode, Operation, Region, Source};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::{CommId, GroupRank};
use ferrocomm_core::window::WindowCall;
use ferrocomm_core::work::Work;

use super::{Pane, WindowId};
use crate::core::Core;
use crate::frame::{CHUNK, Header, Kind};
use crate::link::{Body, Outgoing, Sink, Then};
use crate::membership::Address;
use crate::op::{Course, Recv, Send, Transfer};
use crate::slab::Key;

impl Core {
    // ---- windows

    /// # Errors
    /// The cause of failure of the communicator.
    pub(super) fn open_window(&mut self, pane: &Arc<Pane>) -> Result<()> {
        self.open_group(pane.id.0)?;
        self.windows.insert(pane.id, pane.clone());
        Ok(())
    }

    /// Others reach the window with frames: as long as it is open somebody looks for them.
    pub(super) fn attend(&mut self, pane: &Pane) {
        if !pane.is_closed() && !pane.attended.swap(true, Ordering::Relaxed) {
            self.asynchronous += 1;
        }
    }

    /// Nothing is done to the memory of the window from now on, and nobody waits at it any more.
    pub(super) fn close_window(&mut self, id: WindowId) {
        let Some(pane) = self.windows.remove(&id) else {
            return;
        };
        pane.closed.store(true, Ordering::Release);
        pane.board.close();
        if pane.attended.load(Ordering::Relaxed) {
            self.asynchronous -= 1;
        }
        let waits = self.awaiting.iter().copied().filter(|key| {
            let op = self.ops.get(*key);
            op.is_some_and(|op| matches!(&op.body, Course::Awaiting { pane, .. } if pane.id == id))
        });
        let failed = matches!(
            self.groups.get(&id.0).map(|group| &group.standing),
            None | Some(crate::membership::Standing::Failed(_))
        );
        // Those of a communicator that fails get its cause.
        if failed {
            return;
        }
        for key in waits.collect::<Vec<_>>() {
            let error = Error::new(ErrorKind::State, "the window was deregistered meanwhile");
            self.fail_alone(key, error);
        }
    }

    /// Closes all windows of a communicator.
    pub(crate) fn close_windows(&mut self, comm: CommId) {
        let ids: Vec<WindowId> = self
            .windows
            .keys()
            .copied()
            .filter(|(of, _)| *of == comm)
            .collect();
        for id in ids {
            self.close_window(id);
        }
    }

    /// Operations that move bytes of this communicator's windows, now.
    pub(super) fn moving(&self, comm: CommId) -> Vec<Key> {
        self.ops
            .iter()
            .filter(|(_, op)| {
                let operation = op.work.operation();
                op.comm == comm
                    && matches!(
                        operation,
                        Operation::Put | Operation::PutSignal | Operation::Get
                    )
            })
            .map(|(key, _)| key)
            .collect()
    }

    // ---- out

    /// Sends `source` to the window of `to`, in frames, and a signal behind them.
    ///
    /// # Errors
    /// The cause of failure of the communicator, or of the link.
    pub(super) fn send_put(
        &mut self,
        (comm, number): WindowId,
        (to, offset): (GroupRank, usize),
        source: Region,
        signal: bool,
        call: &WindowCall,
    ) -> Result<Arc<Work>> {
        self.open_group(comm)?;
        let link = self.link_to(comm, to)?;
        let (op, work) = self.start_moving(comm, call);
        let send = self.start_transfer(op, Transfer::Send, |core, index| {
            core.sends.insert(Send {
                op,
                index,
                comm,
                to,
                link: Some(link),
                region: source,
                sent: source.bytes,
                gone: 0,
                granted: None,
            })
        });
        if let Some(send) = send {
            self.queue_put((comm, number), link, send, source, offset);
        }
        if signal {
            self.queue_signal((comm, number), link);
        }
        self.write_link(link);
        self.ready.push_back(op);
        self.run_ready();
        Ok(work)
    }

    fn queue_put(
        &mut self,
        (comm, number): WindowId,
        link: Key,
        send: Key,
        source: Region,
        offset: usize,
    ) {
        if source.bytes == 0 {
            return self.send_done(send);
        }
        let Some(entry) = self.links.get_mut(link) else {
            return;
        };
        let mut sent = 0;
        while sent < source.bytes {
            let bytes = CHUNK.min(source.bytes - sent);
            let mut header = Header::control(Kind::Put, comm);
            header.sequence = number;
            header.transfer = (offset + sent) as u64;
            header.payload = u32::try_from(bytes).unwrap_or(0);
            let region = source.slice(sent, bytes);
            sent += bytes;
            entry.out.push_back(Outgoing {
                header: header.encode(),
                body: Body::Lent { send, region },
                written: 0,
                then: if sent == source.bytes {
                    Then::Complete(send)
                } else {
                    Then::Nothing
                },
            });
        }
    }

    /// Sends a signal to the window of `to`.
    ///
    /// # Errors
    /// As `send_put`.
    pub(super) fn send_signal(&mut self, id: WindowId, to: GroupRank) -> Result<()> {
        self.open_group(id.0)?;
        let link = self.link_to(id.0, to)?;
        self.queue_signal(id, link);
        self.write_link(link);
        Ok(())
    }

    fn queue_signal(&mut self, (comm, number): WindowId, link: Key) {
        let mut header = Header::control(Kind::Signal, comm);
        header.sequence = number;
        self.push_control(link, &header, Vec::new());
    }

    /// Asks for `target.bytes` bytes of the window of `from`.
    ///
    /// # Errors
    /// As `send_put`.
    pub(super) fn send_get(
        &mut self,
        (comm, number): WindowId,
        (from, offset): (GroupRank, usize),
        target: Region,
        call: &WindowCall,
    ) -> Result<Arc<Work>> {
        self.open_group(comm)?;
        let link = self.link_to(comm, from)?;
        let (op, work) = self.start_moving(comm, call);
        let recv = self.start_transfer(op, Transfer::Recv, |core, index| {
            core.recvs.insert(Recv {
                op,
                index,
                comm,
                region: target,
                got: 0,
                dtype: Dtype::Byte,
                from: Source::Rank(from),
                // Nothing is matched with it: its bytes come by its key.
                address: Address::Tagged(0),
                granted: None,
            })
        });
        let mut header = Header::control(Kind::Get, comm);
        header.sequence = number;
        header.transfer = recv.map_or(0, Key::to_bits);
        header.length = target.bytes as u64;
        header.fingerprint.bytes = Some(offset as u64);
        self.push_control(link, &header, Vec::new());
        Ok(work)
    }

    fn start_moving(&mut self, comm: CommId, call: &WindowCall) -> (Key, Arc<Work>) {
        let work = Arc::new(Work::new(call.task.operation(), call.sequence));
        let (timeout, mode) = (call.timeout, call.mode);
        let op = self.add_op(&work, comm, call.sequence, timeout, mode, Course::Points);
        self.set_deadline(op);
        (op, work)
    }

    // ---- in

    /// The window a frame is for, and who sent it.
    fn addressed(&self, key: Key, header: &Header) -> Option<(Arc<Pane>, GroupRank)> {
        let from = self.sender(key, header.comm)?;
        let pane = self.windows.get(&(header.comm, header.sequence))?;
        Some((pane.clone(), from))
    }

    /// Where the payload of a put belongs.
    pub(crate) fn sink_of_put(&mut self, key: Key, header: &Header) -> Sink {
        let Some((pane, from)) = self.addressed(key, header) else {
            return Sink::Nowhere;
        };
        if pane
            .part(header.transfer, u64::from(header.payload))
            .is_none()
        {
            self.fail(header.comm, beyond(from));
            return Sink::Nowhere;
        }
        Sink::Window(pane, header.transfer)
    }

    /// A signal has come as a frame.
    pub(crate) fn signalled(&mut self, key: Key, header: &Header) {
        if let Some((pane, from)) = self.addressed(key, header) {
            // Those that sleep are this process's, which is awake.
            let _own = pane.board.face().signal(from);
            self.serve_waits();
        }
    }

    /// A rank asks for bytes of a window.
    pub(crate) fn answer_get(&mut self, key: Key, header: &Header) {
        let Some((pane, from)) = self.addressed(key, header) else {
            let error = Error::new(ErrorKind::State, "a window was read that is closed")
                .remedy("deregister windows on all ranks before they are dropped");
            return self.fail(header.comm, error);
        };
        let offset = header.fingerprint.bytes.unwrap_or(u64::MAX);
        let Some(region) = pane.part(offset, header.length) else {
            return self.fail(header.comm, beyond(from));
        };
        // An operation of nobody's: so its bytes are safe from whatever ends the communicator.
        let work = Arc::new(Work::new(Operation::Get, 0));
        let (comm, mode) = (header.comm, Mode::Async);
        let op = self.add_op(&work, comm, 0, Duration::MAX, mode, Course::Points);
        let send = self.start_transfer(op, Transfer::Send, |core, index| {
            core.sends.insert(Send {
                op,
                index,
                comm,
                to: from,
                link: Some(key),
                region,
                sent: 0,
                gone: 0,
                granted: Some(header.transfer),
            })
        });
        if let Some(link) = self.links.get_mut(key) {
            link.streaming.extend(send);
        }
        self.write_link(key);
    }
}

/// The error of a frame that is not about the window: no rank of this library sends one.
fn beyond(from: GroupRank) -> Error {
    Error::new(
        ErrorKind::Transport,
        "a message was for bytes beyond a window",
    )
    .peers([from])
}
