//! A stretch of wire between the measured and their database: a relay that hands on
//! every chunk of bytes a fixed time after it arrived.
//!
//! Nothing waits for anything else: while one chunk is held, later ones are read and
//! held too, so that requests sent one behind the other arrive one behind the other,
//! as they do on a real network. Bandwidth, loss and the handshake of a connection are
//! not imitated, and what a slow receiver leaves is kept in memory without a limit.
//!
//! Each direction of a connection has a thread that reads and a thread that delivers.
//! They are threads and not tasks because the timers of the runtime tick in
//! milliseconds, which is more than what is imitated here.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::SockRef;

/// Most bytes that are held as one chunk.
const CHUNK: usize = 64 * 1024;
/// How long nobody is let in after a failed accept, which would only fail again at once.
const BREATH: Duration = Duration::from_millis(10);

/// A relay on a port of its own; it lets nobody in any more once it is dropped, while
/// connections that it carries go on until one of their ends closes them.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    closed: Arc<AtomicBool>,
    entrance: Option<JoinHandle<()>>,
}

impl Relay {
    /// Opens a relay to the first of `upstream` that can be reached, `delay` away in each
    /// direction.
    ///
    /// # Errors
    /// When there is no free port or no thread.
    pub fn open(upstream: Vec<SocketAddr>, delay: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let closed = Arc::new(AtomicBool::new(false));
        let entrance = {
            let (closed, upstream) = (Arc::clone(&closed), Arc::new(upstream));
            named("relay").spawn(move || admit(&listener, &upstream, delay, &closed))?
        };
        Ok(Self {
            address,
            closed,
            entrance: Some(entrance),
        })
    }

    /// Where it is to be reached.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // Wakes the thread that waits for the next connection. Where not even this one
        // comes through it goes with the process.
        if TcpStream::connect(self.address).is_ok()
            && let Some(entrance) = self.entrance.take()
        {
            let _ = entrance.join();
        }
    }
}

fn named(name: &str) -> thread::Builder {
    thread::Builder::new().name(name.to_owned())
}

fn admit(
    listener: &TcpListener,
    upstream: &Arc<Vec<SocketAddr>>,
    delay: Duration,
    closed: &AtomicBool,
) {
    for client in listener.incoming() {
        if closed.load(Ordering::Acquire) {
            return;
        }
        let Ok(client) = client else {
            thread::sleep(BREATH);
            continue;
        };
        let upstream = Arc::clone(upstream);
        // Without a thread the connection ends here, which its client sees.
        let _ = named("relay-connect").spawn(move || {
            // Refused above is refused below.
            let carried =
                TcpStream::connect(&upstream[..]).and_then(|far| carry(&client, &far, delay));
            if carried.is_err() {
                let _ = reset(&client);
            }
        });
    }
}

/// Carries a connection until it has ended, on threads that end with it.
fn carry(near: &TcpStream, far: &TcpStream, delay: Duration) -> io::Result<[JoinHandle<()>; 4]> {
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (outward, outward_parcels) = mpsc::channel();
    let (homeward, homeward_parcels) = mpsc::channel();
    let begin = || {
        Ok([
            collector(near.try_clone()?, delay, outward.clone())?,
            collector(far.try_clone()?, delay, homeward.clone())?,
            deliverer(outward_parcels, far.try_clone()?, delay, homeward.clone())?,
            deliverer(homeward_parcels, near.try_clone()?, delay, outward.clone())?,
        ])
    };
    let begun = begin();
    if begun.is_err() {
        // Those of the four that have begun end by this.
        for (socket, parcels) in [(far, &outward), (near, &homeward)] {
            let _ = reset(socket);
            let _ = parcels.send(Parcel::after(delay, Content::Reset));
        }
    }
    begun
}

fn collector(
    from: TcpStream,
    delay: Duration,
    parcels: Sender<Parcel>,
) -> io::Result<JoinHandle<()>> {
    named("relay-read").spawn(move || collect(from, delay, &parcels))
}

