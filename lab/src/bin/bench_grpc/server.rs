//! Server processes of the benchmark's own.

use std::env;
use std::error::Error;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::bare;

/// Three rules under which everything fits.
const POLICY: &str = "
rules:
  - { name: per-tenant, domain: bench, per: [tenant], limits: [100000000/s] }
  - { name: writes, domain: bench, when: { method: POST }, per: [tenant, route], limits: [100000000/s] }
  - { name: everybody, domain: bench, when: { generic_key: all }, limits: [100000000/s] }
";

/// Ticks of the system's clock in a second, in which /proc tells times. Linux has no other.
const TICKS: f64 = 100.0;

/// A server. Stopped when dropped.
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
        let path = env::temp_dir().join(format!("bench-grpc-{}-{nth}", std::process::id()));
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
    /// slidegate as it is by default, on free ports.
    pub fn slidegate() -> Result<Self, Box<dyn Error>> {
        let policy = TempFile::new(POLICY.as_bytes())?;
        let program = env::current_exe()?.with_file_name("slidegate");
        let free = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let mut command = Command::new(program);
        command.arg("serve").arg("--policy").arg(&policy.0).args(free);
        Self::start(command, policy)
    }

    /// A server of tonic with this answer.
    pub fn bare(threads: &str, answer: &[u8]) -> Result<Self, Box<dyn Error>> {
        let answer = TempFile::new(answer)?;
        let mut command = Command::new(env::current_exe()?);
        command.args([bare::ARGUMENT, threads]).arg(&answer.0);
        Self::start(command, answer)
    }

    fn start(mut command: Command, file: TempFile) -> Result<Self, Box<dyn Error>> {
        let program = command.get_program().to_owned();
        let mut child = command
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}: is it built?", Path::new(&program).display()))?;
        let mut log = BufReader::new(child.stderr.take().ok_or("no log")?);
        let address = listening(&mut log);
        // Somebody has to read what is logged, as somebody would.
        thread::spawn(move || io::copy(&mut log, &mut io::sink()));
        Ok(Self { child, _file: file, address: address? })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// CPU time that it has used, in seconds.
    pub fn cpu_s(&self) -> Result<f64, Box<dyn Error>> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // Behind the name, which may have spaces: the 12th and 13th field from there.
        let (_, fields) = stat.rsplit_once(')').ok_or("/proc has another form")?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
        Ok(ticks.sum::<Result<f64, _>>()? / TICKS)
    }
}

fn listening(log: &mut impl BufRead) -> Result<SocketAddr, Box<dyn Error>> {
    let mut told = String::new();
    loop {
        let begin = told.len();
        if log.read_line(&mut told)? == 0 {
            return Err(format!("a server does not start: {told}").into());
        }
        if let Some((_, address)) = told[begin..].split_once("gRPC is asked at ") {
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
