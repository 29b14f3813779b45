//! Where this process can be reached, and which machine it is on.
//!
//! The store does not say through which interface it was reached, so the route to MASTER_ADDR, which
//! usually is the store's host, stands in for it. Loopback is an answer only where every rank must
//! be on this machine; to another machine it would name that machine itself. Must not know any
//! other rank.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::{env, fs, io, ptr};

use ferrocomm_core::error::{Error, ErrorKind, Result};
use ferrocomm_core::ids::stable_hash;

/// Variables that name interfaces; the first that is set counts.
const INTERFACES: [&str; 3] = [
    "FERROCOMM_INTERFACE",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
];

/// The address of this machine that other ranks are to use.
///
/// # Errors
/// `InvalidArgument` when the named interfaces are not there or have no address, `Transport` when no
/// address can be found.
pub(crate) fn local_address() -> Result<IpAddr> {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let named = INTERFACES.iter().find_map(|name| Some((*name, set(name)?)));
    let world = set("WORLD_SIZE");
    choose(&Surroundings {
        named: named.as_ref().map(|(name, list)| (*name, list.as_str())),
        master: set("MASTER_ADDR").as_deref(),
        all_local: world.is_some() && world == set("LOCAL_WORLD_SIZE"),
        interfaces: &interfaces,
        route: &route,
        own_name: &own_name,
    })
}

/// A number that two processes share exactly when they can meet in shared memory and on abstract
/// Unix sockets: one boot of one machine, in one network namespace. FERROCOMM_HOST_ID overrides it,
/// to test several machines on one.
pub(crate) fn machine_id() -> u64 {
    if let Some(id) = env::var("FERROCOMM_HOST_ID")
        .ok()
        .filter(|id| !id.is_empty())
    {
        return stable_hash(&[b"host id", id.as_bytes()]);
    }
    let boot = fs::read("/proc/sys/kernel/random/boot_id")
        .unwrap_or_else(|_| host_name().unwrap_or_default().into_bytes());
    let namespace = fs::metadata("/proc/self/ns/net").map_or(0, |metadata| metadata.ino());
    stable_hash(&[b"boot", &boot, &namespace.to_le_bytes()])
}

/// What the choice depends on; tests make their own.
struct Surroundings<'a> {
    /// variable and its list of interfaces
    named: Option<(&'static str, &'a str)>,
    /// MASTER_ADDR
    master: Option<&'a str>,
    /// the launcher says that all ranks are on this machine
    all_local: bool,
    /// interfaces that are up, with their addresses
    interfaces: &'a dyn Fn() -> io::Result<Vec<(String, IpAddr)>>,
    /// the address of the master, and the one this machine uses to reach it
    route: &'a dyn Fn(&str) -> io::Result<(IpAddr, IpAddr)>,
    /// what this machine's own name leads to
    own_name: &'a dyn Fn() -> Vec<IpAddr>,
}

fn choose(around: &Surroundings<'_>) -> Result<IpAddr> {
    if let Some((variable, list)) = around.named {
        return of_interface(variable, list, &listed(around)?);
    }
    match around.master {
        Some(master) => towards(around, master),
        None => {
            // Without a master nothing says that there are other machines.
            let usable = usable(&listed(around)?);
            let own = (around.own_name)()
                .into_iter()
                .find(|address| usable.contains(address));
            Ok(own.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)))
        }
    }
}

/// The address from which this machine reaches the master.
fn towards(around: &Surroundings<'_>, master: &str) -> Result<IpAddr> {
    let (there, here) = (around.route)(master).map_err(|error| {
        Error::new(
            ErrorKind::Transport,
            format!("there is no route to the master: {error}"),
        )
        .got(format!("MASTER_ADDR={master}"))
        .remedy("correct MASTER_ADDR, or name an interface in FERROCOMM_INTERFACE")
    })?;
    let means_here = |address: IpAddr| address.is_loopback() || address.is_unspecified();
    // A name may lead to loopback on its own machine and to an address on all others.
    let is_literal = master == "localhost" || master.parse::<IpAddr>().is_ok();
    if !means_here(here) || (means_here(there) && is_literal) || around.all_local {
        return Ok(here);
    }
    let shared = usable(&listed(around)?).into_iter().next();
    shared.ok_or_else(|| {
        Error::new(
            ErrorKind::Transport,
            "this machine has no address but loopback",
        )
        .got(format!("MASTER_ADDR={master}"))
        .remedy("name an interface in FERROCOMM_INTERFACE, or set MASTER_ADDR=localhost")
    })
}

fn listed(around: &Surroundings<'_>) -> Result<Vec<(String, IpAddr)>> {
    (around.interfaces)().map_err(|error| {
        Error::new(
            ErrorKind::Transport,
            format!("cannot list network interfaces: {error}"),
        )
    })
}

