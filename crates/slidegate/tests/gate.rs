//! Tests of a gate that uses a memory store. They cover the rules that apply, atomic decisions, and response headers.

use slidegate::headers::{self, Header, Style};
use slidegate::wait::JitterSample;
use slidegate::{Decision, Descriptor, Gate, ManualClock, MemoryStore, Policy, Request, Timestamp};

const API_DOMAIN_POLICY: &str = "
rules:
  - { name: per-tenant, domain: api, per: [tenant], limits: [3/min, 5/h] }
  - { name: search, domain: api, when: { path: /search*, method: GET }, per: [tenant, ip], limits: [1/min] }
  - { name: everybody, domain: api, limits: [100/min] }
  - { name: other, per: [tenant], limits: [1/min] }
";

fn new_gate() -> (ManualClock, Gate<MemoryStore<ManualClock>>) {
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
    let store = MemoryStore::with_clock(clock.clone(), 1_000);
    (clock, Gate::new(Policy::from_yaml(API_DOMAIN_POLICY).unwrap(), store))
}

fn api_request<const N: usize>(attributes: [(&'static str, &'static str); N]) -> Request<'static> {
    Request::new("api", Descriptor::new(attributes))
}

fn ietf_headers(decision: &Decision<'_>) -> Vec<Header> {
    headers::write(Style::Ietf, decision, Timestamp::default(), JitterSample::NONE)
}

/// Returns the names of all limits of a decision.
fn limit_names(decision: &Decision<'_>) -> Vec<String> {
    decision.limits().map(|limit| limit.policy_name().to_owned()).collect()
}

#[test]
fn rule_applies_if_conditions_and_attributes_match() {
    let (_, gate) = new_gate();
    let decision = gate.peek(&api_request([("tenant", "acme")]));
    assert_eq!(limit_names(&decision), ["per-tenant.1m", "per-tenant.1h", "everybody"]);
    let search = [("tenant", "acme"), ("ip", "::1"), ("path", "/search/x"), ("method", "GET")];
    let all = ["per-tenant.1m", "per-tenant.1h", "search", "everybody"];
    assert_eq!(limit_names(&gate.peek(&api_request(search))), all);
    let post = [("ip", "::1"), ("path", "/search/x"), ("method", "POST")];
    assert_eq!(limit_names(&gate.peek(&api_request(post))), ["everybody"]);
    let unmatched = Request::new("elsewhere", Descriptor::new([("tenant", "acme")]));
    let decision = gate.check(&unmatched);
    assert!(decision.is_allowed() && decision.binding().is_none());
    assert_eq!(ietf_headers(&decision), []);
}

#[test]
fn denial_by_rule_charges_no_other_rule() {
    let (_, gate) = new_gate();
    let search =
        || api_request([("tenant", "acme"), ("ip", "::1"), ("path", "/search"), ("method", "GET")]);
    assert!(gate.check(&search()).is_allowed());
    for _ in 0..10 {
        let denied = gate.check(&search());
        assert_eq!(denied.binding().unwrap().rule_name(), "search");
    }
    let remaining =
        |decision: &Decision<'static>| decision.limits().map(|l| l.remaining()).collect::<Vec<_>>();
    assert_eq!(remaining(&gate.peek(&search())), [2, 4, 0, 99]);
}

#[test]
fn one_denied_descriptor_denies_whole_request() {
    let (_, gate) = new_gate();
    let request = |tenants: [&'static str; 2]| {
        let descriptors = tenants.map(|tenant| Descriptor::new([("tenant", tenant)]).cost(2));
        Request::with_descriptors("api", descriptors)
    };
    assert!(gate.check(&request(["a", "b"])).is_allowed());
    let denied = gate.check(&request(["c", "b"]));
    let fits: Vec<bool> = denied.limits().map(|limit| limit.fits()).collect();
    assert_eq!(fits, [true, true, true, false, true, true], "b has one unit left");
    assert!(gate.check(&request(["c", "d"])).is_allowed(), "c was not charged");
    assert!(
        !gate.check(&request(["e", "e"])).is_allowed(),
        "the same tenant twice, with a cost of 2 each"
    );
}

#[test]
fn headers_name_all_limits_and_binding_limit() {
    let (_, gate) = new_gate();
    let request = api_request([("tenant", "acme")]);
    let allowed = gate.check(&request);
    let [(_, policies), (_, limit)] = &ietf_headers(&allowed)[..] else { panic!("two headers") };
    let expected =
        r#""per-tenant.1m";q=3;w=60, "per-tenant.1h";q=5;w=3600, "everybody";q=100;w=60"#;
    assert_eq!(policies, expected);
    assert!(limit.starts_with(r#""per-tenant.1m";r=2;t="#), "{limit}");
    let (_, _) = (gate.check(&request), gate.check(&request));
    let denied = gate.check(&request);
    let [_, (_, limit), (_, wait)] = &ietf_headers(&denied)[..] else {
        panic!("three headers, with Retry-After")
    };
    assert_eq!(*limit, format!(r#""per-tenant.1m";r=0;t={wait}"#));
    let never = gate.check(&Request::new("api", Descriptor::new([("tenant", "b")]).cost(4)));
    let [_, (_, limit)] = &ietf_headers(&never)[..] else {
        panic!("two headers: the cost never fits")
    };
    assert_eq!(limit, r#""per-tenant.1m";r=3"#);
}

#[test]
fn exceeded_limits_include_observed_limits() {
    let policy = "
rules:
  - { name: small, limits: [1/h, 5/d] }
  - { name: watched, limits: [1/h], mode: observe }
";
    let store = MemoryStore::with_clock(ManualClock::default(), 10);
    let gate = Gate::new(Policy::from_yaml(policy).unwrap(), store);
    let exceeded_limit_names = || {
        let decision = gate.check(&Request::new("default", Descriptor::new([])));
        let limits = decision.exceeded_limits();
        limits.map(|limit| limit.policy_name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(exceeded_limit_names(), [""; 0]);
    assert_eq!(exceeded_limit_names(), ["small.1h", "watched"]);
}
