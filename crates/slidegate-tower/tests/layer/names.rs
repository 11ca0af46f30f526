//! Tests of names that the policy and the layer do not share, so that a limit never applies.

use slidegate::{Gate, MemoryStore, Policy, Store};
use slidegate_tower::{
    Attributes, RateLimitLayer, Settlement, TrustedProxies, WhenMissing, extract,
};

use crate::layer::fixture::{MINUTE, StoreFixture, TestClient, hello_router, serve};
use crate::layer::log::Log;

const USER_ID_POLICY: &str = "rules: [{ name: per-user, per: [user_id], limits: [1/min] }]";

fn user_attributes() -> Attributes {
    Attributes::new().with("user", extract::header("x-user")).with("method", extract::method())
}

/// Sends requests of one user until one is denied, at most five. Returns the statuses.
async fn statuses_of_user(http: &TestClient) -> Vec<u16> {
    let mut statuses = Vec::new();
    while statuses.len() < 5 && statuses.last() != Some(&429) {
        statuses.push(http.get_with_header("x-user", "ann").await.status);
    }
    statuses
}

#[tokio::test]
async fn rule_without_extractor_is_warned_about_once() {
    with_both_stores!(|fixture| {
        let log = Log::new();
        let layer = RateLimitLayer::new(fixture.gate(USER_ID_POLICY), user_attributes());
        let http = serve(hello_router().layer(layer)).await;
        assert_eq!(statuses_of_user(&http).await, [200; 5]);
        let warning = log.take_warning();
        for part in ["`per-user`", "no extractor provides `user_id`", "did you mean `user`?"] {
            assert!(warning.contains(part), "{part}: {warning}");
        }
    });
}

#[tokio::test]
async fn replaced_policy_is_checked_again() {
    with_both_stores!(|fixture| {
        let log = Log::new();
        let gate = fixture.gate("rules: [{ name: per-user, per: [user], limits: [1/min] }]");
        let layer = RateLimitLayer::new(gate.clone(), user_attributes());
        let http = serve(hello_router().layer(layer)).await;
        assert_eq!(statuses_of_user(&http).await, [200, 429]);
        assert_eq!(log.take_warnings(), [""; 0]);
        gate.replace_policy(Policy::from_yaml(USER_ID_POLICY).unwrap());
        assert_eq!(statuses_of_user(&http).await, [200; 5]);
        assert!(log.take_warning().contains("`user_id`"), "{fixture:?}");
    });
}

#[tokio::test]
async fn alternative_similar_to_unused_extractor_is_warned_about() {
    let log = Log::new();
    let fixture = StoreFixture::with_sync_store();
    let gate = fixture.gate("rules: [{ name: per-user, per: [usr|ip], limits: [1/min] }]");
    let attributes = || user_attributes().with("ip", extract::value("192.0.2.7"));
    serve(hello_router().layer(RateLimitLayer::new(gate, attributes()))).await;
    let warning = log.take_warning();
    assert!(warning.contains("`usr|ip`") && warning.contains("did you mean `user`?"), "{warning}");

    // Another service of the same policy provides the alternative.
    let gate = fixture.gate("rules: [{ name: per-user, per: [api_key|ip], limits: [1/min] }]");
    serve(hello_router().layer(RateLimitLayer::new(gate, attributes()))).await;
    assert_eq!(log.take_warnings(), [""; 0]);
}

#[tokio::test]
async fn matching_names_cause_no_warning() {
    with_both_stores!(|fixture| {
        let log = Log::new();
        let gate = fixture.gate(
            "
routes: ['/{id}']
rules:
  - { name: login, when: { route: '/{id}', method: GET }, per: [user], limits: [5/min] }
  - { name: tokens, per: [api_key|user], limits: [9/min], cost: tokens }
  - { name: off, mode: 'off', per: [team], limits: [9/min] }
  - { name: other, domain: other, per: [team], limits: [9/min] }
",
        );
        let attributes = user_attributes().with("path", extract::path());
        // A rule need not use each extractor: a policy changes without a build.
        let attributes = attributes.with("host", extract::host()).named_cost("tokens", |_| Some(1));
        let layer = RateLimitLayer::new(gate, attributes)
            .settle(|_| Settlement::Report { cost: "tokens", units: 1 });
        let http = serve(hello_router().layer(layer)).await;
        assert_eq!(statuses_of_user(&http).await, [200; 5]);
        assert_eq!(log.take_warnings(), [""; 0], "{fixture:?}");
    });
}

