//! A client at an address of its own.

use std::net::SocketAddr;
use std::process::Command;

/// An answer as curl shows it.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

/// Asks `at` for a path, from 127.0.0.`from`.
pub fn curl(at: SocketAddr, from: u8, path: &str, arguments: &[&str]) -> Answer {
    let mut command = Command::new("curl");
    command.args(["-sS", "-i", "--max-time", "30", "--interface", &format!("127.0.0.{from}")]);
    let output = command.args(arguments).arg(format!("http://{at}{path}")).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {told}");
    Answer::read(&String::from_utf8(output.stdout).unwrap())
}

impl Answer {
    fn read(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        Self { status, headers: lines.map(header).collect(), body: body.to_owned() }
    }

    /// The value of a header that stands there at most once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(own, _)| own == name);
        let value = values.next().map(|(_, value)| &**value);
        assert!(values.next().is_none(), "{name} stands there twice: {self:?}");
        value
    }
}
