//! Hints, and the configuration of a communicator that follows from them. Must not know where they
//! were given.

use std::collections::BTreeSet;
use std::ffi::{CString, c_int};
use std::mem::size_of;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use ferrocomm_core::{Error, ErrorKind, Result};
use ferrocomm_nccl_sys::Version;
use ferrocomm_nccl_sys::sys::{NCCL_API_MAGIC, ncclConfig_t};

use crate::events::DEFAULT_LIMIT;

/// NCCL's number for a field that is not set.
const UNSET: c_int = c_int::MIN;

/// What the hints of a communicator ask for.
#[derive(Clone, Debug)]
pub(crate) struct Hints {
    /// the communicator's own stream goes before others
    pub(crate) high_priority_stream: bool,
    /// events kept for later
    pub(crate) event_limit: usize,
    /// NCCL's calls block the host, where the watchdog looks after them; else NCCL starts a thread for
    /// each, and they are polled, which costs the caller several times as much
    pub(crate) blocking: bool,
    /// a time-out or an error ends the process
    pub(crate) abort_process: bool,
    numbers: Vec<(Field, c_int)>,
    net_name: Option<CString>,
    comm_name: Option<CString>,
}

/// A number of NCCL's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    CgaClusterSize,
    MinCtas,
    MaxCtas,
    SplitShare,
    TrafficClass,
    CollnetEnable,
    CtaPolicy,
    ShrinkShare,
    NvlsCtas,
    ChannelsPerPeer,
    NvlinkCentric,
}

const NUMBERS: [(&str, Field); 11] = [
    ("cgaclustersize", Field::CgaClusterSize),
    ("minctas", Field::MinCtas),
    ("maxctas", Field::MaxCtas),
    ("splitshare", Field::SplitShare),
    ("trafficclass", Field::TrafficClass),
    ("collnetenable", Field::CollnetEnable),
    ("ctapolicy", Field::CtaPolicy),
    ("shrinkshare", Field::ShrinkShare),
    ("nvlsctas", Field::NvlsCtas),
    ("nchannelspernetpeer", Field::ChannelsPerPeer),
    ("nvlinkcentricsched", Field::NvlinkCentric),
];

/// Hints that are for somebody else.
const OTHERS: [&str; 2] = ["persistentstore", "eager"];

impl Default for Hints {
    fn default() -> Self {
        Self {
            high_priority_stream: false,
            event_limit: DEFAULT_LIMIT,
            blocking: true,
            abort_process: false,
            numbers: Vec::new(),
            net_name: None,
            comm_name: None,
        }
    }
}

impl Hints {
    /// Reads hints; names may be written in snake case or camel case.
    ///
    /// # Errors
    /// `InvalidArgument` for a value that does not fit its hint.
    pub(crate) fn read(pairs: &[(String, String)]) -> Result<Self> {
        Self::default().with(pairs)
    }

    /// These, and `pairs` where they say something else; as `read`.
    pub(crate) fn with(&self, pairs: &[(String, String)]) -> Result<Self> {
        let mut hints = self.clone();
        for (key, value) in pairs {
            let name: String = key.chars().filter(|letter| *letter != '_').collect();
            let name = name.to_lowercase();
            match name.as_str() {
                "highprioritystream" | "ishighprioritystream" => {
                    hints.high_priority_stream = truth(key, value)?;
                }
                "maxeventpoolsize" => hints.event_limit = number(key, value)?,
                "blocking" => hints.blocking = truth(key, value)?,
                "abortprocessontimeoutorerror" => hints.abort_process = truth(key, value)?,
                "netname" => hints.net_name = Some(text(key, value)?),
                "commname" => hints.comm_name = Some(text(key, value)?),
                name => match NUMBERS.iter().find(|(known, _)| *known == name) {
                    Some((_, field)) => hints.numbers.push((*field, number(key, value)?)),
                    None if OTHERS.contains(&name) => {}
                    None => log_unknown(key),
                },
            }
        }
        Ok(hints)
    }

    /// NCCL's configuration for a library of `version`. It borrows from `self` and `name`.
    pub(crate) fn config(&self, version: Version, name: &CString) -> ncclConfig_t {
        let mut config = unset(version);
        config.blocking = c_int::from(self.blocking);
        config.netName = self
            .net_name
            .as_ref()
            .map_or(ptr::null(), |name| name.as_ptr());
        config.commName = self.comm_name.as_ref().unwrap_or(name).as_ptr();
        for (field, value) in &self.numbers {
            *match field {
                Field::CgaClusterSize => &mut config.cgaClusterSize,
                Field::MinCtas => &mut config.minCTAs,
                Field::MaxCtas => &mut config.maxCTAs,
                Field::SplitShare => &mut config.splitShare,
                Field::TrafficClass => &mut config.trafficClass,
                Field::CollnetEnable => &mut config.collnetEnable,
                Field::CtaPolicy => &mut config.CTAPolicy,
                Field::ShrinkShare => &mut config.shrinkShare,
                Field::NvlsCtas => &mut config.nvlsCTAs,
                Field::ChannelsPerPeer => &mut config.nChannelsPerNetPeer,
                Field::NvlinkCentric => &mut config.nvlinkCentricSched,
            } = *value;
        }
        config
    }
}

