//! A store of the client, as a table of functions, for the engine. Must not know what the engine
//! keeps there.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::time::Duration;

use ferrocomm_abi::*;
use ferrocomm_core::store::Store;
use ferrocomm_core::{Error, ErrorKind, Result};

use crate::ffi::{self, SizeTagged, invalid, null};
use crate::status::kind_of;

// SAFETY: `fc_store_table` is `repr(C)`, starts with its size, and holds pointers and optional
// functions besides, all of which may be zero.
unsafe impl SizeTagged for fc_store_table {
    const NAME: &'static str = "fc_store_table";
}

/// The client's store; released when dropped.
pub(crate) struct TableStore(fc_store_table);

// SAFETY: the header says that the table's functions run on any thread, one at a time; `&self`
// methods are called through `dyn Store`, which is not `Sync`.
unsafe impl Send for TableStore {}

impl TableStore {
    /// Takes over the client's store.
    ///
    /// # Safety
    /// `table` is NULL or a store table whose functions and context stay usable until `release`.
    pub(crate) unsafe fn new(table: *const fc_store_table) -> Result<Self> {
        if table.is_null() {
            return Err(null("store table"));
        }
        // SAFETY: not NULL, and its size is the client's word.
        let store = Self(unsafe { ffi::read_sized(table) }?);
        // From here on the store is released whatever happens.
        if store.0.set.is_none() || store.0.get.is_none() {
            return Err(invalid("the store table lacks set or get"));
        }
        Ok(store)
    }
}

impl Drop for TableStore {
    fn drop(&mut self) {
        if let Some(release) = self.0.release {
            // SAFETY: the client's function with its own context, once.
            unsafe { release(self.0.ctx) }
        }
    }
}

/// What a store call answered.
#[derive(Default)]
struct Answer {
    data: Vec<u8>,
    message: String,
}

/// Copies bytes lent by the client; none when there are none or the pointer is NULL.
///
/// # Safety
/// `data` is NULL or points to `len` readable bytes.
unsafe fn copied(data: *const u8, len: usize) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: not NULL, and `len` bytes by the caller's promise.
    unsafe { std::slice::from_raw_parts(data, len) }.to_vec()
}

unsafe extern "C" fn sink(
    ctx: *mut c_void,
    data: *const u8,
    len: usize,
    message: *const c_char,
    message_len: usize,
) {
    // SAFETY: `ctx` is the answer that `TableStore::call` lends for the duration of the call.
    let answer = unsafe { &mut *ctx.cast::<Answer>() };
    // SAFETY: the client lends both for the call.
    answer.data = unsafe { copied(data, len) };
    // SAFETY: as above.
    let message = unsafe { copied(message.cast(), message_len) };
    answer.message = String::from_utf8_lossy(&message).into_owned();
}

impl TableStore {
    fn call(
        &self,
        verb: &'static str,
        key: &str,
        function: impl FnOnce(fc_store_sink, *mut c_void) -> fc_status,
    ) -> Result<Vec<u8>> {
        let mut answer = Answer::default();
        let status = function(Some(sink), ptr::from_mut(&mut answer).cast());
        if status == FC_OK {
            return Ok(answer.data);
        }
        let kind = match kind_of(status) {
            Some(kind @ (ErrorKind::StoreTimeout | ErrorKind::StoreDisconnected)) => kind,
            _ => ErrorKind::Store,
        };
        let words = if answer.message.is_empty() {
            format!("status {status}")
        } else {
            answer.message
        };
        Err(Error::new(
            kind,
            format!("the store could not {verb} key {key}: {words}"),
        ))
    }
}

