//! The C arguments of operations, turned into the engine's and checked on the way.
//!
//! This module must not know which operation they are for.

use std::ffi::c_void;
use std::time::Duration;

use ferrocomm_abi::*;
use ferrocomm_core::call::{Region, Regions, Source, Stream};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reduce_op::ReduceOp;
use ferrocomm_core::{Error, Result};
use ferrocomm_engine::Communicator;

use crate::comm::hints_of;
use crate::ffi::{self, Out, SizeTagged, guard_value, invalid, null};
use crate::info::{dtype_of, reduce_op_of};

// SAFETY: `repr(C)`, starts with its size; numbers may be zero.
unsafe impl SizeTagged for fc_op_options {
    const NAME: &'static str = "fc_op_options";
}

const DEFAULTS: fc_op_options = fc_op_options {
    size: size_of::<fc_op_options>(),
    timeout_ns: 0,
    premul_factor: 1.0,
    stream: std::ptr::null_mut(),
    on_stream: 0,
    premul_device_factor: std::ptr::null(),
    hints: std::ptr::null(),
    hint_count: 0,
};

/// Sets `options` to defaults: the communicator's time-out, a factor of 1, the default stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_op_options_init(options: *mut fc_op_options) {
    guard_value((), || {
        // SAFETY: the caller passes NULL or a place for the struct.
        unsafe { Out::new(options, "options") }?.set(DEFAULTS);
        Ok(())
    });
}

/// Reads an operation's options; NULL means defaults.
///
/// # Safety
/// `options` is NULL or an initialised struct, whose hints are as many as it says.
#[inline(always)]
pub(crate) unsafe fn options_of(options: *const fc_op_options) -> Result<fc_op_options> {
    if options.is_null() {
        return Ok(DEFAULTS);
    }
    // SAFETY: not NULL; the size is the caller's word.
    let options = unsafe { ffi::read_sized(options) }?;
    if options.hint_count > 0 {
        // SAFETY: by the caller's promise.
        unsafe { hear(&options) }?;
    }
    Ok(options)
}

/// No engine has a choice that is left to one operation, so each of its hints is an unknown one.
///
/// # Safety
/// The hints are as many as `options` says, and nul-terminated.
#[cold]
unsafe fn hear(options: &fc_op_options) -> Result<()> {
    // SAFETY: by the caller's promise.
    for (key, _) in unsafe { hints_of(options.hints, options.hint_count) }? {
        ferrocomm_engine::log_unknown_hint(&key);
    }
    Ok(())
}

/// How an operation is called.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    pub(crate) timeout: Option<Duration>,
    pub(crate) stream: Stream,
    pub(crate) on_stream: bool,
}

impl Manner {
    /// As default options ask for.
    pub(crate) const DEFAULT: Self = Self {
        timeout: None,
        stream: Stream(0),
        on_stream: false,
    };
}

/// How `options` ask for an operation to be called.
#[inline(always)]
pub(crate) fn manner_of(options: &fc_op_options) -> Result<Manner> {
    Ok(Manner {
        timeout: ffi::timeout(options.timeout_ns)?,
        stream: Stream(options.stream.expose_provenance()),
        on_stream: options.on_stream != 0,
    })
}

/// Turns the C arguments of one operation into the engine's.
pub(crate) struct Arguments<'a> {
    communicator: &'a Communicator,
    pub(crate) dtype: Dtype,
    pub(crate) premul_factor: f64,
    /// 0: none
    pub(crate) premul_address: usize,
}

impl<'a> Arguments<'a> {
    #[inline(always)]
    pub(crate) fn new(communicator: &'a Communicator, dtype: fc_dtype) -> Result<Self> {
        let premul_factor = DEFAULTS.premul_factor;
        Ok(Self {
            communicator,
            dtype: dtype_of(dtype)?,
            premul_factor,
            premul_address: 0,
        })
    }

    /// A rank argument.
    pub(crate) fn rank(&self, name: &'static str, rank: i32) -> Result<GroupRank> {
        self.communicator.rank_argument(name, rank)
    }

    pub(crate) fn is_root(&self, root: GroupRank) -> bool {
        self.communicator.rank() == root
    }

    pub(crate) fn size(&self) -> usize {
        self.communicator.size()
    }

