//! Two HTTP clients: ureq, and a TCP connection for details that ureq hides.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use ureq::http::{HeaderMap, HeaderName, Request};

use crate::common::Server;

/// A client that keeps its connections open.
pub struct Client {
    address: SocketAddr,
    agent: ureq::Agent,
}

/// A complete response.
pub struct HttpResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Client {
    /// Creates a client of a server's HTTP listener.
    pub fn new(server: &Server) -> Self {
        Self::with_address(server.address())
    }

    /// Creates a client of any listener.
    pub fn with_address(address: SocketAddr) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false).build();
        Self { address, agent: config.into() }
    }

    /// Sends a POST request.
    pub fn post(&self, path: &str, body: impl AsRef<[u8]>) -> HttpResponse {
        self.send(Request::post(path).body(body.as_ref().to_vec()).unwrap())
    }

    /// Sends a request without a body.
    pub fn call(&self, method: &str, path: &str) -> HttpResponse {
        self.send(Request::builder().method(method).uri(path).body(Vec::new()).unwrap())
    }

    /// Sends a request whose URI is a path only.
    pub fn send(&self, mut request: Request<Vec<u8>>) -> HttpResponse {
        let url = format!("http://{}{}", self.address, request.uri());
        *request.uri_mut() = url.parse().unwrap();
        let mut response = self.agent.run(request).unwrap();
        HttpResponse {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.body_mut().read_to_string().unwrap(),
        }
    }

    /// Sends a request to `/v1/check`.
    pub fn check(&self, body: &Value) -> HttpResponse {
        self.post("/v1/check", body.to_string())
    }
}

impl HttpResponse {
    /// Parses the body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// A TCP connection on which the test writes and reads HTTP itself.
pub struct RawConnection(BufReader<TcpStream>);

impl RawConnection {
    /// Opens a connection.
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        // Much longer than any test needs, so that a broken test fails instead of hanging.
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
        Self(BufReader::new(stream))
    }

    /// Returns the underlying stream.
    pub fn stream(&self) -> &TcpStream {
        self.0.get_ref()
    }

    /// Writes bytes. Panics if that fails.
    pub fn write(&mut self, text: impl AsRef<[u8]>) {
        self.try_write(text).unwrap();
    }

    /// Writes bytes.
    pub fn try_write(&mut self, text: impl AsRef<[u8]>) -> io::Result<()> {
        self.0.get_mut().write_all(text.as_ref())
    }

    /// Returns `true` if data or the end of the connection arrives within `timeout`.
    pub fn is_readable_within(&mut self, timeout: Duration) -> bool {
        let previous_timeout = self.stream().read_timeout().unwrap();
        self.stream().set_read_timeout(Some(timeout)).unwrap();
        let is_readable = self.0.fill_buf().is_ok();
        self.stream().set_read_timeout(previous_timeout).unwrap();
        is_readable
    }

    /// Reads the next response, and returns its status and body.
    pub fn read_status_and_body(&mut self) -> (u16, String) {
        let response = self.read_response();
        (response.status, response.body)
    }

    /// Reads the next response.
    pub fn read_response(&mut self) -> HttpResponse {
        let status = self.read_line().split(' ').nth(1).expect("a status line").parse().unwrap();
        let mut headers = HeaderMap::new();
        while let Some((name, value)) = self.read_line().split_once(':') {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, value.trim().parse().unwrap());
        }
        let length = headers.get("content-length").map(|length| length.to_str().unwrap());
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body).unwrap();
        HttpResponse { status, headers, body: String::from_utf8(body).unwrap() }
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "the connection has ended");
        line.trim_end().to_owned()
    }

    /// Waits until the server closes the connection, and asserts that it sends nothing more.
    #[track_caller]
    pub fn assert_closes(&mut self) {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
    }
}

/// Returns the bytes of a request to `/v1/check`.
pub fn raw_check(body: &str) -> String {
    format!("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Returns the bytes of a request to `/v1/check` whose body has these chunks.
pub fn raw_chunked_check(chunks: &[&str]) -> String {
    let mut request =
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    for chunk in chunks {
        request += &format!("{:x}\r\n{chunk}\r\n", chunk.len());
    }
    request + "0\r\n\r\n"
}
