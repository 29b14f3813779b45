//! Who is not of the job: refused, told of, and no burden to those who are.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream as Local;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use ferrocomm_core::call::{Call, Collective, Mode, Region, Task};
use ferrocomm_core::dtype::Dtype;
use ferrocomm_core::ids::GroupRank;
use ferrocomm_core::reduce_op::ReduceOp;
use ferrocomm_core::store::Store;

use super::*;
use crate::engine::{GroupOptions, HostEngine};
use crate::stream::send_with_fd;

/// Long enough for a busy machine; reached only when something is wrong.
const WATCHDOG: Duration = Duration::from_secs(60);

fn endpoint(choice: TransportChoice) -> Endpoint {
    Endpoint::open(choice).unwrap()
}

fn tcp_to(member: &Member) -> TcpStream {
    let port = member.addresses[0].port();
    let own = (Ipv4Addr::LOCALHOST, port);
    TcpStream::connect(own)
        .or_else(|_| TcpStream::connect(member.addresses[0]))
        .unwrap()
}

fn local_to(member: &Member) -> Local {
    let address = UnixAddress::from_abstract_name(member.unix.as_bytes()).unwrap();
    Local::connect_addr(&address).unwrap()
}

fn greeting(from: [u8; 16], nonce: [u8; 16]) -> [u8; GREETING] {
    greeting_for(Purpose::Link, from, nonce)
}

fn greeting_for(purpose: Purpose, from: [u8; 16], nonce: [u8; 16]) -> [u8; GREETING] {
    let process = ProcessId(from);
    let comm = CommId(8);
    let greeting = Greeting {
        purpose,
        process,
        comm,
    };
    greeting.encode(&nonce)
}

/// Who has dialled to exchange frames.
fn dialler(arrival: &Arrival) -> ProcessId {
    match arrival {
        Arrival::Link { process, .. } => *process,
        Arrival::Arena { .. } | Arrival::Watch => panic!("it is no link"),
    }
}

