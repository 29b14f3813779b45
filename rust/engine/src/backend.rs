//! Which engines there are, and the names users call them by.
//! The one place of this crate that makes them. Must not know how an engine does its work.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::group::Group;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reconfigure::Presence;
use ferrocomm_core::reduce_op::ReduceOp;
use ferrocomm_core::store::Store;
use ferrocomm_core::{Error, ErrorKind, Result};
use ferrocomm_host::{GroupOptions, HostEngine};

use crate::communicator::{CommunicatorOptions, DEFAULT_TIMEOUT};
use crate::fatal;

/// An engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// memory of the CPU, over shared memory and TCP
    Host,
    /// memory of NVIDIA GPUs, through NCCL
    Nccl,
}

/// What is needed to join, checked.
pub(crate) struct Joining {
    pub(crate) name: Arc<str>,
    pub(crate) rank: GroupRank,
    pub(crate) size: usize,
    pub(crate) timeout: Duration,
    pub(crate) device: i32,
    pub(crate) hints: Vec<(String, String)>,
}

impl Backend {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Host, Self::Nccl];

    /// The engine that `name` or one of its aliases means.
    ///
    /// # Errors
    /// `Unsupported`, when no engine has that name.
    pub fn named(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|backend| backend.name() == name || backend.aliases().contains(&name))
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Unsupported,
                    "no engine of this library has that name",
                )
                .got(name)
                .expected("host (or gloo), nccl")
                .remedy("host serves tensors in CPU memory, nccl those of NVIDIA GPUs")
            })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Nccl => "nccl",
        }
    }

    /// Other names users know it by.
    pub fn aliases(self) -> &'static [&'static str] {
        match self {
            Self::Host => &["gloo"],
            Self::Nccl => &[],
        }
    }

    /// Whether it can combine elements of `dtype` with `op`.
    ///
    /// # Errors
    /// `Unsupported`, with the reason.
    #[inline(always)]
    pub fn reduction_supported(self, op: &ReduceOp, dtype: Dtype) -> Result<()> {
        match self {
            Self::Host => ferrocomm_host::reduction_supported(op, dtype),
            Self::Nccl => ferrocomm_nccl::reduction_supported(*op, dtype),
        }
    }

    /// How it can move data in this process.
    pub fn transports(self) -> Vec<&'static str> {
        match self {
            Self::Host => ferrocomm_host::transports(),
            Self::Nccl if self.usable().is_err() => Vec::new(),
            Self::Nccl => ferrocomm_nccl::transports(),
        }
    }

    /// Whether it can make communicators in this process.
    ///
    /// # Errors
    /// `Unsupported`, with what is missing.
    pub fn usable(self) -> Result<()> {
        match self {
            Self::Host => Ok(()),
            Self::Nccl => ferrocomm_nccl::usable(),
        }
    }

    /// What it found on this machine: pairs of a name and a text.
    pub fn findings(self) -> Vec<(&'static str, String)> {
        match self {
            Self::Host => Vec::new(),
            Self::Nccl => ferrocomm_nccl::describe(),
        }
    }

    /// Memory of `bytes` bytes that peers can read where it lies; given back with `release`. Of a
    /// GPU, on the thread's current device.
    ///
    /// # Errors
    /// `Resources` when memory or descriptors run short.
    pub fn allocate(self, bytes: usize) -> Result<NonNull<u8>> {
        match self {
            Self::Host => ferrocomm_host::allocate(bytes),
            Self::Nccl => ferrocomm_nccl::allocate(bytes),
        }
    }

    /// Gives back what `allocate` returned as `address`.
    ///
    /// # Errors
    /// `InvalidArgument` when it is no such memory, `Forked` when it may be the parent's.
    pub fn release(self, address: usize) -> Result<()> {
        match self {
            Self::Host => ferrocomm_host::release(address),
            Self::Nccl => ferrocomm_nccl::release(address),
        }
    }

    /// The presence of a communicator whose members change.
    ///
    /// # Errors
    /// `Unsupported` where groups cannot change; whatever keeps the engine from listening.
    pub(crate) fn presence(self, options: &CommunicatorOptions) -> Result<Arc<dyn Presence>> {
        let meeting = || HostEngine::process()?.presence(&options.name, options.rank);
        match self {
            Self::Host => meeting(),
            Self::Nccl => {
                let options = ferrocomm_nccl::GroupOptions {
                    name: options.name.clone(),
                    rank: GroupRank::new(0),
                    size: 1,
                    timeout: options.timeout.unwrap_or(DEFAULT_TIMEOUT),
                    device: options.device,
                    hints: options.hints.clone(),
                    on_fatal: Arc::new(fatal::report),
                };
                ferrocomm_nccl::presence(&options, meeting()?)
            }
        }
    }

    /// Joins the ranks into a group: collective, and eager.
    pub(crate) fn join(self, joining: Joining, store: &dyn Store) -> Result<Arc<dyn Group>> {
        let Joining {
            name,
            rank,
            size,
            timeout,
            device,
            hints,
        } = joining;
        match self {
            Self::Host => HostEngine::process()?.create(
                &GroupOptions {
                    name,
                    rank,
                    size,
                    timeout,
                    hints,
                },
                store,
            ),
            Self::Nccl => ferrocomm_nccl::create(
                &ferrocomm_nccl::GroupOptions {
                    name,
                    rank,
                    size,
                    timeout,
                    device,
                    hints,
                    on_fatal: Arc::new(fatal::report),
                },
                store,
            ),
        }
    }
}
