//! What slips through: three servers, one limit, more requests than fit.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{io, thread};

use lab::chart::{self, Bar};
use lab::part::{Effort, Part};
use lab::server::Server;
use lab::table::Table;
use quanta::Instant;
use slidegate::{Algorithm, Limit, Quota};
use slidegate_cluster::bound::{default_max_unsynced, max_units_in_window};

/// Requests a second, over all servers.
const RATE: u32 = 3_000;

/// Servers.
const NODES: usize = 3;

/// Connections to each of them.
const CALLERS: u32 = 8;

/// By which algorithm, and how often nodes tell each other.
const RUNS: [(Algorithm, &str); 4] = [
    (Algorithm::SlidingBuckets { precision: None }, "50ms"),
    (Algorithm::SlidingBuckets { precision: None }, "250ms"),
    (Algorithm::SlidingBuckets { precision: None }, "1s"),
    (Algorithm::SlidingWindow, "250ms"),
];

/// What one run came to.
struct Run {
    interval: &'static str,
    algorithm: Algorithm,
    /// Allowed in the fullest window.
    fullest: usize,
    bound: u64,
    answered: usize,
}

/// Windows for which servers are asked.
const WINDOWS: u32 = 2;

/// Runs each for some windows, and draws what came of it.
pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.progress.expect(RUNS.len());
    let window = effort.pick(Duration::from_secs(10), Duration::from_secs(1));
    let quota = Quota::new(u64::from(RATE) / 5 * window.as_secs(), window)?;
    let mut runs = Vec::new();
    for (algorithm, interval) in RUNS.into_iter().take(effort.pick(RUNS.len(), 2)) {
        let limit = Limit::new(quota, algorithm)?;
        part.progress.step(&format!("three servers, {limit}, told every {interval}"));
        runs.push(run_one(&limit, interval, window * WINDOWS)?);
    }
    part.say(format!(
        "### What slips through\n\n{NODES} servers, {quota}, {RATE} requests a second over all, for {WINDOWS} windows. By \
         [docs/CLUSTER.md](CLUSTER.md) nodes may be ahead of each other by what they have not told yet, and the bound says \
         how far."
    ));
    part.table(&table(&quota, &runs));
    let tells = "what was allowed in the fullest window, beside max and the bound";
    part.chart("cluster-slipped", tells, draw(quota.max(), &runs)?);
    Ok(())
}

fn run_one(limit: &Limit, interval: &'static str, span: Duration) -> Result<Run, Box<dyn Error>> {
    let window = limit.quota().window();
    let policy = format!(
        "rules: [{{ name: all, limits: [{{ max: {}, window: {}ms }}], algorithm: {} }}]",
        limit.quota().max(),
        window.as_millis(),
        limit.algorithm()
    );
    let seed = free_port()?;
    let mut servers = Vec::new();
    for nth in 0..NODES {
        let port = if nth == 0 { seed } else { free_port()? };
        servers.push(Server::start(policy.as_bytes(), "listening on http://", |policy| {
            server(policy, interval, port, seed)
        })?);
    }
    // Until they have found each other.
    thread::sleep(Duration::from_secs(7));
    let addresses: Vec<SocketAddr> = servers.iter().map(Server::address).collect();
    let (answered, mut allowed) = load(&addresses, span)?;
    allowed.sort_unstable();
    let nodes = NODES as u64;
    Ok(Run {
        interval,
        algorithm: limit.algorithm(),
        fullest: fullest(&allowed, window),
        bound: max_units_in_window(limit, nodes, default_max_unsynced(limit, nodes), 1),
        answered,
    })
}

