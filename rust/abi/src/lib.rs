//! The `#[repr(C)]` types of the C ABI, alone: no functions, no state.
//!
//! Shared by `capi`, which exports the functions, and by `torch-bridge`, which is linked into the
//! torch extension. If the bridge depended on `capi` instead, a second engine would be linked into
//! the same process. This crate must not know the engine.
#![allow(non_camel_case_types)]
#![forbid(unsafe_code)]

use std::ffi::{c_char, c_void};

/// Version of this ABI. A client compares it with `fc_abi_version()` before its first call.
pub const FC_ABI_VERSION: u32 = 1;

/// Outcome of a call. Numbers are never reused.
pub type fc_status = i32;
/// Success.
pub const FC_OK: fc_status = 0;
/// An argument does not fit; nothing was moved and the communicator is usable.
pub const FC_ERR_INVALID_ARGUMENT: fc_status = 1;
/// The operation, dtype, reduce op or backend is not supported; nothing was moved.
pub const FC_ERR_UNSUPPORTED: fc_status = 2;
/// The communicator or work is in a state that does not allow the call (finalized, unconfigured).
pub const FC_ERR_STATE: fc_status = 3;
/// A deadline passed.
pub const FC_ERR_TIMEOUT: fc_status = 4;
/// A peer died or cannot be reached.
pub const FC_ERR_PEER_LOST: fc_status = 5;
/// Two ranks called different operations, or the same one with different arguments.
pub const FC_ERR_MISMATCH: fc_status = 6;
/// The communicator was aborted.
pub const FC_ERR_ABORTED: fc_status = 7;
/// A connection or shared memory failed for another reason than the peer's death.
pub const FC_ERR_TRANSPORT: fc_status = 8;
/// The store reported an error.
pub const FC_ERR_STORE: fc_status = 9;
/// The store's own time-out passed.
pub const FC_ERR_STORE_TIMEOUT: fc_status = 10;
/// The connection to the store was lost.
pub const FC_ERR_STORE_DISCONNECTED: fc_status = 11;
/// Memory, shared memory or file descriptors ran short.
pub const FC_ERR_RESOURCES: fc_status = 12;
/// The engine panicked; the communicator it happened in has failed.
pub const FC_ERR_PANIC: fc_status = 13;
/// A point-to-point operation was cancelled by its caller.
pub const FC_ERR_CANCELLED: fc_status = 14;
/// The interrupt check of the client asked to stop waiting.
pub const FC_ERR_INTERRUPTED: fc_status = 15;
/// The handle was inherited across `fork`.
pub const FC_ERR_FORKED: fc_status = 16;
/// The work is not complete yet (`fc_work_status` alone).
pub const FC_IN_PROGRESS: fc_status = -1;

/// Element type of a buffer. Values outside the list are refused, never undefined behaviour.
pub type fc_dtype = u32;
/// One opaque byte: moves, cannot be reduced. For element types without a name of their own.
pub const FC_DTYPE_BYTE: fc_dtype = 0;
/// `uint8_t`
pub const FC_DTYPE_UINT8: fc_dtype = 1;
/// `int8_t`
pub const FC_DTYPE_INT8: fc_dtype = 2;
/// `uint16_t`
pub const FC_DTYPE_UINT16: fc_dtype = 3;
/// `int16_t`
pub const FC_DTYPE_INT16: fc_dtype = 4;
/// `uint32_t`
pub const FC_DTYPE_UINT32: fc_dtype = 5;
/// `int32_t`
pub const FC_DTYPE_INT32: fc_dtype = 6;
/// `uint64_t`
pub const FC_DTYPE_UINT64: fc_dtype = 7;
/// `int64_t`
pub const FC_DTYPE_INT64: fc_dtype = 8;
/// IEEE binary16
pub const FC_DTYPE_FLOAT16: fc_dtype = 9;
/// bfloat16
pub const FC_DTYPE_BFLOAT16: fc_dtype = 10;
/// IEEE binary32
pub const FC_DTYPE_FLOAT32: fc_dtype = 11;
/// IEEE binary64
pub const FC_DTYPE_FLOAT64: fc_dtype = 12;
/// One byte, 0 or 1
pub const FC_DTYPE_BOOL: fc_dtype = 13;
/// Two binary16
pub const FC_DTYPE_COMPLEX32: fc_dtype = 14;
/// Two binary32
pub const FC_DTYPE_COMPLEX64: fc_dtype = 15;
/// Two binary64
pub const FC_DTYPE_COMPLEX128: fc_dtype = 16;
/// 8-bit float, 4-bit exponent, finite
pub const FC_DTYPE_FLOAT8_E4M3FN: fc_dtype = 17;
/// 8-bit float, 5-bit exponent
pub const FC_DTYPE_FLOAT8_E5M2: fc_dtype = 18;
/// 8-bit float, 4-bit exponent, no negative zero
pub const FC_DTYPE_FLOAT8_E4M3FNUZ: fc_dtype = 19;
/// 8-bit float, 5-bit exponent, no negative zero
pub const FC_DTYPE_FLOAT8_E5M2FNUZ: fc_dtype = 20;
/// 8-bit power of two
pub const FC_DTYPE_FLOAT8_E8M0FNU: fc_dtype = 21;

