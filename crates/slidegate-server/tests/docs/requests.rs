//! Runs code blocks with the language `requests`, which list requests and their outcomes under a policy.
//!
//! ```text
//! # A comment.
//! 5x plan=free user=ann -> allowed
//! plan=free user=ann    -> denied by per-user, retry after 12s
//! +12s
//! cost=0 user=ann       -> allowed, 3 left
//! report user=ann cost.tokens=1800 -> reported: per-user 200 left
//! ```
//!
//! A line is a request or a step in time. A request consists of attributes, and optionally a repeat count (`5x`), a
//! `cost`, named costs (`cost.tokens=1800`) and a `domain`. The word `report` marks a report of
//! consumption after the fact. The outcome of a line is one of
//!
//! - `allowed`, or `allowed, 3 left` with the remaining units of the binding limit
//! - `not counted`: allowed, because no limit applies
//! - `denied by RULE, retry after 12s`: the wait is rounded up to whole seconds, as in Retry-After, and written like a
//!   window in a policy (60 seconds are `1m`)
//! - `denied by RULE, for good`: a retry can never succeed
//! - `reported: LIMIT 200 left`, with an entry for every charged limit, or `reported: nothing`
//!
//! Each block has its own clock and counters. The clock starts on a Monday at midnight (UTC).

use std::time::Duration;

use slidegate::{
    Decision, Descriptor, Gate, ManualClock, MemoryStore, Policy, Quota, Request, Timestamp,
};

use crate::docs::markdown::FencedBlock;
use crate::docs::policies;

/// Time at which the clock of each block starts: 2026-01-05 00:00 UTC, a Monday.
const START_TIME: Timestamp = Timestamp::from_secs(1_767_571_200);

/// A parsed line of a `requests` block. The line either advances the clock, or contains a request with its expected
/// outcome.
#[derive(Debug, PartialEq)]
enum RequestsBlockLine<'a> {
    Advance(Duration),
    Request(DocumentedRequest<'a>),
}

/// A request with its documented outcome.
#[derive(Debug, PartialEq)]
struct DocumentedRequest<'a> {
    repeat_count: u32,
    is_report: bool,
    domain: &'a str,
    cost: Option<u64>,
    named_costs: Vec<(&'a str, u64)>,
    attributes: Vec<(&'a str, &'a str)>,
    /// The documented outcome, which is the text after `->`.
    outcome: &'a str,
}

/// Runs a `requests` block under the policy of another block, and compares the actual outcomes with the documented
/// ones.
pub fn check_requests(policy: &FencedBlock, requests: &FencedBlock) -> Result<(), String> {
    let policy = Policy::from_yaml(&policies::complete_policy(policy))
        .map_err(|errors| errors.to_string())?;
    let clock = ManualClock::at(START_TIME);
    let gate = Gate::new(policy, MemoryStore::with_clock(clock.clone(), 1_000));
    let mut request_count = 0;
    for text in requests.text.lines().map(str::trim) {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        match parse_requests_block_line(text)? {
            RequestsBlockLine::Advance(duration) => clock.advance(duration),
            RequestsBlockLine::Request(expected) => {
                request_count += 1;
                check_documented_outcome(&gate, &expected)
                    .map_err(|found| format!("{text}\nfound: {found}"))?;
            }
        }
    }
    if request_count == 0 { Err("this block has no requests".to_owned()) } else { Ok(()) }
}

/// Sends a request as often as its line states, and compares each actual outcome with the documented one. The error
/// describes the first difference.
fn check_documented_outcome(
    gate: &Gate<MemoryStore<ManualClock>>,
    expected: &DocumentedRequest<'_>,
) -> Result<(), String> {
    for nth in 1..=expected.repeat_count {
        let mut descriptor = Descriptor::new(expected.attributes.iter().copied());
        if let Some(cost) = expected.cost {
            descriptor = descriptor.cost(cost);
        }
        for (name, units) in &expected.named_costs {
            descriptor = descriptor.with_cost(name, *units);
        }
        let request = Request::new(expected.domain, descriptor);
        let found = if expected.is_report {
            describe_usage_report(&gate.report(&request))
        } else {
            describe_decision(&gate.check(&request))
        };
        // The remaining units are optional. The denying rule and the wait are required.
        let omits_remaining = expected.outcome == "allowed" && found.starts_with("allowed, ");
        if !omits_remaining && found != expected.outcome {
            return Err(format!("{found}, at request {nth}"));
        }
    }
    Ok(())
}

