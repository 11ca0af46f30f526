//! Tests of the access rights in share-limits-through-redis.md: they are exactly the commands that slidegate sends, and
//! a user with these rights can run every operation.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use slidegate::store::{Adjustment, Edit, Hit, Key, PermitChange, Scope, Value};
use slidegate::testkit::{conformance, permits};
use slidegate::{
    ActualCosts, Algorithm, Descriptor, Gate, Limit, ManualClock, Policy, Quota, Request, Store,
};
use slidegate_redis::{RedisSettings, RedisStore};

use crate::calls::fixture::{TestRequest, decided, identity, settlement};
use crate::server::cluster::Cluster;
use crate::server::sentinel::Service;
use crate::server::{LONG, Redis};

const PAGE: &str = include_str!("../../../../docs/how-to/share-limits-through-redis.md");

/// The documented lines, without the name of the command: of every server, of the nodes of a Cluster, of the servers
/// that Sentinels monitor, and of the Sentinels.
fn documented_lines() -> Vec<Vec<&'static str>> {
    let lines = PAGE.lines().filter(|line| line.starts_with("ACL SETUSER slidegate"));
    let lines: Vec<Vec<&str>> = lines.map(|line| line.split(' ').collect()).collect();
    assert_eq!(lines.len(), 4, "lines in the page");
    lines
}

/// Returns the commands that a line allows, such as `get` and `cluster|slots`.
fn allowed_commands(line: &[&'static str]) -> BTreeSet<String> {
    line.iter().filter_map(|word| word.strip_prefix('+')).map(str::to_owned).collect()
}

fn source_files(folder: &str, extension: &str) -> Vec<PathBuf> {
    fn collect(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, extension, found);
            } else if path.extension().is_some_and(|end| end == extension) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), extension, &mut found);
    assert!(!found.is_empty(), "{folder}");
    found
}

/// Returns the words in upper case that follow one of these texts.
fn words_after<'s>(source: &'s str, before: &[&str]) -> BTreeSet<&'s str> {
    let mut found = BTreeSet::new();
    for before in before {
        for (at, _) in source.match_indices(before) {
            let rest = &source[at + before.len()..];
            let end = rest.find(|char: char| !char.is_ascii_uppercase()).unwrap();
            assert!(end > 0, "not the literal name of a command: {before}{:.60}", rest);
            found.insert(&rest[..end]);
        }
    }
    found
}

/// Returns the commands that the scripts call, in lower case.
fn commands_of_scripts() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in source_files("lua", "lua") {
        let source = std::fs::read_to_string(&path).unwrap();
        // `redis.call`, `redis.pcall`, and the local variable `call`.
        let mut calls = words_after(&source, &["call('"]);
        for other in ["redis.call(", "redis.pcall("] {
            calls.extend(words_after(&source, &[&format!("{other}'")]));
            let all = source.matches(other).count();
            assert_eq!(all, source.matches(&format!("{other}'")).count(), "{}", path.display());
        }
        found.extend(calls.into_iter().map(str::to_lowercase));
    }
    found
}

/// Returns the commands that a source file sends, in lower case: `cluster|slots` if the first argument is in upper case.
fn commands_of_rust_file(name: &str) -> BTreeSet<String> {
    let paths = source_files("src", "rs");
    let path = paths.iter().find(|path| path.ends_with(format!("src/{name}"))).unwrap();
    let source = std::fs::read_to_string(path).unwrap();
    let source = source.split("#[cfg(test)]").next().unwrap();
    let commands = words_after(source, &["cmd(\"", ".command(\""]).into_iter().map(|command| {
        let (_, rest) = source.split_once(&format!("\"{command}\")")).unwrap_or(("", ""));
        // The subcommand is the first argument, on the same line or soon after.
        let rest = rest.lines().take(3).collect::<String>();
        let argument = rest.split_once(".arg(\"").map_or("", |(_, rest)| rest);
        let argument = argument.split('"').next().unwrap_or_default();
        let is_subcommand =
            argument.len() > 2 && argument.bytes().all(|byte| byte.is_ascii_uppercase());
        if is_subcommand {
            format!("{command}|{argument}").to_lowercase()
        } else {
            command.to_lowercase()
        }
    });
    commands.collect()
}

fn set(commands: &[&str]) -> BTreeSet<String> {
    commands.iter().map(|&command| command.to_owned()).collect()
}

