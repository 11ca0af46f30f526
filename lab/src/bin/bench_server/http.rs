//! An HTTP/1.1 connection that sends requests one after the other.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde::{Deserialize, Serialize};

use crate::requests::BenchRequest;

pub struct HttpConnection(BufReader<TcpStream>);

/// A response without the headers that every HTTP server sets itself.
#[derive(Serialize, Deserialize)]
pub struct RecordedResponse {
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl HttpConnection {
    pub fn open(address: SocketAddr) -> Result<Self, Box<dyn Error>> {
        Ok(Self(BufReader::new(TcpStream::connect(address)?)))
    }

    /// Sends a request and reads the response.
    ///
    /// # Errors
    /// If the response is not complete, or its status is not 200.
    pub fn send(&mut self, request: &BenchRequest) -> Result<RecordedResponse, Box<dyn Error>> {
        let method = if request.body.is_empty() { "GET" } else { "POST" };
        let mut text = format!("{method} {} HTTP/1.1\r\nhost: localhost\r\n", request.path);
        for (name, value) in &request.headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += &format!("content-length: {}\r\n\r\n", request.body.len());
        self.0.get_mut().write_all(&[text.as_bytes(), &request.body].concat())?;
        let status = self.read_line()?;
        if !status.starts_with("HTTP/1.1 200") {
            return Err(format!("unexpected response: {status}").into());
        }
        let (mut headers, mut length) = (Vec::new(), 0);
        while let Some((name, value)) = self.read_line()?.split_once(": ") {
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse()?,
                "date" => {}
                name => headers.push((name.to_owned(), value.to_owned())),
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok(RecordedResponse { headers, body })
    }

    fn read_line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}
