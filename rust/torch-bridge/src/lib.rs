//! Adapts a `c10d::Store`, which C++ offers, to the store table of the C ABI.
//!
//! Linked statically into the torch extension. It must know neither torch nor the engine: the
//! store is an opaque C++ class, the table comes from `ferrocomm-abi`. Depending on the engine's
//! crates instead would put a second engine into the process.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cxx::UniquePtr;
use ferrocomm_abi::{
    FC_ERR_STORE, FC_ERR_STORE_DISCONNECTED, FC_ERR_STORE_TIMEOUT, FC_OK, fc_status, fc_store_sink,
    fc_store_table,
};

// cxx marks what it generates `pub`; the module is private, so nothing is reachable.
#[allow(unreachable_pub)]
#[cxx::bridge(namespace = "ferrocomm")]
mod ffi {
    /// The answer of one store call. `kind` is an `fc_status`, so that a time-out and a lost
    /// connection stay different errors; `message` is the text of a failure.
    struct StoreReply {
        kind: i32,
        value: Vec<u8>,
        message: String,
    }

    unsafe extern "C++" {
        include!("store_adapter.hpp");
        type StoreAdapter;
        fn set(self: &StoreAdapter, key: &[u8], value: &[u8]) -> StoreReply;
        fn get(self: &StoreAdapter, key: &[u8], timeout_ns: i64) -> StoreReply;
        fn remove(self: &StoreAdapter, key: &[u8]) -> StoreReply;

        #[namespace = ""]
        type fc_store_table;
    }

    extern "Rust" {
        /// Writes a table that owns `adapter` to `table`; its `release` frees the adapter.
        ///
        /// # Safety
        /// `table` points to memory for one `fc_store_table`.
        unsafe fn fill_store_table(adapter: UniquePtr<StoreAdapter>, table: *mut fc_store_table);
    }
}

use ffi::{StoreAdapter, StoreReply};

/// See the declaration in the bridge.
unsafe fn fill_store_table(adapter: UniquePtr<StoreAdapter>, table: *mut ffi::fc_store_table) {
    let filled = fc_store_table {
        size: size_of::<fc_store_table>(),
        ctx: Box::into_raw(Box::new(adapter)).cast(),
        set: Some(set),
        get: Some(get),
        remove: Some(remove),
        release: Some(release),
    };
    // SAFETY: the caller offers memory for one table, and C++'s struct of this name is the one
    // that cbindgen writes from `ferrocomm_abi::fc_store_table`.
    unsafe { table.cast::<fc_store_table>().write(filled) }
}

unsafe extern "C" fn set(
    ctx: *mut c_void,
    key: *const c_char,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    sink: fc_store_sink,
    sink_ctx: *mut c_void,
) -> fc_status {
    guarded(|| {
        // SAFETY: `ctx` is the box of `fill_store_table`; key and value are valid for the call.
        let (store, key, value) = unsafe {
            (
                adapter(ctx),
                bytes(key.cast(), key_len),
                bytes(value, value_len),
            )
        };
        answer(&store.set(key, value), sink, sink_ctx)
    })
}

unsafe extern "C" fn get(
    ctx: *mut c_void,
    key: *const c_char,
    key_len: usize,
    timeout_ns: i64,
    sink: fc_store_sink,
    sink_ctx: *mut c_void,
) -> fc_status {
    guarded(|| {
        // SAFETY: `ctx` is the box of `fill_store_table`; the key is valid for the call.
        let (store, key) = unsafe { (adapter(ctx), bytes(key.cast(), key_len)) };
        answer(&store.get(key, timeout_ns), sink, sink_ctx)
    })
}

unsafe extern "C" fn remove(
    ctx: *mut c_void,
    key: *const c_char,
    key_len: usize,
    sink: fc_store_sink,
    sink_ctx: *mut c_void,
) -> fc_status {
    guarded(|| {
        // SAFETY: `ctx` is the box of `fill_store_table`; the key is valid for the call.
        let (store, key) = unsafe { (adapter(ctx), bytes(key.cast(), key_len)) };
        answer(&store.remove(key), sink, sink_ctx)
    })
}

unsafe extern "C" fn release(ctx: *mut c_void) {
    guarded(|| {
        // SAFETY: `ctx` is the box of `fill_store_table`, and the table's owner calls this once.
        drop(unsafe { Box::from_raw(ctx.cast::<UniquePtr<StoreAdapter>>()) });
        FC_OK
    });
}

/// Passes `reply` to the sink and returns its status.
fn answer(reply: &StoreReply, sink: fc_store_sink, sink_ctx: *mut c_void) -> fc_status {
    if let Some(sink) = sink {
        // SAFETY: both slices live until the sink returns, and `sink_ctx` is the caller's own.
        unsafe {
            sink(
                sink_ctx,
                reply.value.as_ptr(),
                reply.value.len(),
                reply.message.as_ptr().cast(),
                reply.message.len(),
            );
        }
    }
    match reply.kind {
        FC_OK | FC_ERR_STORE_TIMEOUT | FC_ERR_STORE_DISCONNECTED => reply.kind,
        _ => FC_ERR_STORE,
    }
}

/// # Safety
/// `ctx` is the context of a table that `fill_store_table` wrote and nobody released.
unsafe fn adapter<'a>(ctx: *mut c_void) -> &'a StoreAdapter {
    // SAFETY: see above; the table is used by one thread at a time.
    unsafe { &*ctx.cast::<UniquePtr<StoreAdapter>>() }
}

/// # Safety
/// `data` is valid for `len` bytes; it may be null when `len` is 0.
unsafe fn bytes<'a>(data: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: see above.
    unsafe { std::slice::from_raw_parts(data, len) }
}

/// Nothing unwinds across the border.
fn guarded(call: impl FnOnce() -> fc_status) -> fc_status {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(FC_ERR_STORE)
}