/// Every client may send `HELLO` and `AUTH`. The `redis` crate sends `SELECT` if the address has a database. It sends
/// `CLIENT SETINFO`, whose failure has no effect, only without a login.
#[test]
fn documented_rights_equal_commands_in_sources() {
    let senders: BTreeSet<String> = source_files("src", "rs")
        .iter()
        .map(|path| path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap())
        .map(|path| path.to_str().unwrap().to_owned())
        .filter(|name| name != "bench_api.rs" && !commands_of_rust_file(name).is_empty())
        .collect();
    let expected = set(&["cluster.rs", "connection.rs", "execution.rs", "sentinel.rs"]);
    assert_eq!(senders, expected, "commands elsewhere");
    let executed = commands_of_rust_file("execution.rs");
    let from_sentinel = commands_of_rust_file("sentinel.rs");
    assert_eq!(executed, set(&["eval", "evalsha"]));
    assert_eq!(commands_of_rust_file("connection.rs"), set(&["asking"]));
    assert_eq!(from_sentinel, set(&["role", "sentinel|master"]));

    let lines = documented_lines();
    let [server, node, monitored, sentinel] = &lines[..] else { panic!("four lines") };
    let mut expected = commands_of_scripts();
    expected.extend(set(&["eval", "evalsha", "select"]));
    assert_eq!(allowed_commands(server), expected);
    let mut expected = commands_of_rust_file("cluster.rs");
    expected.insert("asking".to_owned());
    assert_eq!(allowed_commands(node), expected);
    assert_eq!(allowed_commands(monitored), set(&["role"]));
    assert_eq!(allowed_commands(sentinel), set(&["sentinel|master"]));
}

fn settings() -> RedisSettings {
    let expiry_margin = Duration::from_secs(1_000_000);
    let (timeout, deny_cache_ttl) = (LONG, Duration::ZERO);
    RedisSettings { timeout, deny_cache_ttl, expiry_margin, ..RedisSettings::default() }
}

/// Runs every operation on each algorithm alone and on all together, below and above the limit.
async fn run_operations_on_counters(address: &str) {
    let store = RedisStore::open(address, settings()).unwrap();
    let scope = Scope::new("access", "rule", "limit", &["client"]);
    let key = Key::new(&scope, &[Value::Text("all")]);
    for max in [10, 1_000] {
        let quota = Quota::new(max, Duration::from_secs(60)).unwrap();
        let limits = Algorithm::ALL.map(|algorithm| Limit::new(quota, algorithm).unwrap());
        let hits = limits.each_ref().map(|limit| Hit::new(key, limit, 1));
        for hit in &hits {
            let taken = store.charge_async(&[*hit]).await.unwrap();
            store.adjust_async(&taken.receipt, Adjustment::Revert).await.unwrap();
            store.peek_async(&[*hit]).await.unwrap();
            let taken = store.charge_async(&[*hit]).await.unwrap();
            store.adjust_async(&taken.receipt, Adjustment::SetCost(3)).await.unwrap();
            store.edit_async(&[*hit], Edit::Refund).await.unwrap();
            let too_much = Hit { cost: max, required: max, ..*hit };
            assert!(!store.charge_async(&[too_much]).await.unwrap().allowed);
        }
        assert!(store.charge_async(&hits).await.unwrap().allowed);
        store.charge_many_async(&[&hits, &hits[..1]]).await.unwrap();
        store.edit_async(&hits, Edit::Reset).await.unwrap();
    }
}

/// Runs calls with ids and settlements, also on one algorithm alone and, in a Cluster, over several slots.
async fn run_calls_with_ids(address: &str) {
    let store = RedisStore::open(address, settings()).unwrap();
    let mut call = 0;
    for clients in [1, 3] {
        let request = TestRequest::new(clients);
        let hits = request.hits(10);
        let singles = hits.chunks(1).chain([&hits[..]]);
        for hits in singles {
            call += 1;
            for _ in 0..2 {
                store.charge_once_async(hits, &identity(call)).await.unwrap();
            }
            call += 1;
            let result = store.charge_once_async(hits, &identity(call)).await.unwrap();
            let receipt = decided(result).receipt;
            // The record exists. Then it is created: by settlements that revert units, and that add units.
            for (id, cost) in [(call, 4), (call + 1, 4), (call + 2, 25)] {
                for _ in 0..2 {
                    store.settle_async(&settlement(id, &receipt, cost)).await.unwrap();
                }
            }
            call += 2;
        }
    }
}

async fn run_permits(address: &str) {
    let store = RedisStore::open(address, settings()).unwrap();
    let scope = Scope::new("access", "streams", "in-flight", &["user"]);
    let limit = Limit::concurrent(2, Duration::from_secs(60)).unwrap();
    let hit = Hit::new(Key::new(&scope, &[Value::Text("ann")]), &limit, 1);
    let taken = [(); 2].map(|()| store.charge_async(std::slice::from_ref(&hit)));
    let taken = join_all(taken).await;
    assert!(!store.charge_async(&[hit]).await.unwrap().allowed);
    for taken in taken {
        let permit = taken.unwrap().receipt;
        assert!(store.change_permit_async(&permit, PermitChange::Renew).await.unwrap());
        assert!(store.change_permit_async(&permit, PermitChange::Release).await.unwrap());
    }
    store.edit_async(&[hit], Edit::Reset).await.unwrap();
}

