//! Starts a real Prometheus server for tests. The server uses the configuration in `deploy/prometheus`, but scrapes
//! several times per second.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fs, thread};

use serde_json::Value;

/// Interval of scrapes and of rule evaluations. Short enough that a rate over one second has several samples.
const SCRAPE_INTERVAL: &str = "200ms";

/// Maximum number of polls while waiting for Prometheus: 30 seconds. The longest wait is for new targets, which
/// Prometheus scrapes for the first time after five seconds.
const MAX_POLLS: u32 = 1_500;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A Prometheus process with its own port and folder. The process is killed when the value is dropped.
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
    targets: usize,
}

/// One series in the result of a query, with its labels and its value.
#[derive(Debug)]
pub struct Sample {
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Prometheus {
    /// Starts Prometheus with the rules in `deploy/prometheus`, and waits until each target has been scraped three
    /// times.
    pub fn start(targets: &[SocketAddr]) -> Self {
        static NEXT_PROMETHEUS_FOLDER_NUMBER: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT_PROMETHEUS_FOLDER_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("prometheus-{}-{nth}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("prometheus.yml"), build_prometheus_config(targets)).unwrap();
        let rules = prometheus_config_folder().join("slidegate.rules.yml");
        fs::copy(rules, folder.join("slidegate.rules.yml")).unwrap();
        let (child, address) = spawn_prometheus(&folder);
        let prometheus = Self { child, address, folder, targets: targets.len() };
        prometheus.wait_for_scrapes(3);
        prometheus
    }

    /// Evaluates a PromQL expression, and returns the current value of each resulting series.
    ///
    /// # Errors
    ///
    /// Returns the error message of Prometheus if the expression is invalid.
    pub fn query(&self, expression: &str) -> Result<Vec<Sample>, String> {
        let response = self.call_prometheus_api("query", &[("query", expression)])?;
        let result = &response["data"]["result"];
        Ok(match response["data"]["resultType"].as_str() {
            Some("scalar") => {
                vec![Sample { labels: BTreeMap::new(), value: parse_sample_value(result) }]
            }
            _ => result.as_array().unwrap().iter().map(parse_sample).collect(),
        })
    }

    /// Evaluates a PromQL expression until the result is not empty, and returns the result. Panics after [`MAX_POLLS`]
    /// evaluations.
    pub fn wait_for(&self, expression: &str) -> Vec<Sample> {
        let mut samples = Vec::new();
        self.wait_until(expression, || {
            samples =
                self.query(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
            !samples.is_empty()
        });
        samples
    }

    /// Returns the value of a PromQL expression. Panics if the result is not exactly one series.
    pub fn single_value(&self, expression: &str) -> f64 {
        match &self.query(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))[..] {
            [sample] => sample.value,
            other => panic!("{expression}: {other:?}"),
        }
    }

    /// Returns the label sets of all stored series that match a selector, such as `name{label="value"}`.
    pub fn series_labels(&self, selector: &str) -> Result<Vec<Value>, String> {
        let response = self.call_prometheus_api("series", &[("match[]", selector)])?;
        Ok(response["data"].as_array().unwrap().clone())
    }

    /// Waits until every alert and recording rule has been evaluated, and returns the rules with their state and
    /// health.
    pub fn evaluated_rules(&self) -> Vec<Value> {
        let mut rules = Vec::new();
        self.wait_until("every rule is evaluated", || {
            let response = self.call_prometheus_api("rules", &[]).unwrap();
            let groups = response["data"]["groups"].as_array().unwrap();
            rules = groups
                .iter()
                .flat_map(|group| group["rules"].as_array().unwrap().clone())
                .collect();
            !rules.is_empty() && rules.iter().all(|rule| rule["health"] != "unknown")
        });
        rules
    }

    /// Waits until every target has been scraped `count` more times.
    pub fn wait_for_scrapes(&self, count: u32) {
        let started = self.single_value("time()");
        self.wait_until("every target is scraped", || {
            // A scrape has the time at which it began, so one that is in progress now does not count.
            let elapsed_ms = ((self.single_value("time()") - started) * 1000.0).max(1.0) as u64;
            let scrapes = self.query(&format!("sum_over_time(up[{elapsed_ms}ms])")).unwrap();
            scrapes.iter().filter(|scrapes| scrapes.value >= count.into()).count() == self.targets
        });
    }

    fn wait_until(&self, condition: &str, mut is_met: impl FnMut() -> bool) {
        for _ in 0..MAX_POLLS {
            if is_met() {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
        panic!("timeout while waiting for Prometheus: {condition}");
    }

    fn call_prometheus_api(
        &self,
        path: &str,
        parameters: &[(&str, &str)],
    ) -> Result<Value, String> {
        let mut request = ureq::get(format!("http://{}/api/v1/{path}", self.address));
        for (name, value) in parameters {
            request = request.query(name, value);
        }
        // The response to an invalid expression is a 400 with the reason.
        let response = request.config().http_status_as_error(false).build().call().unwrap();
        let response: Value = response.into_body().read_json().unwrap();
        match response["status"].as_str() {
            Some("success") => Ok(response),
            _ => Err(response["error"].as_str().unwrap_or_default().to_owned()),
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

/// Returns a command for a program of the Prometheus package, such as `promtool`. `make test` installs the package.
pub fn prometheus_program(name: &str) -> Command {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("../deploy/prometheus/usr/bin").join(name);
    assert!(
        path.exists(),
        "no {name}: run crates/slidegate-server/tests/deploy.sh, as `make test` does"
    );
    Command::new(path)
}

fn prometheus_config_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus")
}

/// Returns the Prometheus configuration in `deploy/prometheus` with these targets and the short [`SCRAPE_INTERVAL`].
fn build_prometheus_config(targets: &[SocketAddr]) -> String {
    let config = fs::read_to_string(prometheus_config_folder().join("prometheus.yml")).unwrap();
    let targets: Vec<String> = targets.iter().map(|target| format!("\"{target}\"")).collect();
    let changes = [
        (
            "scrape_interval: 15s",
            format!("scrape_interval: {SCRAPE_INTERVAL}\n  scrape_timeout: {SCRAPE_INTERVAL}"),
        ),
        ("evaluation_interval: 15s", format!("evaluation_interval: {SCRAPE_INTERVAL}")),
        ("[\"localhost:6070\"]", format!("[{}]", targets.join(", "))),
    ];
    changes.iter().fold(config, |config, (original, replacement)| {
        assert!(config.contains(original), "prometheus.yml no longer has `{original}`");
        config.replace(original, replacement)
    })
}

/// Starts Prometheus in a folder and on a free port, and waits until Prometheus is ready. Returns the process and its
/// address.
fn spawn_prometheus(folder: &Path) -> (Child, SocketAddr) {
    let mut child = prometheus_program("prometheus")
        .current_dir(folder)
        .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
        .args(["--web.listen-address=127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let (mut address, mut is_ready, mut output) = (None, false, String::new());
    // Two threads of Prometheus log these lines, so their order varies.
    let address = loop {
        if let (Some(address), true) = (address, is_ready) {
            break address;
        }
        let start = output.len();
        let read = log.read_line(&mut output).unwrap();
        assert!(read > 0, "Prometheus has exited:\n{output}");
        let line = &output[start..];
        if line.contains("\"Listening on\"") {
            let (_, rest) = line.split_once("address=").unwrap();
            address = Some(rest.trim().parse().unwrap());
        }
        is_ready |= line.contains("ready to receive web requests");
    };
    // Prometheus would block on a full pipe.
    thread::spawn(move || log.read_to_end(&mut Vec::new()));
    (child, address)
}

fn parse_sample(series: &Value) -> Sample {
    let labels = series["metric"].as_object().unwrap().iter();
    let labels = labels.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
    Sample { labels: labels.collect(), value: parse_sample_value(&series["value"]) }
}

/// Parses the number in a sample, which is a JSON array of the form `[time, "number"]`.
fn parse_sample_value(pair: &Value) -> f64 {
    pair[1].as_str().unwrap().parse().unwrap()
}
