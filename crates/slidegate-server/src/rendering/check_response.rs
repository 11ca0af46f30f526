//! The JSON of check responses: its types, and its writer.
//!
//! The writer replaces serde for these responses: serde inspects every character of every field name, which takes as
//! long as the decision itself. A test compares the output with the output of serde.

use std::time::Duration;

use serde::Serialize;
use slidegate::internal::cached_limit_json;
use slidegate::{Decision, Reason};

use crate::durations::ceil_millis;
use crate::service::permits::PermitToken;
use crate::service::reservations::ReservationToken;

/// The decision. The fields outside `limits` describe the limit that determined it. They are null if no rule applies,
/// or if no limit was evaluated, because the rules that apply evaluate only a sample of the requests.
#[derive(Serialize)]
pub struct CheckResponse<'r> {
    /// Whether the request is allowed: true with status 200. A denial has the `deny_status` of its rule, 429 by
    /// default, or 503 if the store is unavailable.
    allowed: bool,
    /// The reason why the request is denied. Null if it is allowed.
    reason: Option<Reason>,
    /// The rule that determined the decision.
    rule: Option<&'r str>,
    /// The limit that determined the decision. On a denial, the denying limit with the longest wait.
    limit: Option<LimitBody<'r>>,
    /// Number of units that are left in the limit.
    remaining: Option<u64>,
    /// Milliseconds until the limit is completely unused.
    reset_after_ms: Option<u64>,
    /// Milliseconds until the request fits the limit. Null if the request fits now, if it can never fit, or if the limit
    /// bounds the requests in flight, whose end is not known.
    retry_after_ms: Option<u64>,
    /// Whether the store was unavailable, so that the decision is an estimate.
    degraded: bool,
    /// The status of every limit of every rule that applies. Omits limits that were not evaluated, because a cached
    /// denial already decided, or because their rule evaluates only a sample of the requests.
    limits: Vec<LimitStatusBody<'r>>,
    /// The permit of the request, which `/v1/release` and `/v1/renew` accept. Only in the response to an allowed request to
    /// which a limit with `concurrent` applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    permit: Option<&'r str>,
    /// Milliseconds after which the permit expires, unless it is renewed. Only with `permit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    permit_ttl_ms: Option<u64>,
    /// The JSON of `rule` and `limit`, if it never changes.
    #[serde(skip)]
    limit_json: Option<&'r str>,
}

/// The decision on a request for a reservation.
#[derive(Serialize)]
pub struct ReserveResponse<'r> {
    #[serde(flatten)]
    decision: CheckResponse<'r>,
    /// The token with which `/v1/settle` corrects the charge. Null if the request is denied.
    reservation: Option<&'r str>,
    /// Milliseconds until the token expires. Null if the request is denied.
    expires_in_ms: Option<u64>,
}

/// The response to a settlement. It is the same if the settlement is repeated.
#[derive(Serialize)]
pub struct SettleResponse {
    /// Always true.
    settled: bool,
}

impl SettleResponse {
    /// The response to every successful settlement.
    pub const SETTLED: Self = Self { settled: true };
}

/// The response to a release.
#[derive(Serialize)]
pub struct ReleaseResponse {
    /// Whether the permit was live until now. False if it had been released or had expired.
    released: bool,
}

impl ReleaseResponse {
    pub fn new(was_live: bool) -> Self {
        Self { released: was_live }
    }
}

/// The response to a renewal.
#[derive(Serialize)]
pub struct RenewResponse {
    /// Always true.
    renewed: bool,
    /// Milliseconds after which the permit expires, unless it is renewed again.
    permit_ttl_ms: u64,
}

impl RenewResponse {
    pub fn new(ttl: Duration) -> Self {
        Self { renewed: true, permit_ttl_ms: ceil_millis(ttl) }
    }
}

