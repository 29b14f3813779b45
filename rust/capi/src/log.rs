//! Log records and interrupts: what the library tells its client, and asks it, outside of calls.
//! Must not know what there is to say, nor who waits.

use std::cell::Cell;
use std::ffi::c_void;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Once, PoisonError, RwLock};

use ferrocomm_abi::*;
use ferrocomm_core::interrupt;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::ffi::{guard, invalid};
use crate::status::c_string;

/// A context pointer of the client, which vouches that any thread may use it.
#[derive(Clone, Copy)]
struct Context(*mut c_void);
// SAFETY: the client promises in the header that its callbacks run on any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

type LogFunction = unsafe extern "C" fn(
    *mut c_void,
    fc_log_level,
    *const std::ffi::c_char,
    *const std::ffi::c_char,
);

static SINK: RwLock<Option<(LogFunction, Context)>> = RwLock::new(None);
/// The most detailed level wanted; 0 without a callback. Read for every event.
static MAX_LEVEL: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Whether this thread is inside the client's callback, whose own records would never end.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn level_of(metadata: &Metadata<'_>) -> fc_log_level {
    match *metadata.level() {
        Level::ERROR => FC_LOG_ERROR,
        Level::WARN => FC_LOG_WARN,
        Level::INFO => FC_LOG_INFO,
        Level::DEBUG => FC_LOG_DEBUG,
        Level::TRACE => FC_LOG_TRACE,
    }
}

/// Passes events to the client's callback. Spans carry nothing that events do not.
struct Forwarder {
    spans: AtomicU64,
}

impl Subscriber for Forwarder {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        // The level may change at any time; `always` or `never` would be remembered.
        tracing::subscriber::Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        level_of(metadata) <= MAX_LEVEL.load(Ordering::Relaxed)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let Some((callback, context)) = *SINK.read().unwrap_or_else(PoisonError::into_inner) else {
            return;
        };
        if INSIDE.replace(true) {
            return;
        }
        let mut line = Line::default();
        event.record(&mut line);
        let target = c_string(event.metadata().target());
        let message = c_string(&line.finish());
        // SAFETY: the client's function with its own context; both strings outlive the call.
        unsafe {
            callback(
                context.0,
                level_of(event.metadata()),
                target.as_ptr(),
                message.as_ptr(),
            );
        }
        INSIDE.set(false);
    }
}

/// One record as text: the message, then the fields as `name=value`.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Line {
    fn finish(self) -> String {
        self.message + &self.fields
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail, whatever `fmt` returns.
        let _always_ok = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}

/// Sends log records up to `max_level` to `callback`, with `ctx`; NULL stops that. A callback that
/// is replaced may still be running on another thread: keep its `ctx` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_set_log_callback(
    callback: fc_log_callback,
    ctx: *mut c_void,
    max_level: fc_log_level,
) -> fc_status {
    static INSTALLED: Once = Once::new();
    guard(|| {
        if callback.is_some() && !(FC_LOG_ERROR..=FC_LOG_TRACE).contains(&max_level) {
            return Err(invalid("no such log level")
                .got(max_level)
                .expected("1 to 5"));
        }
        *SINK.write().unwrap_or_else(PoisonError::into_inner) =
            callback.map(|callback| (callback, Context(ctx)));
        MAX_LEVEL.store(
            if callback.is_some() { max_level } else { 0 },
            Ordering::Relaxed,
        );
        INSTALLED.call_once(|| {
            // The dispatcher is this library's own copy, so only a second call could fail.
            let _first = tracing::subscriber::set_global_default(Forwarder { spans: 0.into() });
        });
        Ok(())
    })
}

/// Asks `callback`, with `ctx`, about every 100 ms whether a thread that waits inside the library
/// should stop waiting; NULL stops that. Keep `ctx` valid, as for `fc_set_log_callback`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fc_set_interrupt_callback(
    callback: fc_interrupt_callback,
    ctx: *mut c_void,
) -> fc_status {
    guard(|| {
        let context = Context(ctx);
        interrupt::set_check(callback.map(|callback| {
            let check = move || {
                let context = context;
                // SAFETY: the client's function with its own context.
                unsafe { callback(context.0) != 0 }
            };
            Arc::new(check) as Arc<dyn Fn() -> bool + Send + Sync>
        }));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{CStr, c_char};
    use std::ptr;
    use std::sync::Mutex;

    type Records = Mutex<Vec<(fc_log_level, String)>>;

    unsafe extern "C" fn keep(
        ctx: *mut c_void,
        level: fc_log_level,
        _: *const c_char,
        message: *const c_char,
    ) {
        // SAFETY: the test's list and a nul-terminated string.
        let (records, message) = unsafe { (&*ctx.cast::<Records>(), CStr::from_ptr(message)) };
        tracing::error!("from inside the callback");
        records
            .lock()
            .expect("no panic")
            .push((level, message.to_string_lossy().into_owned()));
    }

    // One test, because the callback is the process's.
    #[test]
    fn records_arrive_up_to_the_level_and_none_from_inside() {
        let records = Records::default();
        let ctx = ptr::from_ref(&records).cast_mut().cast();
        let install = |callback, max_level| {
            // SAFETY: `records` outlives the callback, which is removed below.
            unsafe { fc_set_log_callback(callback, ctx, max_level) }
        };
        assert_eq!(install(Some(keep), FC_LOG_INFO), FC_OK);
        tracing::info!(rank = 3, name = "pair", "joined");
        tracing::debug!("too detailed");
        tracing::warn!("odd\0text");
        assert_eq!(install(Some(keep), 9), FC_ERR_INVALID_ARGUMENT);
        assert_eq!(install(None, 0), FC_OK);
        tracing::error!("nobody listens");
        let records = records.into_inner().expect("no panic");
        let expected = [
            (FC_LOG_INFO, "joined rank=3 name=\"pair\"".to_owned()),
            (FC_LOG_WARN, "odd\u{fffd}text".to_owned()),
        ];
        // Tests on other threads log too; only what this one wrote is compared.
        let own: Vec<_> = records
            .into_iter()
            .filter(|record| expected.contains(record))
            .collect();
        assert_eq!(own, expected);
    }
}