#[tokio::test]
async fn domain_without_rules_is_warned_about() {
    with_both_stores!(|fixture| {
        let log = Log::new();
        let gate = fixture.gate("rules: [{ name: all, domain: api, limits: [1/min] }]");
        let layer = RateLimitLayer::new(gate, Attributes::new().domain("apii"));
        let http = serve(hello_router().layer(layer)).await;
        assert_eq!(statuses_of_user(&http).await, [200; 5]);
        let warning = log.take_warning();
        assert!(warning.contains("`apii`") && warning.contains("did you mean `api`?"), "{warning}");
    });
}

/// Starts a server with a limit of ten tokens and of ten images per minute, whose requests have this settlement.
async fn serve_with_settlement(
    fixture: &StoreFixture<impl Store>,
    settlement: Settlement,
) -> TestClient {
    let rules = "{ name: tokens, limits: [10/min], cost: tokens }, { name: images, limits: [10/min], cost: images }";
    let gate = fixture.gate(&format!("rules: [{rules}]"));
    let layer = RateLimitLayer::new(gate, Attributes::new()).settle(move |_| settlement);
    serve(hello_router().layer(layer)).await
}

#[tokio::test]
async fn settlement_without_effect_is_warned_about_once() {
    for (settlement, parts) in [
        (Settlement::Report { cost: "token", units: 50 }, [r#"cost="token""#, "no rule"]),
        (Settlement::NamedCost { cost: "token", units: 50 }, [r#"cost="token""#, "no rule"]),
        (Settlement::Cost(50), ["without a name", r#"charged="images, tokens""#]),
    ] {
        with_both_stores!(|fixture| {
            let log = Log::new();
            let http = serve_with_settlement(&fixture, settlement).await;
            assert_eq!(statuses_of_user(&http).await, [200; 5], "{settlement:?} {fixture:?}");
            let warning = log.take_warning();
            assert!(parts.iter().all(|part| warning.contains(part)), "{settlement:?}: {warning}");
        });
    }
}

#[tokio::test]
async fn settlement_of_known_cost_causes_no_warning() {
    for settlement in [
        Settlement::Report { cost: "tokens", units: 10 },
        Settlement::NamedCost { cost: "tokens", units: 10 },
    ] {
        with_both_stores!(|fixture| {
            let log = Log::new();
            let http = serve_with_settlement(&fixture, settlement).await;
            assert_eq!(statuses_of_user(&http).await, [200, 429], "{settlement:?} {fixture:?}");
            assert_eq!(log.take_warnings(), [""; 0], "{settlement:?} {fixture:?}");
        });
    }
}

#[tokio::test]
async fn costs_that_no_rule_charges_are_warned_about() {
    with_both_stores!(|fixture| {
        let log = Log::new();
        let gate = fixture.gate("rules: [{ name: tokens, limits: [10/min], cost: tokens }]");
        let attributes = Attributes::new().named_cost("token", |_| Some(10));
        let layer = RateLimitLayer::new(gate, attributes).cost(|_| 10);
        let http = serve(hello_router().layer(layer)).await;
        assert_eq!(statuses_of_user(&http).await, [200; 5], "{fixture:?}");
        let warnings = log.take_warnings();
        assert_eq!(warnings.len(), 2, "{warnings:#?}");
        assert!(warnings[0].contains("`token`"), "{warnings:#?}");
        assert!(warnings[0].contains("did you mean `tokens`?"), "{warnings:#?}");
        assert!(warnings[1].contains("the cost of a request"), "{warnings:#?}");
    });
}

/// Returns the problems of a layer with the extractors `user` and `ip`.
fn problems(policy: &str, set: impl FnOnce(Attributes) -> Attributes) -> String {
    let gate = Gate::new(Policy::from_yaml(policy).unwrap(), MemoryStore::new());
    let attributes = Attributes::new()
        .with("user", extract::header("x-user"))
        .with("ip", extract::client_ip(TrustedProxies::none()));
    let checked = RateLimitLayer::new(gate, set(attributes)).check_names();
    checked.err().map_or(String::new(), |error| error.to_string())
}

#[test]
fn names_error_states_consequence_and_suggestion() {
    for (fields, expected) in [
        (
            "per: [user_id], limits: [1/s]",
            "no extractor provides `user_id`, so the rule never applies; did you mean `user`?",
        ),
        (
            "per: [ip, team|org], limits: [1/s], when_missing: deny",
            "no extractor provides `team|org`, so the rule denies each request; the extractors are `user`, `ip`; no rule uses `user`",
        ),
        (
            "when: { usr: ann }, limits: [1/s]",
            "no extractor provides `usr`, so the rule never applies; did you mean `user`?",
        ),
        (
            "when: { plan: { not: pro } }, limits: [1/s]",
            "no extractor provides `plan`, so each request meets the condition `not`; the extractors",
        ),
        (
            "per: [user], limits: [1/s], overrides: [{ when: { plan: pro }, limits: [9/s] }]",
            "no extractor provides `plan`, so an override of the rule never applies; the extractors",
        ),
        (
            "descriptor: [key], limits: [1/s]",
            "no extractor provides `key`, so the rule never applies",
        ),
        (
            "per: [usr|ip], limits: [1/s]",
            "no extractor provides `usr|ip`, so the rule never counts by it; did you mean `user`?",
        ),
        ("when: { route: / }, limits: [1/s]", "no extractor provides `route`, so the rule never"),
    ] {
        let policy = format!("rules: [{{ name: a, {fields} }}]");
        let problems = problems(&policy, |attributes| attributes);
        assert!(problems.starts_with(&format!("rule `a`: {expected}")), "{problems}");
        assert_eq!(problems.lines().count(), 1, "{problems}");
    }
}

#[test]
fn rules_with_same_attribute_share_problem() {
    let rule = |nth| format!("  - {{ name: r{nth}, per: [team], limits: [1/s] }}\n");
    let rules: String = (0..100).map(rule).collect();
    let problems = problems(&format!("rules:\n{rules}"), |attributes| attributes);
    assert!(problems.starts_with("rule `r0` and 99 more: no extractor"), "{problems}");
    assert_eq!(problems.lines().count(), 1);
}

#[test]
fn try_new_fails_if_limit_never_applies() {
    let gate = |policy| Gate::new(Policy::from_yaml(policy).unwrap(), MemoryStore::new());
    let error = RateLimitLayer::try_new(gate(USER_ID_POLICY), user_attributes()).unwrap_err();
    assert_eq!(error.problems().count(), 1);
    let policy = "rules: [{ name: a, per: [user], limits: [1/min] }]";
    assert!(RateLimitLayer::try_new(gate(policy), user_attributes()).is_ok());
    assert!(RateLimitLayer::try_new(gate("rules: []"), user_attributes()).is_ok());
}

#[test]
fn names_of_changed_layer_are_checked() {
    let policy = "
rules:
  - { name: a, domain: api, per: [user], limits: [1/s], cost: tokens }
  - { name: b, domain: web, per: [team], limits: [1/s] }
";
    let check = |domain: &'static str, cost: &'static str| {
        problems(policy, move |attributes| attributes.domain(domain).named_cost(cost, |_| None))
    };
    assert_eq!(check("api", "tokens"), "");
    let unknown_cost = "cost `token`: no rule charges it, so it has no effect; did you mean `tokens`? the costs are `tokens`";
    assert_eq!(check("api", "token"), unknown_cost);
    assert_eq!(check("web", "tokens").lines().count(), 2);
    let unknown_domain = "domain `apis`: no rule has this domain, so no limit applies; did you mean `api`? the domains are `api`, `web`";
    assert_eq!(check("apis", "tokens"), unknown_domain);
}

#[tokio::test]
async fn settled_named_cost_of_limiter_is_warned_about() {
    with_both_stores!(|fixture| {
        let log = Log::new();
        let limiter = fixture.limiter(10, MINUTE);
        let layer = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny)
            .settle(|_| Settlement::NamedCost { cost: "tokens", units: 50 });
        let http = serve(hello_router().layer(layer)).await;
        assert_eq!(statuses_of_user(&http).await, [200; 5], "{fixture:?}");
        assert_eq!(log.take_warnings().len(), 1, "{fixture:?}");
    });
}
