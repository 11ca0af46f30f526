//! The policy changes all the time under full load. Every answer comes from one policy, whole and good; no
//! count is lost, and no request fails.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{env, thread};

use serde_json::Value;
use slidegate::{Clock, Policy, SystemClock};

use crate::client::{Raw, raw_check};
use crate::folder::{Folder, Followed};

const EVERY: Duration = Duration::from_millis(50);
const CONNECTIONS: usize = 4;

/// Of so many requests of a tenant, so many pass, whatever the policy was meanwhile.
const ASKED: u64 = 100;
const MAX: u64 = 30;

/// One of the two policies. What every request is counted by stands at its end.
fn policy(which: char) -> String {
    let max = max_of(which);
    let fillers = (0..50)
        .map(|nth| format!("  - {{ name: {which}-{nth}, domain: else, limits: [{nth}/s] }}\n"));
    format!(
        "rules:
  - {{ name: bound, per: [tenant], limits: [{MAX}/d], algorithm: sliding_log }}
  - {{ name: first, limits: [{max}/d] }}
  - {{ name: only-{which}, limits: [500000000/d] }}
{}  - {{ name: end, limits: [{max}/d] }}
",
        fillers.collect::<String>()
    )
}

fn max_of(which: char) -> u64 {
    if which == 'a' { 400_000_000 } else { 300_000_000 }
}

/// All but the rule at the end: a policy, too.
fn torn(good: &str) -> &str {
    &good[..good.find("  - { name: end").unwrap()]
}

/// What a client saw: verdicts by rule and outcome, and requests by whether they passed.
#[derive(Default)]
struct Seen {
    verdicts: BTreeMap<(String, &'static str), u64>,
    requests: BTreeMap<&'static str, u64>,
    by_policy: BTreeMap<String, u64>,
}

impl Seen {
    fn add(&mut self, other: Self) {
        for (key, count) in other.verdicts {
            *self.verdicts.entry(key).or_default() += count;
        }
        for (key, count) in other.requests {
            *self.requests.entry(key).or_default() += count;
        }
        for (key, count) in other.by_policy {
            *self.by_policy.entry(key).or_default() += count;
        }
    }

    fn total(&self) -> u64 {
        self.requests.values().sum()
    }

