//! Callers that keep their connections, and send as fast as they are answered.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;

use lab::server::Server;
use quanta::Instant;

use crate::rounds::Measured;

/// Connections at once.
const CALLERS: usize = 16;

/// What is asked, and how.
pub struct Load {
    pub name: &'static str,
    pub policy: &'static str,
    /// Tenants, one after another.
    pub tenants: usize,
    /// Requests that a caller sends before it waits for their answers.
    pub depth: usize,
}

impl Load {
    /// One round: so many requests of each caller.
    pub fn run(
        &self,
        server: &Server,
        requests: usize,
    ) -> Result<Measured, Box<dyn std::error::Error>> {
        let cpu_before = server.cpu_s()?;
        let begun = Instant::now();
        let denied = thread::scope(|scope| {
            let caller = |caller| move || self.call(server, caller, requests);
            let callers: Vec<_> = (0..CALLERS).map(|nth| scope.spawn(caller(nth))).collect();
            callers.into_iter().try_fold(0, |denied, caller| {
                let ended = caller.join().map_err(|_| io::Error::other("a caller panicked"))?;
                ended.map(|its| denied + its)
            })
        })?;
        let (seconds, all) = (begun.elapsed().as_secs_f64(), (CALLERS * requests) as f64);
        Ok(Measured {
            per_second: all / seconds,
            cpu_us: (server.cpu_s()? - cpu_before) * 1e6 / all,
            denied: denied as f64 / all,
        })
    }

    /// How many were denied.
    fn call(&self, server: &Server, caller: usize, requests: usize) -> io::Result<usize> {
        let mut stream = TcpStream::connect(server.address())?;
        stream.set_nodelay(true)?;
        let (mut unread, mut denied) = (Vec::new(), 0);
        for first in (0..requests).step_by(self.depth) {
            let asks: String =
                (first..first + self.depth).map(|nth| self.ask(caller * requests + nth)).collect();
            stream.write_all(asks.as_bytes())?;
            for _ in 0..self.depth {
                denied += usize::from(read_status(&mut stream, &mut unread)? == 429);
            }
        }
        Ok(denied)
    }

    fn ask(&self, nth: usize) -> String {
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

/// Reads one answer, of which `unread` may have the beginning, and keeps what is behind it.
fn read_status(stream: &mut TcpStream, unread: &mut Vec<u8>) -> io::Result<u16> {
    let mut buffer = [0; 16 * 1024];
    loop {
        if let Some((status, end)) = answer(unread)? {
            unread.drain(..end);
            return Ok(status);
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => unread.extend_from_slice(&buffer[..read]),
        }
    }
}

/// The status of the first answer, and where it ends; none if it is not whole.
fn answer(bytes: &[u8]) -> io::Result<Option<(u16, usize)>> {
    let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let text = str::from_utf8(&bytes[..head]).map_err(io::Error::other)?;
    let strange = || io::Error::other(format!("a strange answer: {text}"));
    let status = text.get(9..12).and_then(|status| status.parse().ok()).ok_or_else(strange)?;
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.and_then(|length| length.parse().ok()).ok_or_else(strange)?;
    let end = head + 4 + length;
    Ok((bytes.len() >= end).then_some((status, end)))
}
