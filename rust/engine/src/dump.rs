//! The flight recorder as JSON, in the shape torch's flight recorder analyser reads.
//! Must not know communicators: it has what was noted.

use std::collections::BTreeMap;

use ferrocomm_core::call::{Operation, Source};

use crate::json::{Object, object};
use crate::process::process;
use crate::recorder::{Entry, Label, Other, Progress};

/// Version of the shape, as torch counts it.
const VERSION: &str = "2.10";

/// The last operations of this process, oldest first, at most `max_entries` of the newest (0: all);
/// `only_active` leaves out what is over.
pub fn recorder_dump(max_entries: usize, only_active: bool) -> String {
    dump(process().recorder.snapshot(), max_entries, only_active)
}

/// Forgets the operations noted so far.
pub fn recorder_reset() {
    process().recorder.reset();
}

fn dump(all: Vec<Entry>, max_entries: usize, only_active: bool) -> String {
    let groups = groups(&all);
    let shown: Vec<_> = all
        .iter()
        .filter(|entry| !only_active || entry.is_active())
        .collect();
    let first = if max_entries == 0 {
        0
    } else {
        shown.len().saturating_sub(max_entries)
    };
    object(|dump| {
        dump.text("version", VERSION);
        dump.object("pg_config", |config| {
            for group in groups.values() {
                config.object(&group.label.name, |o| group_config(o, group.label));
            }
        });
        dump.object("pg_status", |status| {
            for group in groups.values() {
                status.object(&group.label.name, |o| {
                    o.value("last_enqueued_collective", group.enqueued);
                    o.value("last_started_collective", group.started);
                    o.value("last_completed_collective", group.completed);
                });
            }
        });
        dump.list("entries", |list| {
            for entry in &shown[first..] {
                list.object(|o| write_entry(o, entry));
            }
        });
    })
}

/// A communicator and how far its collectives have come, as far as the ring reaches back.
struct Group<'a> {
    label: &'a Label,
    enqueued: u64,
    started: u64,
    completed: u64,
}

fn groups(entries: &[Entry]) -> BTreeMap<u64, Group<'_>> {
    let mut groups = BTreeMap::new();
    for entry in entries {
        let label = &*entry.label;
        let fresh = || Group {
            label,
            enqueued: 0,
            started: 0,
            completed: 0,
        };
        let group = groups.entry(label.number).or_insert_with(fresh);
        if is_point_to_point(entry.facts.operation) {
            continue;
        }
        group.enqueued = group.enqueued.max(entry.sequence);
        if entry.started.is_some() {
            group.started = group.started.max(entry.sequence);
        }
        if entry.progress == Progress::Completed {
            group.completed = group.completed.max(entry.sequence);
        }
    }
    groups
}

fn group_config(o: &mut Object<'_>, label: &Label) {
    let ranks: Vec<String> = match &label.members {
        Some(members) => members.iter().map(ToString::to_string).collect(),
        None => (0..label.size).map(|rank| rank.to_string()).collect(),
    };
    o.text("name", &label.name);
    o.text("desc", label.engine);
    o.text("ranks", &format!("[{}]", ranks.join(", ")));
}

fn is_point_to_point(operation: Operation) -> bool {
    operation.is_alone()
}

/// The operation's name as the analyser takes it apart.
fn profiling_name(entry: &Entry) -> String {
    let rank = entry.label.rank;
    let name = entry.facts.operation.name();
    match entry.facts.other {
        Other::To(peer) => format!("ferrocomm:{name} {rank}->{peer}"),
        Other::From(Source::Rank(peer)) => format!("ferrocomm:{name} {rank}<-{peer}"),
        Other::From(Source::Any) => format!("ferrocomm:{name} {rank}<-?"),
        _ if entry.facts.operation == Operation::Batch => "ferrocomm:coalesced".into(),
        _ => format!("ferrocomm:{name}"),
    }
}

