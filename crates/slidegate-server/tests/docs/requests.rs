//! What becomes of requests under a policy: the blocks `requests`.
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
//! A line is a request, or time that passes. A request is attributes, and perhaps how many alike (`5x`),
//! its `cost`, named costs (`cost.tokens=1800`) and its `domain`. After `report` it is the report of a cost. What becomes
//! of it is one of
//!
//! - `allowed`; `allowed, 3 left` also tells what the limit that is nearest to its end still has
//! - `not counted`: allowed, no limit was asked
//! - `denied by RULE, retry after 12s`: whole seconds, rounded up as in Retry-After, in the units of a
//!   policy (60 seconds are `1m`)
//! - `denied by RULE, for good`: no wait helps
//! - `reported: LIMIT 200 left`, with every limit that was charged, or `reported: nothing`
//!
//! Each block has a clock and counts of its own. They begin on a Monday at midnight (UTC).

use std::time::Duration;

use slidegate::{
    Descriptor, Gate, ManualClock, MemoryStore, Policy, Quota, Request, Ruling, Timestamp,
};

use crate::markdown::Block;
use crate::policies;

/// 2026-01-05, a Monday.
const START: Timestamp = Timestamp::from_secs(1_767_571_200);

/// One line.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    Pass(Duration),
    Ask(Ask<'a>),
}

#[derive(Debug, PartialEq)]
struct Ask<'a> {
    times: u32,
    is_report: bool,
    domain: &'a str,
    cost: Option<u64>,
    named_costs: Vec<(&'a str, u64)>,
    attributes: Vec<(&'a str, &'a str)>,
    /// As it is written.
    outcome: &'a str,
}

/// Runs a block of requests under the policy of another.
pub fn check(policy: &Block, requests: &Block) -> Result<(), String> {
    let policy =
        Policy::from_yaml(&policies::whole(policy)).map_err(|errors| errors.to_string())?;
    let clock = ManualClock::at(START);
    let gate = Gate::new(policy, MemoryStore::with_clock(clock.clone(), 1_000));
    let mut asked = 0;
    for text in requests.text.lines().map(str::trim) {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        match line(text)? {
            Line::Pass(span) => clock.advance(span),
            Line::Ask(ask) => {
                asked += 1;
                becomes(&gate, &ask).map_err(|found| format!("{text}\nfound: {found}"))?;
            }
        }
    }
    if asked == 0 { Err("no request stands here".to_owned()) } else { Ok(()) }
}

/// Asks, every time; what was found instead of what was written.
fn becomes(gate: &Gate<MemoryStore<ManualClock>>, ask: &Ask<'_>) -> Result<(), String> {
    for nth in 1..=ask.times {
        let mut descriptor = Descriptor::new(ask.attributes.iter().copied());
        if let Some(cost) = ask.cost {
            descriptor = descriptor.cost(cost);
        }
        for (name, units) in &ask.named_costs {
            descriptor = descriptor.with_cost(name, *units);
        }
        let request = Request::new(ask.domain, descriptor);
        let found = match ask.is_report {
            true => reported(&gate.report_now(&request)),
            false => told(&gate.check_now(&request)),
        };
        // What is left need not be told; which rule denies, and until when, has to be.
        let untold = ask.outcome == "allowed" && found.starts_with("allowed, ");
        if !untold && found != ask.outcome {
            return Err(format!("{found}, at request {nth}"));
        }
    }
    Ok(())
}

