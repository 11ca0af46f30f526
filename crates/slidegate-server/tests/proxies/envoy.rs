//! Tests of Envoy and its rate limit filter, which calls slidegate over gRPC. Some tests use the configuration files in
//! `deploy/`, the others use `cases.yaml`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use slidegate::Algorithm;

use crate::common::project_path;
use crate::common::{Server, TempFile, slidegate_command};
use crate::proxies::curl::{CurlResponse, send_with_curl};
use crate::proxies::installed_program;
use crate::proxies::process::{Proxy, free_address};
use crate::proxies::upstream::Upstream;
use crate::redis_server::{Folder, wait_until};

const POLICY: &str = "
defaults: { algorithm: sliding_log }
rules:
  - { name: one, domain: edge, per: [one], limits: [2/h] }
  - { name: watched, domain: edge, per: [watched], limits: [1/h], mode: observe }
  - { name: first, domain: edge, per: [first], limits: [3/h] }
  - { name: second, domain: edge, per: [second], limits: [1/h] }
  - { name: cost, domain: edge, per: [cost], limits: [10/h] }
";

/// Envoy in front of a service, with a slidegate server as the rate limit service.
struct EnvoyWithSlidegate {
    envoy: Proxy,
    upstream: Upstream,
    /// The slidegate server, or `None` after a test has stopped it.
    slidegate: Option<Server>,
}

impl EnvoyWithSlidegate {
    /// Starts slidegate with this policy, a service, and Envoy with the configuration file `config`. Replaces the
    /// first text of each pair in `replacements` with the second in that file.
    fn start(policy: &str, config: &Path, replacements: &[(&str, &str)]) -> Self {
        let slidegate = Server::start_with_grpc(policy, &[]);
        let upstream = Upstream::start();
        let envoy = start_envoy(config, slidegate.grpc_address(), upstream.address(), replacements);
        Self { envoy, upstream, slidegate: Some(slidegate) }
    }

    /// Starts slidegate with [`POLICY`], a service, and Envoy with the configuration file `cases.yaml`. Replaces
    /// the first text of each pair in `replacements` with the second in that file.
    fn start_with_test_config(replacements: &[(&str, &str)]) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxies/envoy/cases.yaml");
        Self::start(POLICY, &path, replacements)
    }

    /// Sends a request for `path` through Envoy with these arguments of curl.
    fn send_request(&self, path: &str, arguments: &[&str]) -> CurlResponse {
        send_with_curl(self.envoy.address, 2, path, arguments)
    }

    /// Sends a request for `path` through Envoy with this `x-user` header.
    fn send_request_as_user(&self, path: &str, user: &str) -> CurlResponse {
        self.send_request(path, &["-H", &format!("x-user: {user}")])
    }
}

/// Starts Envoy with a changed copy of a configuration file. In the copy, the ports are replaced with the actual ports
/// of Envoy, slidegate and the service. The first text of each pair in `replacements` is replaced with the second.
pub fn start_envoy(
    config: &Path,
    slidegate: SocketAddr,
    service: SocketAddr,
    replacements: &[(&str, &str)],
) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    let mut text = fs::read_to_string(config).unwrap();
    let port = |port: u16| format!("port_value: {port} ");
    let ports = [
        (port(10000), port(address.port())),
        (port(8081), port(slidegate.port())),
        (port(9000), port(service.port())),
    ];
    let ports = ports.iter().map(|(original, replacement)| (&**original, &**replacement));
    for (original, replacement) in ports.chain(replacements.iter().copied()) {
        assert!(text.contains(original), "{} does not contain {original}", config.display());
        text = text.replace(original, replacement);
    }
    run_envoy(&text, address, folder)
}

/// Runs Envoy with a configuration as text, which listens on `address`.
pub fn run_envoy(config: &str, address: SocketAddr, folder: Folder) -> Proxy {
    let path = folder.path().join("envoy.yaml");
    fs::write(&path, config).unwrap();
    let mut command = Command::new(installed_program("envoy/bin/envoy"));
    command.arg("-c").arg(path).args([
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "-l",
        "error",
    ]);
    Proxy::start(&mut command, address, folder)
}

