//! A server process of the benchmark's own.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, io, thread};

/// Three rules under which everything fits.
pub const ROOMY: &str = "
rules:
  - { name: per-tenant, per: [tenant], limits: [1000000/s, 100000000/h] }
  - { name: writes, when: { method: POST }, per: [tenant, route], limits: [1000000/s] }
  - { name: everybody, limits: [100000000/s] }
";

/// The same, under which next to nothing fits.
pub const NARROW: &str = "
rules:
  - { name: per-tenant, per: [tenant], limits: [3/h, 30/d] }
  - { name: writes, when: { method: POST }, per: [tenant, route], limits: [1000000/s] }
  - { name: everybody, limits: [100000000/s] }
";

/// What has everything gathered: by default.
const WATCHED: [&str; 2] = ["--admin", "127.0.0.1:0"];

/// What has nothing gathered.
const UNWATCHED: [&str; 4] = ["--admin", "none", "--log-denials", "0"];

/// Ticks of the system's clock in a second, in which /proc tells times. Linux has no other.
const TICKS: f64 = 100.0;

/// A server. Stopped when dropped.
pub struct Server {
    child: Child,
    policy: PathBuf,
    address: SocketAddr,
}

impl Server {
    /// Starts one on a free port.
    pub fn start(policy: &str, watched: bool) -> Result<Self, Box<dyn Error>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let file = env::temp_dir().join(format!("bench-{}-{nth}.yaml", std::process::id()));
        fs::write(&file, policy)?;
        let program = env::current_exe()?.with_file_name("slidegate");
        let mut child = Command::new(&program)
            .args(["serve", "--http", "127.0.0.1:0", "--policy"])
            .arg(&file)
            .args(if watched { &WATCHED[..] } else { &UNWATCHED[..] })
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}: is it built?", program.display()))?;
        let mut log = BufReader::new(child.stderr.take().ok_or("no log")?);
        let address = listening(&mut log);
        // Somebody has to read what is logged, as somebody would.
        thread::spawn(move || io::copy(&mut log, &mut io::sink()));
        Ok(Self { child, policy: file, address: address? })
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
            return Err(format!("slidegate does not start: {told}").into());
        }
        if let Some((_, address)) = told[begin..].split_once(" listening on http://") {
            return Ok(address.split_whitespace().next().unwrap_or_default().parse()?);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.policy);
    }
}
