//! What every kind of stream promises, and what shared memory promises besides.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferrocomm_core::deadline::Deadline;
use ferrocomm_core::error::ErrorKind;

use super::shm::ShmStream;
use super::tcp::{TcpLink, accept, connect, connected, start_connect};
use super::{Stream, StreamKind, peer_is_gone, receive_with_fd, send_with_fd};
use crate::budget::Budget;
use crate::memory::Memory;

/// Long enough for a busy machine; reached only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);
const HELLO: &[u8] = b"hello";

fn shm_pair(ring_bytes: usize) -> [ShmStream; 2] {
    let (left, right) = UnixStream::pair().unwrap();
    let left = ShmStream::dial(left, HELLO, ring_bytes, &Budget::of_machine()).unwrap();
    let mut hello = [0; HELLO.len()];
    let (received, fd) = receive_with_fd(&right, &mut hello).unwrap();
    assert_eq!(&hello[..received], HELLO);
    [left, ShmStream::accept(right, &fd.unwrap()).unwrap()]
}

fn tcp_pair() -> [TcpLink; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let left = connect(address, Deadline::after(PATIENCE)).unwrap();
    let (right, from) = accept(&listener).unwrap().unwrap();
    assert_eq!(from, left.local_addr().unwrap());
    [left, right].map(|socket| TcpLink::new(socket).unwrap())
}

fn pair(kind: StreamKind) -> [Box<dyn Stream>; 2] {
    match kind {
        StreamKind::Shm => shm_pair(4096).map(|end| Box::new(end) as Box<dyn Stream>),
        StreamKind::Tcp => tcp_pair().map(|end| Box::new(end) as Box<dyn Stream>),
    }
}

/// Sleeps until the stream has something to do, as a progress engine does.
fn sleep(stream: &mut dyn Stream) {
    if stream.before_sleep() {
        return;
    }
    let writable = if stream.watch_writable() {
        libc::POLLOUT
    } else {
        0
    };
    let mut entry = libc::pollfd {
        fd: stream.fd().as_raw_fd(),
        events: libc::POLLIN | writable,
        revents: 0,
    };
    // SAFETY: reads and writes one `pollfd` that lives for the call.
    let ready = unsafe { libc::poll(&mut entry, 1, PATIENCE.as_millis() as libc::c_int) };
    assert!(ready > 0, "nobody woke a sleeping stream");
    stream.after_sleep(true);
}

fn write_all(stream: &mut dyn Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let (first, second) = bytes.split_at(bytes.len() / 3);
        let written = stream.try_write(&[IoSlice::new(first), IoSlice::new(second)])?;
        bytes = &bytes[written..];
        if !bytes.is_empty() {
            sleep(stream);
        }
    }
    Ok(())
}

fn read_exact(stream: &mut dyn Stream, into: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        let read = stream.try_read(&mut into[filled..])?;
        filled += read;
        if read == 0 {
            sleep(stream);
        }
    }
    Ok(())
}