/// Whether the other end has closed, once it has read what came before.
fn is_refused(mut socket: impl Read) -> bool {
    match socket.read(&mut [0; 8]) {
        Ok(0) => true,
        Ok(_) => panic!("a stranger was answered"),
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

/// Looks for arrivals until `done`.
fn serve(endpoint: &mut Endpoint, mut done: impl FnMut(&mut Endpoint, Vec<Arrival>) -> bool) {
    let start = Instant::now();
    loop {
        let arrivals = endpoint.arrivals();
        if done(endpoint, arrivals) {
            return;
        }
        assert!(start.elapsed() < WATCHDOG, "waited in vain");
        let mut entries: Vec<_> = endpoint
            .fds()
            .iter()
            .map(|fd| libc::pollfd {
                fd: fd.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        // SAFETY: the pointer and length are those of a vector that lives for the call.
        unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, 100) };
    }
}

/// Counts the warnings of this thread.
#[derive(Default)]
struct Warnings(AtomicU64);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Runs `act` and says how many warnings it logged.
fn warnings_of(act: impl FnOnce()) -> u64 {
    let counter = Arc::new(Warnings::default());
    tracing::subscriber::with_default(counter.clone(), act);
    counter.0.load(Ordering::Relaxed)
}

#[test]
fn who_does_not_know_the_secret_is_refused_on_both_sockets() {
    let mut endpoint = endpoint(TransportChoice::Auto);
    let me = endpoint.me.clone();
    let wrong = greeting([1; 16], [2; 16]);
    let mut remote = tcp_to(&me);
    remote.write_all(&wrong).unwrap();
    let local = local_to(&me);
    // Even with shared memory at hand: nothing of a stranger's is mapped.
    let memory = crate::memory::Memory::create(1 << 14, &Budget::of_machine()).unwrap();
    send_with_fd(&local, &wrong, &memory.1).unwrap();
    let mut seen = 0;
    let logged = warnings_of(|| {
        serve(&mut endpoint, |_, arrivals| {
            assert!(arrivals.is_empty(), "a stranger was let in");
            seen += 1;
            seen > 2
        });
    });
    assert!(is_refused(remote) && is_refused(local));
    assert_eq!(logged, 1, "the first is told at once, the second in a sum");
    assert!(endpoint.strangers.is_empty());
}

#[test]
fn garbage_is_refused_at_its_first_byte() {
    let mut endpoint = endpoint(TransportChoice::Tcp);
    let me = endpoint.me.clone();
    for bytes in [
        &b"G"[..],
        b"FERROCM3",
        b"FERROCX2",
        &[0xff; 4096],
        b"FERROCM\xff\xff\xff\xff",
    ] {
        let mut socket = tcp_to(&me);
        socket.write_all(bytes).unwrap();
        let mut refused = false;
        serve(&mut endpoint, |endpoint, arrivals| {
            assert!(arrivals.is_empty());
            refused |= endpoint.refusals.told_at.is_some() && endpoint.strangers.is_empty();
            refused
        });
        assert!(is_refused(socket), "{bytes:?}");
    }
}

#[test]
fn the_secret_is_judged_as_a_whole() {
    let nonce = [7; 16];
    let bytes = greeting([1; 16], nonce);
    for end in 0..GREETING {
        let mut wrong = bytes[..end].to_vec();
        assert_eq!(read_greeting(&wrong, &nonce), Said::Part);
        // A guess of the first bytes is not told from a wrong one.
        if let Some(last) = wrong.get_mut(24..).and_then(<[u8]>::last_mut) {
            *last ^= 1;
            assert_eq!(read_greeting(&wrong, &nonce), Said::Part);
        }
    }
    let said = read_greeting(&bytes, &nonce);
    assert!(matches!(said, Said::Whole(greeting) if greeting.process == ProcessId([1; 16])));
}

#[test]
fn those_who_greet_in_pieces_come_in() {
    let mut endpoint = endpoint(TransportChoice::Tcp);
    let me = endpoint.me.clone();
    let mut socket = tcp_to(&me);
    for byte in greeting([3; 16], me.nonce) {
        assert!(endpoint.arrivals().is_empty());
        socket.write_all(&[byte]).unwrap();
    }
    let mut process = None;
    serve(&mut endpoint, |_, arrivals| {
        process = arrivals.first().map(dialler);
        process.is_some()
    });
    assert_eq!(process, Some(ProcessId([3; 16])));
}

#[test]
fn an_arena_comes_with_its_memory_and_a_watcher_leaves_no_word() {
    let mut endpoint = endpoint(TransportChoice::Shm);
    let me = endpoint.me.clone();
    let memory = crate::memory::Memory::create(1 << 14, &Budget::of_machine()).unwrap();
    let bytes = greeting_for(Purpose::Arena, [4; 16], me.nonce);
    send_with_fd(&local_to(&me), &bytes, &memory.1).unwrap();
    // Word that there is none.
    local_to(&me).write_all(&bytes).unwrap();
    let mut watcher = local_to(&me);
    let bytes = greeting_for(Purpose::Watch, [4; 16], me.nonce);
    watcher.write_all(&bytes).unwrap();
    let mut come = Vec::new();
    let logged = warnings_of(|| {
        serve(&mut endpoint, |_, arrivals| {
            come.extend(arrivals);
            come.len() == 3
        });
    });
    let offers: Vec<bool> = come
        .iter()
        .filter_map(|arrival| match arrival {
            Arrival::Arena { comm, offer } => {
                assert_eq!((*comm, offer.from), (CommId(8), ProcessId([4; 16])));
                Some(offer.memory.is_some())
            }
            _ => None,
        })
        .collect();
    assert_eq!(offers, [true, false]);
    assert!(come.iter().any(|arrival| matches!(arrival, Arrival::Watch)));
    assert!(is_refused(watcher), "a watcher's connection is closed");
    assert_eq!(logged, 0);
}

#[test]
fn what_concerns_one_machine_is_refused_from_the_network() {
    let mut endpoint = endpoint(TransportChoice::Tcp);
    let me = endpoint.me.clone();
    for purpose in [Purpose::Arena, Purpose::Watch] {
        endpoint.refusals = Refusals::default();
        let mut socket = tcp_to(&me);
        socket
            .write_all(&greeting_for(purpose, [4; 16], me.nonce))
            .unwrap();
        serve(&mut endpoint, |endpoint, arrivals| {
            assert!(arrivals.is_empty());
            endpoint.refusals.told_at.is_some()
        });
        assert!(is_refused(socket), "{purpose:?}");
    }
}

#[test]
fn more_than_a_hundred_greeted_connections_come_in_at_once() {
    let mut endpoint = endpoint(TransportChoice::Tcp);
    let me = endpoint.me.clone();
    // They wait at the door together, more than strangers are kept and than std lets wait.
    let sockets: Vec<TcpStream> = (0..200_u8)
        .map(|number| {
            let mut socket = tcp_to(&me);
            socket.write_all(&greeting([number; 16], me.nonce)).unwrap();
            socket
        })
        .collect();
    let mut come = Vec::new();
    serve(&mut endpoint, |_, arrivals| {
        come.extend(arrivals.iter().map(|arrival| dialler(arrival).0[0]));
        come.len() == sockets.len()
    });
    come.sort_unstable();
    assert_eq!(come, (0..200).collect::<Vec<u8>>());
}

#[test]
fn of_many_half_open_connections_the_newest_are_kept_and_no_more() {
    let mut endpoint = endpoint(TransportChoice::Auto);
    let me = endpoint.me.clone();
    let logged = warnings_of(|| {
        let mut kept: Vec<TcpStream> = Vec::new();
        for number in 0..3 * STRANGERS {
            let mut socket = tcp_to(&me);
            socket
                .write_all(&Purpose::Link.magic()[..number % 8])
                .unwrap();
            kept.push(socket);
            endpoint.arrivals();
        }
        serve(&mut endpoint, |endpoint, _| {
            endpoint.refusals.untold + 1 == 2 * STRANGERS as u64
                || endpoint.strangers.len() == STRANGERS
        });
        assert_eq!(endpoint.strangers.len(), STRANGERS);
        // Two listening sockets and the newest strangers: nothing else is open.
        assert_eq!(endpoint.fds().len(), 2 + STRANGERS);
        for socket in kept.drain(..2 * STRANGERS) {
            assert!(is_refused(socket), "the oldest give way");
        }
        // Among all of them, a rank of the job comes in.
        let mut rank = tcp_to(&me);
        rank.write_all(&greeting([9; 16], me.nonce)).unwrap();
        serve(&mut endpoint, |_, arrivals| !arrivals.is_empty());
        assert_eq!(endpoint.strangers.len(), STRANGERS);
    });
    assert!(
        logged <= 10,
        "a flood is told of in sums, not {logged} times"
    );
}

#[test]
fn who_greets_too_slowly_is_dropped() {
    let mut endpoint = endpoint(TransportChoice::Tcp);
    let me = endpoint.me.clone();
    let mut socket = tcp_to(&me);
    socket.write_all(&Purpose::Link.magic()[..3]).unwrap();
    serve(&mut endpoint, |endpoint, _| endpoint.strangers.len() == 1);
    // As if it had come long ago.
    let long_ago = Instant::now().checked_sub(PATIENCE).unwrap();
    endpoint.strangers[0].since = long_ago;
    assert!(endpoint.arrivals().is_empty() && endpoint.strangers.is_empty());
    assert!(is_refused(socket));
}

#[test]
fn a_port_scan_leaves_nothing_behind() {
    let mut endpoint = endpoint(TransportChoice::Auto);
    let me = endpoint.me.clone();
    let logged = warnings_of(|| {
        for _ in 0..100 {
            drop(tcp_to(&me));
            drop(local_to(&me));
        }
        let mut seen = 0;
        serve(&mut endpoint, |endpoint, arrivals| {
            assert!(arrivals.is_empty());
            seen += 1;
            seen > 2 && endpoint.strangers.is_empty()
        });
    });
    assert_eq!(endpoint.refusals.untold, 199);
    assert_eq!(logged, 1);
}

#[test]
fn a_flood_is_summed_up_when_it_is_over() {
    let mut refusals = Refusals::default();
    let logged = warnings_of(|| {
        for _ in 0..1000 {
            refusals.note(|| "somewhere".into(), "it is a stranger");
        }
        refusals.told_at = Instant::now().checked_sub(super::refusals::TELL_EVERY);
        refusals.tell_sum();
    });
    assert_eq!((logged, refusals.untold), (2, 0));
}

#[test]
fn another_user_is_refused_on_the_local_socket_although_it_knows_the_secret() {
    const NOBODY: libc::c_long = 65534;
    let mut endpoint = endpoint(TransportChoice::Shm);
    let me = endpoint.me.clone();
    let (_memory, fd) = crate::memory::Memory::create(1 << 14, &Budget::of_machine()).unwrap();
    let stranger = thread::spawn(move || {
        // By the bare system call a thread changes who it is for itself alone.
        // SAFETY: takes plain numbers.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        if changed != 0 {
            return None;
        }
        let socket = local_to(&me);
        send_with_fd(&socket, &greeting([1; 16], me.nonce), &fd).unwrap();
        Some(socket)
    });
    let Some(socket) = stranger.join().unwrap() else {
        println!("skipped: only root can connect as another user");
        return;
    };
    let mut refused = false;
    serve(&mut endpoint, |endpoint, arrivals| {
        assert!(arrivals.is_empty(), "another user was let in");
        refused |= endpoint.refusals.told_at.is_some();
        refused
    });
    assert!(is_refused(socket));
}

/// A store in memory.
#[derive(Default)]
struct Memory(Mutex<HashMap<String, Vec<u8>>>, Condvar);

impl Store for Memory {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.0.lock().unwrap().insert(key.into(), value.into());
        self.1.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let values = self.0.lock().unwrap();
        let (values, _) = self
            .1
            .wait_timeout_while(values, timeout, |values| !values.contains_key(key))
            .unwrap();
        let late = || Error::new(ErrorKind::StoreTimeout, "no such key in time");
        values.get(key).cloned().ok_or_else(late)
    }

    fn remove(&self, key: &str) -> Result<()> {
        self.0.lock().unwrap().remove(key);
        Ok(())
    }
}

