//! Two clients: ureq, and a bare socket for what ureq hides.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;
use ureq::http::{HeaderMap, Request};

use crate::common::Server;

/// One client with its own connections, which it keeps.
pub struct Client {
    address: SocketAddr,
    agent: ureq::Agent,
}

pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Client {
    pub fn of(server: &Server) -> Self {
        Self::at(server.address())
    }

    pub fn at(address: SocketAddr) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false).build();
        Self { address, agent: config.into() }
    }

    pub fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.send(Request::post(path).body(body.as_ref().to_vec()).unwrap())
    }

    pub fn call(&self, method: &str, path: &str) -> Answer {
        self.send(Request::builder().method(method).uri(path).body(Vec::new()).unwrap())
    }

    /// Sends a request whose address is a path only.
    pub fn send(&self, mut request: Request<Vec<u8>>) -> Answer {
        let url = format!("http://{}{}", self.address, request.uri());
        *request.uri_mut() = url.parse().unwrap();
        let mut response = self.agent.run(request).unwrap();
        Answer {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.body_mut().read_to_string().unwrap(),
        }
    }

    pub fn check(&self, body: &Value) -> Answer {
        self.post("/v1/check", body.to_string())
    }
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// A bare connection.
pub struct Raw(BufReader<TcpStream>);

impl Raw {
    pub fn connect(address: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(address).unwrap()))
    }

    pub fn write(&mut self, text: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(text.as_ref()).unwrap();
    }

    /// Status and body of the next response.
    pub fn response(&mut self) -> (u16, String) {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the connection ended: {head:?}");
            match line.trim_end() {
                "" => break,
                line => head.push(line.to_ascii_lowercase()),
            }
        }
        let status = head[0].split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.iter().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body).unwrap();
        (status, String::from_utf8(body).unwrap())
    }
}

/// A check as it goes over the wire.
pub fn raw_check(body: &str) -> String {
    format!("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}