/// The status of one limit.
#[derive(Serialize)]
struct LimitStatusBody<'r> {
    /// The rule's name.
    rule: &'r str,
    /// The name and the quota of the limit.
    limit: LimitBody<'r>,
    /// The algorithm that enforces the limit.
    algorithm: &'static str,
    /// Whether the request fits this limit.
    allowed: bool,
    /// Whether the rule only observes, and never denies.
    observed: bool,
    /// Number of units that are left in the limit.
    remaining: u64,
    /// Milliseconds until the limit is completely unused.
    reset_after_ms: u64,
    /// Milliseconds until the request fits the limit. Null if the request fits now, or if it can never fit.
    retry_after_ms: Option<u64>,
    /// The JSON of `rule` and `limit`, if it never changes.
    #[serde(skip)]
    limit_json: Option<&'r str>,
}

/// The name and the quota of a limit: a maximum number of units per window.
#[derive(Serialize)]
struct LimitBody<'r> {
    /// The name of the limit, unique in its rule.
    name: &'r str,
    /// Maximum number of units per window.
    max: u64,
    /// The length of the window in milliseconds.
    window_ms: u64,
}

impl<'r> CheckResponse<'r> {
    /// Creates the response to the request of a decision.
    pub fn from_decision(decision: &'r Decision<'_>) -> Self {
        let binding = decision.binding().map(LimitStatusBody::from_status);
        Self {
            allowed: decision.is_allowed(),
            reason: decision.reason(),
            rule: binding.as_ref().map(|limit_status| limit_status.rule),
            remaining: binding.as_ref().map(|limit_status| limit_status.remaining),
            reset_after_ms: binding.as_ref().map(|limit_status| limit_status.reset_after_ms),
            retry_after_ms: binding.as_ref().and_then(|limit_status| limit_status.retry_after_ms),
            limit_json: binding.as_ref().and_then(|limit_status| limit_status.limit_json),
            limit: binding.map(|limit_status| limit_status.limit),
            degraded: decision.is_degraded(),
            limits: decision.limits().map(LimitStatusBody::from_status).collect(),
            permit: None,
            permit_ttl_ms: None,
        }
    }

    /// Adds the permit of the request, if it has one.
    pub fn with_permit(self, permit: Option<&'r PermitToken>) -> Self {
        let permit_ttl_ms = permit.map(|permit| ceil_millis(permit.ttl));
        Self { permit: permit.map(|permit| &*permit.text), permit_ttl_ms, ..self }
    }
}

impl<'r> LimitStatusBody<'r> {
    fn from_status(limit_status: slidegate::LimitStatus<'r>) -> Self {
        let (limit, outcome) = (limit_status.limit(), limit_status.outcome());
        let quota = limit.quota();
        let wait = limit_status.retry_after().filter(|_| !outcome.fits());
        let rule = limit_status.rule_name();
        let limit_body = LimitBody {
            name: limit_status.id(),
            max: quota.max(),
            window_ms: ceil_millis(limit.window()),
        };
        let limit_json = (!limit.has_varying_window()).then(|| {
            cached_limit_json(limit_status.rule_limit(), || {
                JsonWriter::format(|writer| write_rule_and_limit(writer, rule, &limit_body))
            })
        });
        Self {
            rule,
            limit: limit_body,
            limit_json,
            algorithm: limit.algorithm().name(),
            allowed: outcome.fits(),
            observed: limit_status.is_observed(),
            remaining: outcome.remaining(),
            reset_after_ms: ceil_millis(outcome.reset_after()),
            retry_after_ms: wait.map(ceil_millis),
        }
    }
}

/// A writer that appends JSON to a buffer.
struct JsonWriter<'o>(&'o mut Vec<u8>);

