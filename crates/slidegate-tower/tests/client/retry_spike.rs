//! A thousand clients that are denied at once, and when they come back.
//!
//! The clients are `RetryLayer`s, the server is slidegate's gate with its headers; only the network is left
//! out, and time is paused. What is drawn by chance is seeded, so that it is the same each time.
//!
//! `docs/retry-spike.svg` and the table of `docs/CLIENT.md` are what this measures. To draw and print them
//! again: `make retry-spike`.

mod chart;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{env, fs};

use http::{HeaderValue, Request, Response, StatusCode};
use slidegate::headers::{self, Style};
use slidegate::{Clock, Descriptor, Gate, Jitter, ManualClock, MemoryStore, Policy, Timestamp};
use slidegate_tower::client::RetryLayer;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{Layer, ServiceExt};

use chart::Curve;

const CLIENTS: usize = 1_000;
/// What the denied are told.
const WAIT: u64 = 60;

/// A server with one limit for all, in tokio's time.
pub struct Server {
    gate: Gate<MemoryStore<ManualClock>>,
    clock: ManualClock,
    began: Instant,
    retry_jitter: Jitter,
    arrivals: Mutex<Vec<Duration>>,
}

impl Server {
    pub fn new(limit: &str, retry_jitter: Jitter) -> Self {
        let rule = format!("{{ name: all, limits: [{limit}], algorithm: sliding_log }}");
        let policy = Policy::from_yaml(&format!("rules: [{rule}]")).unwrap();
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_000));
        let gate = Gate::new(policy, MemoryStore::with_clock(clock.clone(), 10));
        let began = Instant::now();
        Self { gate, clock, began, retry_jitter, arrivals: Mutex::default() }
    }

    /// Decides one request.
    pub fn answer(&self) -> Response<()> {
        let elapsed = self.began.elapsed();
        self.arrivals.lock().unwrap().push(elapsed);
        self.clock.set(Timestamp::from_secs(1_750_000_000).after(elapsed));
        let ruling = self.gate.check_now(&slidegate::Request::new("default", Descriptor::new([])));
        let mut answer = Response::new(());
        if !ruling.decision().is_allowed() {
            *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        }
        let lengthening = self.retry_jitter.draw();
        for (name, value) in headers::write(Style::Ietf, &ruling, self.clock.now(), lengthening) {
            answer.headers_mut().append(name, HeaderValue::from_str(&value).unwrap());
        }
        answer
    }

    /// When it was asked.
    pub fn arrivals(&self) -> Vec<Duration> {
        self.arrivals.lock().unwrap().clone()
    }
}

/// When the clients come back, in order. The quota is spent when they ask first, and large enough for all
/// of them when they ask again.
async fn returns(retry_jitter: Jitter, client_jitter: Jitter) -> Vec<Duration> {
    fastrand::seed(8);
    let server = Arc::new(Server::new(&format!("{CLIENTS}/{WAIT}s"), retry_jitter));
    (0..CLIENTS).for_each(|_| assert_eq!(server.answer().status(), 200));
    let layer = RetryLayer::new().jitter(client_jitter).total_time(Duration::from_secs(300));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let server = Arc::clone(&server);
        let service = tower::service_fn(move |_: Request<()>| {
            let answer = server.answer();
            async { Ok::<_, Infallible>(answer) }
        });
        clients.spawn(layer.layer(service).oneshot(Request::default()));
    }
    for answer in clients.join_all().await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    // Those who spent the quota, the denied, and the denied once more.
    let mut arrivals = server.arrivals();
    assert_eq!(arrivals.len(), 3 * CLIENTS);
    arrivals.drain(..2 * CLIENTS).for_each(|at| assert_eq!(at, Duration::ZERO));
    arrivals
}

/// One row of the table.
struct Case {
    server: u8,
    client: u8,
    returns: Vec<Duration>,
}

impl Case {
    async fn of((server, client): (u8, u8)) -> Self {
        let [retry_jitter, client_jitter] = [server, client].map(Jitter::up_to_percent);
        Self { server, client, returns: returns(retry_jitter, client_jitter).await }
    }