/// Beginnings of the names of interfaces that lead to containers and virtual machines alone.
const INWARD: [&str; 5] = ["docker", "br-", "veth", "virbr", "cni"];

/// Addresses that mean this machine on others too, the likeliest first.
fn usable(interfaces: &[(String, IpAddr)]) -> Vec<IpAddr> {
    let inward = |name: &str| INWARD.iter().any(|start| name.starts_with(start));
    let mut found: Vec<_> = interfaces
        .iter()
        .filter(|(_, address)| reaches(*address))
        .collect();
    found.sort_by_key(|(name, address)| (inward(name), address.is_ipv6()));
    found.into_iter().map(|(_, address)| *address).collect()
}

/// Whether other machines can use `address` as it stands; a link-local one would need a scope.
fn reaches(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local() && !ip.is_unspecified(),
    }
}

/// The first address on an interface that `list` admits: names and beginnings of names, in order of
/// preference, or, after a `^`, those to leave out.
fn of_interface(variable: &str, list: &str, interfaces: &[(String, IpAddr)]) -> Result<IpAddr> {
    let (excludes, names) = match list.strip_prefix('^') {
        Some(names) => (true, names),
        None => (false, list),
    };
    let names: Vec<&str> = names
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    let admitted: Vec<&(String, IpAddr)> = if excludes {
        let left_out = |name: &str| names.iter().any(|start| name.starts_with(start));
        interfaces
            .iter()
            .filter(|(name, ip)| !left_out(name) && reaches(*ip))
            .collect()
    } else {
        let exact = names
            .iter()
            .flat_map(|wanted| interfaces.iter().filter(move |(name, _)| name == wanted));
        let begun = names.iter().flat_map(|wanted| {
            interfaces
                .iter()
                .filter(move |(name, _)| name.starts_with(wanted))
        });
        // Whoever names loopback gets it; a link-local address is of no use to anybody.
        let useful = |entry: &&(String, IpAddr)| reaches(entry.1) || entry.1.is_loopback();
        exact.chain(begun).filter(useful).collect()
    };
    let best = admitted
        .iter()
        .find(|(_, address)| address.is_ipv4())
        .or(admitted.first());
    best.map(|(_, address)| *address).ok_or_else(|| {
        let mut present: Vec<&str> = interfaces.iter().map(|(name, _)| name.as_str()).collect();
        present.dedup();
        Error::new(
            ErrorKind::InvalidArgument,
            "no interface of that name has an address",
        )
        .got(format!("{variable}={list}"))
        .expected(format!("one of {}", present.join(", ")))
    })
}