    #[inline(always)]
    pub(crate) fn reduce_op(&self, op: fc_reduce_op) -> Result<ReduceOp> {
        match reduce_op_of(op, self.premul_factor)? {
            ReduceOp::PremulSum(_) if self.premul_address != 0 => {
                Ok(ReduceOp::PremulSumAt(self.premul_address))
            }
            op => Ok(op),
        }
    }

    #[inline(always)]
    fn bytes(&self, name: &'static str, count: usize) -> Result<usize> {
        count
            .checked_mul(self.dtype.size())
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| too_large(name, count))
    }

    /// `count` elements at `pointer`; NULL is an address only for none.
    #[inline(always)]
    pub(crate) fn region(
        &self,
        name: &'static str,
        pointer: *const c_void,
        count: usize,
    ) -> Result<Region> {
        let bytes = self.bytes(name, count)?;
        match (pointer.is_null(), bytes) {
            (_, 0) => Ok(Region::EMPTY),
            (true, _) => Err(missing(name, count)),
            (false, bytes) => Ok(Region {
                address: pointer.addr(),
                bytes,
            }),
        }
    }

    /// `count` elements per rank, one rank behind the other.
    pub(crate) fn parts(
        &self,
        name: &'static str,
        pointer: *const c_void,
        count: usize,
    ) -> Result<Regions> {
        let total = count
            .checked_mul(self.size())
            .ok_or_else(|| too_large(name, count))?;
        let each = self.bytes(name, count)?;
        Ok(Regions::Equal {
            whole: self.region(name, pointer, total)?,
            each,
        })
    }

    /// A list of one buffer per rank.
    fn buffers(
        &self,
        name: &'static str,
        buffers: &[*const c_void],
        count: impl Fn(usize) -> usize,
    ) -> Result<Regions> {
        let regions = buffers.iter().enumerate();
        let regions = regions.map(|(rank, buffer)| {
            self.region(name, *buffer, count(rank))
                .map_err(|e| e.expected(format!("a buffer for rank {rank}")))
        });
        Ok(Regions::List(regions.collect::<Result<_>>()?))
    }

    /// A list of buffers, each with a count of its own.
    ///
    /// # Safety
    /// Both lists are NULL or as long as the communicator has ranks.
    pub(crate) unsafe fn buffers_v(
        &self,
        name: &'static str,
        buffers: *const *const c_void,
        counts: *const usize,
    ) -> Result<Regions> {
        // SAFETY: by the caller's promise.
        let counts = unsafe { ffi::list(counts, self.size(), "counts") }?;
        // SAFETY: as above.
        let buffers = unsafe { ffi::list(buffers, self.size(), name) }?;
        self.buffers(name, buffers, |rank| counts[rank])
    }

    /// This rank's entry of a list of counts.
    ///
    /// # Safety
    /// The list is NULL or as long as the communicator has ranks.
    pub(crate) unsafe fn own_count(&self, counts: *const usize) -> Result<usize> {
        // SAFETY: by the caller's promise.
        let counts = unsafe { ffi::list(counts, self.size(), "counts") }?;
        Ok(counts[self.communicator.rank().index()])
    }

    /// A list of buffers of `count` elements that only the root gives.
    ///
    /// # Safety
    /// On the root, `buffers` is NULL or as long as the communicator has ranks.
    pub(crate) unsafe fn at_root(
        &self,
        name: &'static str,
        root: GroupRank,
        buffers: *const *const c_void,
        count: usize,
    ) -> Result<Option<Regions>> {
        if !self.is_root(root) {
            return Ok(None);
        }
        // SAFETY: by the caller's promise.
        let buffers = unsafe { ffi::list(buffers, self.size(), name) }?;
        self.buffers(name, buffers, |_| count).map(Some)
    }
}

#[cold]
fn too_large(name: &'static str, count: usize) -> Error {
    invalid(format!("{name} is larger than memory")).got(count)
}

#[cold]
fn missing(name: &'static str, count: usize) -> Error {
    null(name).got(format!("NULL for {count} elements"))
}

/// Whom a receive listens to.
pub(crate) fn source_of(arguments: &Arguments<'_>, src: i32) -> Result<Source> {
    if src == FC_ANY_SOURCE {
        return Ok(Source::Any);
    }
    let named = arguments
        .rank("src", src)
        .map_err(|error| error.remedy("-1 means any source"));
    named.map(Source::Rank)
}