/// Bytes of the configuration that a library of `version` knows. The struct has only ever grown.
fn config_size(version: Version) -> usize {
    const SIZES: [(Version, usize); 6] = [
        (Version::new(2, 31, 0), size_of::<ncclConfig_t>()),
        (Version::new(2, 29, 0), 96),
        (Version::new(2, 28, 0), 80),
        (Version::new(2, 27, 0), 72),
        (Version::new(2, 18, 0), 48),
        (Version::new(2, 17, 0), 40),
    ];
    SIZES
        .iter()
        .find(|(first, _)| version >= *first)
        .map_or(24, |(_, size)| *size)
}

/// A configuration with nothing set.
fn unset(version: Version) -> ncclConfig_t {
    ncclConfig_t {
        size: config_size(version),
        magic: NCCL_API_MAGIC,
        version: version.code(),
        blocking: UNSET,
        cgaClusterSize: UNSET,
        minCTAs: UNSET,
        maxCTAs: UNSET,
        netName: ptr::null(),
        splitShare: UNSET,
        trafficClass: UNSET,
        commName: ptr::null(),
        collnetEnable: UNSET,
        CTAPolicy: UNSET,
        shrinkShare: UNSET,
        nvlsCTAs: UNSET,
        nChannelsPerNetPeer: UNSET,
        nvlinkCentricSched: UNSET,
        graphUsageMode: UNSET,
        numRmaCtx: UNSET,
        maxP2pPeers: UNSET,
        graphStreamOrdering: UNSET,
        launchOrderImplicit: UNSET,
        numRmaSig: UNSET,
        rmaEagerInit: UNSET,
        hostCftMode: UNSET,
        nvlsHostMode: UNSET,
    }
}

fn wrong(key: &str, value: &str, expected: &'static str) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        "a hint has a value that does not fit",
    )
    .got(format!("{key}={value:?}"))
    .expected(expected)
}

fn truth(key: &str, value: &str) -> Result<bool> {
    match value.to_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(wrong(key, value, "true or false")),
    }
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T> {
    value.parse().map_err(|_| wrong(key, value, "a number"))
}

fn text(key: &str, value: &str) -> Result<CString> {
    CString::new(value).map_err(|_| wrong(key, value, "text without a zero byte"))
}

/// Says once per process that nobody understands `key`.
fn log_unknown(key: &str) {
    static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if seen.insert(key.to_owned()) {
        drop(seen);
        tracing::warn!(hint = key, "a hint that the nccl engine does not know");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Hints> {
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        Hints::read(&pairs)
    }

    #[test]
    fn both_spellings_reach_the_same_field() {
        let name = CString::new("global").expect("no zero byte");
        for key in ["cga_cluster_size", "cgaClusterSize"] {
            let hints = read(&[(key, "4"), ("maxCTAs", "16")]).expect("known");
            let config = hints.config(Version::new(2, 30, 7), &name);
            assert_eq!((config.cgaClusterSize, config.maxCTAs), (4, 16));
            assert_eq!((config.minCTAs, config.blocking), (UNSET, 1));
            assert_eq!(config.commName, name.as_ptr());
        }
    }

    #[test]
    fn what_is_given_later_counts_and_the_rest_stays() {
        let name = CString::new("part").expect("no zero byte");
        let first =
            read(&[("min_ctas", "2"), ("max_ctas", "8"), ("blocking", "0")]).expect("known");
        let more = [("maxCTAs", "16"), ("comm_name", "own")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        let later = first.with(&more).expect("known");
        let config = later.config(Version::new(2, 30, 7), &name);
        assert_eq!(
            (config.minCTAs, config.maxCTAs, config.blocking),
            (2, 16, 0)
        );
        assert_ne!(config.commName, name.as_ptr());
        assert_eq!(
            first.config(Version::new(2, 30, 7), &name).commName,
            name.as_ptr()
        );
    }

    #[test]
    fn the_configuration_is_as_long_as_the_library_knows() {
        for (version, size) in [
            (Version::new(2, 14, 3), 24),
            (Version::new(2, 27, 3), 72),
            (Version::new(2, 28, 9), 80),
            (Version::new(2, 30, 7), 96),
            (Version::new(2, 32, 3), 120),
        ] {
            let config = unset(version);
            assert_eq!((config.size, config.version), (size, version.code()));
        }
    }

    #[test]
    fn wrong_values_are_named_and_unknown_hints_pass() {
        let error = read(&[("blocking", "maybe")]).expect_err("no truth value");
        assert!(error.to_string().contains("blocking=\"maybe\""), "{error}");
        assert!(read(&[("min_ctas", "many")]).is_err());
        assert!(read(&[("from_the_future", "1")]).is_ok());
    }
}
