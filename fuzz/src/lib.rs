//! What has to be true of any text as a policy; and, in [`cluster`], of any bytes that reach a node.

pub mod cluster;
pub mod message;
pub mod parts;

use slidegate::policy::{Condition, Rule};
use slidegate::{Descriptor, Gate, ManualClock, MemoryStore, Policy, PolicyError, Request};

/// Rules whose requests are tried.
const TRIED: usize = 16;

/// Reads the text, and tries what it gives. A panic is a finding; what takes long, libFuzzer finds.
pub fn hold(text: &str) {
    match Policy::from_yaml(text) {
        Ok(policy) => try_out(policy, text),
        Err(errors) => {
            assert!(!errors.0.is_empty(), "an error says what is wrong");
            assert!(errors.0.len() <= 1_001, "{} mistakes", errors.0.len());
            errors.0.iter().for_each(|error| hold_error(error, text));
            assert!(!errors.to_string().is_empty());
        }
    }
}

/// It has a place within the text, and shows it.
fn hold_error(error: &PolicyError, text: &str) {
    let lines = text.lines().count() as u64;
    assert!((1..=lines.max(1)).contains(&error.line), "{}: {}", error.line, error.message);
    assert!(error.column > 0 && !error.message.is_empty() && !error.to_string().is_empty());
    let shown = if lines == 0 { 0 } else { 2 };
    assert_eq!(error.excerpt().lines().count(), shown, "{:?}", error.excerpt());
}

/// Makes requests that its rules are for, and of the text's tail, and has them decided.
fn try_out(policy: Policy, text: &str) {
    let tail: Vec<&str> = text.lines().next_back().unwrap_or_default().split(' ').collect();
    let gate = Gate::new(policy, MemoryStore::with_clock(ManualClock::default(), 100));
    let rules = gate.policy().rules();
    let step = rules.len().div_ceil(TRIED).max(1);
    for rule in rules.iter().step_by(step) {
        for values in [&[][..], &tail] {
            let descriptor = Descriptor::new(attributes(rule, values));
            let costs = [0, 1, u64::MAX].map(|cost| descriptor.clone().cost(cost));
            decide(&gate, &Request::new(rule.domain(), descriptor));
            decide(&gate, &Request::with_descriptors(rule.domain(), costs));
        }
    }
    let of_tail = Descriptor::new(["path", "ip", "route", "method"].into_iter().zip(tail));
    decide(&gate, &Request::new("default", of_tail));
}

fn decide(gate: &Gate<MemoryStore<ManualClock>>, request: &Request<'_>) {
    let policy = gate.policy();
    let applied = policy.apply(request);
    let explained = policy.explain(request).filter(|(_, fit)| fit.is_ok()).count();
    assert_eq!(applied.matches().count(), explained, "the index finds every rule that applies");
    let hits = applied.hits();
    for hit in &hits {
        assert!(!hit.key.to_string().is_empty());
        let placed = hit.key.hash_tagged_identity().to_string();
        assert_eq!(placed.matches(['{', '}']).count(), 2, "{placed}");
        let split = hit.key.redis().and_then(|settings| settings.split_into());
        assert_eq!(hit.key.part().is_some(), split.is_some(), "{placed}");
        assert_eq!(hit.key.share().is_some(), split.is_some(), "{placed}");
    }
    let ruling = gate.check_matched_now(&applied);
    assert_eq!(ruling.limits().count(), hits.len());
    assert!(ruling.decision().is_allowed() || ruling.binding().is_some(), "a limit denies");
    let _ = (ruling.decision().retry_after(), gate.peek_now(request));
}

/// Attributes that a rule or its overrides ask for: with these values, else as the rule wants them.
fn attributes<'r>(rule: &'r Rule, values: &[&'r str]) -> Vec<(&'r str, &'r str)> {
    let overrides = rule.overrides().iter().take(TRIED).flat_map(|own| own.when().conditions());
    let wanted = rule.when().conditions().chain(overrides);
    let wanted = wanted.map(|(name, condition)| (name, as_wanted(condition)));
    let per = rule.per().entries().iter().flat_map(|entry| entry.names().take(1));
    let all = wanted.chain(per.map(|name| (name, "2001:db8::1")));
    let value = |nth: usize, own| values.get(nth % values.len().max(1)).copied().unwrap_or(own);
    all.enumerate().map(|(nth, (name, own))| (name, value(nth, own))).collect()
}

/// Its first pattern: a glob matches itself, and a network's own address is in it.
fn as_wanted(condition: &Condition) -> &str {
    let pattern = condition.patterns().next().unwrap_or_default();
    pattern
        .rsplit_once('/')
        .filter(|(ip, _)| ip.parse::<std::net::IpAddr>().is_ok())
        .map_or(pattern, |(ip, _)| ip)
}