/// What became of a request, as one writes it.
fn told(ruling: &Ruling) -> String {
    let decision = ruling.decision();
    match (decision.is_allowed(), ruling.binding()) {
        (true, Some(_)) => format!("allowed, {} left", decision.remaining()),
        (true, None) if ruling.limits().next().is_some() => "allowed".to_owned(),
        (true, None) => "not counted".to_owned(),
        (false, binding) => {
            let rule = binding.map_or("", |limit| limit.rule.name());
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

/// The result of a report, as it is written.
fn reported(ruling: &Ruling) -> String {
    let limits = ruling.limits();
    let limits: Vec<String> = limits
        .map(|one| format!("{} {} left", one.policy_name(), one.outcome.remaining()))
        .collect();
    format!(
        "reported: {}",
        if limits.is_empty() { "nothing".to_owned() } else { limits.join(", ") }
    )
}

fn line(text: &str) -> Result<Line<'_>, String> {
    let wrong = |what: &str| format!("`{text}`: {what}");
    if let Some(span) = text.strip_prefix('+') {
        let span: Quota = format!("1/{span}").parse().map_err(|_| wrong("not a time"))?;
        return Ok(Line::Pass(span.window()));
    }
    let (request, outcome) = text.split_once("->").ok_or_else(|| wrong("no `->`"))?;
    let mut ask = Ask {
        times: 1,
        is_report: false,
        domain: "default",
        cost: None,
        named_costs: Vec::new(),
        attributes: Vec::new(),
        outcome: outcome.trim(),
    };
    let mut words = request.split_whitespace().peekable();
    if let Some(times) = words.peek().and_then(|word| word.strip_suffix('x')) {
        ask.times = times.parse().ok().filter(|times| *times > 0).ok_or_else(|| wrong("times"))?;
        words.next();
    }
    ask.is_report = words.next_if_eq(&"report").is_some();
    for word in words {
        match word.split_once('=').ok_or_else(|| wrong("an attribute is name=value"))? {
            ("cost", cost) => ask.cost = Some(cost.parse().map_err(|_| wrong("not a cost"))?),
            (name, cost) if name.starts_with("cost.") => {
                let units = cost.parse().map_err(|_| wrong("not a cost"))?;
                ask.named_costs.push((&name["cost.".len()..], units));
            }
            ("domain", domain) => ask.domain = domain,
            attribute => ask.attributes.push(attribute),
        }
    }
    Ok(Line::Ask(ask))
}

#[test]
fn request_lines_are_parsed() {
    assert_eq!(line("+90s").unwrap(), Line::Pass(Duration::from_secs(90)));
    let Line::Ask(ask) = line("3x cost=0 domain=api a=b c=d=e -> denied by x, for good").unwrap()
    else {
        panic!("a request");
    };
    assert_eq!((ask.times, ask.cost, ask.domain), (3, Some(0), "api"));
    assert_eq!(ask.attributes, [("a", "b"), ("c", "d=e")]);
    assert_eq!(ask.outcome, "denied by x, for good");
    for wrong in [
        "+soon",
        "a=b",
        "x a=b -> allowed",
        "0x a=b -> allowed",
        "a -> allowed",
        "cost=a -> allowed",
    ] {
        assert!(line(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn wrong_request_outcomes_are_errors() {
    let block = |language: &str, text: &str| {
        crate::markdown::blocks(&format!("```{language}\n{text}\n```\n")).remove(0)
    };
    let policy = block("yaml", "rules:\n  - { name: a, per: [u], limits: [2/min] }");
    for (text, right) in [
        (
            "2x u=1 -> allowed\nu=1 -> denied by a, retry after 90s\n+90s\nu=1 -> allowed, 0 left",
            true,
        ),
        (
            "u=1 -> allowed, 1 left\nother=1 -> not counted\ncost=3 u=1 -> denied by a, for good",
            true,
        ),
        ("3x u=1 -> allowed", false),
        ("u=1 -> allowed, 2 left", false),
        ("2x u=1 -> allowed\nu=1 -> denied by b, retry after 90s", false),
        ("2x u=1 -> allowed\nu=1 -> denied by a, retry after 89s", false),
        ("2x u=1 -> allowed\nu=1 -> denied", false),
        ("other=1 -> allowed", false),
        ("u=1 -> welcome", false),
        ("# nothing", false),
    ] {
        let held = check(&policy, &block("requests", text));
        assert_eq!(held.is_ok(), right, "{text}: {held:?}");
    }
}
