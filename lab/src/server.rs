//! Starts and stops the server processes of a benchmark, and measures their CPU time and memory.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fs, io, thread};

/// The unit of the CPU times in `/proc/PID/stat`, on every Linux of today.
const CLOCK_TICKS_PER_SECOND: f64 = 100.0;

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
        // The file may already be removed, so an error is ignored.
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns a command that runs a server program on the upper half of the cores.
pub fn server_command(program: impl AsRef<Path>) -> Command {
    let cores = core_count();
    command_on_cores(cores / 2, cores - 1, program.as_ref())
}

/// Returns a command that runs a load generator on the lower half of the cores, so that the load takes no CPU time from
/// the servers.
pub fn load_command(program: impl AsRef<Path>) -> Command {
    command_on_cores(0, (core_count() / 2).max(1) - 1, program.as_ref())
}

/// Returns the number of cores on which servers run.
pub fn server_core_count() -> usize {
    core_count().div_ceil(2)
}

fn core_count() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn command_on_cores(first: usize, last: usize, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &format!("{first}-{last}")]).arg(program);
    command
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
        let mut child = command(file.path())?.stderr(Stdio::piped()).spawn()?;
        let mut log = BufReader::new(child.stderr.take().ok_or("no log")?);
        let address = read_listen_address(&mut log, address_prefix);
        // Drains the log, so that the server never blocks on a full pipe.
        thread::spawn(move || io::copy(&mut log, &mut io::sink()));
        Ok(Self { child, _file: Some(file), address: address? })
    }

    /// Starts slidegate with this policy and these flags. `address_prefix` is the text before the address in its log.
    /// The binary is in the folder of the current program.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_slidegate(
        policy: &str,
        address_prefix: &str,
        flags: &[&str],
    ) -> Result<Self, Box<dyn Error>> {
        Self::start(policy.as_bytes(), address_prefix, |policy| {
            let mut command = server_command(env::current_exe()?.with_file_name("slidegate"));
            command.args(["serve", "--http", "127.0.0.1:0", "--policy"]).arg(policy).args(flags);
            Ok(command)
        })
    }

    /// Starts a program that does not log its address, and waits until it accepts connections. `arguments` receives a
    /// local address with a free port, on which the program must listen.
    ///
    /// # Errors
    /// If the program cannot be started, or does not accept connections within ten seconds.
    pub fn start_on_free_port(
        program: &str,
        arguments: impl FnOnce(SocketAddr) -> Vec<String>,
    ) -> Result<Self, Box<dyn Error>> {
        let address = free_address()?;
        let mut command = server_command(program);
        let child = command.args(arguments(address)).stdout(Stdio::null()).spawn()?;
        // From here on, the value owns the process, so that the process is stopped in all cases.
        let server = Self { child, _file: None, address };
        for _ in 0..10_000 {
            if TcpStream::connect(address).is_ok() {
                return Ok(server);
            }
            thread::sleep(Duration::from_millis(1));
        }
        Err(format!("{program} does not listen on {address}").into())
    }

    /// Starts redis-server without persistence.
    ///
    /// # Errors
    /// As for [`start_on_free_port`](Self::start_on_free_port).
    pub fn start_redis() -> Result<Self, Box<dyn Error>> {
        Self::start_on_free_port("redis-server", |address| {
            let port = address.port().to_string();
            let arguments =
                ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
            arguments.map(str::to_owned).to_vec()
        })
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the CPU time of the server process so far in seconds, both in user mode and in the kernel.
    ///
    /// # Errors
    /// If `/proc` does not provide the CPU time.
    pub fn cpu_seconds(&self) -> Result<f64, Box<dyn Error>> {
        cpu_seconds(&self.child.id().to_string())
    }

    /// Returns the resident memory of the server process, in bytes.
    ///
    /// # Errors
    /// If `/proc` does not provide the resident memory.
    pub fn resident_bytes(&self) -> Result<usize, Box<dyn Error>> {
        resident_bytes(&self.child.id().to_string())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The process may have exited already, so errors are ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a local address with a port that is free. If another program takes the port first, starting a server fails.
///
/// # Errors
/// If no port is free.
pub fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Returns the CPU time of a process so far in seconds. `process` is the name of its folder in `/proc`.
///
/// # Errors
/// If `/proc` does not provide the CPU time.
pub fn cpu_seconds(process: &str) -> Result<f64, Box<dyn Error>> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name of the program, in parentheses, can contain spaces, so the fields after it are read. The times are the
    // 14th and the 15th field.
    let (_, fields) = stat.rsplit_once(')').ok_or("unexpected format of /proc")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / CLOCK_TICKS_PER_SECOND)
}

/// Returns the resident memory of a process, in bytes. `process` is the name of its folder in `/proc`.
///
/// # Errors
/// If `/proc` does not provide the resident memory.
pub fn resident_bytes(process: &str) -> Result<usize, Box<dyn Error>> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kilobytes.ok_or("the status of the process has no VmRSS in kB")?.parse::<usize>()? * 1024)
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
