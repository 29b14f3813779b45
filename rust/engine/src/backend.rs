//! Which engines there are, and the names users call them by.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::group::Group;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reduce_op::ReduceOp;
use ferrocomm_core::store::Store;
use ferrocomm_core::{Error, ErrorKind, Result};
use ferrocomm_host::{GroupOptions, HostEngine};

/// An engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// memory of the CPU, over shared memory and TCP
    Host,
}

/// What is needed to join, checked.
pub(crate) struct Joining {
    pub(crate) name: Arc<str>,
    pub(crate) rank: GroupRank,
    pub(crate) size: usize,
    pub(crate) timeout: Duration,
    pub(crate) hints: Vec<(String, String)>,
}

impl Backend {
    /// All of them.
    pub const ALL: [Self; 1] = [Self::Host];

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
                .expected("host (or gloo)")
                .remedy("host serves tensors in CPU memory")
            })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
        }
    }

    /// Other names users know it by.
    pub fn aliases(self) -> &'static [&'static str] {
        match self {
            Self::Host => &["gloo"],
        }
    }

    /// Whether it can combine elements of `dtype` with `op`.
    ///
    /// # Errors
    /// `Unsupported`, with the reason.
    pub fn reduction_supported(self, op: ReduceOp, dtype: Dtype) -> Result<()> {
        match self {
            Self::Host => ferrocomm_host::reduction_supported(op, dtype),
        }
    }

    /// How it can move data.
    pub fn transports(self) -> Vec<&'static str> {
        match self {
            Self::Host => ferrocomm_host::transports(),
        }
    }

    /// Memory of `bytes` bytes that peers can read where it lies; given back with `release`.
    ///
    /// # Errors
    /// `Resources` when memory or descriptors run short.
    pub fn allocate(self, bytes: usize) -> Result<NonNull<u8>> {
        match self {
            Self::Host => ferrocomm_host::allocate(bytes),
        }
    }

    /// Gives back what `allocate` returned as `address`.
    ///
    /// # Errors
    /// `InvalidArgument` when it is no such memory, `Forked` when it may be the parent's.
    pub fn release(self, address: usize) -> Result<()> {
        match self {
            Self::Host => ferrocomm_host::release(address),
        }
    }

    /// Joins the ranks into a group: collective, and eager.
    pub(crate) fn join(self, joining: Joining, store: &dyn Store) -> Result<Arc<dyn Group>> {
        let Joining {
            name,
            rank,
            size,
            timeout,
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
        }
    }
}
