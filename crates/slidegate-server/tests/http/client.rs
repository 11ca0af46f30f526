//! Two clients: ureq, and a bare socket for what ureq hides.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use ureq::http::{HeaderMap, HeaderName, Request};

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
        let stream = TcpStream::connect(address).unwrap();
        // Far more than anything takes: a test should fail, not hang.
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
        Self(BufReader::new(stream))
    }

    pub fn stream(&self) -> &TcpStream {
        self.0.get_ref()
    }

    pub fn write(&mut self, text: impl AsRef<[u8]>) {
        self.try_write(text).unwrap();
    }

    pub fn try_write(&mut self, text: impl AsRef<[u8]>) -> io::Result<()> {
        self.0.get_mut().write_all(text.as_ref())
    }

    /// Whether anything comes, or the end, within this time.
    pub fn says_something_within(&mut self, time: Duration) -> bool {
        let before = self.stream().read_timeout().unwrap();
        self.stream().set_read_timeout(Some(time)).unwrap();
        let said = self.0.fill_buf().is_ok();
        self.stream().set_read_timeout(before).unwrap();
        said
    }

    /// Status and body of the next response.
    pub fn response(&mut self) -> (u16, String) {
        let answer = self.answer();
        (answer.status, answer.body)
    }

    /// The next response.
    pub fn answer(&mut self) -> Answer {
        let status = self.line().split(' ').nth(1).expect("a status line").parse().unwrap();
        let mut headers = HeaderMap::new();
        while let Some((name, value)) = self.line().split_once(':') {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, value.trim().parse().unwrap());
        }
        let length = headers.get("content-length").map(|length| length.to_str().unwrap());
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body).unwrap();
        Answer { status, headers, body: String::from_utf8(body).unwrap() }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "the connection ended");
        line.trim_end().to_owned()
    }

    /// Waits until the server ends the connection, which must have nothing more to say.
    #[track_caller]
    pub fn assert_ends(&mut self) {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
    }
}

/// A check as it goes over the wire.
pub fn raw_check(body: &str) -> String {
    format!("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// A check whose body goes over the wire in these chunks.
pub fn raw_chunks(chunks: &[&str]) -> String {
    let mut request =
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    for chunk in chunks {
        request += &format!("{:x}\r\n{chunk}\r\n", chunk.len());
    }
    request + "0\r\n\r\n"
}
