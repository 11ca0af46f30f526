//! A server as a process of a benchmark's own.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fs, io, thread};

/// Ticks of the system's clock in a second, in which /proc tells times. Linux has no other.
const TICKS: f64 = 100.0;

/// How often it is seen whether a server listens, and how long after each other.
const PROBES: usize = 200;
const BETWEEN_PROBES: Duration = Duration::from_millis(50);

/// A server. Stopped when dropped.
pub struct Server {
    child: Child,
    _file: Option<TempFile>,
    address: SocketAddr,
}

/// A file that goes when it is dropped.
pub struct TempFile(PathBuf);

impl TempFile {
    /// One with this content.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn new(content: &[u8]) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("bench-{}-{nth}", std::process::id()));
        fs::write(&path, content)?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // It may have gone already.
        let _ = fs::remove_file(&self.0);
    }
}

impl Server {
    /// Starts a program on a file with this content, and waits until it logs where it listens: behind `said`.
    ///
    /// # Errors
    /// If it cannot be started, or ends before it listens.
    pub fn start(
        content: &[u8],
        said: &str,
        command: impl FnOnce(&Path) -> io::Result<Command>,
    ) -> Result<Self, Box<dyn Error>> {
        let file = TempFile::new(content)?;
        let mut command = command(&file.0)?;
        let program = command.get_program().to_owned();
        let mut child = command
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}: is it built?", program.display()))?;
        let mut log = BufReader::new(child.stderr.take().ok_or("no log")?);
        let address = listening(&mut log, said);
        // Somebody has to read what is logged, as somebody would.
        thread::spawn(move || io::copy(&mut log, &mut io::sink()));
        Ok(Self { child, _file: Some(file), address: address? })
    }

    /// Starts a program that does not log where it listens: it is told an address of this machine with a free port,
    /// and is there when it takes connections. What it logs to standard output nobody reads.
    ///
    /// # Errors
    /// If it cannot be started, or does not listen within some seconds.
    pub fn start_at(command: impl FnOnce(SocketAddr) -> Command) -> Result<Self, Box<dyn Error>> {
        // Free again when the listener is dropped. Another program could take it meanwhile: then nobody answers.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = command(address);
        let program = command.get_program().to_owned();
        let child = command
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}: is it installed?", program.display()))?;
        // Owned from here on, so that it is stopped whatever happens.
        let server = Self { child, _file: None, address };
        for _ in 0..PROBES {
            if TcpStream::connect(address).is_ok() {
                return Ok(server);
            }
            thread::sleep(BETWEEN_PROBES);
        }
        Err(format!("{} does not listen at {address}", program.display()).into())
    }

    /// The slidegate that is built beside this program, serving by the file.
    ///
    /// # Errors
    /// If it is not known where this program is.
    pub fn slidegate(policy: &Path, flags: &[&str]) -> io::Result<Command> {
        let mut command = Command::new(env::current_exe()?.with_file_name("slidegate"));
        command.args(["serve", "--http", "127.0.0.1:0", "--policy"]).arg(policy).args(flags);
        Ok(command)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// CPU time that it has used, in seconds.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn cpu_s(&self) -> Result<f64, Box<dyn Error>> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // Behind the name, which may have spaces: the 12th and 13th field from there.
        let (_, fields) = stat.rsplit_once(')').ok_or("/proc has another form")?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
        Ok(ticks.sum::<Result<f64, _>>()? / TICKS)
    }
}

fn listening(log: &mut impl BufRead, said: &str) -> Result<SocketAddr, Box<dyn Error>> {
    let mut told = String::new();
    loop {
        let begin = told.len();
        if log.read_line(&mut told)? == 0 {
            return Err(format!("a server does not start: {told}").into());
        }
        if let Some((_, address)) = told[begin..].split_once(said) {
            return Ok(address.split_whitespace().next().unwrap_or_default().parse()?);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
