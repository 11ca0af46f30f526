//! A real Prometheus, set up as `deploy/prometheus` says, but that it looks several times a second.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fs, thread};

use serde_json::Value;

/// How often it scrapes, and evaluates its rules. A rate over a second then has several samples.
const INTERVAL: &str = "200ms";

/// How often to look for what comes in a moment: far more often than any takes. New targets take the longest,
/// the five seconds for which it gathers them.
const LOOKS: u32 = 1_500;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// A process on a port of its own, with a folder of its own. It is killed when dropped.
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
    targets: usize,
}

/// One series of an answer: its labels and its value.
#[derive(Debug)]
pub struct Sample {
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Prometheus {
    /// Starts one that scrapes these addresses under the shipped rules, and waits until it has, three times.
    pub fn scraping(targets: &[SocketAddr]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("prometheus-{}-{nth}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("prometheus.yml"), config(targets)).unwrap();
        let rules = shipped().join("slidegate.rules.yml");
        fs::copy(rules, folder.join("slidegate.rules.yml")).unwrap();
        let (child, address) = start(&folder);
        let prometheus = Self { child, address, folder, targets: targets.len() };
        prometheus.wait_for_scrapes(3);
        prometheus
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The values of an expression, now. `Err` has what Prometheus has against it.
    pub fn query(&self, expression: &str) -> Result<Vec<Sample>, String> {
        let answer = self.ask("query", &[("query", expression)])?;
        let result = &answer["data"]["result"];
        Ok(match answer["data"]["resultType"].as_str() {
            Some("scalar") => vec![Sample { labels: BTreeMap::new(), value: value(result) }],
            _ => result.as_array().unwrap().iter().map(sample).collect(),
        })
    }

    /// The values of an expression, once there are any.
    pub fn wait_for(&self, expression: &str) -> Vec<Sample> {
        let mut samples = Vec::new();
        self.wait_until(expression, || {
            samples =
                self.query(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
            !samples.is_empty()
        });
        samples
    }

    /// The value of an expression that has one.
    pub fn value(&self, expression: &str) -> f64 {
        match &self.query(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))[..] {
            [one] => one.value,
            other => panic!("{expression}: {other:?}"),
        }
    }

    /// The series that match a selector, by their labels.
    pub fn series(&self, selector: &str) -> Result<Vec<Value>, String> {
        let answer = self.ask("series", &[("match[]", selector)])?;
        Ok(answer["data"].as_array().unwrap().clone())
    }

    /// Every rule as it stands, with its health, once each has been evaluated.
    pub fn rules(&self) -> Vec<Value> {
        let mut rules = Vec::new();
        self.wait_until("every rule is evaluated", || {
            let answer = self.ask("rules", &[]).unwrap();
            let groups = answer["data"]["groups"].as_array().unwrap();
            rules = groups
                .iter()
                .flat_map(|group| group["rules"].as_array().unwrap().clone())
                .collect();
            !rules.is_empty() && rules.iter().all(|rule| rule["health"] != "unknown")
        });
        rules
    }

    /// Waits until every target has been scraped as often as this, from now on.
    pub fn wait_for_scrapes(&self, count: u32) {
        let begun = self.value("time()");
        self.wait_until("every target is scraped", || {
            // What was under way bears the time at which it began, so it does not count.
            let since = ((self.value("time()") - begun) * 1000.0).max(1.0) as u64;
            let scrapes = self.query(&format!("sum_over_time(up[{since}ms])")).unwrap();
            scrapes.iter().filter(|scrapes| scrapes.value >= count.into()).count() == self.targets
        });
    }

    fn wait_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        for _ in 0..LOOKS {
            if holds() {
                return;
            }
            thread::sleep(BETWEEN_LOOKS);
        }
        panic!("Prometheus: waited in vain for: {what}");
    }

    fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value, String> {
        let mut request = ureq::get(format!("http://{}/api/v1/{path}", self.address));
        for (name, value) in parameters {
            request = request.query(name, value);
        }
        // A mistake in an expression is a 400 that says so.
        let answer = request.config().http_status_as_error(false).build().call().unwrap();
        let answer: Value = answer.into_body().read_json().unwrap();
        match answer["status"].as_str() {
            Some("success") => Ok(answer),
            _ => Err(answer["error"].as_str().unwrap_or_default().to_owned()),
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A program of Prometheus, which `make test` unpacks.
pub fn program(name: &str) -> Command {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("../deploy/prometheus/usr/bin").join(name);
    assert!(
        path.exists(),
        "no {name}: run crates/slidegate-server/tests/deploy.sh, as `make test` does"
    );
    Command::new(path)
}

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus")
}

/// The shipped configuration, for these targets and for somebody in a hurry.
fn config(targets: &[SocketAddr]) -> String {
    let config = fs::read_to_string(shipped().join("prometheus.yml")).unwrap();
    let targets: Vec<String> = targets.iter().map(|target| format!("\"{target}\"")).collect();
    let changes = [
        (
            "scrape_interval: 15s",
            format!("scrape_interval: {INTERVAL}\n  scrape_timeout: {INTERVAL}"),
        ),
        ("evaluation_interval: 15s", format!("evaluation_interval: {INTERVAL}")),
        ("[\"localhost:6070\"]", format!("[{}]", targets.join(", "))),
    ];
    changes.iter().fold(config, |config, (shipped, here)| {
        assert!(config.contains(shipped), "prometheus.yml has no `{shipped}` any more");
        config.replace(shipped, here)
    })
}

/// Starts it on a free port, and waits until it says which.
fn start(folder: &Path) -> (Child, SocketAddr) {
    let mut child = program("prometheus")
        .current_dir(folder)
        .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
        .args(["--web.listen-address=127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let (mut address, mut told) = (None, String::new());
    loop {
        let start = told.len();
        let read = log.read_line(&mut told).unwrap();
        assert!(read > 0, "Prometheus has ended:\n{told}");
        let line = &told[start..];
        if line.contains("\"Listening on\"") {
            let (_, behind) = line.split_once("address=").unwrap();
            address = Some(behind.trim().parse().unwrap());
        }
        if line.contains("ready to receive web requests") {
            break;
        }
    }
    // Nobody reads on, and a full pipe would stop it.
    thread::spawn(move || log.read_to_end(&mut Vec::new()));
    (child, address.expect("it says where it listens before it is ready"))
}

fn sample(series: &Value) -> Sample {
    let labels = series["metric"].as_object().unwrap().iter();
    let labels = labels.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
    Sample { labels: labels.collect(), value: value(&series["value"]) }
}

/// The number in `[time, "number"]`.
fn value(pair: &Value) -> f64 {
    pair[1].as_str().unwrap().parse().unwrap()
}