    /// The most that come within one of the spans that follow each other from the denial on.
    fn peak(&self, span: Duration) -> usize {
        let bucket = |at: &Duration| at.as_nanos() / span.as_nanos();
        self.returns.chunk_by(|a, b| bucket(a) == bucket(b)).map(<[_]>::len).max().unwrap()
    }

    fn peak_in_a_second(&self) -> usize {
        self.peak(Duration::from_secs(1))
    }

    /// What each second would have, if the clients were spread evenly over what the larger jitter adds, and
    /// five standard deviations more, of those that a count by chance has.
    fn bound(&self) -> usize {
        let spread = WAIT as f64 * f64::from(self.server.max(self.client)) / 100.0;
        let mean = CLIENTS as f64 / spread;
        (mean + 5.0 * mean.sqrt()) as usize
    }

    fn row(&self) -> String {
        let [first, last] = [self.returns.first(), self.returns.last()]
            .map(|at| format!("{:.1} s", at.unwrap().as_secs_f64()));
        let in_a_second = self.peak_in_a_second();
        let in_10_ms = self.peak(Duration::from_millis(10));
        let [server, client] = [self.server, self.client]
            .map(|n| if n == 0 { "none".into() } else { format!("{n} %") });
        format!("| {server} | {client} | {first} to {last} | {in_a_second} | {in_10_ms} |")
    }

    fn curve(&self, name: &'static str) -> Curve {
        let mut per_second = vec![0; 140];
        self.returns.iter().for_each(|at| per_second[at.as_secs() as usize] += 1);
        Curve { name, per_second }
    }
}

/// Percent of the server and of the client.
const CASES: [(u8, u8); 5] = [(0, 0), (10, 0), (0, 10), (10, 10), (100, 10)];

async fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for case in CASES {
        cases.push(Case::of(case).await);
    }
    cases
}

#[tokio::test(start_paused = true)]
async fn a_thousand_that_were_denied_at_once_do_not_come_back_in_one_spike() {
    for case in cases().await {
        // Nobody comes before it was told to.
        assert!(case.returns[0] >= Duration::from_secs(WAIT), "{}", case.row());
        match (case.server, case.client) {
            (0, 0) => assert_eq!(case.peak(Duration::from_millis(1)), CLIENTS),
            _ => {
                assert!(case.peak_in_a_second() <= case.bound(), "{} {}", case.row(), case.bound())
            }
        }
    }
}

/// Whole seconds are all that Retry-After can say: it is the client's jitter that spreads within them.
#[tokio::test(start_paused = true)]
async fn within_a_second_the_clients_jitter_spreads() {
    let [server_only, both] = [Case::of((10, 0)).await, Case::of((10, 10)).await];
    assert_eq!(server_only.peak(Duration::from_millis(1)), server_only.peak_in_a_second());
    assert!(both.peak(Duration::from_millis(10)) * 10 < both.peak_in_a_second(), "{}", both.row());
}

#[tokio::test(start_paused = true)]
async fn the_documents_show_what_is_measured() {
    let cases = cases().await;
    let rows: Vec<String> = cases.iter().map(Case::row).collect();
    let svg = chart::draw(&[
        cases[0].curve("no jitter"),
        cases[3].curve("server 10 %, client 10 %"),
        cases[4].curve("server 100 %, client 10 %"),
    ]);
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let [picture, text] = ["retry-spike.svg", "CLIENT.md"].map(|name| format!("{docs}/{name}"));
    if env::var_os("DRAW").is_some() {
        fs::write(&picture, &svg).unwrap();
        println!("{}", rows.join("\n"));
    }
    assert!(fs::read_to_string(picture).unwrap() == svg, "draw it again: make retry-spike");
    let text = fs::read_to_string(text).unwrap();
    for row in rows {
        assert!(text.contains(&row), "docs/CLIENT.md lacks {row}");
    }
}