fn server(policy: &Path, interval: &str, port: u16, seed: u16) -> io::Result<Command> {
    let (listen, seed) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{seed}"));
    let flags = ["--grpc", "none", "--admin", "none", "--log-level", "info", "--log-denials", "0"];
    let mut command = Server::slidegate(policy, &flags)?;
    command.args(["--store", "cluster://", "--cluster-listen", &listen, "--cluster-seeds", &seed]);
    command.args(["--cluster-sync-interval", interval]);
    Ok(command)
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// How many were answered, and when those were that were allowed.
fn load(
    addresses: &[SocketAddr],
    span: Duration,
) -> Result<(usize, Vec<Duration>), Box<dyn Error>> {
    let begun = Instant::now();
    let callers = CALLERS * addresses.len() as u32;
    thread::scope(|scope| {
        let call = |nth: u32| {
            let address = addresses[nth as usize % addresses.len()];
            let first = Duration::from_secs(1) * nth / RATE;
            move || call(address, (begun, span), first, Duration::from_secs(1) * callers / RATE)
        };
        let calls: Vec<_> = (0..callers).map(|nth| scope.spawn(call(nth))).collect();
        let mut all = (0, Vec::new());
        for call in calls {
            let (answered, allowed) =
                call.join().map_err(|_| io::Error::other("a caller panicked"))??;
            all.0 += answered;
            all.1.extend(allowed);
        }
        Ok(all)
    })
}

/// Asks at its times, whether or not the answer before came late.
fn call(
    address: SocketAddr,
    (begun, span): (Instant, Duration),
    first: Duration,
    every: Duration,
) -> io::Result<(usize, Vec<Duration>)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let body = "{\"attributes\":{}}";
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: l\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (mut answered, mut allowed, mut due) = (0, Vec::new(), first);
    while due < span {
        thread::sleep(due.saturating_sub(begun.elapsed()));
        stream.write_all(request.as_bytes())?;
        if is_allowed(&mut answers)? {
            allowed.push(begun.elapsed());
        }
        answered += 1;
        due += every;
    }
    Ok((answered, allowed))
}

fn is_allowed(answers: &mut impl BufRead) -> io::Result<bool> {
    let (mut line, mut length, mut status) = (String::new(), 0, None);
    loop {
        line.clear();
        if answers.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = line.trim_end();
        status =
            status.or_else(|| text.strip_prefix("HTTP/1.1 ").map(|rest| rest.starts_with("200")));
        if let Some((name, value)) = text.split_once(": ")
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.parse().map_err(io::Error::other)?;
        }
        if text.is_empty() {
            break;
        }
    }
    io::copy(&mut answers.take(length), &mut io::sink())?;
    status.ok_or_else(|| io::Error::other("no status"))
}

/// The most moments in any window of that length.
fn fullest(sorted: &[Duration], window: Duration) -> usize {
    let mut first = 0;
    let held = sorted.iter().enumerate().map(|(nth, moment)| {
        while sorted[first] + window <= *moment {
            first += 1;
        }
        nth + 1 - first
    });
    held.max().unwrap_or(0)
}

fn table(quota: &Quota, runs: &[Run]) -> Table {
    let columns = [
        "algorithm",
        "told every",
        "answered",
        "allowed in the fullest window",
        "beyond max",
        "bound",
    ];
    let mut table = Table::new(columns);
    for run in runs {
        let beyond = run.fullest as f64 / quota.max() as f64 - 1.0;
        table.row([
            run.algorithm.to_string(),
            run.interval.to_owned(),
            run.answered.to_string(),
            run.fullest.to_string(),
            format!("{:+.2} %", 100.0 * beyond),
            run.bound.to_string(),
        ]);
    }
    table
}

/// A bar for each run, and its bound.
fn draw(max: u64, runs: &[Run]) -> Result<String, Box<dyn Error>> {
    let bar = |run: &Run| Bar {
        name: format!("{}, told every {}", run.algorithm, run.interval),
        value: run.fullest as f64,
        label: run.fullest.to_string(),
        is_own: true,
    };
    let bars: Vec<Bar> = runs.iter().map(bar).collect();
    let bounds: Vec<f64> = runs.iter().map(|run| run.bound as f64).collect();
    let title = format!("Allowed in the fullest window by three servers; max is {max}");
    chart::bars_with_marks(&title, &bars, &bounds, "bound")
}