fn write_entry(o: &mut Object<'_>, entry: &Entry) {
    let facts = &entry.facts;
    let is_p2p = is_point_to_point(facts.operation);
    o.value("record_id", entry.id);
    o.value("pg_id", entry.label.number);
    o.list("process_group", |l| {
        l.text(&entry.label.name);
        l.text(entry.label.engine);
    });
    o.value("collective_seq_id", if is_p2p { 0 } else { entry.sequence });
    o.value("p2p_seq_id", if is_p2p { entry.sequence } else { 0 });
    o.value("op_id", entry.id);
    o.text("profiling_name", &profiling_name(entry));
    o.value("time_created_ns", entry.created);
    o.optional("time_discovered_started_ns", entry.started);
    o.optional("time_discovered_completed_ns", entry.ended);
    if let Some(ended) = entry.ended {
        o.value(
            "duration_ms",
            ended.saturating_sub(entry.created) as f64 / 1e6,
        );
    }
    sizes(o, "input_sizes", facts.input_bytes / facts.dtype.size());
    names(o, "input_dtypes", facts.dtype.name());
    sizes(o, "output_sizes", facts.output_bytes / facts.dtype.size());
    names(o, "output_dtypes", facts.dtype.name());
    o.text(
        "state",
        match entry.progress {
            Progress::Scheduled => "scheduled",
            Progress::Started => "started",
            Progress::Completed => "completed",
            Progress::Failed(_) => "failed",
        },
    );
    o.value("timeout_ms", entry.timeout.as_millis());
    o.value("is_p2p", is_p2p);
    o.value("retired", !entry.is_active());
    o.list("frames", |_| {});
    own_fields(o, entry);
}

/// What torch's recorder does not have.
fn own_fields(o: &mut Object<'_>, entry: &Entry) {
    let facts = &entry.facts;
    o.value("rank", entry.label.rank);
    o.value("size", entry.label.size);
    o.value("input_bytes", facts.input_bytes);
    o.value("output_bytes", facts.output_bytes);
    match facts.other {
        Other::Root(root) => o.value("root", root),
        Other::To(peer) | Other::From(Source::Rank(peer)) => o.value("peer", peer),
        Other::Nobody | Other::From(Source::Any) => {}
    }
    if let Some(tag) = facts.tag {
        o.value("tag", tag);
    }
    if let Some(op) = facts.reduce_op {
        o.text("reduce_op", op.name());
    }
    if let Progress::Failed(text) = &entry.progress {
        o.text("error", text);
    }
}

fn sizes(o: &mut Object<'_>, key: &str, elements: usize) {
    o.list(key, |l| l.list(|l| l.value(elements)));
}

fn names(o: &mut Object<'_>, key: &str, name: &str) {
    o.list(key, |l| l.text(name));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Facts, Recorder};
    use ferrocomm_core::dtype::Dtype;
    use ferrocomm_core::ids::GroupRank;
    use std::sync::Arc;
    use std::time::Duration;

    fn recorded() -> Recorder {
        let recorder = Recorder::new(16);
        let label = Arc::new(Label {
            number: 7,
            name: "pair".into(),
            engine: "host",
            rank: GroupRank::new(1),
            size: 2,
            members: Some(Arc::from([4, 9])),
        });
        let timeout = Duration::from_millis(1500);
        let bare = Facts::bare(Operation::AllReduce, Dtype::Float32);
        let reduce = Facts {
            input_bytes: 12,
            output_bytes: 12,
            ..bare
        };
        recorder.complete(recorder.schedule(&label, &reduce, 3, timeout), None);
        let from = Other::From(Source::Any);
        let receive = Facts {
            other: from,
            tag: Some(5),
            ..Facts::bare(Operation::Recv, Dtype::Int8)
        };
        recorder.start(recorder.schedule(&label, &receive, 1, timeout));
        recorder
    }

    #[test]
    fn entries_carry_what_the_analyser_reads() {
        let text = dump(recorded().snapshot(), 0, false);
        for part in [
            r#""version":"2.10""#,
            r#""pg_config":{"pair":{"name":"pair","desc":"host","ranks":"[4, 9]"}}"#,
            r#""pg_status":{"pair":{"last_enqueued_collective":3,"last_started_collective":0,"last_completed_collective":3}}"#,
            r#""process_group":["pair","host"],"collective_seq_id":3,"p2p_seq_id":0"#,
            r#""profiling_name":"ferrocomm:all_reduce""#,
            r#""input_sizes":[[3]],"input_dtypes":["float32"],"output_sizes":[[3]]"#,
            r#""state":"completed","timeout_ms":1500,"is_p2p":false,"retired":true"#,
            r#""profiling_name":"ferrocomm:recv 1<-?""#,
            r#""state":"started","timeout_ms":1500,"is_p2p":true,"retired":false"#,
            r#""tag":5"#,
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn the_newest_and_the_active_can_be_asked_for() {
        let newest = dump(recorded().snapshot(), 1, false);
        assert!(newest.contains("recv") && !newest.contains("all_reduce"));
        let active = dump(recorded().snapshot(), 0, true);
        assert!(active.contains("recv") && !active.contains("all_reduce"));
    }
}
