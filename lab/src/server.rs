//! Starts and stops the server processes of a benchmark.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fs, io, thread};

use crate::cores::on_server_cores;
use crate::rss;

/// The maximum number of connection attempts to a starting server.
const MAX_CONNECT_ATTEMPTS: usize = 10_000;

/// The time between connection attempts to a starting server.
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A server process of a benchmark. The process is stopped when this value is dropped.
pub struct ServerProcess {
    child: Child,
    _file: Option<TempFile>,
    address: SocketAddr,
}

/// A temporary file, which is removed when this value is dropped.
pub struct TempFile(PathBuf);

impl TempFile {
    /// Creates a temporary file with this content.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn new(content: &[u8]) -> io::Result<Self> {
        static NEXT_TEMP_FILE_INDEX: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT_TEMP_FILE_INDEX.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("bench-{}-{nth}", std::process::id()));
        fs::write(&path, content)?;
        Ok(Self(path))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // The file may already be removed.
        let _ = fs::remove_file(&self.0);
    }
}

impl ServerProcess {
    /// Starts a server program, and waits until it logs the address on which it listens. `command` returns the command
    /// that starts the program; its argument is the path of a file with `content`. In the log, `address_prefix` is the
    /// text before the address.
    ///
    /// # Errors
    /// If the program cannot be started, or exits before it logs its address.
    pub fn start(
        content: &[u8],
        address_prefix: &str,
        command: impl FnOnce(&Path) -> io::Result<Command>,
    ) -> Result<Self, Box<dyn Error>> {
        let file = TempFile::new(content)?;
        let mut command = command(&file.0)?;
        let program = command.get_program().to_owned();
        command.stderr(Stdio::piped());
        let mut child = on_server_cores(|| command.spawn())?
            .map_err(|error| format!("{}: {error}; build it first", program.display()))?;
        let mut log = BufReader::new(child.stderr.take().ok_or("no log")?);
        let address = read_listen_address(&mut log, address_prefix);
        // Drains the log, so that the server never blocks on a full pipe.
        thread::spawn(move || io::copy(&mut log, &mut io::sink()));
        Ok(Self { child, _file: Some(file), address: address? })
    }

    /// Starts a program that does not log its address, and waits until it accepts connections. `command` receives a
    /// local address with a free port, on which the program must listen. The standard output of the program is
    /// discarded.
    ///
    /// # Errors
    /// If the program cannot be started, or does not accept connections within ten seconds.
    pub fn start_on_free_port(
        command: impl FnOnce(SocketAddr) -> Command,
    ) -> Result<Self, Box<dyn Error>> {
        // The port is free again when the listener is dropped. If another program takes it first, starting fails.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = command(address);
        let program = command.get_program().to_owned();
        command.stdout(Stdio::null());
        let child = on_server_cores(|| command.spawn())?
            .map_err(|error| format!("{}: {error}; install it first", program.display()))?;
        // Owned from here on, so that the process is stopped in all cases.
        let server = Self { child, _file: None, address };
        for _ in 0..MAX_CONNECT_ATTEMPTS {
            if TcpStream::connect(address).is_ok() {
                return Ok(server);
            }
            thread::sleep(CONNECT_RETRY_INTERVAL);
        }
        Err(format!("{} does not listen on {address}", program.display()).into())
    }

    /// Returns a command that serves the policy in the file `policy` with these flags. It runs the slidegate binary in
    /// the folder of the current program.
    ///
    /// # Errors
    /// If the path of the current program is unknown.
    pub fn slidegate_command(policy: &Path, flags: &[&str]) -> io::Result<Command> {
        let mut command = Command::new(env::current_exe()?.with_file_name("slidegate"));
        command.args(["serve", "--http", "127.0.0.1:0", "--policy"]).arg(policy).args(flags);
        Ok(command)
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the CPU time that the threads of the server process have used so far, in seconds.
    ///
    /// # Errors
    /// If `/proc` does not provide the CPU time.
    pub fn cpu_seconds(&self) -> Result<f64, Box<dyn Error>> {
        let mut nanoseconds = 0.0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            // A thread that has just exited has no file any more.
            let Ok(stat) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
            let own = stat.split_whitespace().next().ok_or("unexpected format of /proc")?;
            nanoseconds += own.parse::<f64>()?;
        }
        Ok(nanoseconds / 1e9)
    }

    /// Returns the resident memory of the server process, in bytes.
    ///
    /// # Errors
    /// If `/proc` does not provide the resident memory.
    pub fn resident_bytes(&self) -> Result<usize, Box<dyn Error>> {
        rss::resident_bytes_of(&self.child.id().to_string())
    }
}

fn read_listen_address(
    log: &mut impl BufRead,
    address_prefix: &str,
) -> Result<SocketAddr, Box<dyn Error>> {
    let mut output = String::new();
    loop {
        let begin = output.len();
        if log.read_line(&mut output)? == 0 {
            return Err(format!("the server failed to start: {output}").into());
        }
        if let Some((_, address)) = output[begin..].split_once(address_prefix) {
            return Ok(address.split_whitespace().next().unwrap_or_default().parse()?);
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
