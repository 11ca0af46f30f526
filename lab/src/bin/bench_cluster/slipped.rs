//! What slips through: three servers, one limit, more requests than fit.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{fs, io, thread};

use lab::server::Server;
use lab::table::Table;
use quanta::Instant;
use slidegate::{Algorithm, Limit, Quota};
use slidegate_cluster::bound::{default_max_unsynced, most_in_a_window};

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

/// Runs each for so many windows, and draws what came of it.
pub fn run(window: Duration, windows: u32, picture: Option<&str>) -> Result<(), Box<dyn Error>> {
    let quota = Quota::new(6_000, window)?;
    let mut runs = Vec::new();
    for (algorithm, interval) in RUNS {
        let limit = Limit::new(quota, algorithm)?;
        eprintln!("{limit}, told every {interval}");
        runs.push(run_one(&limit, interval, window * windows)?);
    }
    print(&quota, windows, &runs);
    if let Some(picture) = picture {
        fs::write(picture, draw(quota.max(), &runs))?;
    }
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
        bound: most_in_a_window(limit, nodes, default_max_unsynced(limit, nodes), 1),
        answered,
    })
}

fn server(policy: &Path, interval: &str, port: u16, seed: u16) -> io::Result<Command> {
    let (listen, seed) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{seed}"));
    let flags = ["--grpc", "none", "--admin", "none", "--log", "info", "--log-denials", "0"];
    let mut command = Server::slidegate(policy, &flags)?;
    command.args(["--store", "cluster://", "--listen", &listen, "--seeds", &seed]);
    command.args(["--sync-interval", interval]);
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

fn print(quota: &Quota, windows: u32, runs: &[Run]) {
    println!("## What slips through\n");
    println!("{NODES} servers, {quota}, {RATE} requests a second over all, {windows} windows.\n");
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
    println!("{table}");
}

/// A bar for each run, beside max and its bound.
fn draw(max: u64, runs: &[Run]) -> String {
    let most = runs.iter().map(|run| run.bound).max().unwrap_or(max) as f64 * 1.05;
    let x = |units: f64| 220.0 + 520.0 * units / most;
    let mut rows = String::new();
    for (nth, run) in runs.iter().enumerate() {
        let y = 50 + 34 * nth;
        let (end, bound) = (x(run.fullest as f64), x(run.bound as f64));
        rows += &format!(
            "<text x=\"210\" y=\"{}\" text-anchor=\"end\">{}, {}</text>\n\
             <rect x=\"220\" y=\"{y}\" width=\"{:.1}\" height=\"22\" fill=\"#4878a8\"/>\n\
             <text x=\"{:.1}\" y=\"{}\" fill=\"#fff\" text-anchor=\"end\">{}</text>\n\
             <line x1=\"{bound:.1}\" x2=\"{bound:.1}\" y1=\"{y}\" y2=\"{}\" stroke=\"#c44\" stroke-width=\"3\"/>\n",
            y + 16,
            run.algorithm,
            run.interval,
            end - 220.0,
            end - 6.0,
            y + 16,
            run.fullest,
            y + 22,
        );
    }
    let (height, at_max) = (70 + 34 * runs.len(), x(max as f64));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"760\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"20\" y=\"24\" font-size=\"15\">Allowed in the fullest window (blue), max {max} (dashed), bound (red)</text>\n\
         {rows}\
         <line x1=\"{at_max:.1}\" x2=\"{at_max:.1}\" y1=\"40\" y2=\"{}\" stroke=\"#222\" stroke-dasharray=\"4 3\"/>\n\
         </svg>\n",
        height - 16
    )
}