/// Appends the fields `rule` and `limit`.
fn write_rule_and_limit(writer: &mut JsonWriter<'_>, rule: &str, limit: &LimitBody<'_>) {
    writer.write_raw_json(r#""rule":"#);
    writer.write_string(rule);
    writer.write_raw_json(r#","limit":"#);
    limit.write_json(writer);
}

impl CheckResponse<'_> {
    /// Appends the response to `json`.
    pub fn write(&self, json: &mut Vec<u8>) {
        let mut writer = JsonWriter(json);
        writer.write_raw_json(r#"{"allowed":"#);
        writer.write_bool(self.allowed);
        writer.write_raw_json(r#","reason":"#);
        writer.write_option(self.reason.map(Reason::name), JsonWriter::write_string);
        writer.write_raw_json(",");
        match (self.limit_json, self.rule, &self.limit) {
            (Some(json), ..) => writer.write_raw_json(json),
            (None, Some(rule), Some(limit)) => write_rule_and_limit(&mut writer, rule, limit),
            (None, ..) => writer.write_raw_json(r#""rule":null,"limit":null"#),
        }
        writer.write_raw_json(r#","remaining":"#);
        writer.write_option(self.remaining, JsonWriter::write_number);
        writer.write_raw_json(r#","reset_after_ms":"#);
        writer.write_option(self.reset_after_ms, JsonWriter::write_number);
        writer.write_raw_json(r#","retry_after_ms":"#);
        writer.write_option(self.retry_after_ms, JsonWriter::write_number);
        writer.write_raw_json(r#","degraded":"#);
        writer.write_bool(self.degraded);
        writer.write_raw_json(r#","limits":["#);
        for (index, limit_status) in self.limits.iter().enumerate() {
            writer.write_raw_json(if index == 0 { "" } else { "," });
            limit_status.write_json(&mut writer);
        }
        writer.write_raw_json("]");
        if let (Some(permit), Some(ttl_ms)) = (self.permit, self.permit_ttl_ms) {
            writer.write_raw_json(r#","permit":"#);
            writer.write_string(permit);
            writer.write_raw_json(r#","permit_ttl_ms":"#);
            writer.write_number(ttl_ms);
        }
        writer.write_raw_json("}");
    }
}

impl<'r> ReserveResponse<'r> {
    /// Creates the response. `token` is `None` if the request is denied.
    pub fn new(decision: CheckResponse<'r>, token: Option<&'r ReservationToken>) -> Self {
        let (reservation, expires_in_ms) =
            (token.map(|token| &*token.text), token.map(|token| ceil_millis(token.ttl)));
        Self { decision, reservation, expires_in_ms }
    }

    /// Appends the response to `json`.
    pub fn write(&self, json: &mut Vec<u8>) {
        self.decision.write(json);
        json.pop();
        let mut writer = JsonWriter(json);
        writer.write_raw_json(r#","reservation":"#);
        writer.write_option(self.reservation, JsonWriter::write_string);
        writer.write_raw_json(r#","expires_in_ms":"#);
        writer.write_option(self.expires_in_ms, JsonWriter::write_number);
        writer.write_raw_json("}");
    }
}

impl LimitStatusBody<'_> {
    fn write_json(&self, writer: &mut JsonWriter<'_>) {
        writer.write_raw_json("{");
        match self.limit_json {
            Some(json) => writer.write_raw_json(json),
            None => write_rule_and_limit(writer, self.rule, &self.limit),
        }
        writer.write_raw_json(r#","algorithm":"#);
        // The names of algorithms need no escaping.
        writer.write_raw_json("\"");
        writer.write_raw_json(self.algorithm);
        writer.write_raw_json("\"");
        writer.write_raw_json(r#","allowed":"#);
        writer.write_bool(self.allowed);
        writer.write_raw_json(r#","observed":"#);
        writer.write_bool(self.observed);
        writer.write_raw_json(r#","remaining":"#);
        writer.write_number(self.remaining);
        writer.write_raw_json(r#","reset_after_ms":"#);
        writer.write_number(self.reset_after_ms);
        writer.write_raw_json(r#","retry_after_ms":"#);
        writer.write_option(self.retry_after_ms, JsonWriter::write_number);
        writer.write_raw_json("}");
    }
}

impl LimitBody<'_> {
    fn write_json(&self, writer: &mut JsonWriter<'_>) {
        writer.write_raw_json(r#"{"name":"#);
        writer.write_string(self.name);
        writer.write_raw_json(r#","max":"#);
        writer.write_number(self.max);
        writer.write_raw_json(r#","window_ms":"#);
        writer.write_number(self.window_ms);
        writer.write_raw_json("}");
    }
}

impl JsonWriter<'_> {
    /// Returns the JSON that `write` appends.
    fn format(write: impl FnOnce(&mut JsonWriter<'_>)) -> Box<str> {
        let mut json = Vec::new();
        write(&mut JsonWriter(&mut json));
        String::from_utf8_lossy(&json).into()
    }

    fn write_raw_json(&mut self, json: &str) {
        self.0.extend_from_slice(json.as_bytes());
    }

    fn write_bool(&mut self, value: bool) {
        self.write_raw_json(if value { "true" } else { "false" });
    }

    fn write_number(&mut self, number: u64) {
        self.write_raw_json(itoa::Buffer::new().format(number));
    }

    fn write_string(&mut self, text: &str) {
        if text.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
            return self.write_raw_json(&serde_json::Value::from(text).to_string());
        }
        self.write_raw_json("\"");
        self.write_raw_json(text);
        self.write_raw_json("\"");
    }

    fn write_option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => self.write_raw_json("null"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use slidegate::{Descriptor, Gate, ManualClock, MemoryStore, Policy, Request};

    use super::*;

    /// Random contents of a [`LimitStatusBody`]: a rule name, a limit name, flags, numbers, and the time until a retry.
    type RandomLimitStatus = (String, String, [bool; 2], [u64; 4], Option<u64>);

    fn build_limit_status(random: &RandomLimitStatus) -> LimitStatusBody<'_> {
        let (rule, name, [allowed, observed], [max, window_ms, remaining, reset_after_ms], wait) =
            random;
        LimitStatusBody {
            rule,
            limit: LimitBody { name, max: *max, window_ms: *window_ms },
            algorithm: "sliding_window",
            allowed: *allowed,
            observed: *observed,
            remaining: *remaining,
            reset_after_ms: *reset_after_ms,
            retry_after_ms: *wait,
            limit_json: None,
        }
    }

    proptest! {
        #[test]
        fn json_writer_output_equals_serde_output(
            statuses in vec(any::<RandomLimitStatus>(), 0..3),
            allowed: bool,
            degraded: bool,
        ) {
            let binding = statuses.first().map(build_limit_status);
            let response = CheckResponse {
                allowed,
                reason: (!allowed).then_some(Reason::LimitExceeded),
                rule: binding.as_ref().map(|limit_status| limit_status.rule),
                remaining: binding.as_ref().map(|limit_status| limit_status.remaining),
                reset_after_ms: binding.as_ref().map(|limit_status| limit_status.reset_after_ms),
                retry_after_ms: binding.as_ref().and_then(|limit_status| limit_status.retry_after_ms),
                limit: binding.map(|limit_status| limit_status.limit),
                degraded,
                limits: statuses.iter().map(build_limit_status).collect(),
                permit: degraded.then_some("Ag-_9"),
                permit_ttl_ms: degraded.then_some(60_000),
                limit_json: None,
            };
            let mut json = Vec::new();
            response.write(&mut json);
            prop_assert_eq!(String::from_utf8(json).unwrap(), serde_json::to_string(&response).unwrap());
            let token = ReservationToken { text: "a-_9".to_owned(), ttl: Duration::from_millis(7) };
            let response = ReserveResponse::new(response, allowed.then_some(&token));
            let mut json = Vec::new();
            response.write(&mut json);
            prop_assert_eq!(String::from_utf8(json).unwrap(), serde_json::to_string(&response).unwrap());
        }
    }

    #[test]
    fn json_of_decisions_equals_serde_output() {
        let policy = "
rules:
  - { name: a, per: [user], limits: [2/s, 3/h] }
  - { name: b, limits: [{ max: 9, calendar: day }] }
";
        let policy = Policy::from_yaml(policy).unwrap();
        let gate = Gate::new(policy, MemoryStore::with_clock(ManualClock::default(), 10));
        for _ in 0..3 {
            let decision = gate.check(&Request::new("default", Descriptor::new([("user", "ann")])));
            let response = CheckResponse::from_decision(&decision);
            let mut json = Vec::new();
            response.write(&mut json);
            let json = String::from_utf8(json).unwrap();
            assert_eq!(json, serde_json::to_string(&response).unwrap());
            assert!(json.contains(r#""rule":"a","limit":{"name":"1h","max":3,"#), "{json}");
        }
    }
}
