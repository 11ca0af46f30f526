//! The service behind a proxy, which records each received request and echoes the request in the response.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::{io, thread};

/// Name of the header with the number of tokens that a response consumes. The service copies the header from the
/// request to the response.
const TOKENS_USED_HEADER: &str = "x-tokens-used";

/// The request line and header lines of each received request.
type RecordedRequestHeads = Arc<Mutex<Vec<Vec<String>>>>;

/// A running service. The response body consists of the method, path and body of the request, such as `POST /path abc`,
/// and then a line for each rate-limit header of the request.
pub struct Upstream {
    address: SocketAddr,
    heads: RecordedRequestHeads,
}

impl Upstream {
    /// Starts the service, which runs until the test process exits.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heads = RecordedRequestHeads::default();
        let recorded = Arc::clone(&heads);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let recorded = Arc::clone(&recorded);
                // A proxy may connect without sending a request.
                thread::spawn(move || record_request_and_respond(&stream, &recorded));
            }
        });
        Self { address, heads }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of requests that the service has received.
    pub fn request_count(&self) -> usize {
        self.heads.lock().unwrap().len()
    }

    /// Returns the request line and header lines of each received request, except for the first `skipped` requests.
    pub fn heads_after(&self, skipped: usize) -> Vec<Vec<String>> {
        self.heads.lock().unwrap()[skipped..].to_vec()
    }
}

/// Reads a request, adds the lines of its head to `recorded`, and writes the response.
fn record_request_and_respond(
    mut stream: &TcpStream,
    recorded: &Mutex<Vec<Vec<String>>>,
) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let lines: Vec<String> = read_request_head(&mut reader)?;
    let Some(first) = lines.first() else { return Ok(()) };
    recorded.lock().unwrap().push(lines.clone());
    let headers = || lines[1..].iter().filter_map(|line| line.split_once(": "));
    let length = headers().find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let mut body = String::new();
    reader.take(length).read_to_string(&mut body)?;
    let method_and_path = first.rsplit_once(' ').map_or("", |(method_and_path, _)| method_and_path);
    let mut echo = format!("{method_and_path} {body}\n");
    for (name, value) in headers().filter(|(name, _)| name.to_lowercase().starts_with("ratelimit"))
    {
        echo += &format!("{}: {value}\n", name.to_lowercase());
    }
    let mut token_headers = String::new();
    for (_, tokens) in headers().filter(|(name, _)| name.eq_ignore_ascii_case(TOKENS_USED_HEADER)) {
        token_headers += &format!("{TOKENS_USED_HEADER}: {tokens}\r\n");
    }
    let (length, echo) = (echo.len(), if first.starts_with("HEAD") { "" } else { &echo });
    write!(
        stream,
        "HTTP/1.1 200 OK\r\n{token_headers}connection: close\r\ncontent-length: {length}\r\n\r\n{echo}"
    )
}

/// Reads the request line and the header lines, up to the empty line at the end of the head.
fn read_request_head(reader: &mut impl BufRead) -> io::Result<Vec<String>> {
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