impl Store for TableStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let set = self
            .0
            .set
            .ok_or_else(|| invalid("the store table lacks set"))?;
        self.call("set", key, |sink, sink_ctx| {
            // SAFETY: the client's function; key and value outlive the call.
            unsafe {
                let (key_data, value_data) = (key.as_ptr().cast(), value.as_ptr());
                set(
                    self.0.ctx,
                    key_data,
                    key.len(),
                    value_data,
                    value.len(),
                    sink,
                    sink_ctx,
                )
            }
        })
        .map(drop)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let get = self
            .0
            .get
            .ok_or_else(|| invalid("the store table lacks get"))?;
        let nanoseconds = i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX);
        self.call("get", key, |sink, sink_ctx| {
            // SAFETY: the client's function; the key outlives the call.
            unsafe {
                get(
                    self.0.ctx,
                    key.as_ptr().cast(),
                    key.len(),
                    nanoseconds,
                    sink,
                    sink_ctx,
                )
            }
        })
    }

    fn remove(&self, key: &str) -> Result<()> {
        let Some(remove) = self.0.remove else {
            return Ok(());
        };
        self.call("remove", key, |sink, sink_ctx| {
            // SAFETY: the client's function; the key outlives the call.
            unsafe { remove(self.0.ctx, key.as_ptr().cast(), key.len(), sink, sink_ctx) }
        })
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// A client's store: a map, the failure to answer with, and how often it was released.
    #[derive(Default)]
    struct Client {
        values: HashMap<Vec<u8>, Vec<u8>>,
        failure: Option<(fc_status, &'static str)>,
        released: usize,
    }

    unsafe fn client<'a>(ctx: *mut c_void) -> &'a mut Client {
        // SAFETY: the tests pass a `Client` that outlives the store.
        unsafe { &mut *ctx.cast() }
    }

    fn fail(client: &Client, sink: fc_store_sink, sink_ctx: *mut c_void) -> fc_status {
        let Some((status, message)) = client.failure else {
            return FC_OK;
        };
        if let Some(sink) = sink {
            // SAFETY: the sink of a store call in progress.
            unsafe {
                sink(
                    sink_ctx,
                    ptr::null(),
                    0,
                    message.as_ptr().cast(),
                    message.len(),
                )
            }
        }
        status
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
        // SAFETY: key and value are lent for the call.
        let (client, key, value) = unsafe {
            (
                client(ctx),
                copied(key.cast(), key_len),
                copied(value, value_len),
            )
        };
        client.values.insert(key, value);
        fail(client, sink, sink_ctx)
    }

    unsafe extern "C" fn get(
        ctx: *mut c_void,
        key: *const c_char,
        key_len: usize,
        timeout_ns: i64,
        sink: fc_store_sink,
        sink_ctx: *mut c_void,
    ) -> fc_status {
        assert_eq!(timeout_ns, 1_000_000_000);
        // SAFETY: the key is lent for the call.
        let (client, key) = unsafe { (client(ctx), copied(key.cast(), key_len)) };
        if let (None, Some(sink)) = (client.failure, sink) {
            let value = &client.values[&key];
            // SAFETY: the sink of a store call in progress.
            unsafe { sink(sink_ctx, value.as_ptr(), value.len(), ptr::null(), 0) }
        }
        fail(client, sink, sink_ctx)
    }

    unsafe extern "C" fn release(ctx: *mut c_void) {
        // SAFETY: as in `client`.
        unsafe { client(ctx) }.released += 1;
    }

    fn table(client: &mut Client) -> fc_store_table {
        fc_store_table {
            size: size_of::<fc_store_table>(),
            ctx: ptr::from_mut(client).cast(),
            set: Some(set),
            get: Some(get),
            remove: None,
            release: Some(release),
        }
    }

    fn open(table: &fc_store_table) -> Result<TableStore> {
        // SAFETY: a table whose client outlives the test.
        unsafe { TableStore::new(table) }
    }

    #[test]
    fn values_come_back_and_the_store_is_released_once() {
        let mut client = Client::default();
        let store = open(&table(&mut client)).unwrap();
        store.set("key", b"va\0lue").unwrap();
        store.set("empty", b"").unwrap();
        assert_eq!(
            store.get("key", Duration::from_secs(1)).unwrap(),
            b"va\0lue"
        );
        assert_eq!(store.get("empty", Duration::from_secs(1)).unwrap(), b"");
        store.remove("key").unwrap();
        drop(store);
        assert_eq!(client.released, 1);
    }

    #[test]
    fn failures_keep_their_kind_and_their_words() {
        let cases = [
            (FC_ERR_STORE_TIMEOUT, ErrorKind::StoreTimeout),
            (FC_ERR_STORE_DISCONNECTED, ErrorKind::StoreDisconnected),
            (FC_ERR_STORE, ErrorKind::Store),
            (4711, ErrorKind::Store),
        ];
        for (status, kind) in cases {
            let mut client = Client {
                failure: Some((status, "socket closed")),
                ..Client::default()
            };
            let store = open(&table(&mut client)).unwrap();
            let error = store.get("the key", Duration::from_secs(1)).unwrap_err();
            assert_eq!(error.kind(), kind);
            assert!(error.what().contains("the key") && error.what().contains("socket closed"));
            assert!(
                store
                    .set("k", b"")
                    .unwrap_err()
                    .what()
                    .contains("could not set")
            );
        }
    }

    #[test]
    fn a_table_without_its_functions_is_refused_and_released() {
        let mut client = Client::default();
        let table = fc_store_table {
            get: None,
            ..table(&mut client)
        };
        assert!(open(&table).is_err());
        assert_eq!(client.released, 1);
    }
}
