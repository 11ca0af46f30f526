//! Test helpers that run the program as a child process and write policies to temporary files.

pub mod certificates;
pub mod documented_metrics;
pub mod prometheus;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;
use std::{env, fs, thread};

use rustix::process::{Pid, WaitOptions, waitpid};

/// Maximum wait for a log line of a server. Much longer than any test needs.
const LOG_LINE_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the absolute path of a file or folder, given its path relative to the project root.
pub fn project_path(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap().join(path)
}

/// Returns a command that runs the `slidegate` binary, with the admin and gRPC listeners off by default. Environment
/// variables of the test process that begin with `SLIDEGATE_` are removed.
pub fn slidegate_command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slidegate"));
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("SLIDEGATE_") {
            command.env_remove(name);
        }
    }
    // The servers of many tests run at the same time, but only one can listen on a default address.
    command.env("SLIDEGATE_ADMIN", "none").env("SLIDEGATE_GRPC", "none");
    command
}

/// Returns a command that runs `command` with a maximum of `limit` open files.
pub fn with_open_file_limit(limit: u32, command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.arg("-c").arg(format!(r#"ulimit -n {limit} && exec "$0" "$@""#));
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

/// A temporary file that is removed when the value is dropped.
pub struct TempFile(PathBuf);

impl TempFile {
    /// Creates a file with this content, whose name ends with `suffix`.
    pub fn new(suffix: &str, content: impl AsRef<[u8]>) -> Self {
        static NEXT_TEMP_FILE_NUMBER: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT_TEMP_FILE_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{nth}{suffix}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&path, content).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A running server process on a free port. The process is killed when the value is dropped.
pub struct Server {
    child: Child,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    grpc: Option<SocketAddr>,
    /// The log line in which the server reports the address of its HTTP listener.
    listening_log: String,
    /// The log lines that the server wrote before `listening_log`.
    startup_log: Vec<String>,
    log: Receiver<String>,
    /// The policy file. The file is kept as long as the server runs, because the server logs the removal of the file.
    policy: Option<TempFile>,
}

impl Server {
    /// Starts a server with this policy, and waits until the server listens.
    pub fn start(policy: &str) -> Self {
        Self::start_with(policy, &[])
    }

    /// Starts a server with this policy and these flags, and waits until the server listens.
    pub fn start_with(policy: &str, flags: &[&str]) -> Self {
        let file = TempFile::new(".yaml", policy);
        let mut command = slidegate_command();
        command.arg("serve").arg("--policy").arg(file.path()).args(["--http", "127.0.0.1:0"]);
        let mut server = Self::spawn(command.args(flags));
        server.policy = Some(file);
        server
    }

    /// Starts a server with this policy, these flags, and an admin listener.
    pub fn start_with_admin(policy: &str, flags: &[&str]) -> Self {
        Self::start_with(policy, &[&["--admin", "127.0.0.1:0"], flags].concat())
    }

    /// Starts a server with this policy, these flags, and a gRPC listener.
    pub fn start_with_grpc(policy: &str, flags: &[&str]) -> Self {
        Self::start_with(policy, &[&["--grpc", "127.0.0.1:0"], flags].concat())
    }

    /// Runs a `slidegate serve` command as a child process, and waits until the server listens.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, log) = mpsc::channel();
        thread::spawn(move || {
            // The channel closes when the process exits.
            stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let (listening_log, address) = (String::new(), SocketAddr::from(([0; 4], 0)));
        let startup_log = Vec::new();
        let mut server = Self {
            child,
            address,
            admin: None,
            grpc: None,
            listening_log,
            startup_log,
            log,
            policy: None,
        };
        loop {
            let line = server.next_log_line(LOG_LINE_TIMEOUT).unwrap();
            if let Some((_, address)) = line.split_once("gRPC listening on ") {
                // A UNIX socket has no address.
                server.grpc = address.split('"').next().and_then(|address| address.parse().ok());
            }
            if let Some((_, address)) = line.split_once("admin listening on ") {
                server.admin = address.split('"').next().map(|address| address.parse().unwrap());
                continue;
            }
            let url = ["http://", "https://"].iter().find_map(|scheme| line.split(scheme).nth(1));
            let Some(url) = url else {
                server.startup_log.push(line);
                continue;
            };
            // In JSON a quote follows the address.
            let address = url.split([' ', '"']).next().unwrap().parse().unwrap();
            (server.address, server.listening_log) = (address, line);
            return server;
        }
    }

    /// Returns the path of the policy file. Panics if [`Server::spawn`] started the server.
    pub fn policy_path(&self) -> &Path {
        self.policy.as_ref().unwrap().path()
    }

    /// Returns `true` if the server logged the address of an admin listener at the start.
    pub fn has_admin_listener(&self) -> bool {
        self.admin.is_some()
    }

    /// Returns the address of the admin listener. Panics if the server has no admin listener.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin.unwrap()
    }

    /// Returns the process ID of the server.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the resident memory of the server process in kB.
    pub fn resident_memory_kb(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process_id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Sets the open file limit of the running server.
    pub fn limit_open_files(&self, limit: u32) {
        let (pid, limit) = (format!("--pid={}", self.process_id()), format!("--nofile={limit}"));
        assert!(Command::new("prlimit").args([pid, limit]).status().unwrap().success());
    }

    /// Returns the address of the gRPC listener. Panics if the server has no gRPC listener.
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc.unwrap()
    }

    /// Returns the address of the HTTP listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the log line that reports the HTTP address.
    pub fn listening_log(&self) -> &str {
        &self.listening_log
    }

    /// Returns the log lines that the server wrote before it listened on the HTTP address.
    pub fn startup_log(&self) -> &[String] {
        &self.startup_log
    }

    /// Skips log lines until a line contains `part`, and returns that line.
    pub fn wait_for_log(&self, part: &str) -> String {
        loop {
            match self.log.recv_timeout(LOG_LINE_TIMEOUT) {
                Ok(line) if line.contains(part) => return line,
                Ok(_) => {}
                Err(error) => panic!("no line with `{part}` in the log: {error}"),
            }
        }
    }

    /// Returns the next log line. Returns `None` if no line arrives within `timeout`, or if the log has ended.
    pub fn next_log_line(&self, timeout: Duration) -> Option<String> {
        self.log.recv_timeout(timeout).ok()
    }

    /// Sends a Unix signal, for example `TERM`, to the server process.
    pub fn send_signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status().unwrap();
        assert!(sent.success());
    }

    /// Suspends the server process, and waits until all of its threads have stopped. On a busy machine they continue for
    /// some milliseconds after the signal.
    pub fn pause(&self) {
        self.send_signal("STOP");
        let pid = Pid::from_child(&self.child);
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    /// Resumes a suspended server process.
    pub fn resume(&self) {
        self.send_signal("CONT");
    }

    /// Waits until the server process exits, and returns the exit code. Returns `None` if a signal ended the process.
    pub fn wait_for_exit_code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