/// How elements are combined. Values outside the list are refused.
pub type fc_reduce_op = u32;
/// a + b; integers wrap; bool: or
pub const FC_REDUCE_SUM: fc_reduce_op = 0;
/// SUM divided by the size of the group; integers truncate toward zero
pub const FC_REDUCE_AVG: fc_reduce_op = 1;
/// a * b; bool: and
pub const FC_REDUCE_PRODUCT: fc_reduce_op = 2;
/// the smaller; NaN wins
pub const FC_REDUCE_MIN: fc_reduce_op = 3;
/// the larger; NaN wins
pub const FC_REDUCE_MAX: fc_reduce_op = 4;
/// bitwise and; integers and bool
pub const FC_REDUCE_BAND: fc_reduce_op = 5;
/// bitwise or; integers and bool
pub const FC_REDUCE_BOR: fc_reduce_op = 6;
/// bitwise exclusive or; integers and bool
pub const FC_REDUCE_BXOR: fc_reduce_op = 7;
/// every rank's input times its `fc_op_options.premul_factor`, then SUM; floats
pub const FC_REDUCE_PREMUL_SUM: fc_reduce_op = 8;

/// As the source of `fc_comm_recv`: from whichever rank sends first.
pub const FC_ANY_SOURCE: i32 = -1;

/// Whether a process reaches the memory of a window by an address.
pub type fc_window_access = u32;
/// it does: `fc_window_map` gives the address
pub const FC_WINDOW_UNIFIED: fc_window_access = 0;
/// only through the operations of the window
pub const FC_WINDOW_SEPARATE: fc_window_access = 1;

/// A hint: both strings are nul-terminated and borrowed for the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fc_hint {
    /// name of the hint
    pub key: *const c_char,
    /// its value
    pub value: *const c_char,
}

/// How a communicator is made. Start from `fc_comm_options_init`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fc_comm_options {
    /// `sizeof(fc_comm_options)` of the client; set by `fc_comm_options_init`
    pub size: usize,
    /// engine: `host` (or `gloo`, the name torch uses for it), or `nccl`; nul-terminated
    pub backend: *const c_char,
    /// name of the communicator, the same on every rank; nul-terminated
    pub name: *const c_char,
    /// this rank, `0 <= rank < comm_size`
    pub rank: i32,
    /// number of ranks
    pub comm_size: i32,
    /// default time-out of joining and of every operation, nanoseconds; 0: 600 s
    pub timeout_ns: i64,
    /// `hint_count` hints, or NULL
    pub hints: *const fc_hint,
    /// number of hints
    pub hint_count: usize,
    /// of `nccl`: number of the device, as CUDA counts them in this process
    pub device: i64,
}

/// Optional arguments of one operation. Start from `fc_op_options_init`; NULL means all defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fc_op_options {
    /// `sizeof(fc_op_options)` of the client; set by `fc_op_options_init`
    pub size: usize,
    /// time-out of this operation, nanoseconds; 0: the communicator's
    pub timeout_ns: i64,
    /// factor of `FC_REDUCE_PREMUL_SUM`
    pub premul_factor: f64,
    /// of `nccl`: the stream (`CUstream`, `cudaStream_t`) that the caller works on; NULL: the default
    /// stream. The operation comes after what is on it. Without a work it runs on this stream, and has
    /// only been put there when the call returns; with one it runs beside it.
    pub stream: *mut c_void,
    /// of `nccl`: not 0 runs the operation on `stream` though a work is asked for
    pub on_stream: i64,
    /// of `nccl`: the factor of `FC_REDUCE_PREMUL_SUM` in the device's memory, instead of
    /// `premul_factor` where it is not NULL: one element of the operation's dtype, real for a complex
    /// one. It is read when the operation runs, and stays valid as long as the buffers.
    pub premul_device_factor: *const c_void,
    /// `hint_count` hints for this operation, or NULL. One that the engine does not know has no effect
    /// and is named in the log, once
    pub hints: *const fc_hint,
    /// number of hints
    pub hint_count: usize,
}

