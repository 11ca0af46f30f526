//! Two HTTP clients: one based on ureq, and a raw TCP connection for tests of details that ureq hides.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpSocket;
use tokio::runtime;
use ureq::http::{HeaderMap, HeaderName, Request};

use crate::common::Server;

/// An HTTP client that keeps its connections open between requests.
pub struct Client {
    address: SocketAddr,
    agent: ureq::Agent,
}

/// A complete HTTP response.
pub struct HttpResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Client {
    /// Creates a client for the HTTP listener of a server.
    pub fn new(server: &Server) -> Self {
        Self::with_address(server.address())
    }

    /// Creates a client for a listener at this address, for example the admin listener.
    pub fn with_address(address: SocketAddr) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false).build();
        Self { address, agent: config.into() }
    }

    /// Sends a POST request, and returns the response.
    pub fn post(&self, path: &str, body: impl AsRef<[u8]>) -> HttpResponse {
        self.send(Request::post(path).body(body.as_ref().to_vec()).unwrap())
    }

    /// Sends a request with this method and without a body, and returns the response.
    pub fn call(&self, method: &str, path: &str) -> HttpResponse {
        self.send(Request::builder().method(method).uri(path).body(Vec::new()).unwrap())
    }

    /// Sends a request, and returns the response. The URI of the request must consist of a path, and optionally a
    /// query.
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

    /// Posts a body to `/v1/check`, and returns the response.
    pub fn check(&self, body: &Value) -> HttpResponse {
        self.post("/v1/check", body.to_string())
    }
}

impl HttpResponse {
    /// Parses the response body as JSON. Panics if the body is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Returns the value of a response header, or `None` if the header is missing.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// A TCP connection for raw HTTP. The test writes the bytes of requests itself, and reads the responses.
pub struct RawConnection(BufReader<TcpStream>);

impl RawConnection {
    /// Opens a TCP connection to this address.
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        // Much longer than any test needs, so that a broken test fails instead of hanging.
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
        Self(BufReader::new(stream))
    }

    /// Opens a TCP connection from another address of this machine to this address.
    pub fn connect_from(local: [u8; 4], address: SocketAddr) -> Self {
        let runtime = runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((local, 0).into()).unwrap();
            socket.connect(address).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        Self(BufReader::new(stream))
    }

    /// Returns the underlying TCP stream.
    pub fn stream(&self) -> &TcpStream {
        self.0.get_ref()
    }

    /// Writes bytes to the connection. Panics if the write fails.
    pub fn write(&mut self, text: impl AsRef<[u8]>) {
        self.try_write(text).unwrap();
    }

    /// Writes bytes to the connection. Returns an error if the write fails.
    pub fn try_write(&mut self, text: impl AsRef<[u8]>) -> io::Result<()> {
        self.0.get_mut().write_all(text.as_ref())
    }

    /// Returns `true` if data arrives or the server closes the connection within `timeout`.
    pub fn is_readable_within(&mut self, timeout: Duration) -> bool {
        let previous_timeout = self.stream().read_timeout().unwrap();
        self.stream().set_read_timeout(Some(timeout)).unwrap();
        let is_readable = self.0.fill_buf().is_ok();
        self.stream().set_read_timeout(previous_timeout).unwrap();
        is_readable
    }

    /// Reads the next response, and returns the status and the body.
    pub fn read_status_and_body(&mut self) -> (u16, String) {
        let response = self.read_response();
        (response.status, response.body)
    }

    /// Reads the next complete response from the connection.
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

    /// Waits until the server closes the connection, and asserts that no more bytes arrive before the close.
    #[track_caller]
    pub fn assert_closes(&mut self) {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
    }
}

/// Returns the bytes of an HTTP/1.1 request to `/v1/check` with this body.
pub fn raw_check_request(body: &str) -> String {
    format!("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Returns the bytes of an HTTP/1.1 request to `/v1/check` whose chunked body consists of these chunks.
pub fn raw_chunked_check_request(chunks: &[&str]) -> String {
    let mut request =
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    for chunk in chunks {
        request += &format!("{:x}\r\n{chunk}\r\n", chunk.len());
    }
    request + "0\r\n\r\n"
}