/// Addresses of `master` and of the way to it. Connecting a datagram socket sends nothing.
fn route(master: &str) -> io::Result<(IpAddr, IpAddr)> {
    let mut failure = io::Error::other("the name has no address");
    for there in (master, 9).to_socket_addrs()? {
        let any: IpAddr = match there.ip() {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let here = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(there)?;
            socket.local_addr()
        });
        match here {
            Ok(here) => return Ok((there.ip(), here.ip())),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn own_name() -> Vec<IpAddr> {
    let resolve = |name: String| (name.as_str(), 0).to_socket_addrs().ok();
    host_name()
        .and_then(resolve)
        .into_iter()
        .flatten()
        .map(|address| address.ip())
        .collect()
}

fn host_name() -> Option<String> {
    let mut buffer = [0_u8; 256];
    // SAFETY: the length leaves one byte of the buffer, which stays zero and ends the name.
    let failed = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
    if failed != 0 {
        return None;
    }
    CStr::from_bytes_until_nul(&buffer)
        .ok()?
        .to_str()
        .ok()
        .map(str::to_owned)
}

/// Interfaces that are up, with their IP addresses, in the kernel's order.
fn interfaces() -> io::Result<Vec<(String, IpAddr)>> {
    let mut list = ptr::null_mut();
    // SAFETY: getifaddrs writes one pointer, to a list that is freed below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next: *const libc::ifaddrs = list;
    // SAFETY: entries of the list are valid until it is freed; the last one's next is null.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        let is_up = entry.ifa_flags & libc::IFF_UP as libc::c_uint != 0;
        // SAFETY: the kernel's address is null or that of a socket address of its family's size.
        if let Some(address) = unsafe { ip_of(entry.ifa_addr) }.filter(|_| is_up) {
            // SAFETY: an entry's name is a string that lives as long as the list.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            found.push((name.to_string_lossy().into_owned(), address));
        }
    }
    // SAFETY: the list came from getifaddrs, and nothing borrowed from it is left.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// The IP address in a socket address, if it is one.
///
/// # Safety
/// `address` is null or points to a socket address as long as its family says.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise; every socket address starts with its family.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: the caller's promise, for this family.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the caller's promise, for this family.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn machine() -> io::Result<Vec<(String, IpAddr)>> {
        let entries = [
            ("lo", "127.0.0.1"),
            ("docker0", "172.17.0.1"),
            ("eth0", "fe80::1"),
            ("eth0", "2001:db8::5"),
            ("eth0", "10.0.0.5"),
            ("eth10", "10.1.0.5"),
            ("ib0", "169.254.1.1"),
        ];
        Ok(entries
            .iter()
            .map(|(name, address)| ((*name).to_owned(), ip(address)))
            .collect())
    }

    fn only_loopback() -> io::Result<Vec<(String, IpAddr)>> {
        Ok(vec![("lo".into(), ip("127.0.0.1"))])
    }

    fn routes(master: &str) -> io::Result<(IpAddr, IpAddr)> {
        match master {
            "localhost" | "127.0.0.1" => Ok((ip("127.0.0.1"), ip("127.0.0.1"))),
            "this-machine" => Ok((ip("127.0.1.1"), ip("127.0.0.1"))),
            "head" => Ok((ip("10.1.0.1"), ip("10.1.0.5"))),
            _ => Err(io::Error::other("unknown name")),
        }
    }

    fn around<'a>(
        named: Option<&'a str>,
        master: Option<&'a str>,
        all_local: bool,
    ) -> Surroundings<'a> {
        Surroundings {
            named: named.map(|list| ("GLOO_SOCKET_IFNAME", list)),
            master,
            all_local,
            interfaces: &machine,
            route: &routes,
            own_name: &|| vec![ip("127.0.1.1")],
        }
    }

    #[test]
    fn interface_lists_come_in_both_spellings() {
        let cases = [
            ("eth0", "10.0.0.5"),
            ("eth1", "10.1.0.5"),
            ("ib0,eth10,eth0", "10.1.0.5"),
            (" docker0 ", "172.17.0.1"),
            ("lo", "127.0.0.1"),
            ("^lo,docker", "10.0.0.5"),
            ("^docker,eth0", "10.1.0.5"),
        ];
        for (list, expected) in cases {
            // The named interface counts, whatever the route.
            let chosen = choose(&around(Some(list), Some("head"), false));
            assert_eq!(chosen.unwrap(), ip(expected), "{list}");
        }
        for list in ["wlan0", "ib0", "^lo,docker,eth,ib", ","] {
            let error = choose(&around(Some(list), None, false)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{list}");
            let text = error.to_string();
            assert!(
                text.contains("GLOO_SOCKET_IFNAME") && text.contains("eth10"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_route_to_the_master_decides() {
        assert_eq!(
            choose(&around(None, Some("head"), false)).unwrap(),
            ip("10.1.0.5")
        );
        let error = choose(&around(None, Some("nowhere"), false)).unwrap_err();
        assert!(error.to_string().contains("MASTER_ADDR=nowhere"), "{error}");
    }

    #[test]
    fn loopback_is_advertised_only_where_all_are_local() {
        for master in ["localhost", "127.0.0.1"] {
            assert_eq!(
                choose(&around(None, Some(master), false)).unwrap(),
                ip("127.0.0.1")
            );
        }
        // The name of this machine leads to loopback here, and to the machine from elsewhere.
        let named = around(None, Some("this-machine"), false);
        assert_eq!(choose(&named).unwrap(), ip("10.0.0.5"));
        let alone = Surroundings {
            interfaces: &only_loopback,
            ..named
        };
        assert_eq!(choose(&alone).unwrap_err().kind(), ErrorKind::Transport);
        let local = around(None, Some("this-machine"), true);
        assert_eq!(choose(&local).unwrap(), ip("127.0.0.1"));
    }

    #[test]
    fn without_a_master_the_own_name_is_tried() {
        assert_eq!(choose(&around(None, None, false)).unwrap(), ip("127.0.0.1"));
        let names = || vec![ip("192.0.2.1"), ip("10.1.0.5")];
        let known = Surroundings {
            own_name: &names,
            ..around(None, None, false)
        };
        assert_eq!(choose(&known).unwrap(), ip("10.1.0.5"));
    }

    #[test]
    fn this_machine_has_interfaces_a_name_and_a_number() {
        assert!(
            interfaces()
                .unwrap()
                .iter()
                .any(|(_, address)| address.is_loopback())
        );
        assert_eq!(
            route("127.0.0.1").unwrap(),
            (ip("127.0.0.1"), ip("127.0.0.1"))
        );
        assert!(host_name().is_some());
        assert_eq!(machine_id(), machine_id());
    }
}
