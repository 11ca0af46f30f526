//! A ruling as a response: status, headers and JSON.

mod write;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::headers::{self, Header, Style};
use slidegate::{Clock, Jitter, JitterSample, Problem as Denial, Reason, Ruling, WallClock};

use super::problem::{PROBLEM_JSON, Problem};
use crate::millis::millis_up;
use crate::watch::metrics::Answered;

/// Bytes that are ready for an answer: with some limits it needs no more.
const USUAL: usize = 1024;

/// A response, and how it is counted. Its status would not say that: a proxy chooses that of a denial.
pub struct Reply {
    pub response: Response,
    pub answered: Answered,
}

/// How rulings are told.
#[derive(Clone, Copy)]
pub struct Answers {
    style: Style,
    retry_jitter: Jitter,
}

impl Answers {
    pub fn new(style: Style, retry_jitter: Jitter) -> Self {
        Self { style, retry_jitter }
    }

    /// Responds with 200 if the request is allowed. A denial has the `deny_status` of its rule, 429 by default, or 503 if
    /// the store is unavailable. All have the same fields. Jitter lengthens headers only: the JSON is exact.
    pub fn respond(&self, ruling: &Ruling) -> Result<Reply, Problem> {
        let (status, answered) = verdict(ruling)?;
        let mut json = Vec::with_capacity(USUAL);
        Answer::of(ruling).write(&mut json).map_err(Problem::internal)?;
        let response = self.response(ruling, status, Some("application/json"), json.into())?;
        Ok(Reply { response, answered })
    }

    /// The same for a proxy: nothing but headers if the request may pass, else a problem, which the proxy may
    /// hand on as it is. Its status is `deny_status`, if that is given.
    pub fn authorize(
        &self,
        ruling: &Ruling,
        deny_status: Option<StatusCode>,
    ) -> Result<Reply, Problem> {
        let (status, answered) = verdict(ruling)?;
        let response = match Denial::from_ruling(ruling) {
            None => self.response(ruling, status, None, Body::empty())?,
            Some(denial) => {
                let status = deny_status.unwrap_or(status);
                let json = serde_json::to_vec(&denial.with_status(status.as_u16()));
                let json = json.map_err(Problem::internal)?;
                self.response(ruling, status, Some(PROBLEM_JSON), json.into())?
            }
        };
        Ok(Reply { response, answered })
    }

    fn response(
        &self,
        ruling: &Ruling,
        status: StatusCode,
        content_type: Option<&'static str>,
        body: Body,
    ) -> Result<Response, Problem> {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let told = response.headers_mut();
        if let Some(content_type) = content_type {
            told.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        let mut result = Ok(());
        headers::for_each(self.style, ruling, &WallClock, self.draw(), |name, value| {
            match HeaderValue::from_bytes(value.as_bytes()) {
                Ok(value) => drop(told.insert(HeaderName::from_static(name), value)),
                Err(error) => result = Err(Problem::internal(error)),
            }
        });
        result.map(|()| response)
    }

    /// How much longer the wait of one answer shall be, wherever it stands.
    pub fn draw(&self) -> JitterSample {
        self.retry_jitter.draw()
    }

    /// The headers that tell of a ruling.
    pub fn headers(&self, ruling: &Ruling, lengthening: JitterSample) -> Vec<Header> {
        headers::write(self.style, ruling, WallClock.now(), lengthening)
    }
}

/// What became of a request, as a status and as it is counted.
fn verdict(ruling: &Ruling) -> Result<(StatusCode, Answered), Problem> {
    let decision = ruling.decision();
    let answered = match decision.is_allowed() {
        true => Answered::Allowed,
        false if decision.is_store_unavailable() => Answered::Refused,
        false => Answered::Denied,
    };
    let status = StatusCode::from_u16(ruling.status()).map_err(Problem::internal)?;
    Ok((status, answered))
}

/// The decision. The fields outside `limits` speak of the limit that it hangs on, and are null if
/// no rule applies, or no limit was asked: of a sampled rule only some requests ask.
#[derive(Serialize, JsonSchema)]
pub struct Answer<'r> {
    /// Whether the request is allowed: true with status 200. A denial has the `deny_status` of its rule, 429 by default, or
    /// 503 if the store is unavailable.
    allowed: bool,
    /// Why the request is denied. Null if it is allowed.
    reason: Option<Reason>,
    /// The rule that the decision hangs on.
    rule: Option<&'r str>,
    /// The limit that the decision hangs on: on a denial the one with the longest wait.
    limit: Option<Limit<'r>>,
    /// Units that the limit has left.
    remaining: Option<u64>,
    /// Milliseconds until the limit is as if never used.
    reset_after_ms: Option<u64>,
    /// Milliseconds until this cost fits. Null if it fits now, or if it never can.
    retry_after_ms: Option<u64>,
    /// Whether the store could not be asked, so that this is a guess.
    degraded: bool,
    /// Every limit of every rule that applies, without those that were not asked: because it is known that
    /// another denies, or the rule is sampled.
    limits: Vec<Standing<'r>>,
}

