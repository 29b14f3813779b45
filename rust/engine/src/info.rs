//! What this library is and what lives in it, as JSON. Asks and changes nothing. Must not know who
//! asks.

use crate::backend::Backend;
use crate::communicator::Communicator;
use crate::json::{Object, object};
use crate::process::process;

/// Version, engines, transports and live communicators. `abi` is the number the border goes by.
pub fn engine_info(abi: u32) -> String {
    object(|info| {
        info.text("version", env!("CARGO_PKG_VERSION"));
        info.value("abi", abi);
        info.list("backends", |list| {
            for backend in Backend::ALL {
                list.object(|o| {
                    o.text("name", backend.name());
                    o.list("aliases", |l| {
                        backend.aliases().iter().for_each(|name| l.text(name))
                    });
                    let usable = backend.usable();
                    o.value("usable", usable.is_ok());
                    let reason = usable.err().map(|error| error.to_string());
                    o.text("reason", &reason.unwrap_or_default());
                    o.object("findings", |o| {
                        for (name, text) in backend.findings() {
                            o.text(name, &text);
                        }
                    });
                });
            }
        });
        info.list("transports", |list| {
            for backend in Backend::ALL {
                backend
                    .transports()
                    .into_iter()
                    .for_each(|name| list.text(name));
            }
        });
        info.value("recorder_entries", process().recorder.entries());
        info.list("communicators", |list| {
            for communicator in process().communicators() {
                list.object(|o| communicator.describe(o));
            }
        });
    })
}

impl Communicator {
    /// The communicator as JSON.
    pub fn info(&self) -> String {
        object(|o| self.describe(o))
    }

    fn describe(&self, o: &mut Object<'_>) {
        o.text("name", self.name());
        o.text("engine", self.backend().name());
        o.value("rank", self.rank());
        o.value("size", self.size());
        o.text("state", &self.state_name().to_string_lossy());
        o.text(
            "error",
            &self
                .failure()
                .map(|cause| cause.to_string())
                .unwrap_or_default(),
        );
        o.text("transport", &self.transport());
        o.value("sequence", self.sequence());
        o.value("timeout_ms", self.timeout().as_millis());
        o.object("operations", |o| {
            for (operation, count, bytes) in self.counters().used() {
                o.object(operation.name(), |o| {
                    o.value("count", count);
                    o.value("bytes", bytes);
                });
            }
        });
    }
}
