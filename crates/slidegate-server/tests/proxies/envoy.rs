//! Envoy asks by its rate limit service: with the very file of `deploy/`, and with one that has every case.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use slidegate::Algorithm;

use crate::common::{Server, TempFile, slidegate};
use crate::curl::{Answer, curl};
use crate::process::{Proxy, free_address};
use crate::servers::{Folder, wait_until};
use crate::upstream::Upstream;
use crate::{installed, project};

const POLICY: &str = "
defaults: { algorithm: sliding_log }
rules:
  - { name: one, domain: edge, per: [one], limits: [2/h] }
  - { name: watched, domain: edge, per: [watched], limits: [1/h], mode: observe }
  - { name: first, domain: edge, per: [first], limits: [3/h] }
  - { name: second, domain: edge, per: [second], limits: [1/h] }
  - { name: cost, domain: edge, per: [cost], limits: [10/h] }
";

/// Envoy before a service, asking slidegate.
struct Rig {
    envoy: Proxy,
    upstream: Upstream,
    /// None once it is stopped.
    slidegate: Option<Server>,
}

impl Rig {
    /// With this configuration, in which something stands instead of something else.
    fn start(policy: &str, config: &Path, places: &[(&str, &str)]) -> Self {
        let slidegate = Server::start_with_grpc(policy, &[]);
        let upstream = Upstream::start();
        let envoy = start(config, slidegate.grpc(), upstream.address(), places);
        Self { envoy, upstream, slidegate: Some(slidegate) }
    }

    fn cases(places: &[(&str, &str)]) -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxies/envoy/cases.yaml");
        Self::start(POLICY, &here, places)
    }

    fn ask(&self, path: &str, arguments: &[&str]) -> Answer {
        curl(self.envoy.address, 2, path, arguments)
    }

    /// Asks for somebody.
    fn ask_as(&self, path: &str, who: &str) -> Answer {
        self.ask(path, &["-H", &format!("x-who: {who}")])
    }
}

