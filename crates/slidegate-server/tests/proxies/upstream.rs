//! The service behind a proxy: it tells what it was asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::{io, thread};

/// What an answer cost: so much as the request says.
const TOKENS: &str = "x-tokens-used";

/// The first line and the headers of each request so far.
type Heads = Arc<Mutex<Vec<Vec<String>>>>;

/// A service that answers `POST /path abc`, and then each of its request's rate-limit headers in a line.
pub struct Upstream {
    address: SocketAddr,
    heads: Heads,
}

impl Upstream {
    /// It goes on until the tests end.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Heads::default();
        let seen = Arc::clone(&heads);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = Arc::clone(&seen);
                // A proxy may connect and then not ask.
                thread::spawn(move || answer(&stream, &seen));
            }
        });
        Self { address, heads }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many requests have come.
    pub fn asked(&self) -> usize {
        self.heads.lock().unwrap().len()
    }

    /// Returns the heads of all requests but the first so many.
    pub fn heads_after(&self, skipped: usize) -> Vec<Vec<String>> {
        self.heads.lock().unwrap()[skipped..].to_vec()
    }
}

fn answer(mut stream: &TcpStream, seen: &Mutex<Vec<Vec<String>>>) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let lines: Vec<String> = head(&mut reader)?;
    let Some(first) = lines.first() else { return Ok(()) };
    seen.lock().unwrap().push(lines.clone());
    let headers = || lines[1..].iter().filter_map(|line| line.split_once(": "));
    let length = headers().find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let mut body = String::new();
    reader.take(length).read_to_string(&mut body)?;
    let asked_for = first.rsplit_once(' ').map_or("", |(asked_for, _)| asked_for);
    let mut told = format!("{asked_for} {body}\n");
    for (name, value) in headers().filter(|(name, _)| name.to_lowercase().starts_with("ratelimit"))
    {
        told += &format!("{}: {value}\n", name.to_lowercase());
    }
    let mut answered = String::new();
    for (_, tokens) in headers().filter(|(name, _)| name.eq_ignore_ascii_case(TOKENS)) {
        answered += &format!("{TOKENS}: {tokens}\r\n");
    }
    let (length, told) = (told.len(), if first.starts_with("HEAD") { "" } else { &told });
    write!(
        stream,
        "HTTP/1.1 200 OK\r\n{answered}connection: close\r\ncontent-length: {length}\r\n\r\n{told}"
    )
}

fn head(reader: &mut impl BufRead) -> io::Result<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = Vec::new();
        // A head need not be UTF-8.
        if reader.read_until(b'\n', &mut line)? == 0 || line == b"\r\n" {
            return Ok(lines);
        }
        lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
    }
}