/// Sends concurrent requests, which share calls, for rules with several limits, sampled and split keys.
async fn run_requests_of_policy(address: &str) {
    let rules = "rules:
      - { name: slots, per: [tenant], limits: [1000/min, 2000/h], algorithm: token_bucket }
      - { name: sampled, per: [tenant], limits: [1000/min], redis: { sample: 50% } }
      - { name: split, per: [tenant], limits: [1000/min], redis: { split: { by: [route], into: 4 } } }
      - { name: joint, per: [route], limits: [1000/min], mode: jointly }
      - { name: streams, per: [tenant], limits: [{ concurrent: 1000, permit_ttl: 60s }] }";
    let store = RedisStore::open(address, settings()).unwrap();
    let gate = Gate::new(Policy::from_yaml(rules).unwrap(), store);
    let tenants: Vec<String> = (0..8).map(|nth| nth.to_string()).collect();
    let request =
        |tenant| Request::new("default", Descriptor::new([("tenant", tenant), ("route", "a")]));
    let requests: Vec<Request<'_>> =
        tenants.iter().map(|tenant| request(tenant.as_str())).collect();
    for _ in 0..5 {
        let decisions =
            join_all(requests.iter().chain(&requests).map(|it| gate.check_async(it))).await;
        assert!(decisions.iter().all(|decision| decision.is_allowed() && !decision.is_degraded()));
    }
    for request in &requests {
        let reservation = gate.reserve_async(request).await.unwrap();
        assert!(!reservation.decision().is_degraded());
        reservation.settle_async(&ActualCosts::new().cost(2)).await.unwrap();
        assert!(!gate.report_async(request).await.is_degraded());
        assert!(!gate.peek_async(request).await.is_degraded());
        gate.refund_async(request).await.unwrap();
        gate.reset_async(request).await.unwrap();
        let guard = gate.acquire_async(request).await.unwrap();
        assert!(guard.renew_async().await.unwrap());
        assert!(guard.release_async().await.unwrap());
    }
}

/// Runs every operation of a store, including random ones.
async fn run_all_operations(address: &str) {
    run_operations_on_counters(address).await;
    run_calls_with_ids(address).await;
    run_permits(address).await;
    run_requests_of_policy(address).await;
    for seed in 0..8 {
        let clock = ManualClock::default();
        let settings = RedisSettings {
            prefix: format!("slidegate:{seed}:"),
            max_clock_skew: Duration::ZERO,
            ..settings()
        };
        let store = RedisStore::open(address, settings).unwrap().with_clock(clock.clone());
        let algorithms = &conformance::ALL_ALGORITHMS;
        conformance::run_trace(&store, &clock, algorithms, seed, 200).await.unwrap();
        permits::permits_stay_below_max(&store, &clock, seed).await;
    }
}

/// Asserts that a server has denied no command.
fn assert_nothing_was_denied(server: &Redis) {
    let denied: Vec<redis::Value> = server.try_command(&["ACL", "LOG"]).unwrap();
    assert!(denied.is_empty(), "{denied:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documented_user_runs_all_operations() {
    let redis = Redis::start();
    redis.command(&documented_lines()[0]);
    let address = redis.address().replace("//", "//slidegate:password@");
    run_all_operations(&address).await;
    // With a database, `SELECT` is called.
    run_permits(&format!("{address}1")).await;
    assert_nothing_was_denied(&redis);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documented_user_runs_all_operations_in_cluster() {
    let cluster = Cluster::start();
    for node in &cluster.nodes {
        node.command(&documented_lines()[0]);
        node.command(&documented_lines()[1]);
    }
    let address = cluster.address().replace("//", "//slidegate:password@");
    run_all_operations(&address).await;
    cluster.nodes.iter().for_each(|node| assert_nothing_was_denied(node));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documented_user_runs_all_operations_with_sentinels() {
    let service = Service::start();
    let lines = documented_lines();
    for node in [service.master(), service.replica()] {
        node.command(&lines[0]);
        node.command(&lines[2]);
    }
    service.sentinels.iter().for_each(|sentinel| drop(sentinel.command(&lines[3])));
    let address = service.address().replace("//", "//slidegate:password@");
    run_all_operations(&format!("{address}?sentinel_user=slidegate&sentinel_pass=password")).await;
    assert_nothing_was_denied(service.master());
    service.sentinels.iter().for_each(assert_nothing_was_denied);
}