fn end_of(stream: &mut dyn Stream) -> io::Error {
    loop {
        match stream.try_read(&mut [0; 16]) {
            Err(error) => return error,
            Ok(0) => sleep(stream),
            Ok(_) => panic!("bytes nobody sent"),
        }
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

#[test]
fn bytes_arrive_in_order_through_any_sizes_both_ways_at_once() {
    for kind in [StreamKind::Shm, StreamKind::Tcp] {
        let sizes = [1, 2, 3, 61, 4095, 4096, 4097, 1, 100_003, 7, 1_000_000];
        let [mut left, mut right] = pair(kind);
        let echo = std::thread::spawn(move || {
            for size in sizes {
                let mut bytes = vec![0; size];
                read_exact(&mut *right, &mut bytes).unwrap();
                write_all(&mut *right, &bytes).unwrap();
            }
            // What was written before the end closed must still arrive.
            right.kind()
        });
        for size in sizes {
            write_all(&mut *left, &pattern(size)).unwrap();
            let mut bytes = vec![0; size];
            read_exact(&mut *left, &mut bytes).unwrap();
            assert!(
                bytes == pattern(size),
                "{size} bytes through {}",
                kind.name()
            );
        }
        assert_eq!(echo.join().unwrap(), kind);
        assert_eq!(end_of(&mut *left).kind(), io::ErrorKind::UnexpectedEof);
    }
}

#[test]
fn a_full_stream_takes_no_more_until_it_is_read() {
    for kind in [StreamKind::Shm, StreamKind::Tcp] {
        let [mut left, mut right] = pair(kind);
        let block = pattern(1 << 20);
        let mut sent = 0;
        loop {
            let written = left
                .try_write(&[IoSlice::new(&block[sent % block.len()..])])
                .unwrap();
            sent += written;
            if written == 0 {
                break;
            }
        }
        assert_eq!(left.watch_writable(), kind == StreamKind::Tcp);
        let reader = std::thread::spawn(move || {
            let mut bytes = vec![0; sent];
            read_exact(&mut *right, &mut bytes).unwrap();
            (right, bytes)
        });
        sleep(&mut *left);
        let (mut right, bytes) = reader.join().unwrap();
        let expected: Vec<u8> = block.iter().cycle().take(sent).copied().collect();
        assert!(bytes == expected, "{}", kind.name());
        write_all(&mut *left, b"more").unwrap();
        let mut more = [0; 4];
        read_exact(&mut *right, &mut more).unwrap();
        assert_eq!(&more, b"more");
    }
}

#[test]
fn what_was_sent_is_read_before_the_end_is_seen() {
    for kind in [StreamKind::Shm, StreamKind::Tcp] {
        let [mut left, mut right] = pair(kind);
        write_all(&mut *left, b"last words").unwrap();
        drop(left);
        let mut bytes = [0; 10];
        read_exact(&mut *right, &mut bytes).unwrap();
        assert_eq!(&bytes, b"last words");
        let error = end_of(&mut *right);
        assert!(error.kind() == io::ErrorKind::UnexpectedEof && peer_is_gone(&error));
        let error = loop {
            match right.try_write(&[IoSlice::new(b"anybody?")]) {
                // A socket learns of it from the answer to its first bytes.
                Ok(_) => sleep(&mut *right),
                Err(error) => break error,
            }
        };
        assert!(peer_is_gone(&error), "{error}");
    }
}

#[test]
fn a_sleeper_is_woken_by_bytes_and_by_the_end() {
    for kind in [StreamKind::Shm, StreamKind::Tcp] {
        let [mut left, mut right] = pair(kind);
        let sleeper = std::thread::spawn(move || {
            let mut count = 0;
            let mut byte = [0];
            while read_exact(&mut *right, &mut byte).is_ok() {
                count += 1;
                write_all(&mut *right, &byte).unwrap();
            }
            count
        });
        for round in 0..2000_u32 {
            write_all(&mut *left, &[round as u8]).unwrap();
            let mut byte = [0];
            read_exact(&mut *left, &mut byte).unwrap();
            assert_eq!(byte, [round as u8]);
        }
        drop(left);
        assert_eq!(sleeper.join().unwrap(), 2000);
    }
}

#[test]
fn nothing_to_read_or_write_is_no_error() {
    for kind in [StreamKind::Shm, StreamKind::Tcp] {
        let [mut left, mut right] = pair(kind);
        assert_eq!(left.try_read(&mut []).unwrap(), 0);
        assert_eq!(left.try_read(&mut [0; 8]).unwrap(), 0);
        assert_eq!(left.try_write(&[]).unwrap(), 0);
        assert_eq!(
            left.try_write(&[IoSlice::new(&[]), IoSlice::new(b"x")])
                .unwrap(),
            1
        );
        left.probe();
        let mut byte = [0];
        read_exact(&mut *right, &mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }
}

#[test]
fn more_parts_than_one_call_takes_arrive_in_order() {
    for kind in [StreamKind::Shm, StreamKind::Tcp] {
        let [mut left, mut right] = pair(kind);
        let bytes = pattern(1000);
        let mut sent = 0;
        while sent < bytes.len() {
            let parts: Vec<IoSlice<'_>> = bytes[sent..].chunks(3).map(IoSlice::new).collect();
            sent += left.try_write(&parts).unwrap();
        }
        let mut read = vec![0; bytes.len()];
        read_exact(&mut *right, &mut read).unwrap();
        assert!(read == bytes, "{}", kind.name());
    }
}

#[test]
fn an_awake_peer_is_not_rung() {
    let [mut left, right] = shm_pair(4096);
    write_all(&mut left, b"quiet").unwrap();
    let socket = right.fd().try_clone_to_owned().unwrap();
    let mut socket = UnixStream::from(socket);
    let error = socket.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn bytes_that_came_before_the_announcement_forbid_sleep() {
    let [mut left, mut right] = shm_pair(4096);
    assert!(!right.before_sleep());
    right.after_sleep(false);
    write_all(&mut left, b"x").unwrap();
    assert!(right.before_sleep());
}

/// The memory of a connection, from the side of a peer that follows no rules.
fn mad_peer() -> (UnixStream, Memory, ShmStream) {
    let (left, right) = UnixStream::pair().unwrap();
    let left = ShmStream::dial(left, HELLO, 4096, &Budget::of_machine()).unwrap();
    let (_, fd) = receive_with_fd(&right, &mut [0; 5]).unwrap();
    let memory = Memory::open(&fd.unwrap(), 0, 1 << 20).unwrap();
    (right, memory, left)
}

#[test]
fn corrupt_counts_are_errors() {
    use std::sync::atomic::Ordering;
    // Counts of the ring to read from, and of the one to write to; see the layout in `shm`.
    let (_socket, memory, mut stream) = mad_peer();
    for head in [4097, u64::MAX] {
        memory.atomic_u64(256 + 256).store(head, Ordering::Release);
        for _ in 0..2 {
            let error = stream.try_read(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(!peer_is_gone(&error));
        }
    }
    for tail in [1, u64::MAX, 1 << 63] {
        memory.atomic_u64(256 + 128).store(tail, Ordering::Release);
        for _ in 0..2 {
            let error = stream.try_write(&[IoSlice::new(&[0; 4097])]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
    assert!(stream.before_sleep(), "there is an error to report");
}

#[test]
fn memory_of_another_kind_is_refused() {
    let (left, right) = UnixStream::pair().unwrap();
    let accept = |fd: &OwnedFd| ShmStream::accept(right.try_clone().unwrap(), fd).unwrap_err();
    let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    assert_eq!(accept(&file).kind(), ErrorKind::Transport);
    let (memory, fd) = Memory::create(4096 + 2 * 4096, &Budget::of_machine()).unwrap();
    let text = accept(&fd).to_string();
    assert!(text.contains("another version"), "{text}");
    memory
        .atomic_u64(0)
        .store(0x4643_5348_4d00_0001, std::sync::atomic::Ordering::Relaxed);
    for capacity in [0, 4095, 8192, u64::MAX] {
        memory
            .atomic_u64(8)
            .store(capacity, std::sync::atomic::Ordering::Relaxed);
        let text = accept(&fd).to_string();
        assert!(text.contains("do not fit"), "{text}");
    }
    drop(left);
}

#[test]
fn a_shortage_of_memory_is_an_error_with_a_remedy() {
    let (left, right) = UnixStream::pair().unwrap();
    let error = ShmStream::dial(left, HELLO, 1 << 20, &Budget::Fixed(1 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Resources);
    assert!(
        error.to_string().contains("FERROCOMM_HOST_TRANSPORT"),
        "{error}"
    );
    // The peer sees the end of the connection, not half a hello.
    assert_eq!(receive_with_fd(&right, &mut [0; 5]).unwrap().0, 0);
}

#[test]
fn connecting_never_blocks_and_says_why_it_failed() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    assert!(accept(&listener).unwrap().is_none());
    let socket = start_connect(address).unwrap();
    while !connected(&socket).unwrap() {
        std::thread::yield_now();
    }
    drop(listener);
    let refused = connect(address, Deadline::after(PATIENCE)).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_peer_that_does_not_read_is_not_taken_for_a_silent_one() {
    let [mut left, right] = tcp_pair();
    let block = pattern(1 << 20);
    while left.try_write(&[IoSlice::new(&block)]).unwrap() > 0 {}
    // Longer than the silence that ends a connection.
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(200));
        left.probe();
        left.try_write(&[IoSlice::new(b"x")]).unwrap();
    }
    drop(right);
}

/// Runs `child` of this file in a process of its own that connects to a listener of this test.
fn with_child(role: &str) -> (std::process::Child, UnixStream) {
    let name = format!("ferrocomm-stream-test-{role}-{}", std::process::id());
    let listener =
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stream::tests::child", "--nocapture"])
        .env("FERROCOMM_TEST_CHILD", format!("{role} {name}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (socket, _) = listener.accept().unwrap();
    (process, socket)
}

fn accepted(socket: UnixStream) -> ShmStream {
    let mut hello = [0; HELLO.len()];
    let (received, fd) = receive_with_fd(&socket, &mut hello).unwrap();
    assert_eq!(&hello[..received], HELLO);
    ShmStream::accept(socket, &fd.unwrap()).unwrap()
}

/// The other process of the tests below; does nothing when run as a test of its own.
#[test]
fn child() {
    let Ok(task) = std::env::var("FERROCOMM_TEST_CHILD") else {
        return;
    };
    let (role, name) = task.split_once(' ').unwrap();
    let socket = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    let mut stream = ShmStream::dial(socket, HELLO, 65536, &Budget::of_machine()).unwrap();
    let mut bytes = vec![0; 3_000_001];
    match role {
        "echo" => {
            read_exact(&mut stream, &mut bytes).unwrap();
            write_all(&mut stream, &bytes).unwrap();
        }
        _ => {
            write_all(&mut stream, b"last words").unwrap();
            // Killed while it waits.
            end_of(&mut stream);
        }
    }
}

#[test]
fn two_processes_share_a_stream() {
    let (mut process, socket) = with_child("echo");
    let mut stream = accepted(socket);
    let sent = pattern(3_000_001);
    write_all(&mut stream, &sent).unwrap();
    let mut bytes = vec![0; sent.len()];
    read_exact(&mut stream, &mut bytes).unwrap();
    assert!(bytes == sent);
    assert!(process.wait().unwrap().success());
}

#[test]
fn a_killed_process_is_noticed_after_its_last_words() {
    let (mut process, socket) = with_child("killed");
    let mut stream = accepted(socket);
    let mut bytes = [0; 1];
    read_exact(&mut stream, &mut bytes).unwrap();
    process.kill().unwrap();
    assert_eq!(process.wait().unwrap().signal(), Some(libc::SIGKILL));
    let mut rest = [0; 9];
    read_exact(&mut stream, &mut rest).unwrap();
    assert_eq!(&rest, b"ast words");
    // One that spins instead of sleeping learns it from `probe`.
    stream.probe();
    assert_eq!(
        stream.try_read(&mut bytes).unwrap_err().kind(),
        io::ErrorKind::UnexpectedEof
    );
    let error = stream.try_write(&[IoSlice::new(b"anybody?")]).unwrap_err();
    assert!(peer_is_gone(&error));
}

#[test]
fn a_hello_too_long_for_a_new_socket_is_an_error() {
    let (left, right) = UnixStream::pair().unwrap();
    left.set_nonblocking(true).unwrap();
    let long = vec![0; 16 << 20];
    let error = send_with_fd(&left, &long, right.as_fd()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WriteZero);
}

/// `TcpStream` and `Write` are what strangers use.
#[test]
fn a_stranger_that_hangs_up_is_an_end_like_any_other() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut stranger = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, _) = listener.accept().unwrap();
    let mut stream = TcpLink::new(socket).unwrap();
    stranger.write_all(b"GET /").unwrap();
    drop(stranger);
    let mut bytes = [0; 5];
    read_exact(&mut stream, &mut bytes).unwrap();
    assert_eq!(end_of(&mut stream).kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn what_was_received_ahead_keeps_a_thread_awake() {
    let [mut left, mut right] = tcp_pair();
    write_all(&mut left, b"header and payload").unwrap();
    let mut header = [0; 6];
    read_exact(&mut right, &mut header).unwrap();
    assert_eq!(&header, b"header");
    // The socket is empty by now: it would never become readable.
    assert!(right.before_sleep());
    let mut payload = [0; 12];
    read_exact(&mut right, &mut payload).unwrap();
    assert_eq!(&payload, b" and payload");
    assert!(!right.before_sleep());
}

#[test]
fn bytes_stay_in_order_whatever_lengths_they_are_read_in() {
    let [mut left, mut right] = tcp_pair();
    let sent = pattern(300_000);
    let expected = sent.clone();
    let sender = std::thread::spawn(move || write_all(&mut left, &sent).map(|()| left));
    let mut start = 0;
    for length in [64, 5000, 1, 4096, 4095, 64, 100_000, 8, 4097]
        .iter()
        .cycle()
    {
        let length = (*length).min(expected.len() - start);
        let mut bytes = vec![0; length];
        read_exact(&mut right, &mut bytes).unwrap();
        assert!(bytes == expected[start..start + length], "at {start}");
        start += length;
        if start == expected.len() {
            break;
        }
    }
    drop(sender.join().unwrap().unwrap());
    assert_eq!(end_of(&mut right).kind(), io::ErrorKind::UnexpectedEof);
}