#[test]
fn deployed_envoy_config_counts_requests_and_tokens() {
    let policy = fs::read_to_string(project_path("deploy/envoy/policy.yaml")).unwrap();
    let setup = EnvoyWithSlidegate::start(&policy, &project_path("deploy/envoy/envoy.yaml"), &[]);
    let allowed = setup.send_request("/", &["-H", "x-api-key: k"]);
    assert_eq!(allowed.status, 200, "{allowed:?}");
    let policy_header = allowed.header("ratelimit-policy").unwrap();
    assert_eq!(
        policy_header,
        r#""per-key.1s";q=10;w=1, "per-key.1m";q=300;w=60, "per-address";q=20;w=1"#
    );
    let chat = |tokens: &str| {
        setup.send_request(
            "/v1/chat",
            &["-H", "x-api-key: t", "-H", &format!("x-tokens-used: {tokens}")],
        )
    };
    assert_eq!(chat("1500").status, 200);
    // Envoy reports the tokens after its response, so they are charged later. Requests at a high rate are denied by
    // another rule.
    let is_denied_by_tokens = |denied: &CurlResponse| denied.body.contains(r#""tokens""#);
    wait_until("the tokens are charged", || is_denied_by_tokens(&chat("0")));
    let forwarded_before = setup.upstream.request_count();
    let denied = chat("0");
    assert_eq!(
        setup.upstream.request_count(),
        forwarded_before,
        "a denied request reached the service"
    );
    assert!(denied.status == 429 && is_denied_by_tokens(&denied), "{denied:?}");
    // A third of the 1,500 tokens must leave the window: at the earliest 20 s into the next minute of the key.
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((15..=81).contains(&wait), "{wait}");
}

/// Sends the head of a request for `/v1/export`. The request is in flight until its body, one byte, is sent, or the
/// connection is closed. All requests have the same id, as if a client had chosen it.
fn start_export(setup: &EnvoyWithSlidegate) -> TcpStream {
    let mut stream = TcpStream::connect(setup.envoy.address).unwrap();
    let head = "POST /v1/export HTTP/1.1\r\nhost: a\r\nx-api-key: k\r\nx-request-id: same\r\ncontent-length: 1\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

/// Sends the body of a request, and returns the status line of the response.
fn finish_export(mut stream: TcpStream) -> String {
    stream.write_all(b"x").unwrap();
    let mut status_line = String::new();
    BufReader::new(stream).read_line(&mut status_line).unwrap();
    status_line
}

#[test]
fn deployed_envoy_config_limits_requests_in_flight() {
    let policy = fs::read_to_string(project_path("deploy/envoy/policy.yaml")).unwrap();
    let setup = EnvoyWithSlidegate::start(&policy, &project_path("deploy/envoy/envoy.yaml"), &[]);
    let slidegate = setup.slidegate.as_ref().unwrap().address();
    let free_permits = || {
        let peek = r#"{"domain":"edge","attributes":{"meter":"exports","api_key":"k"}}"#;
        let peeked = send_with_curl(slidegate, 2, "/v1/peek", &["-d", peek]);
        let limits = serde_json::from_str::<Value>(&peeked.body).unwrap()["limits"].clone();
        let mut limits = limits.as_array().unwrap().iter();
        let exports = limits.find(|limit| limit["rule"] == "exports").unwrap();
        exports["remaining"].as_u64().unwrap()
    };
    let export = || {
        setup.send_request(
            "/v1/export",
            &["-H", "x-api-key: k", "-H", "x-request-id: same", "-d", "x"],
        )
    };
    let completed = start_export(&setup);
    let disconnected = start_export(&setup);
    wait_until("two exports are in flight", || free_permits() == 0);
    for _ in 0..3 {
        let denied = export();
        assert!(denied.status == 429 && denied.body.contains("concurrency_exceeded"), "{denied:?}");
    }
    assert_eq!(free_permits(), 0, "a denied request releases no permit of another one");
    assert!(finish_export(completed).starts_with("HTTP/1.1 200"));
    wait_until("the completed export has released its permit", || free_permits() == 1);
    assert_eq!(export().status, 200);
    wait_until("the next export has released its permit", || free_permits() == 1);
    drop(disconnected);
    wait_until("the disconnected export has released its permit", || free_permits() == 2);
}

#[test]
fn envoy_denial_has_both_header_styles_and_body() {
    let setup = EnvoyWithSlidegate::start_with_test_config(&[]);
    for remaining in ["1", "0"] {
        let allowed = setup.send_request_as_user("/one", "a");
        assert_eq!(allowed.status, 200, "{allowed:?}");
        assert_eq!(allowed.header("x-ratelimit-limit"), Some(r#"2, 2;w=3600;name="one""#));
        assert_eq!(allowed.header("x-ratelimit-remaining"), Some(remaining));
        assert!(
            allowed.header("ratelimit").unwrap().starts_with(&format!(r#""one";r={remaining}"#))
        );
    }
    let denied = setup.send_request_as_user("/one", "a");
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3_500..=3_601).contains(&wait), "{wait}");
    assert_eq!(denied.header("x-ratelimit-reset"), denied.header("retry-after"));
    let problem: Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!(problem["violated-policies"][0], "one");
    assert_eq!(
        setup.send_request_as_user("/one", "b").status,
        200,
        "other users have their own counter"
    );
}

#[test]
fn http_2_and_grpc_denials_have_matching_status() {
    let setup = EnvoyWithSlidegate::start_with_test_config(&[]);
    let get = |arguments: &[&str]| {
        let http2 = ["--http2-prior-knowledge", "-H", "x-user: h2"];
        setup.send_request("/one", &[&http2, arguments].concat())
    };
    assert_eq!([get(&[]).status, get(&[]).status, get(&[]).status], [200, 200, 429]);
    let grpc = get(&["-H", "content-type: application/grpc", "-H", "te: trailers", "-d", ""]);
    // RESOURCE_EXHAUSTED, in a header of a response with status 200, as gRPC requires.
    assert_eq!((grpc.status, grpc.header("grpc-status")), (200, Some("8")), "{grpc:?}");
}

#[test]
fn observing_rule_allows_excess_requests() {
    let setup = EnvoyWithSlidegate::start_with_test_config(&[]);
    for _ in 0..3 {
        assert_eq!(setup.send_request_as_user("/watched", "a").status, 200);
    }
    // Envoy still reports the status of the rule.
    assert_eq!(
        setup.send_request_as_user("/watched", "a").header("x-ratelimit-remaining"),
        Some("0")
    );
}

#[test]
fn denied_descriptor_leaves_other_descriptors_uncharged() {
    let setup = EnvoyWithSlidegate::start_with_test_config(&[]);
    let several = |first: &str, second: &str| {
        let [first, second] = [format!("x-first: {first}"), format!("x-second: {second}")];
        setup.send_request("/several", &["-H", &first, "-H", &second]).status
    };
    assert_eq!(several("f", "s"), 200);
    for _ in 0..5 {
        assert_eq!(several("f", "s"), 429);
    }
    let first = setup.send_request("/first", &["-H", "x-first: f"]);
    assert_eq!(first.header("x-ratelimit-remaining"), Some("1"), "one of three units was charged");
}

#[test]
fn descriptor_hits_are_charged_and_refunded() {
    let setup = EnvoyWithSlidegate::start_with_test_config(&[]);
    let status_and_remaining = |path: &str| {
        let response = setup.send_request_as_user(path, "a");
        (response.status, response.header("x-ratelimit-remaining").unwrap().to_owned())
    };
    let expected = |status: u16, remaining: &str| (status, remaining.to_owned());
    assert_eq!(status_and_remaining("/costly"), expected(200, "6"));
    assert_eq!(status_and_remaining("/costly"), expected(200, "2"));
    assert_eq!(status_and_remaining("/costly"), expected(429, "0"), "12 of 10 units are used");
    for remaining in ["2", "6", "10", "10"] {
        assert_eq!(status_and_remaining("/back"), expected(200, remaining));
    }
}

#[test]
fn limit_override_from_envoy_replaces_policy_limit() {
    let setup = EnvoyWithSlidegate::start_with_test_config(&[]);
    for remaining in ["2", "1", "0"] {
        let response = setup.send_request_as_user("/override", "a");
        assert_eq!(
            (response.status, response.header("x-ratelimit-remaining")),
            (200, Some(remaining))
        );
    }
    assert_eq!(setup.send_request_as_user("/override", "a").status, 429);
}

/// Sends requests through Envoy, and returns the response statuses. `tokens` contains one entry per request: the number
/// of tokens that the response consumes from `budget`. Envoy charges the tokens after the response, so the function
/// waits for each charge before the next request.
fn send_token_requests(setup: &EnvoyWithSlidegate, budget: u64, tokens: &[u64]) -> Vec<u16> {
    let slidegate = setup.slidegate.as_ref().unwrap().address();
    let remaining = || {
        let peek = r#"{"domain":"edge","attributes":{"tokens":"a"}}"#;
        let peeked = send_with_curl(slidegate, 2, "/v1/peek", &["-d", peek]);
        serde_json::from_str::<Value>(&peeked.body).unwrap()["remaining"].as_u64().unwrap()
    };
    let mut used = 0;
    let status = |tokens: &u64| {
        let tokens_used = format!("x-tokens-used: {tokens}");
        let status = setup.send_request("/tokens", &["-H", "x-user: a", "-H", &tokens_used]).status;
        used += if status == 200 { *tokens } else { 0 };
        wait_until("the tokens are charged", || remaining() == budget.saturating_sub(used));
        status
    };
    tokens.iter().map(status).collect()
}

#[test]
fn tokens_above_budget_deny_later_requests() {
    for algorithm in Algorithm::ALL {
        let policy = format!(
            "rules: [{{ name: tokens, domain: edge, per: [tokens], limits: [10/h], algorithm: {algorithm}, cost: tokens }}]"
        );
        let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxies/envoy/cases.yaml");
        let setup = EnvoyWithSlidegate::start(&policy, &cases, &[]);
        let statuses = send_token_requests(&setup, 10, &[10_000, 1, 1, 1, 1]);
        assert_eq!(statuses, [200, 429, 429, 429, 429], "{algorithm}");
    }
}

#[test]
fn llm_token_policy_limits_envoy_and_http_clients() {
    let policy = fs::read_to_string(project_path("examples/llm-tokens.yaml")).unwrap();
    let setup =
        EnvoyWithSlidegate::start(&policy, &project_path("deploy/envoy/llm-tokens.yaml"), &[]);
    let slidegate = setup.slidegate.as_ref().unwrap().address();
    let post = |path: &str, body: &str| -> Value {
        let response = send_with_curl(slidegate, 2, path, &["-d", body]);
        serde_json::from_str(&response.body).unwrap()
    };
    let remaining = |rule: &str| {
        let peek = r#"{"attributes":{"org":"acme","user":"ann","model":"large"}}"#;
        let peeked = post("/v1/peek", peek);
        let limits = peeked["limits"].as_array().unwrap().clone();
        let limit = limits.iter().find(|limit| limit["rule"] == rule).unwrap();
        limit["remaining"].as_u64().unwrap()
    };
    let get = |tokens: &str| {
        let headers = ["x-org: acme", "x-user: ann", "x-model: large"];
        let used = format!("x-tokens-used: {tokens}");
        let arguments: Vec<&str> =
            headers.iter().copied().chain([&*used]).flat_map(|header| ["-H", header]).collect();
        setup.send_request("/v1/chat", &arguments)
    };
    assert_eq!(get("1834").status, 200);
    wait_until("Envoy's tokens are charged", || remaining("tokens") == 98_166);
    let check = r#"{"attributes":{"org":"acme","user":"bob","model":"large"}}"#;
    assert_eq!(post("/v1/check", check)["allowed"], true);
    assert_eq!(remaining("tokens"), 98_166, "a check charges no tokens");
    let report = r#"{"attributes":{"org":"acme","model":"large"},"costs":{"tokens":120000}}"#;
    let reported = post("/v1/report", report);
    assert_eq!(
        (&reported["allowed"], reported["limits"].as_array().unwrap().len()),
        (&true.into(), 2)
    );
    let denied = get("1");
    assert!(denied.status == 429 && denied.body.contains("tokens"), "{denied:?}");
    let denied = post("/v1/check", check);
    assert_eq!((&denied["rule"], &denied["reason"]), (&"tokens".into(), &"limit_exceeded".into()));
}

#[test]
fn converted_token_limit_denies_only_above_max() {
    let file = TempFile::new(
        ".yaml",
        "
domain: edge
descriptors:
  - key: tokens
    rate_limit: { unit: day, requests_per_unit: 1000 }
",
    );
    let converted = slidegate_command().arg("convert").arg(file.path()).output().unwrap();
    assert!(converted.status.success(), "{}", String::from_utf8_lossy(&converted.stderr));
    let policy = String::from_utf8(converted.stdout).unwrap();
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxies/envoy/cases.yaml");
    let setup = EnvoyWithSlidegate::start(&policy, &cases, &[]);
    assert_eq!(send_token_requests(&setup, 1_000, &[700, 700, 700, 700]), [200, 200, 429, 429]);
    // Exactly at max, not above it.
    let setup = EnvoyWithSlidegate::start(&policy, &cases, &[]);
    assert_eq!(send_token_requests(&setup, 1_000, &[1000, 1, 1]), [200, 200, 429]);
}

#[test]
fn joint_limits_deny_only_if_all_are_exhausted() {
    let policy = "
rules:
  - { name: own, domain: edge, per: [own], limits: [1/h], mode: jointly }
  - { name: shared, domain: edge, per: [shared], limits: [2/h], mode: jointly }
";
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxies/envoy/cases.yaml");
    let setup = EnvoyWithSlidegate::start(policy, &cases, &[]);
    let get = |own: &str, shared: &str| {
        let [own, shared] = [format!("x-first: {own}"), format!("x-second: {shared}")];
        setup.send_request("/quota", &["-H", &own, "-H", &shared]).status
    };
    assert_eq!([get("a", "t"), get("a", "t"), get("a", "t")], [200, 200, 429]);
    assert_eq!(get("b", "t"), 200, "b's own quota is unused");
}

#[test]
fn envoy_failure_mode_deny_applies_without_slidegate() {
    for (deny, status) in [("false", 200), ("true", 503)] {
        let place = [("failure_mode_deny: false", &*format!("failure_mode_deny: {deny}"))];
        let mut setup = EnvoyWithSlidegate::start_with_test_config(&place);
        assert_eq!(setup.send_request_as_user("/one", "a").status, 200);
        setup.slidegate = None;
        assert_eq!(setup.send_request_as_user("/one", "a").status, status);
    }
}

#[test]
fn policy_reload_under_load_fails_no_request() {
    let setup = EnvoyWithSlidegate::start_with_test_config(&[(
        "failure_mode_deny: false",
        "failure_mode_deny: true",
    )]);
    let slidegate = setup.slidegate.as_ref().unwrap();
    let mut load = Command::new("curl");
    load.args(["-sS", "-o", "/dev/null", "-w", "%{http_code}\n", "-H", "x-user: a"]);
    load.arg(format!("http://{}/one?[1-2000]", setup.envoy.address));
    let load = load.stdout(Stdio::piped()).spawn().unwrap();
    for nth in 1..=10 {
        let wider = POLICY.replace("[2/h]", &format!("[{}/h]", 100_000 + nth));
        fs::write(slidegate.policy_path(), wider).unwrap();
        slidegate.wait_for_log("policy");
    }
    let output = load.wait_with_output().unwrap();
    let codes = String::from_utf8(output.stdout).unwrap();
    let passed = codes.lines().filter(|code| *code == "200").count();
    let denied = codes.lines().filter(|code| *code == "429").count();
    // Before the first reload, only two requests were allowed.
    assert_eq!(passed + denied, 2_000, "some requests failed");
    assert!(passed > 2, "no request saw a reload");
}