/// Returns the outcome of a check in the notation of `requests` blocks, such as `allowed, 3 left`.
fn describe_decision(decision: &Decision<'_>) -> String {
    match (decision.is_allowed(), decision.binding()) {
        (true, Some(_)) => format!("allowed, {} left", decision.remaining()),
        (true, None) if decision.limits().next().is_some() => "allowed".to_owned(),
        (true, None) => "not counted".to_owned(),
        (false, binding) => {
            let rule = binding.map_or("", |limit| limit.rule_name());
            match decision.retry_after() {
                Some(wait) => {
                    let seconds = Duration::from_secs(wait.as_micros().div_ceil(1_000_000) as u64);
                    let wait = Quota::new(1, seconds).unwrap().window_text();
                    format!("denied by {rule}, retry after {wait}")
                }
                None => format!("denied by {rule}, for good"),
            }
        }
    }
}

/// Returns the outcome of a report in the notation of `requests` blocks, such as `reported: per-user 200 left`.
fn describe_usage_report(decision: &Decision<'_>) -> String {
    let limits = decision.limits();
    let limits: Vec<String> =
        limits.map(|limit| format!("{} {} left", limit.policy_name(), limit.remaining())).collect();
    format!(
        "reported: {}",
        if limits.is_empty() { "nothing".to_owned() } else { limits.join(", ") }
    )
}

fn parse_requests_block_line(text: &str) -> Result<RequestsBlockLine<'_>, String> {
    let error = |problem: &str| format!("`{text}`: {problem}");
    if let Some(span) = text.strip_prefix('+') {
        let quota: Quota = format!("1/{span}").parse().map_err(|_| error("not a time"))?;
        return Ok(RequestsBlockLine::Advance(quota.window()));
    }
    let (request, outcome) = text.split_once("->").ok_or_else(|| error("no `->`"))?;
    let mut expected = DocumentedRequest {
        repeat_count: 1,
        is_report: false,
        domain: "default",
        cost: None,
        named_costs: Vec::new(),
        attributes: Vec::new(),
        outcome: outcome.trim(),
    };
    let mut words = request.split_whitespace().peekable();
    if let Some(times) = words.peek().and_then(|word| word.strip_suffix('x')) {
        expected.repeat_count = times
            .parse()
            .ok()
            .filter(|times| *times > 0)
            .ok_or_else(|| error("not a repeat count"))?;
        words.next();
    }
    expected.is_report = words.next_if_eq(&"report").is_some();
    for word in words {
        match word.split_once('=').ok_or_else(|| error("an attribute is name=value"))? {
            ("cost", cost) => expected.cost = Some(cost.parse().map_err(|_| error("not a cost"))?),
            (name, cost) if name.starts_with("cost.") => {
                let units = cost.parse().map_err(|_| error("not a cost"))?;
                expected.named_costs.push((&name["cost.".len()..], units));
            }
            ("domain", domain) => expected.domain = domain,
            attribute => expected.attributes.push(attribute),
        }
    }
    Ok(RequestsBlockLine::Request(expected))
}

#[test]
fn request_lines_are_parsed() {
    assert_eq!(
        parse_requests_block_line("+90s").unwrap(),
        RequestsBlockLine::Advance(Duration::from_secs(90))
    );
    let RequestsBlockLine::Request(expected) =
        parse_requests_block_line("3x cost=0 domain=api a=b c=d=e -> denied by x, for good")
            .unwrap()
    else {
        panic!("a request");
    };
    assert_eq!((expected.repeat_count, expected.cost, expected.domain), (3, Some(0), "api"));
    assert_eq!(expected.attributes, [("a", "b"), ("c", "d=e")]);
    assert_eq!(expected.outcome, "denied by x, for good");
    for invalid in [
        "+soon",
        "a=b",
        "x a=b -> allowed",
        "0x a=b -> allowed",
        "a -> allowed",
        "cost=a -> allowed",
    ] {
        assert!(parse_requests_block_line(invalid).is_err(), "{invalid}");
    }
}

#[test]
fn wrong_documented_outcomes_are_reported_as_errors() {
    let block = |language: &str, text: &str| {
        crate::docs::markdown::parse_blocks(&format!("```{language}\n{text}\n```\n")).remove(0)
    };
    let policy = block("yaml", "rules:\n  - { name: a, per: [u], limits: [2/min] }");
    for (text, is_ok) in [
        (
            "2x u=1 -> allowed\nu=1 -> denied by a, retry after 1m\n+1m\nu=1 -> allowed, 1 left",
            true,
        ),
        (
            "u=1 -> allowed, 1 left\nother=1 -> not counted\ncost=3 u=1 -> denied by a, for good",
            true,
        ),
        ("3x u=1 -> allowed", false),
        ("u=1 -> allowed, 2 left", false),
        ("2x u=1 -> allowed\nu=1 -> denied by b, retry after 1m", false),
        ("2x u=1 -> allowed\nu=1 -> denied by a, retry after 59s", false),
        ("2x u=1 -> allowed\nu=1 -> denied", false),
        ("other=1 -> allowed", false),
        ("u=1 -> welcome", false),
        ("# nothing", false),
    ] {
        let result = check_requests(&policy, &block("requests", text));
        assert_eq!(result.is_ok(), is_ok, "{text}: {result:?}");
    }
}
