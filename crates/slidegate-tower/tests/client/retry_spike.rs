//! Measures the retry times of a thousand clients that are denied at the same time.
//!
//! The clients are `RetryLayer`s, and the server is a slidegate gate with its headers; only the network is omitted, and
//! time is paused. Random numbers are seeded, so that every run has the same result.
//!
//! `docs/images/retry-spike.svg` and the table of `docs/how-to/retry-denied-requests.md` show the measurement.
//! `make retry-spike` draws and prints them again.

mod chart;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{env, fs};

use http::{HeaderValue, Request, Response, StatusCode};
use slidegate::clock::Clock;
use slidegate::headers::{self, Style};
use slidegate::{Descriptor, Gate, Jitter, ManualClock, MemoryStore, Policy, Timestamp};
use slidegate_tower::client::RetryLayer;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{Layer, ServiceExt};

use chart::Curve;

const CLIENT_COUNT: usize = 1_000;
/// The wait that the server states in each denial, in seconds.
const RETRY_AFTER_SECONDS: u64 = 60;

/// A simulated server with one limit for all clients. Its time is the paused clock of tokio.
pub struct SimulatedServer {
    gate: Gate<MemoryStore<ManualClock>>,
    clock: ManualClock,
    started: Instant,
    retry_jitter: Jitter,
    arrivals: Mutex<Vec<Duration>>,
}

impl SimulatedServer {
    pub fn new(limit: &str, retry_jitter: Jitter) -> Self {
        let rule = format!("{{ name: all, limits: [{limit}], algorithm: sliding_log }}");
        let policy = Policy::from_yaml(&format!("rules: [{rule}]")).unwrap();
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_000));
        let gate = Gate::new(policy, MemoryStore::with_clock(clock.clone(), 10));
        let started = Instant::now();
        Self { gate, clock, started, retry_jitter, arrivals: Mutex::default() }
    }

    /// Decides about one request, and returns the response with its rate limit headers.
    pub fn respond(&self) -> Response<()> {
        let elapsed = self.started.elapsed();
        self.arrivals.lock().unwrap().push(elapsed);
        self.clock.set(Timestamp::from_secs(1_750_000_000).after(elapsed));
        let decision = self.gate.check(&slidegate::Request::new("default", Descriptor::new([])));
        let mut response = Response::new(());
        if !decision.is_allowed() {
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        }
        let jitter = self.retry_jitter.draw();
        for (name, value) in headers::write(Style::Ietf, &decision, self.clock.now(), jitter) {
            response.headers_mut().append(name, HeaderValue::from_str(&value).unwrap());
        }
        response
    }

    /// Returns the times at which requests arrived, each as the time elapsed since the start of the server.
    pub fn arrivals(&self) -> Vec<Duration> {
        self.arrivals.lock().unwrap().clone()
    }
}

/// Returns the times at which clients retry, in ascending order, for one combination of jitter. The quota is used up
/// before the clients start, so that all first attempts are denied. The quota is large enough to allow all second
/// attempts.
async fn measure_retry_times(retry_jitter: Jitter, client_jitter: Jitter) -> Vec<Duration> {
    fastrand::seed(8);
    let server = Arc::new(SimulatedServer::new(
        &format!("{CLIENT_COUNT}/{RETRY_AFTER_SECONDS}s"),
        retry_jitter,
    ));
    (0..CLIENT_COUNT).for_each(|_| assert_eq!(server.respond().status(), 200));
    let layer = RetryLayer::new().jitter(client_jitter).total_time(Duration::from_secs(300));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENT_COUNT {
        let server = Arc::clone(&server);
        let service = tower::service_fn(move |_: Request<()>| {
            let response = server.respond();
            async { Ok::<_, Infallible>(response) }
        });
        clients.spawn(layer.layer(service).oneshot(Request::default()));
    }
    for response in clients.join_all().await {
        assert_eq!(response.unwrap().status(), 200);
    }
    // The requests that use up the quota, the denied attempts, and their retries.
    let mut arrivals = server.arrivals();
    assert_eq!(arrivals.len(), 3 * CLIENT_COUNT);
    arrivals.drain(..2 * CLIENT_COUNT).for_each(|at| assert_eq!(at, Duration::ZERO));
    arrivals
}

/// The retry times of all clients for one combination of server jitter and client jitter. Each measurement is one row
/// of the table in `docs/how-to/retry-denied-requests.md`.
struct JitterMeasurement {
    server: u8,
    client: u8,
    retry_times: Vec<Duration>,
}

impl JitterMeasurement {
    async fn measure_with_server_and_client_jitter((server, client): (u8, u8)) -> Self {
        let [retry_jitter, client_jitter] = [server, client].map(Jitter::up_to_percent);
        Self { server, client, retry_times: measure_retry_times(retry_jitter, client_jitter).await }
    }

    /// Returns the largest number of retries in one period of length `span`. The periods are consecutive, and the first
    /// begins at the denial.
    fn max_retries_in_any_period(&self, span: Duration) -> usize {
        let bucket = |at: &Duration| at.as_nanos() / span.as_nanos();
        self.retry_times.chunk_by(|a, b| bucket(a) == bucket(b)).map(<[_]>::len).max().unwrap()
    }

