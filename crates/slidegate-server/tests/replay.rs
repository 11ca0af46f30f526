//! Tests of `slidegate replay`, which replays an access log under a policy. One test compares the report with a
//! brute-force implementation.

mod accuracy;
mod suggest;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde_json::{Value, json};

const POLICY: &str = "
rules:
  - { name: per-ip, per: [ip], algorithm: sliding_log, limits: [20/min, 45/5m] }
  - { name: elsewhere, domain: other, per: [ip], limits: [1/min] }
  - name: writes
    when: { method: POST, path: /api/* }
    per: [ip, path]
    algorithm: sliding_log
    limits: [ { name: burst, max: 4, window: 10s } ]
";

/// Time of the first generated requests: 2026-01-02T03:04:00Z, in Unix seconds.
const START_UNIX_SECONDS: i64 = 1_767_323_040;

/// The temporary directory of a test, with a file `policy.yaml`. The directory is removed when the value is dropped.
struct ReplayFiles(PathBuf);

impl ReplayFiles {
    fn new(test: &str) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("replay-{test}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("policy.yaml"), POLICY).unwrap();
        Self(directory)
    }

    fn write_file(&self, name: &str, content: impl AsRef<[u8]>) -> &str {
        fs::write(self.0.join(name), content).unwrap();
        self.0.to_str().unwrap()
    }

    /// Runs `slidegate replay` in the directory with the policy `policy.yaml` and these arguments.
    fn run_replay_with_policy(&self, arguments: &[&str], stdin: &[u8]) -> Output {
        self.run_replay(&[&["--policy", "policy.yaml"], arguments].concat(), stdin)
    }

    /// Runs `slidegate replay` in the directory with exactly these arguments. Adds no `--policy`.
    fn run_replay(&self, arguments: &[&str], stdin: &[u8]) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_slidegate"))
            .arg("replay")
            .args(arguments)
            .current_dir(&self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The write fails if the command ends before it reads its input.
        let _ = child.stdin.take().unwrap().write_all(stdin);
        child.wait_with_output().unwrap()
    }

    /// Runs `slidegate replay` with `policy.yaml`, and returns the text report. Panics if the command fails.
    fn replay_to_text_report(&self, arguments: &[&str]) -> String {
        expect_successful_stdout(self.run_replay_with_policy(arguments, b""))
    }

    /// Runs `slidegate replay` with `policy.yaml`, and returns the JSON report. Panics if the command fails.
    fn replay_to_json_report(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.replay_to_text_report(&[&["--json"], arguments].concat()))
            .unwrap()
    }
}

impl Drop for ReplayFiles {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn expect_successful_stdout(output: Output) -> String {
    assert!(output.status.success(), "{}", stderr_text(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the standard error of a finished command. Panics unless the command failed with exit code 1 and printed no
/// standard output.
fn expect_failure(output: Output) -> String {
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]));
    stderr_text(&output)
}

fn gzip_compress(content: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// A request in a generated access log.
#[derive(Clone, Debug, PartialEq)]
struct AccessLogRequest {
    /// Time of the request in Unix seconds.
    at: i64,
    ip: String,
    method: &'static str,
    path: String,
}

impl AccessLogRequest {
    /// Returns the access log line of this request in the combined log format.
    fn to_access_log_line(&self) -> String {
        let time = Timestamp::from_second(self.at).unwrap().strftime("%d/%b/%Y:%H:%M:%S +0000");
        let Self { ip, method, path, .. } = self;
        format!("{ip} - - [{time}] \"{method} {path}?n=1 HTTP/1.1\" 200 512 \"-\" \"curl/8.1\"\n")
    }
}

fn render_access_log(requests: &[AccessLogRequest]) -> String {
    requests.iter().map(AccessLogRequest::to_access_log_line).collect()
}

/// A pseudo-random number generator (xorshift64) that returns the same sequence in every run.
struct XorShift(u64);

impl XorShift {
    /// Returns the next random number, from 0 to `bound - 1`.
    fn next_below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Generates requests of 300 clients over 30 minutes, sorted by time, with bursts at and around window boundaries.
fn generate_requests() -> Vec<AccessLogRequest> {
    let mut rng = XorShift(7);
    let mut requests = Vec::new();
    for client in 0..300 {
        let ip = if client % 7 == 0 {
            format!("2001:db8:0:{}::1", client + 1)
        } else {
            format!("10.0.{}.{}", client / 200, client % 200)
        };
        for _ in 0..rng.next_below(8) {
            // Within a second of a full minute, so that bursts are about a whole number of windows apart.
            let at =
                START_UNIX_SECONDS + 60 * rng.next_below(30) as i64 + rng.next_below(3) as i64 - 1;
            for _ in 0..rng.next_below(25) {
                let method = if rng.next_below(3) == 0 { "POST" } else { "GET" };
                let path = format!(
                    "/{}/{}",
                    ["api", "static"][rng.next_below(2) as usize],
                    rng.next_below(2)
                );
                requests.push(AccessLogRequest { at, ip: ip.clone(), method, path });
            }
        }
    }
    requests.sort_by_key(|request| request.at);
    requests
}

/// Returns the client key of an address: the /64 network of an IPv6 address, or the IPv4 address itself.
fn client_key_of_ip(ip: &str) -> String {
    ip.strip_suffix("::1").map_or_else(|| ip.to_owned(), |network| format!("{network}::/64"))
}

/// Number of requests to which a limit, a rule or a key applied: all requests, the allowed ones and the denied ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RequestCounts {
    requests: u64,
    allowed: u64,
    denied: u64,
}

impl RequestCounts {
    /// Counts a request. `allowed` is the final decision. `fits` is `false` if the limit, rule or key of these counts
    /// denied the request. Another limit can deny a request that fits.
    fn count_request(&mut self, allowed: bool, fits: bool) {
        self.requests += 1;
        self.allowed += u64::from(allowed);
        self.denied += u64::from(!fits);
    }

    fn from_json(value: &Value) -> Self {
        let number = |name: &str| value[name].as_u64().unwrap();
        Self { requests: number("asked"), allowed: number("allowed"), denied: number("denied") }
    }
}

/// The name of a rule, and the name of a limit of that rule. The second name is empty for the rule as a whole.
type RuleAndLimitName = (&'static str, &'static str);
/// The name of a rule, and the values of its `per` attributes.
type RuleAndKey = (&'static str, Vec<(&'static str, String)>);

/// A brute-force implementation of [`POLICY`], which keeps all allowed requests of each key and scans them at each
/// check.
#[derive(Default)]
struct ReplayOracle {
    admitted: BTreeMap<(RuleAndLimitName, RuleAndKey), Vec<i64>>,
    total: RequestCounts,
    counts: BTreeMap<RuleAndLimitName, RequestCounts>,
    keys: BTreeMap<RuleAndKey, RequestCounts>,
}

impl ReplayOracle {
    fn from_requests(requests: &[AccessLogRequest]) -> Self {
        let mut oracle = Self::default();
        requests.iter().for_each(|request| oracle.check(request));
        oracle
    }

    /// Returns the limits of [`POLICY`] that apply to a request. Each has a name, a max, a window in seconds, and a
    /// key.
    fn matching_limits(
        request: &AccessLogRequest,
    ) -> Vec<(RuleAndLimitName, usize, i64, RuleAndKey)> {
        let ip = ("ip", client_key_of_ip(&request.ip));
        let ip_key = ("per-ip", vec![ip.clone()]);
        let mut matching_limits =
            vec![(("per-ip", "1m"), 20, 60, ip_key.clone()), (("per-ip", "5m"), 45, 300, ip_key)];
        if request.method == "POST" && request.path.starts_with("/api/") {
            let key = ("writes", vec![ip, ("path", request.path.clone())]);
            matching_limits.push((("writes", "burst"), 4, 10, key));
        }
        matching_limits
    }

    fn check(&mut self, request: &AccessLogRequest) {
        let matching_limits = Self::matching_limits(request);
        let fits = matching_limits.iter().map(|(name, max, window, key)| {
            let admitted = self.admitted.get(&(*name, key.clone()));
            // The window is (now - W, now].
            let inside = admitted.into_iter().flatten().filter(|&&at| at > request.at - window);
            inside.count() < *max
        });
        let fits: Vec<bool> = fits.collect();
        let allowed = fits.iter().all(|fits| *fits);
        self.total.count_request(allowed, allowed);
        let mut rules: BTreeMap<RuleAndKey, bool> = BTreeMap::new();
        for ((name, _, _, key), fits) in matching_limits.into_iter().zip(fits) {
            self.counts.entry(name).or_default().count_request(allowed, fits);
            *rules.entry(key.clone()).or_insert(true) &= fits;
            if allowed {
                self.admitted.entry((name, key)).or_default().push(request.at);
            }
        }
        for (key, fits) in rules {
            self.counts.entry((key.0, "")).or_default().count_request(allowed, fits);
            self.keys.entry(key).or_default().count_request(allowed, fits);
        }
    }

    /// Returns all keys with denied requests, in the format and the order of the JSON report.
    fn denied_keys(&self) -> Vec<Value> {
        let mut denied: Vec<_> = self.keys.iter().filter(|(_, counts)| counts.denied > 0).collect();
        denied.sort_by_key(|(key, counts)| {
            (u64::MAX - counts.denied, u64::MAX - counts.requests, *key)
        });
        let entries = denied.into_iter().map(|((rule, pairs), counts)| {
            let key: BTreeMap<_, _> = pairs.iter().cloned().collect();
            json!({ "rule": rule, "key": key, "asked": counts.requests, "denied": counts.denied })
        });
        entries.collect()
    }
}

#[test]
fn replay_report_matches_brute_force_oracle() {
    let files = ReplayFiles::new("oracle");
    let requests = generate_requests();
    files.write_file("access.log", render_access_log(&requests));
    let report = files.replay_to_json_report(&["--top", "100000", "access.log"]);
    let oracle = ReplayOracle::from_requests(&requests);

    assert!(oracle.counts.values().all(|counts| counts.denied > 20), "{:?}", oracle.counts);
    let total = ["requests", "allowed", "denied"].map(|name| report[name].as_u64().unwrap());
    assert_eq!(total, [oracle.total.requests, oracle.total.allowed, oracle.total.denied]);
    let mut reported = Vec::new();
    for rule in report["rules"].as_array().unwrap() {
        let name = rule["rule"].as_str().unwrap();
        reported.push((name, "", RequestCounts::from_json(rule)));
        for limit in rule["limits"].as_array().unwrap() {
            reported.push((
                name,
                limit["limit"]["name"].as_str().unwrap(),
                RequestCounts::from_json(limit),
            ));
        }
    }
    // The rules and limits of the policy are sorted by name.
    let expected = oracle.counts.iter().map(|(&(rule, limit), &counts)| (rule, limit, counts));
    assert_eq!(reported, expected.collect::<Vec<_>>());
    assert_eq!(report["top_denied"], Value::from(oracle.denied_keys()));
}

#[test]
fn compression_and_stdin_give_equal_reports() {
    let files = ReplayFiles::new("alike");
    let log = render_access_log(&generate_requests());
    files.write_file("access.log", &log);
    // The file name has no `.gz`, and the file consists of two gzip members, as rotated logs may.
    let half = log.len() / 2;
    files.write_file(
        "compressed",
        [gzip_compress(&log[..half]), gzip_compress(&log[half..])].concat(),
    );
    let plain = files.replay_to_text_report(&["access.log"]);
    assert_eq!(files.replay_to_text_report(&["compressed"]), plain);
    assert_eq!(
        expect_successful_stdout(files.run_replay_with_policy(&["-"], log.as_bytes())),
        plain
    );
    assert_eq!(
        expect_successful_stdout(files.run_replay_with_policy(&["-"], &gzip_compress(&log))),
        plain
    );
}

#[test]
fn access_logs_are_read_in_given_order() {
    let files = ReplayFiles::new("several");
    let requests = generate_requests();
    let (early, late) = requests.split_at(requests.len() / 2);
    files.write_file("all", render_access_log(&requests));
    files.write_file("early", render_access_log(early));
    files.write_file("late", render_access_log(late));
    assert_eq!(
        files.replay_to_text_report(&["early", "late"]),
        files.replay_to_text_report(&["all"])
    );
    assert_ne!(files.replay_to_json_report(&["late", "early"])["out_of_order"], 0);
}

#[test]
fn text_and_json_reports_agree() {
    let files = ReplayFiles::new("text");
    files.write_file("access.log", render_access_log(&generate_requests()));
    let text = files.replay_to_text_report(&["--top", "3", "access.log"]);
    let json = files.replay_to_json_report(&["--top", "3", "access.log"]);

    let rows = |text: &str| -> Vec<Vec<String>> {
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let mut expected = String::new();
    for name in ["requests", "first", "last", "allowed", "denied", "unparsable"] {
        expected += &format!("{name} {}\n", json[name].to_string().replace('"', ""));
    }
    expected += &format!(
        "out of order {}\n\nrule and its limits requests allowed denied clients denied\n",
        json["out_of_order"]
    );
    for rule in json["rules"].as_array().unwrap() {
        let RequestCounts { requests, allowed, denied } = RequestCounts::from_json(rule);
        let clients = format!("{} of {}", rule["clients_denied"], rule["clients"]);
        let name = rule["rule"].as_str().unwrap();
        expected += &format!("{name} {requests} {allowed} {denied} {clients}\n");
        for limit in rule["limits"].as_array().unwrap() {
            let RequestCounts { requests, allowed, denied } = RequestCounts::from_json(limit);
            let (name, algorithm) =
                (limit["limit"]["name"].as_str().unwrap(), limit["algorithm"].as_str().unwrap());
            let max = &limit["limit"]["max"];
            let window = if name == "burst" { "10s" } else { name };
            expected +=
                &format!("{name}: {max}/{window} {algorithm} {requests} {allowed} {denied}\n");
        }
    }
    expected +=
        "(Requests that a limit neither allowed nor denied were denied by another limit.)\n\n";
    expected += &accuracy::render_comparison_table(&json);
    expected += "\nmost denied keys denied requests\n";
    for top in json["top_denied"].as_array().unwrap() {
        let pairs = top["key"].as_object().unwrap().iter();
        let pairs: String =
            pairs.map(|(name, value)| format!(" {name}={}", value.as_str().unwrap())).collect();
        expected += &format!(
            "{}{pairs} {} {}\n",
            top["rule"].as_str().unwrap(),
            top["denied"],
            top["asked"]
        );
    }
    // The tables are followed by explanations in parentheses. `expected` has only the explanation of the first table.
    let (before, explanation) = text.split_once("(The exact log keeps").unwrap();
    let text = before.to_owned() + &explanation[explanation.find("\n\n").unwrap() + 1..];
    assert_eq!(rows(&text), rows(&expected));
    assert_eq!(json["top_denied"].as_array().unwrap().len(), 3);
}

#[test]
fn replay_report_columns_are_aligned() {
    let files = ReplayFiles::new("columns");
    let request = AccessLogRequest {
        at: START_UNIX_SECONDS,
        ip: "192.0.2.7".into(),
        method: "POST",
        path: "/api/a".into(),
    };
    files.write_file("access.log", render_access_log(&[&request; 25].map(AccessLogRequest::clone)));
    assert_eq!(
        files.replay_to_text_report(&["access.log"]),
        "\
requests      25
first         2026-01-02T03:04:00Z
last          2026-01-02T03:04:00Z
allowed       4
denied        21
unparsable    0
out of order  0

rule and its limits         requests  allowed  denied  clients denied
per-ip                            25        4       0          0 of 1
  1m: 20/1m sliding_log           25        4       0
  5m: 45/5m sliding_log           25        4       0
writes                            25        4      21          1 of 1
  burst: 4/10s sliding_log        25        4      21
(Requests that a limit neither allowed nor denied were denied by another limit.)

compared with an exact log  false allows  false denies    worst window
per-ip                                 0             0
  1m: 20/1m sliding_log                0             0  4 of 20 (20 %)
  5m: 45/5m sliding_log                0             0   4 of 45 (9 %)
writes                                 0             0
  burst: 4/10s sliding_log             0             0  4 of 4 (100 %)
(The exact log keeps the time of every allowed request. False allow: the limit allowed a request
although its window was full. False deny: the limit denied a request although there was capacity.
Worst window: the most units that one key received in any period as long as the window, and their
share of max.)

most denied keys                 denied  requests
writes ip=192.0.2.7 path=/api/a      21        25
"
    );
}

#[test]
fn unparsable_log_lines_are_counted_and_first_is_shown() {
    let files = ReplayFiles::new("unparsable");
    let line = AccessLogRequest {
        at: START_UNIX_SECONDS,
        ip: "::1".into(),
        method: "GET",
        path: "/".into(),
    }
    .to_access_log_line();
    let mut log = line.clone().into_bytes();
    log.extend(line.replace("curl", "c\\xe9\u{e9}").bytes());
    // Not UTF-8, but still a valid request.
    log.extend(line.as_bytes().iter().map(|&byte| if byte == b'c' { 0xe9 } else { byte }));
    log.extend(line.replace("GET /?n=1 HTTP/1.1", "-").bytes());
    log.extend("x".repeat(70_000).bytes());
    log.extend(b"\nyesterday\x1b[31m\n\n\n\n\n");
    files.write_file("access.log", &log);
    let output = files.run_replay_with_policy(&["--json", "access.log"], b"");
    let messages = stderr_text(&output);
    let report: Value = serde_json::from_str(&expect_successful_stdout(output)).unwrap();
    assert_eq!((&report["requests"], &report["unparsable"]), (&json!(3), &json!(7)));
    let shown: Vec<&str> = messages.lines().collect();
    assert_eq!(shown.len(), 5, "{messages}");
    assert!(
        shown[0].starts_with("access.log:4: invalid request; expected a request such as"),
        "{messages}"
    );
    assert_eq!(shown[1], "access.log:5: line is longer than 64 KiB");
    assert!(shown[2].starts_with("access.log:6: ") && !messages.contains('\x1b'), "{messages}");
}

#[test]
fn slightly_late_log_lines_are_reordered() {
    let files = ReplayFiles::new("late");
    let requests = generate_requests();
    files.write_file("sorted.log", render_access_log(&requests));
    // Reverses the order within each half minute, but not of requests at the same time.
    let mut shuffled = requests.clone();
    for half_minute in shuffled.chunk_by_mut(|first, second| first.at / 30 == second.at / 30) {
        half_minute.sort_by_key(|request| std::cmp::Reverse(request.at));
    }
    assert!(shuffled != requests);
    files.write_file("shuffled.log", render_access_log(&shuffled));
    let (sorted, shuffled) = (
        files.replay_to_json_report(&["sorted.log"]),
        files.replay_to_json_report(&["shuffled.log"]),
    );
    assert_eq!(shuffled["allowed"], sorted["allowed"]);
    assert_eq!(shuffled["out_of_order"], 0);
    assert_eq!((&shuffled["first"], &shuffled["last"]), (&sorted["first"], &sorted["last"]));
}

#[test]
fn access_log_lines_out_of_order_are_counted() {
    let files = ReplayFiles::new("order");
    let at = |at| AccessLogRequest {
        at: START_UNIX_SECONDS + at,
        ip: "::1".into(),
        method: "GET",
        path: "/".into(),
    };
    files.write_file(
        "access.log",
        render_access_log(&[at(5), at(5), at(3), at(4), at(9), at(0), at(10)]),
    );
    let report = files.replay_to_json_report(&["--reorder", "0s", "access.log"]);
    assert_eq!((&report["out_of_order"], &report["allowed"]), (&json!(2), &json!(7)));
    assert_eq!(report["first"], "2026-01-02T03:04:00Z");
    assert_eq!(report["last"], "2026-01-02T03:04:10Z");
}

#[test]
fn rules_can_count_by_every_access_log_attribute() {
    let files = ReplayFiles::new("attributes");
    let names = ["method", "path", "host", "ip", "header.referer", "header.user-agent", "user"];
    let policy =
        format!("rules: [ {{ name: all, per: [{}], limits: [0/min] }} ]", names.join(", "));
    files.write_file("policy.yaml", policy);
    let line = r#"::1 - alice [02/Jan/2026:04:04:00 +0100] "GET http://e.org:80/a?b HTTP/1.1" 200 1 "http://from/" "curl""#;
    files.write_file("access.log", line);
    let report = files.replay_to_json_report(&["access.log"]);
    let values = names.map(|name| report["top_denied"][0]["key"][name].as_str().unwrap());
    assert_eq!(values, ["GET", "/a", "e.org", "::/64", "http://from/", "curl", "alice"]);
}

#[test]
fn only_rules_of_given_domain_are_replayed() {
    let files = ReplayFiles::new("domain");
    files.write_file("access.log", render_access_log(&generate_requests()));
    let report = files.replay_to_json_report(&["--domain", "other", "access.log"]);
    let rules: Vec<_> =
        report["rules"].as_array().unwrap().iter().map(|rule| &rule["rule"]).collect();
    assert_eq!(rules, ["elsewhere"]);
    assert_ne!(report["denied"], 0);

    let output = files.run_replay_with_policy(&["--domain", "nowhere", "access.log"], b"");
    assert!(stderr_text(&output).contains("no rule has domain `nowhere`"));
    assert!(expect_successful_stdout(output).contains("\ndenied        0\n"));
}

#[test]
fn keys_beyond_max_keys_are_reported() {
    let files = ReplayFiles::new("bound");
    files.write_file("access.log", render_access_log(&generate_requests()));
    let report = files.replay_to_json_report(&["--max-keys", "64", "access.log"]);
    assert!(report["uncounted_by_key"].as_u64().unwrap() > 1000);
    assert!(
        files
            .replay_to_text_report(&["--max-keys", "64", "access.log"])
            .contains("there were more keys than --max-keys")
    );
}

#[test]
fn empty_log_is_accepted() {
    let files = ReplayFiles::new("empty");
    files.write_file("access.log", "");
    let report = files.replay_to_json_report(&["access.log"]);
    assert_eq!((&report["requests"], &report["first"]), (&json!(0), &Value::Null));
    assert!(
        files
            .replay_to_text_report(&["access.log"])
            .starts_with("requests      0\nfirst         -\n")
    );
}

#[test]
fn unknown_log_format_fails_with_hint() {
    let files = ReplayFiles::new("format");
    files.write_file("access.log", "ip=::1\n".repeat(9));
    let error = expect_failure(files.run_replay_with_policy(&["access.log"], b""));
    assert!(
        error.contains(
            "none of 9 lines is an access log line in JSON, or in the common or combined format"
        ),
        "{error}"
    );
}

#[test]
fn json_lines_have_mapped_attributes_and_overrides() {
    let files = ReplayFiles::new("json");
    let policy = "
attributes: [ip, header.x-api-key, header.x-plan, tenant]
rules:
  - name: per-key
    per: [header.x-api-key|ip]
    limits: [2/min]
    overrides: [{ name: pro, when: { header.x-plan: pro }, limits: [3/min] }]
  - { name: per-tenant, per: [tenant], limits: [1/min] }
";
    files.write_file("plans.yaml", policy);
    let line = |key: &str, plan: &str, at: i64| {
        json!({"ts": START_UNIX_SECONDS + at, "request": {"client_ip": "192.0.2.7", "headers": {"X-Api-Key": [key]}}, "plan": plan}).to_string() + "\n"
    };
    let requests = [("a", "free", 3), ("b", "pro", 5), ("c", "pro", 3), ("d", "free", 1)];
    let lines =
        requests.iter().flat_map(|(key, plan, times)| (0..*times).map(|at| line(key, plan, at)));
    files.write_file("access.log", lines.collect::<String>() + "{\"request\":{}}\n");
    let map =
        ["--map", "header.x-api-key=request.headers.x-api-key", "--map", "header.x-plan=plan"];
    let arguments = [&["--policy", "plans.yaml"], &map[..], &["access.log"]].concat();
    let text = expect_successful_stdout(files.run_replay(&arguments, b""));
    let rows: Vec<String> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for row in [
        "unparsable 1",
        "per-key 12 9 3 2 of 4",
        "1m: 2/1m sliding_window 4 3 1",
        "1m (override `pro`): 3/1m sliding_window 8 6 2",
        "(No line has `tenant`, which per-tenant uses. Lines in JSON can have it: --map tenant=FIELD.)",
    ] {
        assert!(rows.iter().any(|line| line == row), "{row} in {text}");
    }
    assert!(!text.contains("No line has `header.x-plan`"), "{text}");
    let unmapped =
        expect_successful_stdout(files.run_replay(&["--policy", "plans.yaml", "access.log"], b""));
    assert!(
        unmapped.contains("(No line has `header.x-api-key`, which per-key uses."),
        "{unmapped}"
    );
}

#[test]
fn command_without_policy_names_all_ways_to_go_on() {
    let files = ReplayFiles::new("ways");
    let output = files.run_replay(&["nofile.log"], b"");
    let error = stderr_text(&output);
    for way in ["--policy FILE", "--ratelimit-config DIR", "--suggest"] {
        assert!(output.status.code() == Some(2) && error.contains(way), "{error}");
    }
}

#[test]
fn unreadable_log_error_names_file() {
    let files = ReplayFiles::new("unreadable");
    let compressed = gzip_compress(&render_access_log(&generate_requests()));
    files.write_file("cut.gz", &compressed[..compressed.len() / 2]);
    let mut broken = compressed;
    let half = broken.len() / 2;
    broken[half..half + 64].fill(0xff);
    files.write_file("broken.gz", broken);
    for log in ["missing.log", "cut.gz", "broken.gz", "."] {
        let error = expect_failure(files.run_replay_with_policy(&[log], b""));
        assert!(
            error.lines().any(|line| line.starts_with(&format!("{log}: cannot be read: "))),
            "{error}"
        );
    }
}

#[test]
fn invalid_policy_is_reported_with_location() {
    let files = ReplayFiles::new("policy");
    files.write_file("access.log", "");
    files.write_file("policy.yaml", "rules:\n  - { name: a, limits: [10/fortnight] }\n");
    let error = expect_failure(files.run_replay_with_policy(&["access.log"], b""));
    assert!(error.starts_with("policy.yaml:2:") && error.contains("`fortnight`"), "{error}");
}
