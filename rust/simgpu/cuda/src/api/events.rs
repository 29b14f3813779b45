//! Events.

use std::ffi::c_uint;

use super::{driver_api, put};
use crate::event::Event;
use crate::status::Status;
use crate::stream::Stream;

driver_api! {
    /// Makes an event.
    fn cuEventCreate(event: *mut usize, flags: c_uint) {
        if event.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        put(event, Event::create(flags)?.handle)
    }

    /// Destroys an event.
    fn cuEventDestroy_v2(event: usize) { Event::destroy(event) }

    /// Destroys an event, under its older name.
    fn cuEventDestroy(event: usize) {
        Event::destroy(event)
    }

    /// Records an event.
    fn cuEventRecord(event: usize, stream: usize) {
        Event::from_handle(event)?.record(&Stream::from_handle(stream)?, 0)
    }

    /// Records an event, perhaps as a node of a graph.
    fn cuEventRecordWithFlags(event: usize, stream: usize, flags: c_uint) {
        Event::from_handle(event)?.record(&Stream::from_handle(stream)?, flags)
    }

    /// Whether an event has happened.
    fn cuEventQuery(event: usize) { Event::from_handle(event)?.query() }

    /// Waits for an event.
    fn cuEventSynchronize(event: usize) { Event::from_handle(event)?.synchronize() }

    /// Milliseconds between two events.
    fn cuEventElapsedTime(milliseconds: *mut f32, from: usize, to: usize) {
        put(milliseconds, Event::from_handle(to)?.since(&*Event::from_handle(from)?)?)
    }

    /// Milliseconds between two events.
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, from: usize, to: usize) {
        put(milliseconds, Event::from_handle(to)?.since(&*Event::from_handle(from)?)?)
    }
}