    fn max_retries_per_second(&self) -> usize {
        self.max_retries_in_any_period(Duration::from_secs(1))
    }

    /// Returns an upper bound for the number of retries in one second: the mean number if the retries are spread evenly
    /// over the larger of the two jitters, plus five standard deviations. The standard deviation is the square root of
    /// the mean.
    fn max_expected_retries_per_second(&self) -> usize {
        let spread = RETRY_AFTER_SECONDS as f64 * f64::from(self.server.max(self.client)) / 100.0;
        let mean = CLIENT_COUNT as f64 / spread;
        (mean + 5.0 * mean.sqrt()) as usize
    }

    fn markdown_table_row(&self) -> String {
        let [first, last] = [self.retry_times.first(), self.retry_times.last()]
            .map(|at| format!("{:.1} s", at.unwrap().as_secs_f64()));
        let max_retries_per_second = self.max_retries_per_second();
        let max_retries_per_10_ms = self.max_retries_in_any_period(Duration::from_millis(10));
        let [server, client] = [self.server, self.client]
            .map(|n| if n == 0 { "none".into() } else { format!("{n} %") });
        format!(
            "| {server} | {client} | {first} to {last} | {max_retries_per_second} | {max_retries_per_10_ms} |"
        )
    }

    fn to_chart_curve(&self, name: &'static str) -> Curve {
        let mut per_second = vec![0; 140];
        self.retry_times.iter().for_each(|at| per_second[at.as_secs() as usize] += 1);
        Curve { name, per_second }
    }
}

/// The combinations of jitter that are measured: maximum jitter of the server, maximum jitter of the client, in
/// percent.
const SERVER_AND_CLIENT_JITTER_PERCENT_PAIRS: [(u8, u8); 5] =
    [(0, 0), (10, 0), (0, 10), (10, 10), (100, 10)];

async fn measure_all_jitter_percent_pairs() -> Vec<JitterMeasurement> {
    let mut cases = Vec::new();
    for case in SERVER_AND_CLIENT_JITTER_PERCENT_PAIRS {
        cases.push(JitterMeasurement::measure_with_server_and_client_jitter(case).await);
    }
    cases
}

#[tokio::test(start_paused = true)]
async fn jitter_spreads_retries_of_simultaneously_denied_clients() {
    for case in measure_all_jitter_percent_pairs().await {
        // No client returns too early.
        assert!(
            case.retry_times[0] >= Duration::from_secs(RETRY_AFTER_SECONDS),
            "{}",
            case.markdown_table_row()
        );
        match (case.server, case.client) {
            (0, 0) => {
                assert_eq!(case.max_retries_in_any_period(Duration::from_millis(1)), CLIENT_COUNT)
            }
            _ => {
                assert!(
                    case.max_retries_per_second() <= case.max_expected_retries_per_second(),
                    "{} {}",
                    case.markdown_table_row(),
                    case.max_expected_retries_per_second()
                )
            }
        }
    }
}

/// Checks that only the jitter of the client spreads retries within a second, because `Retry-After` has whole seconds.
#[tokio::test(start_paused = true)]
async fn client_jitter_spreads_retries_within_each_second() {
    let [server_only, both] = [
        JitterMeasurement::measure_with_server_and_client_jitter((10, 0)).await,
        JitterMeasurement::measure_with_server_and_client_jitter((10, 10)).await,
    ];
    assert_eq!(
        server_only.max_retries_in_any_period(Duration::from_millis(1)),
        server_only.max_retries_per_second()
    );
    assert!(
        both.max_retries_in_any_period(Duration::from_millis(10)) * 10
            < both.max_retries_per_second(),
        "{}",
        both.markdown_table_row()
    );
}

#[tokio::test(start_paused = true)]
async fn docs_match_measured_retries() {
    let cases = measure_all_jitter_percent_pairs().await;
    let rows: Vec<String> = cases.iter().map(JitterMeasurement::markdown_table_row).collect();
    let svg = chart::draw_chart(&[
        cases[0].to_chart_curve("no jitter"),
        cases[3].to_chart_curve("server 10 %, client 10 %"),
        cases[4].to_chart_curve("server 100 %, client 10 %"),
    ]);
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let [svg_path, text_path] = ["images/retry-spike.svg", "how-to/retry-denied-requests.md"]
        .map(|name| format!("{docs}/{name}"));
    if env::var_os("DRAW").is_some() {
        fs::write(&svg_path, &svg).unwrap();
        println!("{}", rows.join("\n"));
    }
    assert!(
        fs::read_to_string(svg_path).unwrap() == svg,
        "docs/images/retry-spike.svg is outdated; run make retry-spike"
    );
    let text = fs::read_to_string(text_path).unwrap();
    for row in rows {
        assert!(text.contains(&row), "docs/how-to/retry-denied-requests.md lacks {row}");
    }
}
