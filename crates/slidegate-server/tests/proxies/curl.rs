//! Sends requests with curl from a chosen client address.

use std::net::SocketAddr;
use std::process::Command;

/// An HTTP response, parsed from the output of curl.
#[derive(Debug)]
pub struct CurlResponse {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

/// Sends a request for `path` to `address` with curl, from the client address 127.0.0.`from`. `arguments` are
/// additional arguments of curl.
pub fn send_with_curl(
    address: SocketAddr,
    from: u8,
    path: &str,
    arguments: &[&str],
) -> CurlResponse {
    let mut command = Command::new("curl");
    command.args(["-sS", "-i", "--max-time", "30", "--interface", &format!("127.0.0.{from}")]);
    let output = command.args(arguments).arg(format!("http://{address}{path}")).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    CurlResponse::parse_curl_output(&String::from_utf8(output.stdout).unwrap())
}

impl CurlResponse {
    fn parse_curl_output(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        Self { status, headers: lines.map(header).collect(), body: body.to_owned() }
    }

    /// Returns the value of a response header, or `None` if the header is missing. Panics if the header occurs twice.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(key, _)| key == name);
        let value = values.next().map(|(_, value)| &**value);
        assert!(values.next().is_none(), "{name} occurs twice: {self:?}");
        value
    }
}
