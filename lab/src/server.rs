//! A server as a process of a benchmark's own.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, io, thread};

/// Ticks of the system's clock in a second, in which /proc tells times. Linux has no other.
const TICKS: f64 = 100.0;

/// A server that reads a file. Stopped when dropped.
pub struct Server {
    child: Child,
    _file: TempFile,
    address: SocketAddr,
}

/// A file that goes when it is dropped.
struct TempFile(PathBuf);

impl TempFile {
    fn new(content: &[u8]) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("bench-{}-{nth}", std::process::id()));
        fs::write(&path, content)?;
        Ok(Self(path))
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
        Ok(Self { child, _file: file, address: address? })
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
