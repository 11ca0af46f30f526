//! Sends requests in a closed loop: each of several persistent connections sends its next requests as soon as the
//! responses to the previous requests have arrived.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;

use lab::server::ServerProcess;
use quanta::Instant;

use crate::rounds::TurnResult;

/// The number of persistent connections.
const CONNECTION_COUNT: usize = 16;

/// The requests of a measurement in a closed loop, and the policy of the server.
pub struct ClosedLoop {
    pub name: &'static str,
    pub policy: &'static str,
    /// The number of tenants. Successive requests have these tenants in turn.
    pub tenants: usize,
    /// The number of requests that a connection sends before it waits for the responses.
    pub depth: usize,
}

impl ClosedLoop {
    /// Sends `requests` requests on each connection. Returns the request rate, the CPU time and the denials.
    pub fn run(
        &self,
        server: &ServerProcess,
        requests: usize,
    ) -> Result<TurnResult, Box<dyn std::error::Error>> {
        let cpu_before = server.cpu_seconds()?;
        let start = Instant::now();
        let denied = thread::scope(|scope| {
            let run = |nth| move || self.send_requests_on_connection(server, nth, requests);
            let connections: Vec<_> =
                (0..CONNECTION_COUNT).map(|nth| scope.spawn(run(nth))).collect();
            connections.into_iter().try_fold(0, |denied, connection| {
                let ended = connection
                    .join()
                    .map_err(|_| io::Error::other("a connection thread panicked"))?;
                ended.map(|own| denied + own)
            })
        })?;
        let (seconds, all) = (start.elapsed().as_secs_f64(), (CONNECTION_COUNT * requests) as f64);
        Ok(TurnResult {
            per_second: all / seconds,
            cpu_us: (server.cpu_seconds()? - cpu_before) * 1e6 / all,
            denied: denied as f64 / all,
        })
    }

    /// Sends the requests of one connection. Returns the number of denied requests.
    fn send_requests_on_connection(
        &self,
        server: &ServerProcess,
        connection: usize,
        requests: usize,
    ) -> io::Result<usize> {
        let mut stream = TcpStream::connect(server.address())?;
        stream.set_nodelay(true)?;
        let (mut unread, mut denied) = (Vec::new(), 0);
        for first in (0..requests).step_by(self.depth) {
            let batch: String = (first..first + self.depth)
                .map(|nth| self.format_http_request(connection * requests + nth))
                .collect();
            stream.write_all(batch.as_bytes())?;
            for _ in 0..self.depth {
                denied += usize::from(read_response_status(&mut stream, &mut unread)? == 429);
            }
        }
        Ok(denied)
    }

    fn format_http_request(&self, nth: usize) -> String {
        let tenant = nth % self.tenants;
        let body = format!(
            r#"{{"attributes":{{"tenant":"tenant-{tenant:06}","method":"GET","route":"/v1/search","ip":"192.0.2.7"}}}}"#
        );
        let length = body.len();
        format!(
            "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    }
}

/// Reads one response and returns its status. `unread` contains the bytes that were received before, and afterwards the
/// received bytes of the following responses.
fn read_response_status(stream: &mut TcpStream, unread: &mut Vec<u8>) -> io::Result<u16> {
    let mut buffer = [0; 16 * 1024];
    loop {
        if let Some((status, end)) = parse_status_and_length(unread)? {
            unread.drain(..end);
            return Ok(status);
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => unread.extend_from_slice(&buffer[..read]),
        }
    }
}

/// Returns the status of the first response in `bytes`, and the index of the first byte after the response. Returns
/// `None` if the response is incomplete.
fn parse_status_and_length(bytes: &[u8]) -> io::Result<Option<(u16, usize)>> {
    let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let text = str::from_utf8(&bytes[..head]).map_err(io::Error::other)?;
    let malformed = || io::Error::other(format!("malformed response: {text}"));
    let status = text.get(9..12).and_then(|status| status.parse().ok()).ok_or_else(malformed)?;
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.and_then(|length| length.parse().ok()).ok_or_else(malformed)?;
    let end = head + 4 + length;
    Ok((bytes.len() >= end).then_some((status, end)))
}