/// How one limit stands.
#[derive(Serialize, JsonSchema)]
struct Standing<'r> {
    /// The rule's name.
    rule: &'r str,
    /// The limit itself.
    limit: Limit<'r>,
    /// The algorithm that counts.
    algorithm: &'static str,
    /// Whether the request fits in this limit.
    allowed: bool,
    /// Whether the rule only watches, and never denies.
    observed: bool,
    /// Units that the limit has left.
    remaining: u64,
    /// Milliseconds until the limit is as if never used.
    reset_after_ms: u64,
    /// Milliseconds until this cost fits. Null if it fits now, or if it never can.
    retry_after_ms: Option<u64>,
}

/// A number of units per window.
#[derive(Serialize, JsonSchema)]
struct Limit<'r> {
    /// The name, unique in its rule.
    name: &'r str,
    /// Units that fit in a window.
    max: u64,
    /// The window in milliseconds.
    window_ms: u64,
}

impl<'r> Answer<'r> {
    fn of(ruling: &'r Ruling) -> Self {
        let binding = ruling.binding().map(Standing::of);
        let decision = ruling.decision();
        Self {
            allowed: decision.is_allowed(),
            reason: ruling.reason(),
            rule: binding.as_ref().map(|standing| standing.rule),
            remaining: binding.as_ref().map(|standing| standing.remaining),
            reset_after_ms: binding.as_ref().map(|standing| standing.reset_after_ms),
            retry_after_ms: binding.as_ref().and_then(|standing| standing.retry_after_ms),
            limit: binding.map(|standing| standing.limit),
            degraded: decision.is_degraded(),
            limits: ruling.limits().map(Standing::of).collect(),
        }
    }
}

impl<'r> Standing<'r> {
    fn of(standing: slidegate::LimitStatus<'r>) -> Self {
        let slidegate::LimitStatus { rule, limit: rule_limit, outcome, .. } = standing;
        let limit = rule_limit.limit();
        let quota = limit.quota();
        let wait = outcome.retry_after().filter(|_| !outcome.fits());
        Self {
            rule: rule.name(),
            limit: Limit {
                name: rule_limit.id(),
                max: quota.max(),
                window_ms: millis_up(quota.window()),
            },
            algorithm: limit.algorithm().name(),
            allowed: outcome.fits(),
            observed: standing.is_observed(),
            remaining: outcome.remaining(),
            reset_after_ms: millis_up(outcome.reset_after()),
            retry_after_ms: wait.map(millis_up),
        }
    }
}

#[cfg(test)]
mod tests {
    use slidegate::testkit::faulty::{Faults, FaultyStore};
    use slidegate::{Descriptor, Gate, ManualClock, Policy, Request};

    use super::*;

    /// The status under a policy, over a store that is not there.
    async fn without_a_store(on_store_error: &str) -> StatusCode {
        let policy =
            format!("rules: [{{ name: a, limits: [1/s], on_store_error: {on_store_error} }}]");
        let lost = Faults { unavailable: 100, ..Faults::default() };
        let store = FaultyStore::new(&ManualClock::default(), 1, lost, 1);
        let gate = Gate::new(Policy::from_yaml(&policy).unwrap(), store);
        let ruling = gate.check(&Request::new("default", Descriptor::new([]))).await;
        Answers::new(Style::Ietf, Jitter::NONE).respond(&ruling).unwrap().response.status()
    }

    #[tokio::test]
    async fn what_only_the_lack_of_a_store_denies_is_503() {
        assert_eq!(without_a_store("deny").await, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(without_a_store("allow").await, StatusCode::OK);
    }
}
