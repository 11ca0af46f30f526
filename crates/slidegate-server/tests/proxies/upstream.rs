//! The service behind a proxy: it tells what it was asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{io, thread};

/// What an answer cost: so much as the request says.
const TOKENS: &str = "x-tokens-used";

/// A service that answers `POST /path abc`, and then each of its request's rate-limit headers in a line.
pub struct Upstream {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
}

impl Upstream {
    /// It goes on until the tests end.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counted = Arc::clone(&counted);
                // A proxy may connect and then not ask.
                thread::spawn(move || answer(&stream, &counted));
            }
        });
        Self { address, asked }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many requests have come.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn answer(mut stream: &TcpStream, asked: &AtomicUsize) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let lines: Vec<String> = head(&mut reader)?;
    let Some(first) = lines.first() else { return Ok(()) };
    asked.fetch_add(1, Ordering::SeqCst);
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
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            return Ok(lines);
        }
        lines.push(line.trim_end().to_owned());
    }
}
