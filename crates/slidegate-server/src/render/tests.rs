use slidegate::store::LocalCountsOptions;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::{Descriptor, Gate, ManualClock, MemoryStore, Policy, Request};

use super::*;

fn decided(decision: Decision<'static>) -> DecidedCall {
    DecidedCall { decision, permit: None, reservation: None, reserved: None }
}

/// Renders the decision about a request while the store is unavailable. The rule has the setting
/// `on_store_error: {on_store_error}`.
async fn render_without_store(
    on_store_error: &str,
    render: impl FnOnce(
        ResponseRenderer,
        &DecidedCall,
    ) -> Result<ResponseWithResult<Response>, HttpProblem>,
) -> Response {
    let policy = format!("rules: [{{ name: a, limits: [1/s], on_store_error: {on_store_error} }}]");
    let lost = Faults { unavailable: 100, ..Faults::default() };
    let store = FaultyStore::new(&ManualClock::default(), 1, lost, 1);
    let gate = Gate::new(Policy::from_yaml(&policy).unwrap(), store);
    let decision = gate.check_async(&Request::new("default", Descriptor::new([]))).await;
    let renderer = ResponseRenderer::new(Style::Ietf, Jitter::NONE);
    render(renderer, &decided(decision)).unwrap().response
}

/// Returns the status of the response to a check while the store is unavailable.
async fn response_status_without_store(on_store_error: &str) -> StatusCode {
    let render_check =
        |renderer: ResponseRenderer, decided: &DecidedCall| renderer.render_check(decided);
    render_without_store(on_store_error, render_check).await.status()
}

#[tokio::test]
async fn auth_denial_without_store_names_reason_in_header() {
    for (on_store_error, reason) in [("deny", Some("store_unavailable")), ("allow", None)] {
        let auth = |renderer: ResponseRenderer, decided: &DecidedCall| {
            renderer.render_forward_auth(decided, Some(StatusCode::FORBIDDEN))
        };
        let response = render_without_store(on_store_error, auth).await;
        let header = response.headers().get(UNAVAILABLE_REASON_HEADER);
        assert_eq!(header.map(|value| value.to_str().unwrap()), reason);
    }
}

#[tokio::test]
async fn denial_without_store_has_status_503() {
    assert_eq!(response_status_without_store("deny").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response_status_without_store("allow").await, StatusCode::OK);
}

/// The header and the JSON of a limit are formatted once.
#[tokio::test]
async fn instance_share_of_limit_has_own_text() {
    let policy = Policy::from_yaml("rules: [{ name: a, limits: [100/h] }]").unwrap();
    let renderer = ResponseRenderer::new(Style::Ietf, Jitter::NONE);
    let policy_header = |decision: Decision<'static>| {
        let response = renderer.render_check(&decided(decision)).unwrap().response;
        response.headers()["ratelimit-policy"].to_str().unwrap().to_owned()
    };
    let request = Request::new("default", Descriptor::new([]));
    let memory = Gate::new(policy.clone(), MemoryStore::with_clock(ManualClock::default(), 10));
    assert_eq!(policy_header(memory.check(&request)), r#""a";q=100;w=3600"#);
    let lost = Faults { unavailable: 100, ..Faults::default() };
    let store = FaultyStore::new(&ManualClock::default(), 1, lost, 1);
    let gate = Gate::new(policy, store).with_local_counts(LocalCountsOptions {
        instances: 2.try_into().unwrap(),
        ..LocalCountsOptions::default()
    });
    assert_eq!(policy_header(gate.check_async(&request).await), r#""a";q=50;w=3600"#);
}