/// What the next group of a reconfigurable communicator is to be. Start from
/// `fc_reconfigure_options_init`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fc_reconfigure_options {
    /// `sizeof(fc_reconfigure_options)` of the client; set by `fc_reconfigure_options_init`
    pub size: usize,
    /// the same on all members, and never used before on this communicator
    pub uuid: i64,
    /// `handle_count` texts of `fc_comm_init_handle`, each nul-terminated: the members
    pub handles: *const *const c_char,
    /// number of handles
    pub handle_count: usize,
    /// not 0: the rank is the position; 0: the engine chooses ranks, on all members alike
    pub ordered: i64,
    /// how long it may take, nanoseconds; 0: the communicator's time-out
    pub timeout_ns: i64,
    /// `hint_count` hints, or NULL; those of earlier calls stay where these say nothing
    pub hints: *const fc_hint,
    /// number of hints
    pub hint_count: usize,
}

/// Receives the answer of one store call. `data` and `message` are borrowed for the call.
pub type fc_store_sink = Option<
    unsafe extern "C" fn(
        sink_ctx: *mut c_void,
        data: *const u8,
        len: usize,
        message: *const c_char,
        message_len: usize,
    ),
>;

/// A key-value store through which ranks find one another.
///
/// Every function returns an `fc_status`: `FC_OK`, `FC_ERR_STORE_TIMEOUT`,
/// `FC_ERR_STORE_DISCONNECTED` or `FC_ERR_STORE`, and calls `sink` at most once before it returns,
/// with the value (`get`) or the text of the failure. The engine calls from one thread at a time.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fc_store_table {
    /// `sizeof(fc_store_table)` of the client
    pub size: usize,
    /// passed to every function
    pub ctx: *mut c_void,
    /// stores `value` under `key`
    pub set: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            key: *const c_char,
            key_len: usize,
            value: *const u8,
            value_len: usize,
            sink: fc_store_sink,
            sink_ctx: *mut c_void,
        ) -> fc_status,
    >,
    /// waits for `key`, at most `timeout_ns` nanoseconds, and passes its value to `sink`
    pub get: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            key: *const c_char,
            key_len: usize,
            timeout_ns: i64,
            sink: fc_store_sink,
            sink_ctx: *mut c_void,
        ) -> fc_status,
    >,
    /// removes `key`; may be NULL when the store cannot
    pub remove: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            key: *const c_char,
            key_len: usize,
            sink: fc_store_sink,
            sink_ctx: *mut c_void,
        ) -> fc_status,
    >,
    /// frees `ctx`; called exactly once, also when `fc_comm_create` fails; may be NULL
    pub release: Option<unsafe extern "C" fn(ctx: *mut c_void)>,
}

/// How much memory of its device a communicator takes. `size` is set by the caller.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fc_memory_use {
    /// `sizeof(fc_memory_use)` of the client
    pub size: usize,
    /// bytes that `fc_comm_suspend` gives up
    pub suspendable: u64,
    /// whether they are given up now, 1 or 0
    pub suspended: u64,
    /// bytes that stay
    pub persistent: u64,
    /// bytes of both kinds
    pub total: u64,
}

/// Told once when a work is complete, with its status and the text of its failure (empty on
/// success; borrowed for the call). Runs on an engine thread or inside a waiting call, with no
/// engine lock held.
pub type fc_work_callback =
    Option<unsafe extern "C" fn(ctx: *mut c_void, status: fc_status, message: *const c_char)>;

/// Told once that nothing uses the buffers of an operation any more. Runs on any thread, with no engine
/// lock held.
pub type fc_release_callback = Option<unsafe extern "C" fn(ctx: *mut c_void)>;

/// Told that a communicator has failed, with the text of its cause (borrowed for the call), on any thread
/// with no engine lock held. Where `process_ends` is 0 it must not wait; else the process ends when it
/// returns. May be told more than once.
pub type fc_abort_callback =
    Option<unsafe extern "C" fn(ctx: *mut c_void, message: *const c_char, process_ends: i32)>;

/// Asked about every 100 ms by a thread that waits inside the engine, with no engine lock held.
/// A non-zero answer ends the wait with `FC_ERR_INTERRUPTED`.
pub type fc_interrupt_callback = Option<unsafe extern "C" fn(ctx: *mut c_void) -> i32>;

/// Severity of a log record.
pub type fc_log_level = u32;
/// something failed
pub const FC_LOG_ERROR: fc_log_level = 1;
/// something looks wrong
pub const FC_LOG_WARN: fc_log_level = 2;
/// life cycle
pub const FC_LOG_INFO: fc_log_level = 3;
/// every operation
pub const FC_LOG_DEBUG: fc_log_level = 4;
/// every message
pub const FC_LOG_TRACE: fc_log_level = 5;

/// Receives log records; `target` and `message` are nul-terminated and borrowed for the call.
/// Called from any thread, with no engine lock held.
pub type fc_log_callback = Option<
    unsafe extern "C" fn(
        ctx: *mut c_void,
        level: fc_log_level,
        target: *const c_char,
        message: *const c_char,
    ),
>;
