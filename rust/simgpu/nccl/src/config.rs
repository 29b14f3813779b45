//! The configuration of a communicator, as callers pass it: a struct with its own size first.

use std::ffi::{CStr, c_char, c_int, c_uint};

use crate::failure::{Failure, Outcome};

const MAGIC: c_uint = 0xcafe_beef;
const UNDEFINED: c_int = c_int::MIN;

/// As in NCCL 2.30's header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawConfig {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    collnet_enable: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
    n_channels_per_net_peer: c_int,
    nvlink_centric_sched: c_int,
    graph_usage_mode: c_int,
    num_rma_ctx: c_int,
    max_p2p_peers: c_int,
    graph_stream_ordering: c_int,
}

const SIZE: usize = 96;
const _: () = assert!(size_of::<RawConfig>() == SIZE);

/// What the simulator takes from a configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether calls wait.
    pub blocking: bool,
    /// Contexts of one-sided operations.
    pub contexts: usize,
    /// For messages.
    pub name: String,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            blocking: true,
            contexts: 1,
            name: String::new(),
        }
    }
}

fn among(name: &str, value: c_int, allowed: std::ops::RangeInclusive<c_int>) -> Outcome {
    if value == UNDEFINED || allowed.contains(&value) {
        return Ok(());
    }
    Err(Failure::argument(format!(
        "config: {name} is {value}, expected {allowed:?}"
    )))
}

impl Config {
    /// Reads a caller's configuration; NULL is `inherited`.
    ///
    /// # Safety
    /// `raw` is null, or points to as many bytes as it says at its beginning.
    pub unsafe fn read(raw: *const RawConfig, inherited: &Config) -> Outcome<Config> {
        if raw.is_null() {
            return Ok(inherited.clone());
        }
        // SAFETY: each configuration begins with its size and the mark.
        let (size, magic) = unsafe { ((*raw).size, (*raw).magic) };
        if magic != MAGIC {
            return Err(Failure::argument(
                "config: not made with NCCL_CONFIG_INITIALIZER",
            ));
        }
        if !(20..=SIZE).contains(&size) {
            let text = format!("config: size is {size}, expected at most {SIZE} of NCCL 2.30");
            return Err(Failure::argument(text));
        }
        // SAFETY: all zero is a value of each field.
        let mut all: RawConfig = unsafe { std::mem::zeroed() };
        for field in [
            &mut all.blocking,
            &mut all.cga_cluster_size,
            &mut all.min_ctas,
            &mut all.max_ctas,
            &mut all.split_share,
            &mut all.shrink_share,
            &mut all.num_rma_ctx,
        ] {
            *field = UNDEFINED;
        }
        // SAFETY: both have `size` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(
                raw.cast::<u8>(),
                (&raw mut all).cast::<u8>(),
                size.min(size_of::<RawConfig>()),
            );
        }
        Config::from_raw(&all, inherited)
    }

    fn from_raw(all: &RawConfig, inherited: &Config) -> Outcome<Config> {
        among("blocking", all.blocking, 0..=1)?;
        among("cgaClusterSize", all.cga_cluster_size, 0..=8)?;
        among("minCTAs", all.min_ctas, 1..=c_int::MAX)?;
        among("maxCTAs", all.max_ctas, 1..=c_int::MAX)?;
        if all.min_ctas != UNDEFINED && all.max_ctas != UNDEFINED && all.min_ctas > all.max_ctas {
            return Err(Failure::argument("config: minCTAs is larger than maxCTAs"));
        }
        among("splitShare", all.split_share, 0..=1)?;
        among("shrinkShare", all.shrink_share, 0..=1)?;
        among(
            "numRmaCtx",
            all.num_rma_ctx,
            0..=crate::arena::CONTEXTS as c_int,
        )?;
        let name = if all.comm_name.is_null() {
            String::new()
        } else {
            // SAFETY: not null, and a text of the caller's.
            unsafe { CStr::from_ptr(all.comm_name) }
                .to_string_lossy()
                .into_owned()
        };
        Ok(Config {
            blocking: match all.blocking {
                UNDEFINED => inherited.blocking,
                value => value == 1,
            },
            contexts: match all.num_rma_ctx {
                UNDEFINED => inherited.contexts,
                value => value.unsigned_abs() as usize,
            },
            name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(change: impl FnOnce(&mut RawConfig)) -> Outcome<Config> {
        // SAFETY: all zero is a value of each field.
        let mut all: RawConfig = unsafe { std::mem::zeroed() };
        // SAFETY: the whole is integers after the mark, and pointers, which become null below.
        unsafe {
            let words = (&raw mut all).cast::<c_int>();
            (4..size_of::<RawConfig>() / 4).for_each(|word| words.add(word).write(UNDEFINED));
        }
        (all.size, all.magic, all.version) = (SIZE, MAGIC, 23_007);
        (all.net_name, all.comm_name) = (std::ptr::null(), std::ptr::null());
        change(&mut all);
        // SAFETY: a whole configuration.
        unsafe { Config::read(&raw const all, &Config::default()) }
    }

    #[test]
    fn what_is_not_set_is_inherited() {
        let config = raw(|_| {}).unwrap();
        assert!(config.blocking && config.contexts == 1);
        assert!(!raw(|all| all.blocking = 0).unwrap().blocking);
    }

    #[test]
    fn a_configuration_of_another_make_is_refused() {
        assert!(raw(|all| all.magic = 1).is_err());
        assert!(raw(|all| all.size = 120).is_err());
        assert!(raw(|all| all.blocking = 2).is_err());
        assert!(raw(|all| (all.min_ctas, all.max_ctas) = (4, 2)).is_err());
    }

    #[test]
    fn a_shorter_configuration_of_an_older_header_is_read() {
        assert!(
            !raw(|all| (all.size, all.blocking) = (48, 0))
                .unwrap()
                .blocking
        );
    }
}
