//! Tests that the server works as usual while writes to standard error block, and while they fail.

use std::fs::File;
use std::io::{BufRead, BufReader, pipe};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::{fs, iter};

use serde_json::{Value, json};

use crate::common::{TempFile, slidegate_command};
use crate::http::client::{Client, RawConnection, raw_check_request};
use crate::redis_server::{free_port, wait_until};

/// A policy that denies every request.
const DENY_ALL: &str = "rules: [{ name: nobody, per: [tenant], limits: [0/min] }]";

/// A policy that allows every request.
const ALLOW_ALL: &str = "rules: [{ name: everybody, per: [tenant], limits: [1000/s] }]";

/// Number of denied requests in a row. Their log lines take more than the 64 KiB of a pipe.
const DENIED_REQUESTS: usize = 400;

/// A server whose log the test does not read. The test selects its addresses, because it cannot find them in the log.
struct UnreadServer {
    child: Child,
    address: SocketAddr,
    admin: SocketAddr,
    policy: TempFile,
}

impl UnreadServer {
    /// Starts a server that denies every request and logs up to 1,000 denials per second to `stderr`. Waits until it
    /// listens.
    fn start(stderr: impl Into<Stdio>) -> Self {
        let policy = TempFile::new(".yaml", DENY_ALL);
        let [address, admin] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let mut command = slidegate_command();
        command.arg("serve").arg("--policy").arg(policy.path());
        command.args(["--http", &address.to_string(), "--admin", &admin.to_string()]);
        command.args(["--log-denials", "1000", "--log-format", "json"]);
        let child = command.stdin(Stdio::null()).stderr(stderr).spawn().unwrap();
        let mut server = Self { child, address, admin, policy };
        wait_until("the server listens", || {
            assert_eq!(server.child.try_wait().unwrap(), None, "the server has exited");
            TcpStream::connect(address).is_ok()
        });
        server
    }

    /// Sends a check whose log line has about 350 bytes, and returns the status of the response.
    fn check(connection: &mut RawConnection) -> u16 {
        let body = json!({"attributes": {"tenant": "t".repeat(128)}}).to_string();
        connection.write(raw_check_request(&body));
        connection.read_status_and_body().0
    }

    /// Sends denied requests one after another. Each must get its response.
    fn assert_requests_are_denied(&self) {
        let mut connection = RawConnection::connect(self.address);
        for nth in 0..DENIED_REQUESTS {
            assert_eq!(Self::check(&mut connection), 429, "request {nth}");
        }
    }

    fn readiness(&self) -> Value {
        Client::with_address(self.admin).call("GET", "/readyz").json()
    }

    /// Returns the number of lost log lines, from the metrics.
    fn lost_lines(&self, reason: &str) -> u64 {
        let metrics = Client::with_address(self.admin).call("GET", "/metrics").body;
        let name = format!("slidegate_lost_log_lines_total{{reason=\"{reason}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.expect("a sample").parse().unwrap()
    }

    /// Replaces the policy by an invalid one and then by a valid one. Both must be noticed.
    fn assert_policy_is_reloaded(&self) {
        fs::write(self.policy.path(), "rules: [{ broken: 1 }]").unwrap();
        wait_until("the invalid policy is reported", || {
            self.readiness()["policy"]["problem"].is_string()
        });
        fs::write(self.policy.path(), ALLOW_ALL).unwrap();
        wait_until("the valid policy is enforced", || {
            Self::check(&mut RawConnection::connect(self.address)) == 200
        });
        // The policy is enforced a moment before its status is updated.
        wait_until("no problem is reported", || self.readiness()["policy"]["problem"].is_null());
    }

    /// Stops the server with SIGTERM. It must exit with code 0.
    fn assert_stops(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut code = None;
        wait_until("the server has exited", || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        assert_eq!(code.and_then(|status| status.code()), Some(0));
    }
}

impl Drop for UnreadServer {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn server_works_while_log_pipe_is_unread() {
    let (unread, stderr) = pipe().unwrap();
    let mut server = UnreadServer::start(stderr);
    server.assert_requests_are_denied();
    server.assert_policy_is_reloaded();
    assert_eq!(server.lost_lines("write_failed"), 0);
    server.assert_stops();
    drop(unread);
}

#[test]
fn server_works_while_log_device_is_full() {
    let mut server = UnreadServer::start(File::options().write(true).open("/dev/full").unwrap());
    server.assert_requests_are_denied();
    server.assert_policy_is_reloaded();
    wait_until("lost lines are counted", || server.lost_lines("write_failed") > 1);
    server.assert_stops();
}

#[test]
fn server_works_after_log_pipe_is_closed() {
    let (reader, stderr) = pipe().unwrap();
    let mut server = UnreadServer::start(stderr);
    drop(reader);
    server.assert_requests_are_denied();
    server.assert_policy_is_reloaded();
    wait_until("lost lines are counted", || server.lost_lines("write_failed") > 1);
    server.assert_stops();
}

#[test]
fn lost_log_lines_are_reported_once_log_is_writable() {
    let (reader, stderr) = pipe().unwrap();
    // Writes to a full pipe fail instead of blocking.
    rustix::io::ioctl_fionbio(&stderr, true).unwrap();
    let mut server = UnreadServer::start(stderr);
    server.assert_requests_are_denied();
    wait_until("the pipe is full", || server.lost_lines("write_failed") > 0);
    let mut lines = BufReader::new(reader).lines().map(|line| line.unwrap());
    let mut connection = RawConnection::connect(server.address);
    // Each further denial is one more line, until a line is written after the first lost one.
    let mut lines = iter::from_fn(|| {
        assert_eq!(UnreadServer::check(&mut connection), 429);
        lines.next()
    });
    let report = lines.find(|line| line.contains("log lines lost since the start"));
    let report: Value = serde_json::from_str(&report.unwrap()).unwrap();
    assert_eq!((&report["level"], &report["queue_full"]), (&json!("WARN"), &json!(0)));
    assert!(report["write_failed"].as_u64().unwrap() > 0, "{report}");
    drop(connection);
    server.assert_stops();
}
