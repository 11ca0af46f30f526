//! The load of closed loops: h2load, with one request over and over, each connection as soon as it is answered.

use std::error::Error;
use std::process::Command;

use lab::server::{Server, TempFile};

use crate::question::{Face, Question};
use crate::rounds::Measured;

/// Connections at once.
pub const CONNECTIONS: usize = 50;

/// So many requests, of which a connection has `depth` under way at once.
pub fn run(
    server: &Server,
    question: &Question,
    depth: usize,
    requests: usize,
) -> Result<Measured, Box<dyn Error>> {
    let body = TempFile::new(&question.body)?;
    let mut command = Command::new("h2load");
    command.args(["-t", "1", "-c", &CONNECTIONS.to_string()]);
    command.args(["-n", &requests.to_string(), "-m", &depth.to_string()]);
    if question.face == Face::Http {
        command.arg("--h1");
    }
    for (name, value) in &question.headers {
        command.args(["-H", &format!("{name}: {value}")]);
    }
    if !question.body.is_empty() {
        command.arg("-d").arg(body.path());
    }
    command.arg(format!("http://{}{}", server.address(), question.path));
    let before = server.cpu_s()?;
    let output = command.output().map_err(|error| format!("h2load: {error}: is it installed?"))?;
    let cpu_us = (server.cpu_s()? - before) * 1e6 / requests as f64;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let per_second = per_second(&told, requests).ok_or(told)?;
    Ok(Measured { per_second, cpu_us, denied: 0.0 })
}

/// What h2load says, if all was answered with 200 or so.
fn per_second(told: &str, requests: usize) -> Option<f64> {
    let all = [format!("{requests} succeeded, 0 failed"), format!("{requests} 2xx")];
    all.iter().all(|all| told.contains(all)).then_some(())?;
    let finished = told.lines().find_map(|line| line.strip_prefix("finished in "))?;
    finished.split(", ").nth(1)?.strip_suffix(" req/s")?.parse().ok()
}