/// Starts Envoy with this file, in which other text replaces some.
pub fn start(
    config: &Path,
    slidegate: SocketAddr,
    service: SocketAddr,
    places: &[(&str, &str)],
) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    let mut text = fs::read_to_string(config).unwrap();
    let port = |port: u16| format!("port_value: {port} ");
    let ports = [
        (port(10000), port(address.port())),
        (port(8081), port(slidegate.port())),
        (port(9000), port(service.port())),
    ];
    let ports = ports.iter().map(|(place, real)| (&**place, &**real));
    for (place, real) in ports.chain(places.iter().copied()) {
        assert!(text.contains(place), "{place} does not stand in {}", config.display());
        text = text.replace(place, real);
    }
    let path = folder.path().join("envoy.yaml");
    fs::write(&path, text).unwrap();
    let mut command = Command::new(installed("envoy/bin/envoy"));
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
fn the_file_of_deploy_counts_requests_and_what_they_cost_in_the_end() {
    let policy = fs::read_to_string(project("deploy/envoy/policy.yaml")).unwrap();
    let rig = Rig::start(&policy, &project("deploy/envoy/envoy.yaml"), &[]);
    let passes = rig.ask("/", &["-H", "x-api-key: k"]);
    assert_eq!(passes.status, 200, "{passes:?}");
    let told = passes.header("ratelimit-policy").unwrap();
    assert_eq!(told, r#""per-key.1s";q=10;w=1, "per-key.1m";q=300;w=60, "per-address";q=20;w=1"#);
    let chat = |tokens: &str| {
        rig.ask("/v1/chat", &["-H", "x-api-key: t", "-H", &format!("x-tokens-used: {tokens}")])
    };
    assert_eq!(chat("1500").status, 200);
    // It is charged when the answer has gone, so a little later. Asking too often is denied by another rule.
    let by_tokens = |denied: &Answer| denied.body.contains(r#""tokens""#);
    wait_until("the tokens are charged", || by_tokens(&chat("0")));
    let asked = rig.upstream.asked();
    let denied = chat("0");
    assert_eq!(rig.upstream.asked(), asked, "what is denied does not reach the service");
    assert!(denied.status == 429 && by_tokens(&denied), "{denied:?}");
    // Until a third of 1,500 has left: at the soonest 20 s into the next minute of the key.
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((15..=81).contains(&wait), "{wait}");
}

#[test]
fn envoy_takes_the_filter_that_istio_is_given() {
    let yaml = |path: &str| -> Value {
        serde_saphyr::from_str(&fs::read_to_string(project(path)).unwrap()).unwrap()
    };
    let mut filter =
        yaml("deploy/istio/envoyfilter.yaml")["spec"]["configPatches"][0]["patch"]["value"].take();
    let asks =
        filter.pointer_mut("/typed_config/rate_limit_service/grpc_service/envoy_grpc/cluster_name");
    let asks = std::mem::replace(asks.unwrap(), "slidegate".into());
    assert_eq!(asks, "outbound|8081||slidegate.default.svc.cluster.local");
    let service = yaml("deploy/kubernetes/service.yaml");
    assert_eq!(service["metadata"]["name"], "slidegate");
    assert!(service["spec"]["ports"].as_array().unwrap().iter().any(|port| port["port"] == 8081));

    let mut config = yaml("deploy/envoy/envoy.yaml");
    let filters =
        "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters";
    config.pointer_mut(filters).unwrap()[0] = filter;
    let folder = Folder::new();
    let path = folder.path().join("envoy.json");
    fs::write(&path, config.to_string()).unwrap();
    let mut envoy = Command::new(installed("envoy/bin/envoy"));
    let output = envoy.args(["--mode", "validate", "-l", "warn", "-c"]).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_is_denied_is_told_by_both_kinds_of_headers_and_a_problem() {
    let rig = Rig::cases(&[]);
    for left in ["1", "0"] {
        let passes = rig.ask_as("/one", "a");
        assert_eq!(passes.status, 200, "{passes:?}");
        assert_eq!(passes.header("x-ratelimit-limit"), Some(r#"2, 2;w=3600;name="one""#));
        assert_eq!(passes.header("x-ratelimit-remaining"), Some(left));
        assert!(passes.header("ratelimit").unwrap().starts_with(&format!(r#""one";r={left};t="#)));
    }
    let denied = rig.ask_as("/one", "a");
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3_500..=3_601).contains(&wait), "{wait}");
    assert_eq!(denied.header("x-ratelimit-reset"), denied.header("retry-after"));
    let problem: Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!(problem["violated-policies"][0], "one");
    assert_eq!(rig.ask_as("/one", "b").status, 200, "others are counted apart");
}

#[test]
fn http_2_and_grpc_are_denied_in_their_own_ways() {
    let rig = Rig::cases(&[]);
    let ask = |arguments: &[&str]| {
        let http2 = ["--http2-prior-knowledge", "-H", "x-who: h2"];
        rig.ask("/one", &[&http2, arguments].concat())
    };
    assert_eq!([ask(&[]).status, ask(&[]).status, ask(&[]).status], [200, 200, 429]);
    let grpc = ask(&["-H", "content-type: application/grpc", "-H", "te: trailers", "-d", ""]);
    // RESOURCE_EXHAUSTED, as gRPC tells it: in a header of an answer that is otherwise fine.
    assert_eq!((grpc.status, grpc.header("grpc-status")), (200, Some("8")), "{grpc:?}");
}

#[test]
fn a_rule_that_watches_lets_pass_what_it_would_deny() {
    let rig = Rig::cases(&[]);
    for _ in 0..3 {
        assert_eq!(rig.ask_as("/watched", "a").status, 200);
    }
    // Envoy tells of it all the same.
    assert_eq!(rig.ask_as("/watched", "a").header("x-ratelimit-remaining"), Some("0"));
}

#[test]
fn one_descriptor_that_denies_leaves_the_others_uncharged() {
    let rig = Rig::cases(&[]);
    let several = |first: &str, second: &str| {
        let [first, second] = [format!("x-first: {first}"), format!("x-second: {second}")];
        rig.ask("/several", &["-H", &first, "-H", &second]).status
    };
    assert_eq!(several("f", "s"), 200);
    for _ in 0..5 {
        assert_eq!(several("f", "s"), 429);
    }
    let left = rig.ask("/first", &["-H", "x-first: f"]);
    assert_eq!(left.header("x-ratelimit-remaining"), Some("1"), "one of three was charged");
}

#[test]
fn own_hits_are_charged_always_and_refunded() {
    let rig = Rig::cases(&[]);
    let left = |path: &str| {
        let answer = rig.ask_as(path, "a");
        (answer.status, answer.header("x-ratelimit-remaining").unwrap().to_owned())
    };
    let is = |status: u16, left: &str| (status, left.to_owned());
    assert_eq!(left("/costly"), is(200, "6"));
    assert_eq!(left("/costly"), is(200, "2"));
    assert_eq!(left("/costly"), is(429, "0"), "12 of 10 are used");
    for more in ["2", "6", "10", "10"] {
        assert_eq!(left("/back"), is(200, more));
    }
}

#[test]
fn override_of_envoy_replaces_the_limit() {
    let rig = Rig::cases(&[]);
    for left in ["2", "1", "0"] {
        let answer = rig.ask_as("/override", "a");
        assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (200, Some(left)));
    }
    assert_eq!(rig.ask_as("/override", "a").status, 429);
}

/// The statuses of requests under a budget, whose responses use so many tokens each. Each is sent when the one before has
/// been charged, which happens after its response.
fn statuses_of_tokens(rig: &Rig, budget: u64, tokens: &[u64]) -> Vec<u16> {
    let slidegate = rig.slidegate.as_ref().unwrap().address();
    let remaining = || {
        let peek = r#"{"domain":"edge","attributes":{"tokens":"a"}}"#;
        let peeked = curl(slidegate, 2, "/v1/peek", &["-d", peek]);
        serde_json::from_str::<Value>(&peeked.body).unwrap()["remaining"].as_u64().unwrap()
    };
    let mut used = 0;
    let status = |tokens: &u64| {
        let tokens_used = format!("x-tokens-used: {tokens}");
        let status = rig.ask("/tokens", &["-H", "x-who: a", "-H", &tokens_used]).status;
        used += if status == 200 { *tokens } else { 0 };
        wait_until("the tokens are charged", || remaining() == budget.saturating_sub(used));
        status
    };
    tokens.iter().map(status).collect()
}

#[test]
fn tokens_above_the_budget_deny_later_requests() {
    for algorithm in Algorithm::ALL {
        let policy = format!(
            "rules: [{{ name: tokens, domain: edge, per: [tokens], limits: [10/h], algorithm: {algorithm}, cost: tokens }}]"
        );
        let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxies/envoy/cases.yaml");
        let rig = Rig::start(&policy, &cases, &[]);
        let statuses = statuses_of_tokens(&rig, 10, &[10_000, 1, 1, 1, 1]);
        assert_eq!(statuses, [200, 429, 429, 429, 429], "{algorithm}");
    }
}

#[test]
fn recipe_for_tokens_serves_envoy_and_http_with_one_policy() {
    let policy = fs::read_to_string(project("examples/llm-tokens.yaml")).unwrap();
    let rig = Rig::start(&policy, &project("deploy/envoy/llm-tokens.yaml"), &[]);
    let slidegate = rig.slidegate.as_ref().unwrap().address();
    let post = |path: &str, body: &str| -> Value {
        let answer = curl(slidegate, 2, path, &["-d", body]);
        serde_json::from_str(&answer.body).unwrap()
    };
    let remaining = |rule: &str| {
        let peek = r#"{"attributes":{"org":"acme","user":"ann","model":"large"}}"#;
        let peeked = post("/v1/peek", peek);
        let limits = peeked["limits"].as_array().unwrap().clone();
        let limit = limits.iter().find(|limit| limit["rule"] == rule).unwrap();
        limit["remaining"].as_u64().unwrap()
    };
    let ask = |tokens: &str| {
        let headers = ["x-org: acme", "x-user: ann", "x-model: large"];
        let used = format!("x-tokens-used: {tokens}");
        let arguments: Vec<&str> =
            headers.iter().copied().chain([&*used]).flat_map(|header| ["-H", header]).collect();
        rig.ask("/v1/chat", &arguments)
    };
    assert_eq!(ask("1834").status, 200);
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
    let denied = ask("1");
    assert!(denied.status == 429 && denied.body.contains("tokens"), "{denied:?}");
    let denied = post("/v1/check", check);
    assert_eq!((&denied["rule"], &denied["reason"]), (&"tokens".into(), &"limit_exceeded".into()));
}

#[test]
fn converted_budget_denies_above_max_only() {
    let file = TempFile::new(
        ".yaml",
        "
domain: edge
descriptors:
  - key: tokens
    rate_limit: { unit: day, requests_per_unit: 1000 }
",
    );
    let converted = slidegate().arg("convert").arg(file.path()).output().unwrap();
    assert!(converted.status.success(), "{}", String::from_utf8_lossy(&converted.stderr));
    let policy = String::from_utf8(converted.stdout).unwrap();
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxies/envoy/cases.yaml");
    let rig = Rig::start(&policy, &cases, &[]);
    assert_eq!(statuses_of_tokens(&rig, 1_000, &[700, 700, 700, 700]), [200, 200, 429, 429]);
    // At max, and not above it.
    let rig = Rig::start(&policy, &cases, &[]);
    assert_eq!(statuses_of_tokens(&rig, 1_000, &[1000, 1, 1]), [200, 200, 429]);
}

#[test]
fn joint_quotas_deny_if_all_are_used() {
    let policy = "
rules:
  - { name: own, domain: edge, per: [own], limits: [1/h], mode: jointly }
  - { name: shared, domain: edge, per: [shared], limits: [2/h], mode: jointly }
";
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxies/envoy/cases.yaml");
    let rig = Rig::start(policy, &cases, &[]);
    let ask = |own: &str, shared: &str| {
        let [own, shared] = [format!("x-first: {own}"), format!("x-second: {shared}")];
        rig.ask("/quota", &["-H", &own, "-H", &shared]).status
    };
    assert_eq!([ask("a", "t"), ask("a", "t"), ask("a", "t")], [200, 200, 429]);
    assert_eq!(ask("b", "t"), 200, "b's own quota is unused");
}

#[test]
fn without_slidegate_envoy_does_as_it_is_told() {
    for (deny, status) in [("false", 200), ("true", 503)] {
        let place = [("failure_mode_deny: false", &*format!("failure_mode_deny: {deny}"))];
        let mut rig = Rig::cases(&place);
        assert_eq!(rig.ask_as("/one", "a").status, 200);
        rig.slidegate = None;
        assert_eq!(rig.ask_as("/one", "a").status, status);
    }
}

#[test]
fn a_reload_under_load_fails_no_request() {
    let rig = Rig::cases(&[("failure_mode_deny: false", "failure_mode_deny: true")]);
    let slidegate = rig.slidegate.as_ref().unwrap();
    let mut load = Command::new("curl");
    load.args(["-sS", "-o", "/dev/null", "-w", "%{http_code}\n", "-H", "x-who: a"]);
    load.arg(format!("http://{}/one?[1-2000]", rig.envoy.address));
    let load = load.stdout(Stdio::piped()).spawn().unwrap();
    for nth in 1..=10 {
        let wider = POLICY.replace("[2/h]", &format!("[{}/h]", 100_000 + nth));
        fs::write(slidegate.policy(), wider).unwrap();
        slidegate.wait_for_log("policy");
    }
    let output = load.wait_with_output().unwrap();
    let codes = String::from_utf8(output.stdout).unwrap();
    let passed = codes.lines().filter(|code| *code == "200").count();
    let denied = codes.lines().filter(|code| *code == "429").count();
    // Until the first reload all but two were denied.
    assert_eq!(passed + denied, 2_000, "some failed");
    assert!(passed > 2, "no reload reached them");
}