/// Two ranks sum `rounds` times; `at_the_door` is run with rank 0's endpoint meanwhile.
fn job(name: &str, rounds: u64, at_the_door: impl Fn(&Member) + Sync) {
    let store = Memory::default();
    let run = |rank: u32| {
        let engine = HostEngine::new().unwrap();
        let options = GroupOptions {
            name: name.into(),
            rank: GroupRank::new(rank),
            size: 2,
            timeout: WATCHDOG,
            hints: Vec::new(),
        };
        let group = engine.create(&options, &store).unwrap();
        if rank == 0 {
            at_the_door(&engine.member());
        }
        for sequence in 1..=rounds {
            let mut value = [u64::from(rank) + sequence; 4];
            let region = Region {
                address: value.as_mut_ptr() as usize,
                bytes: size_of_val(&value),
            };
            let task = Task::Collective(Collective::AllReduce {
                input: region,
                output: region,
                op: ReduceOp::Sum,
            });
            let call = Call {
                task,
                dtype: Dtype::Int64,
                sequence,
                timeout: WATCHDOG,
                mode: Mode::Sync,
            };
            let work = group.issue(call).unwrap();
            group.wait(&work, None).unwrap();
            work.outcome().unwrap().unwrap();
            assert_eq!(value, [2 * sequence + 1; 4]);
        }
        group.finalize(WATCHDOG).unwrap();
    };
    thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| {
            let run = &run;
            scope.spawn(move || run(rank))
        });
        for rank in ranks {
            rank.join().unwrap();
        }
    });
}

#[test]
fn a_job_is_undisturbed_while_strangers_stand_at_its_door() {
    let open = Mutex::new(Vec::new());
    job("strangers", 300, |member| {
        let mut open = open.lock().unwrap();
        for number in 0..2 * STRANGERS {
            let mut socket = tcp_to(member);
            match number % 4 {
                0 => {}
                1 => socket.write_all(&Purpose::Link.magic()[..5]).unwrap(),
                2 => socket.write_all(&[0xff; 64]).unwrap(),
                _ => continue,
            }
            open.push(socket);
        }
    });
    // They stood there all the time.
    assert!(open.into_inner().unwrap().len() > STRANGERS);
}