/// A destination that is gone is reported to the `opposite` direction, to whose end it
/// was a source: the failed write may have taken the error that a read would have seen.
fn deliverer(
    parcels: Receiver<Parcel>,
    to: TcpStream,
    delay: Duration,
    opposite: Sender<Parcel>,
) -> io::Result<JoinHandle<()>> {
    named("relay-write").spawn(move || {
        if deliver(parcels, &to, thread::sleep).is_err() {
            let _ = opposite.send(Parcel::after(delay, Content::Reset));
        }
    })
}

/// What is under way in one direction.
#[derive(Debug)]
struct Parcel {
    due: Instant,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Bytes(Vec<u8>),
    /// The source writes no more.
    End,
    /// The connection is broken.
    Reset,
}

impl Parcel {
    fn after(delay: Duration, content: Content) -> Self {
        Self {
            due: Instant::now() + delay,
            content,
        }
    }
}

/// Sends off what a source says, each chunk when it has arrived, until it says no more.
fn collect(mut from: impl Read, delay: Duration, parcels: &Sender<Parcel>) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let content = match from.read(&mut buffer) {
            Ok(0) => Content::End,
            Ok(length) => Content::Bytes(buffer[..length].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => Content::Reset,
        };
        let last = !matches!(content, Content::Bytes(_));
        let sent = parcels.send(Parcel::after(delay, content));
        if last || sent.is_err() {
            return;
        }
    }
}

/// Hands over each parcel when it is due.
fn deliver(
    parcels: Receiver<Parcel>,
    mut to: &TcpStream,
    mut wait: impl FnMut(Duration),
) -> io::Result<()> {
    for Parcel { due, content } in parcels {
        wait(due.saturating_duration_since(Instant::now()));
        match content {
            Content::Bytes(bytes) => to.write_all(&bytes)?,
            Content::End => return to.shutdown(Shutdown::Write),
            Content::Reset => return reset(to),
        }
    }
    Ok(())
}

