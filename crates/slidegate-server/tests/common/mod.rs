//! What the tests of the binary share: the program as a process, and policies as files.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;
use std::{env, fs, thread};

/// How long to wait for a line of the log; far more than any takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The program, without what the tester's own environment would add to it.
pub fn slidegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slidegate"));
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("SLIDEGATE_") {
            command.env_remove(name);
        }
    }
    // Servers of many tests run at once, and the default addresses are one each.
    command.env("SLIDEGATE_ADMIN", "none").env("SLIDEGATE_GRPC", "none");
    command
}

/// The same command in a process that may open so many files.
pub fn with_open_files(count: u32, command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.arg("-c").arg(format!(r#"ulimit -n {count} && exec "$0" "$@""#));
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

/// A file that goes when it is dropped.
pub struct TempFile(PathBuf);

impl TempFile {
    /// Writes a file whose name ends so.
    pub fn new(ending: &str, content: impl AsRef<[u8]>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{nth}{ending}", std::process::id());
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

/// A server process on a port of its own. It is killed when dropped.
pub struct Server {
    child: Child,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    grpc: Option<SocketAddr>,
    /// The line of the log that says so.
    listening: String,
    /// The lines before that.
    starting: Vec<String>,
    log: Receiver<String>,
    /// It is there as long as the server: a policy that goes is told in the log.
    policy: Option<TempFile>,
}

impl Server {
    /// Starts a server with this policy, and waits until it listens.
    pub fn start(policy: &str) -> Self {
        Self::start_with(policy, &[])
    }

    /// Starts a server with this policy and these flags, and waits until it listens.
    pub fn start_with(policy: &str, flags: &[&str]) -> Self {
        let file = TempFile::new(".yaml", policy);
        let mut command = slidegate();
        command.arg("serve").arg("--policy").arg(file.path()).args(["--http", "127.0.0.1:0"]);
        let mut server = Self::spawn(command.args(flags));
        server.policy = Some(file);
        server
    }

    /// Starts a server with this policy and these flags that operators can ask, too.
    pub fn start_with_admin(policy: &str, flags: &[&str]) -> Self {
        Self::start_with(policy, &[&["--admin", "127.0.0.1:0"], flags].concat())
    }

    /// Starts a server with this policy and these flags that is asked by gRPC, too.
    pub fn start_with_grpc(policy: &str, flags: &[&str]) -> Self {
        Self::start_with(policy, &[&["--grpc", "127.0.0.1:0"], flags].concat())
    }

    /// Starts a server by this command, and waits until it listens.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, log) = mpsc::channel();
        thread::spawn(move || {
            // The channel ends when the process does.
            stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let (listening, address) = (String::new(), SocketAddr::from(([0; 4], 0)));
        let starting = Vec::new();
        let mut server = Self {
            child,
            address,
            admin: None,
            grpc: None,
            listening,
            starting,
            log,
            policy: None,
        };
        loop {
            let line = server.next_log(PATIENCE).unwrap();
            if let Some((_, address)) = line.split_once("gRPC listening on ") {
                server.grpc = address.split('"').next().map(|address| address.parse().unwrap());
            }
            if let Some((_, address)) = line.split_once("admin listening on ") {
                server.admin = address.split('"').next().map(|address| address.parse().unwrap());
                continue;
            }
            let told = ["http://", "https://"].iter().find_map(|scheme| line.split(scheme).nth(1));
            let Some(told) = told else {
                server.starting.push(line);
                continue;
            };
            // In JSON a quote stands behind it.
            let address = told.split([' ', '"']).next().unwrap().parse().unwrap();
            (server.address, server.listening) = (address, line);
            return server;
        }
    }

    /// The file of its policy, of a server that was started with one's text.
    pub fn policy(&self) -> &Path {
        self.policy.as_ref().unwrap().path()
    }

    /// Whether operators can ask it: it says where, before it says that it listens.
    pub fn has_admin(&self) -> bool {
        self.admin.is_some()
    }

    /// Where operators ask, if the flags say so.
    pub fn admin(&self) -> SocketAddr {
        self.admin.unwrap()
    }

    /// The number of its process.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Where gRPC is asked, if the flags say so.
    pub fn grpc(&self) -> SocketAddr {
        self.grpc.unwrap()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The line of the log that tells where it listens.
    pub fn listening(&self) -> &str {
        &self.listening
    }

    /// What it logged before.
    pub fn starting(&self) -> &[String] {
        &self.starting
    }

    /// Waits for a line of the log that has this in it.
    pub fn wait_for_log(&self, part: &str) -> String {
        loop {
            match self.log.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(part) => return line,
                Ok(_) => {}
                Err(error) => panic!("no line with `{part}` in the log: {error}"),
            }
        }
    }

    /// The next line of the log, if it comes within this time.
    pub fn next_log(&self, within: Duration) -> Option<String> {
        self.log.recv_timeout(within).ok()
    }

    /// Sends a signal, such as `TERM`.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for the end of the process.
    pub fn exit_code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