    /// Sees the answer to the nth request of a tenant.
    fn see(&mut self, nth: u64, status: u16, answer: &Value) {
        let allowed = nth < MAX;
        assert_eq!(
            status,
            if allowed { 200 } else { 429 },
            "request {nth} of its tenant: {answer}"
        );
        *self.requests.entry(if allowed { "allowed" } else { "denied" }).or_default() += 1;
        let limits = answer["limits"].as_array().unwrap();
        let rules: Vec<&str> = limits.iter().map(|one| one["rule"].as_str().unwrap()).collect();
        let which = rules[2].strip_prefix("only-").unwrap();
        assert_eq!([rules[0], rules[1], rules[3]], ["bound", "first", "end"], "{answer}");
        let max = max_of(which.chars().next().unwrap());
        for place in [1, 3] {
            assert_eq!(limits[place]["limit"]["max"], max, "parts of two policies: {answer}");
        }
        assert_eq!(limits[0]["remaining"], MAX.saturating_sub(nth + 1), "{answer}");
        *self.by_policy.entry(which.into()).or_default() += 1;
        for limit in limits {
            let outcome = match limit["allowed"].as_bool().unwrap() {
                true if allowed => "allowed",
                true => continue,
                false => "denied",
            };
            let rule = limit["rule"].as_str().unwrap().to_owned();
            *self.verdicts.entry((rule, outcome)).or_default() += 1;
        }
    }
}

/// One connection's requests, tenant after tenant, until it is over.
fn ask(address: SocketAddr, connection: usize, over: &AtomicBool) -> Seen {
    let (mut raw, mut seen) = (Raw::connect(address), Seen::default());
    for tenant in 0.. {
        let body = format!(r#"{{"attributes":{{"tenant":"{connection}-{tenant}"}}}}"#);
        let request = raw_check(&body);
        for nth in 0..ASKED {
            if over.load(Ordering::Relaxed) {
                return seen;
            }
            raw.write(&request);
            let (status, answer) = raw.response();
            seen.see(nth, status, &serde_json::from_str(&answer).unwrap());
        }
    }
    seen
}

/// Changes the file, and now and then spoils it or writes it slowly; says how often it was a good one.
fn change(folder: &Folder, followed: &Followed, nth: u64) -> bool {
    let good = policy(if nth.is_multiple_of(2) { 'a' } else { 'b' });
    match nth % 10 {
        3 => {
            // A policy without the rule at the end, until it is whole.
            let torn = torn(&good);
            let mut file = folder.begin(torn);
            followed.server.signal("HUP");
            thread::sleep(EVERY / 2);
            file.write_all(&good.as_bytes()[torn.len()..]).unwrap();
            return true;
        }
        5 => folder.put(""),
        7 => folder.put(&good[..good.len() / 2]),
        8 => folder.put(&good.replace("500000000/d", "500000000/x")),
        9 => folder.write(&good),
        _ => folder.put(&good),
    }
    if nth.is_multiple_of(3) {
        followed.server.signal("HUP");
    }
    ![5, 7, 8].contains(&(nth % 10))
}

#[test]
fn frequent_reloads_lose_no_requests_or_counts() {
    let seconds = env::var("RELOAD_SECONDS").map_or(10, |text| text.parse().unwrap());
    let is_policy = |text: &str| Policy::from_yaml(text).is_ok();
    for good in ['a', 'b'].map(policy) {
        assert!(is_policy(&good) && is_policy(torn(&good)) && !is_policy(&good[..good.len() / 2]));
    }
    let folder = Folder::with(&policy('a'));
    let followed = folder.serve(&["--max-keys", "10000000"]);
    let (over, clock) = (AtomicBool::new(false), SystemClock::new());
    let (mut seen, mut changes, mut good) = (Seen::default(), 0, 0);
    let address = followed.server.address();
    thread::scope(|scope| {
        let over = &over;
        let clients: Vec<_> =
            (0..CONNECTIONS).map(|nth| scope.spawn(move || ask(address, nth, over))).collect();
        let end = clock.now().after(Duration::from_secs(seconds));
        // A client that fails ends it, too.
        while clock.now() < end && !clients.iter().any(|client| client.is_finished()) {
            thread::sleep(EVERY);
            changes += 1;
            good += u64::from(change(&folder, &followed, changes));
        }
        over.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| seen.add(client.join().unwrap()));
    });
    let reloads = ["changed", "unchanged", "failed"].map(|result| followed.reloads(result));
    println!(
        "{seconds} s: {} requests, none failed, by policy {:?}; {changes} changes, {good} of them good; reloads {} changed, {} unchanged, {} failed",
        seen.total(),
        seen.by_policy,
        reloads[0],
        reloads[1],
        reloads[2],
    );
    for ((rule, outcome), count) in &seen.verdicts {
        let told = followed.metric(&format!(
            r#"slidegate_decisions_total{{domain="default",rule="{rule}",limit="1d",outcome="{outcome}"}}"#
        ));
        assert_eq!(told, *count, "{rule} {outcome}");
    }
    for (result, count) in &seen.requests {
        let name = format!(r#"slidegate_requests_total{{protocol="http",result="{result}"}}"#);
        assert_eq!(followed.metric(&name), *count, "{result}");
    }
    assert_eq!(followed.metric("slidegate_requests_total"), seen.total());
    // Changes that come too soon after each other are joined, but on a busy machine not most of them.
    let [changed, _, failed] = reloads;
    assert!(changed >= good / 4 && failed >= (changes - good) / 4, "{reloads:?}");
    assert!(seen.by_policy.len() == 2 && seen.requests.len() == 2, "{:?}", seen.by_policy);
}