/// Breaks a connection: its peer sees a reset, not an orderly end, once all handles of it
/// are closed; the thread that reads from it wakes up and closes its own.
fn reset(socket: &TcpStream) -> io::Result<()> {
    SockRef::from(socket).set_linger(Some(Duration::ZERO))?;
    socket.shutdown(Shutdown::Read)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any test takes, and short enough that a hanging one fails.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn patient(socket: TcpStream) -> TcpStream {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    fn local() -> TcpListener {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = local();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (patient(client), patient(listener.accept().unwrap().0))
    }

    /// A relay, and both ends of a connection through it.
    fn relayed(delay: Duration) -> (Relay, TcpStream, TcpStream) {
        let listener = local();
        let relay = Relay::open(vec![listener.local_addr().unwrap()], delay).unwrap();
        let client = TcpStream::connect(relay.address()).unwrap();
        (
            relay,
            patient(client),
            patient(listener.accept().unwrap().0),
        )
    }

    fn noise(seed: u32, length: usize) -> Vec<u8> {
        let mut state = seed;
        let next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state.to_le_bytes()[0]
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    fn rest(mut socket: &TcpStream) -> Vec<u8> {
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        all
    }

    #[test]
    fn both_directions_arrive_complete_and_in_order_at_once() {
        let (_relay, client, server) = relayed(Duration::from_millis(1));
        let (out, back) = (noise(1, 10_000_000), noise(2, 10_000_000));
        let say = |mut socket: &TcpStream, bytes: &[u8]| {
            socket.write_all(bytes).unwrap();
            socket.shutdown(Shutdown::Write).unwrap();
        };
        thread::scope(|scope| {
            scope.spawn(|| say(&client, &out));
            scope.spawn(|| say(&server, &back));
            let arrived = scope.spawn(|| rest(&server));
            // `assert_eq` would print ten million numbers.
            assert!(rest(&client) == back);
            assert!(arrived.join().unwrap() == out);
        });
    }

    #[test]
    fn nothing_arrives_before_its_delay_in_either_direction() {
        let delay = Duration::from_millis(30);
        let (_relay, client, server) = relayed(delay);
        let mut byte = [0];
        for (mut from, mut to) in [(&client, &server), (&server, &client)] {
            let sent = Instant::now();
            from.write_all(b"x").unwrap();
            to.read_exact(&mut byte).unwrap();
            assert!(sent.elapsed() >= delay);
        }
    }

    /// Says fifty things one after the other and then no more.
    struct Talker(u8);

    impl Read for Talker {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0 == 50 {
                return Ok(0);
            }
            buffer[0] = self.0;
            self.0 += 1;
            Ok(1)
        }
    }

    #[test]
    fn reading_does_not_wait_for_what_is_held() {
        let (sender, parcels) = mpsc::channel();
        let before = Instant::now();
        let delay = Duration::from_secs(3600);
        // Returns although nobody delivers any of it.
        collect(Talker(0), delay, &sender);
        drop(sender);
        let parcels: Vec<Parcel> = parcels.iter().collect();
        assert_eq!(parcels.len(), 51);
        assert!(matches!(parcels[50].content, Content::End));
        assert!(parcels[0].due >= before + delay);
        assert!(parcels.is_sorted_by_key(|parcel| parcel.due));
        for (number, parcel) in parcels[..50].iter().enumerate() {
            assert!(
                matches!(&parcel.content, Content::Bytes(bytes) if bytes[..] == [number as u8])
            );
        }
    }

    #[test]
    fn chunks_under_way_together_take_one_delay_and_not_the_sum() {
        let (sender, parcels) = mpsc::channel();
        let delay = Duration::from_millis(20);
        let (far, end) = pair();
        collect(Talker(0), delay, &sender);
        let mut waited = Duration::ZERO;
        deliver(parcels, &far, |time| {
            waited += time;
            thread::sleep(time);
        })
        .unwrap();
        // Counted is what was waited for, not what the machine made of it.
        assert!(waited <= delay, "{waited:?}");
        assert_eq!(rest(&end), (0..50).collect::<Vec<u8>>());
    }

    #[test]
    fn the_end_of_one_direction_leaves_the_other_open() {
        let delay = Duration::from_millis(20);
        let (_relay, client, mut server) = relayed(delay);
        let ended = Instant::now();
        (&client).write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&server), b"question");
        assert!(ended.elapsed() >= delay);
        server.write_all(b"answer").unwrap();
        drop(server);
        assert_eq!(rest(&client), b"answer");
    }

    #[test]
    fn a_reset_is_passed_on_as_a_reset() {
        for client_breaks in [true, false] {
            let (_relay, client, server) = relayed(Duration::from_millis(1));
            let (breaks, mut sees) = if client_breaks {
                (client, server)
            } else {
                (server, client)
            };
            SockRef::from(&breaks)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
            drop(breaks);
            let error = sees.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
    }

    #[test]
    fn a_refused_connection_is_reset() {
        // Bound and not listening: nobody else gets the port meanwhile.
        let silent = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let silent = silent.unwrap();
        silent
            .bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())
            .unwrap();
        let nobody = silent.local_addr().unwrap().as_socket().unwrap();
        let relay = Relay::open(vec![nobody], Duration::ZERO).unwrap();
        let mut client = patient(TcpStream::connect(relay.address()).unwrap());
        let error = client.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn the_threads_end_with_their_connection() {
        for orderly in [true, false] {
            let ((client, near), (far, server)) = (pair(), pair());
            let threads = carry(&near, &far, Duration::from_millis(1)).unwrap();
            drop((near, far));
            if orderly {
                drop((client, server));
            } else {
                // The server stays; its own next read fails.
                SockRef::from(&client)
                    .set_linger(Some(Duration::ZERO))
                    .unwrap();
                drop(client);
                assert!((&server).read(&mut [0]).is_err());
            }
            let done = Instant::now();
            while !threads.iter().all(JoinHandle::is_finished) {
                assert!(done.elapsed() < PATIENCE);
                thread::yield_now();
            }
        }
    }

    #[test]
    fn a_dropped_relay_lets_nobody_in_and_keeps_what_it_carries() {
        let (relay, mut client, mut server) = relayed(Duration::ZERO);
        let address = relay.address();
        drop(relay);
        let error = TcpStream::connect(address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let mut byte = [0];
        client.write_all(b"x").unwrap();
        server.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
    }
}
