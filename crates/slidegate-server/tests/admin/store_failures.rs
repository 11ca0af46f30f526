//! Tests of calls that Redis rejects: the class of the error in the metric and the log, the circuit breaker and the
//! readiness.

use std::cell::RefCell;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::admin::samples::MetricSamples;
use crate::common::Server;
use crate::http::client::Client;
use crate::redis_server::cluster::Cluster;
use crate::redis_server::sentinel::Service;
use crate::redis_server::{Folder, Redis, wait_until};

const POLICY: &str = "rules: [{ name: a, per: [tenant], limits: [1000/h] }]";

/// A server that counts in Redis, and the log lines that the test has read.
struct Observed {
    server: Server,
    client: Client,
    log: RefCell<Vec<Value>>,
}

impl Observed {
    fn start(store: &str, flags: &[&str]) -> Self {
        Self::start_with_timeout(store, "2s", flags)
    }

    fn start_with_timeout(store: &str, timeout: &str, flags: &[&str]) -> Self {
        let always = ["--store", store, "--redis-timeout", timeout, "--log-format", "json"];
        let always = [&always[..], &["--deny-cache-ttl", "0s"], flags].concat();
        let server = Server::start_with_admin(POLICY, &always);
        let client = Client::new(&server);
        let log = server.startup_log().iter().map(|line| serde_json::from_str(line).unwrap());
        Self { client, log: RefCell::new(log.collect()), server }
    }

    /// Checks a request, and returns whether the decision was made without Redis.
    fn is_degraded(&self, tenant: &str) -> bool {
        let response = self.client.check(&json!({ "attributes": { "tenant": tenant } }));
        response.json()["degraded"].as_bool().unwrap()
    }

    fn errors(&self, class: &str) -> f64 {
        let labels = format!(r#"{{store="redis",class="{class}"}}"#);
        MetricSamples::scrape(&self.server).get(&format!("slidegate_store_errors_total{labels}"))
    }

    fn is_breaker_open(&self) -> bool {
        MetricSamples::scrape(&self.server).get(r#"slidegate_breaker_open{store="redis"}"#) == 1.0
    }

    fn is_reachable(&self) -> bool {
        let ready = Client::with_address(self.server.admin_address()).call("GET", "/readyz");
        ready.json()["store"]["reachable"].as_bool().unwrap()
    }

    /// Returns all log lines up to now.
    fn log(&self) -> Vec<Value> {
        let mut lines = self.log.borrow_mut();
        while let Some(line) = self.server.next_log_line(Duration::ZERO) {
            lines.push(
                serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")),
            );
        }
        lines.clone()
    }

    /// Returns the log lines whose message begins with a text, and that have a class. Waits until there is one.
    fn lines_of_class(&self, message: &str, class: &str) -> Vec<Value> {
        let is_wanted = |line: &Value| {
            line["message"].as_str().unwrap().contains(message) && line["class"] == class
        };
        let wanted = || self.log().into_iter().filter(is_wanted).collect::<Vec<_>>();
        for _ in 0..1_000 {
            if !wanted().is_empty() {
                return wanted();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("no line `{message}` with the class {class}: {:#?}", self.log());
    }

    /// Sends requests until the circuit breaker opens, and asserts that the cause is visible everywhere.
    fn assert_is_failure_of_server(&self, class: &str, remedy: &str) {
        let mut checks = 0;
        while !self.is_breaker_open() {
            assert!(self.is_degraded("ann"), "{:#?}", self.log());
            checks += 1;
            assert!(checks < 20, "{class}: the circuit breaker stays closed: {:#?}", self.log());
        }
        assert!(!self.is_reachable(), "{class}");
        assert!(self.errors(class) >= 5.0, "{class}: {:#?}", self.log());
        let lines = self.lines_of_class("a call to the store failed", class);
        // There are two lines if a minute ended during the test.
        assert!(lines.len() <= 2, "{lines:#?}");
        let shown = lines[0]["remedy"].as_str().unwrap();
        assert!(shown.contains(remedy), "{class}: {shown}");
        let opened = &self.lines_of_class("circuit breaker opened", class)[0];
        assert!(opened["error"].as_str().unwrap().contains(remedy), "{opened}");
    }
}

/// Starts a Redis and a server that has used it.
fn start_with_redis(redis: &Redis) -> Observed {
    let observed = Observed::start(&redis.address(), &[]);
    assert!(!observed.is_degraded("ann"));
    assert_eq!((observed.is_reachable(), observed.is_breaker_open()), (true, false));
    observed
}

#[test]
fn missing_command_permission_is_failure_of_server() {
    for missing in ["-get", "-set", "-setrange", "-evalsha"] {
        let redis = Redis::start();
        let rights = ["ACL", "SETUSER", "limited", "on", ">password", "~*", "+@all", missing];
        redis.command(&rights);
        let address = redis.address().replace("//", "//limited:password@");
        let observed = Observed::start(&address, &[]);
        // A charge that changes an existing value calls other commands than the first one.
        if missing == "-setrange" {
            assert!(!observed.is_degraded("ann"));
        }
        observed.assert_is_failure_of_server("noperm", "share-limits-through-redis");
        let line = &observed.lines_of_class("a call to the store failed", "noperm")[0];
        let error = line["error"].as_str().unwrap();
        assert!(error.contains("script can't run") || error.contains("'evalsha'"), "{line}");
    }
}

/// Concurrent requests of several limits run a script that reads values with `MGET`, and then with `GET`.
#[test]
fn missing_permission_in_shared_call_is_no_foreign_value() {
    let policy =
        "rules: [{ name: a, per: [tenant], limits: [1000/h, 2000/d], algorithm: token_bucket },
      { name: b, per: [tenant], limits: [1000/h] }]";
    let redis = Redis::start();
    redis.command(&["ACL", "SETUSER", "limited", "on", ">password", "~*", "+@all", "-get"]);
    let address = redis.address().replace("//", "//limited:password@");
    let observed = Observed::start(&address, &[]);
    std::fs::write(observed.server.policy_path(), policy).unwrap();
    observed.server.wait_for_log("the policy has changed");
    observed.assert_is_failure_of_server("noperm", "share-limits-through-redis");
    assert_eq!(observed.errors("foreign"), 0.0);
}

#[test]
fn missing_key_permission_is_failure_of_server() {
    let redis = Redis::start();
    redis.command(&["ACL", "SETUSER", "limited", "on", ">password", "~other:*", "+@all"]);
    let address = redis.address().replace("//", "//limited:password@");
    let observed = Observed::start(&address, &[]);
    observed.assert_is_failure_of_server("noperm", "share-limits-through-redis");
}

#[test]
fn missing_password_is_failure_of_server() {
    let redis = Redis::with_args(&["--requirepass", "right"]);
    Observed::start(&redis.address(), &[]).assert_is_failure_of_server("wrongpass", "password");
}

#[test]
fn wrong_password_is_failure_of_server() {
    let redis = Redis::with_args(&["--requirepass", "right"]);
    let address = redis.address().replace("//", "//:wr0ng@");
    let observed = Observed::start_with_timeout(&address, "200ms", &[]);
    let line = &observed.lines_of_class("Redis has not been reachable", "wrongpass")[0];
    assert!(line["remedy"].as_str().unwrap().contains("password"), "{line}");
    let lines = observed.log();
    assert!(
        !lines.iter().any(|line| line.to_string().contains("check the store, its address")),
        "{lines:#?}"
    );
    observed.assert_is_failure_of_server("wrongpass", "password");
    assert!(observed.log().iter().all(|line| !line.to_string().contains("wr0ng")));
}

#[test]
fn wrong_password_in_cluster_is_named() {
    let redis = Redis::with_args(&["--cluster-enabled", "yes", "--requirepass", "right"]);
    let address = format!("redis+cluster://:wr0ng@127.0.0.1:{}", redis.port());
    let observed = Observed::start_with_timeout(&address, "200ms", &[]);
    let line = &observed.lines_of_class("the slot map", "wrongpass")[0];
    assert!(line["remedy"].as_str().unwrap().contains("password"), "{line}");
    assert!(observed.is_degraded("ann"));
    assert_eq!(observed.errors("wrongpass"), 1.0, "{:#?}", observed.log());
    let line = &observed.lines_of_class("a call to the store failed", "wrongpass")[0];
    assert!(line["remedy"].as_str().unwrap().contains("password"), "{line}");
}

#[test]
fn wrong_sentinel_password_is_named() {
    let service = Service::start();
    for sentinel in &service.sentinels {
        sentinel.command(&["ACL", "SETUSER", "slidegate", "on", ">right", "+@all"]);
    }
    let address = format!("{}?sentinel_user=slidegate&sentinel_pass=wr0ng", service.address());
    let observed = Observed::start_with_timeout(&address, "200ms", &[]);
    let line = &observed.lines_of_class("Redis has not been reachable", "wrongpass")[0];
    assert!(line["error"].as_str().unwrap().contains("Sentinel"), "{line}");
    observed.assert_is_failure_of_server("wrongpass", "sentinel_pass");
    let lines = observed.log();
    for absent in ["check the Sentinel addresses", "check the store, its address", "wr0ng"] {
        assert!(
            !lines.iter().any(|line| line.to_string().contains(absent)),
            "{absent}: {lines:#?}"
        );
    }
}

#[test]
fn full_memory_is_failure_of_server() {
    let redis = Redis::start();
    let observed = start_with_redis(&redis);
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    observed.assert_is_failure_of_server("oom", "maxmemory");
}

#[test]
fn replica_is_failure_of_server() {
    let (redis, master) = (Redis::start(), Redis::start());
    let observed = start_with_redis(&redis);
    redis.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    observed.assert_is_failure_of_server("readonly", "replica");
}

#[test]
fn unwritable_folder_of_redis_is_failure_of_server() {
    let folder = Folder::new();
    let data = folder.file("data");
    std::fs::create_dir(&data).unwrap();
    let redis = Redis::with_args(&["--dir", &data]);
    let observed = start_with_redis(&redis);
    redis.command(&["CONFIG", "SET", "save", "3600 1"]);
    std::fs::remove_dir_all(&data).unwrap();
    redis.command(&["BGSAVE"]);
    wait_until("saving has failed", || {
        let info: String = redis.try_command(&["INFO", "persistence"]).unwrap();
        info.contains("rdb_last_bgsave_status:err")
    });
    observed.assert_is_failure_of_server("misconf", "stop-writes-on-bgsave-error");
}

#[test]
fn too_few_replicas_is_failure_of_server() {
    let redis = Redis::start();
    let observed = start_with_redis(&redis);
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    observed.assert_is_failure_of_server("noreplicas", "min-replicas-to-write");
}

#[test]
fn blocking_script_is_failure_of_server() {
    let redis = Redis::start();
    let observed = start_with_redis(&redis);
    redis.command(&["CONFIG", "SET", "busy-reply-threshold", "1"]);
    let mut blocking = TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
    blocking.write_all(b"EVAL \"while true do end\" 0\r\n").unwrap();
    wait_until("Redis is busy", || {
        let reply = redis
            .try_connection()
            .and_then(|mut connection| redis::cmd("GET").arg("a").exec(&mut connection));
        reply.is_err_and(|error| error.to_string().contains("BUSY"))
    });
    observed.assert_is_failure_of_server("busy", "SCRIPT KILL");
    redis.command(&["SCRIPT", "KILL"]);
    wait_until("Redis decides again", || !observed.is_degraded("ann"));
}

#[test]
fn slot_without_master_is_failure_of_server() {
    let mut cluster = Cluster::start();
    let observed = Observed::start(&cluster.address(), &[]);
    wait_until("the cluster decides", || !observed.is_degraded("ann"));
    let key = "slidegate:default:a:{tenant=ann}:log";
    let shard = cluster.shard_of(cluster.slot_of(key));
    cluster.nodes[shard.replica].kill();
    let node = &cluster.nodes[shard.master];
    let (first, last): (u16, u16) = (0, 16_383);
    node.command(&["CLUSTER", "DELSLOTSRANGE", &first.to_string(), &last.to_string()]);
    wait_until("the slot has no master", || {
        let _ = observed.is_degraded("ann");
        observed.errors("clusterdown") >= 1.0
    });
    let line = &observed.lines_of_class("a call to the store failed", "clusterdown")[0];
    assert!(line["remedy"].as_str().unwrap().contains("CLUSTER SLOTS"), "{line}");
}

/// Writes a value of another program to all keys of a tenant, and returns their names.
fn spoil_keys(redis: &Redis, command: &str) -> Vec<String> {
    let keys = redis.keys();
    for key in &keys {
        redis.command(&["DEL", key]);
        redis.command(&[command, key, "x"]);
    }
    keys
}

#[test]
fn value_of_other_program_is_failure_of_key() {
    for (command, class) in [("SET", "foreign"), ("LPUSH", "wrongtype")] {
        let redis = Redis::start();
        let observed = start_with_redis(&redis);
        let hostile = "a\nb\r ERROR,ip=1";
        assert!(!observed.is_degraded(hostile));
        redis.command(&["DEL", "slidegate:default:a:{tenant=ann}:log"]);
        let keys = spoil_keys(&redis, command);
        for _ in 0..30 {
            assert!(observed.is_degraded(hostile));
            assert!(!observed.is_degraded("ann"), "{:#?}", observed.log());
        }
        assert_eq!((observed.is_reachable(), observed.is_breaker_open()), (true, false));
        assert_eq!(observed.errors(class), 30.0, "{:#?}", observed.log());
        let lines = observed.lines_of_class("a call to the store failed", class);
        assert!(lines.len() <= 2, "{lines:#?}");
        assert_eq!((&lines[0]["key"], &lines[0]["level"]), (&json!(keys[0]), &json!("WARN")));
        assert!(lines[0]["remedy"].as_str().unwrap().contains("delete the key"), "{lines:#?}");
    }
}

#[test]
fn spoiled_key_is_redacted_in_log() {
    let redis = Redis::start();
    let flags = ["--redact-keys", "--log-level", "debug"];
    let observed = Observed::start(&redis.address(), &flags);
    assert!(!observed.is_degraded("ann-of-acme"));
    spoil_keys(&redis, "SET");
    assert!(observed.is_degraded("ann-of-acme"));
    let line = &observed.lines_of_class("a call to the store failed", "foreign")[0];
    let key = line["key"].as_str().unwrap();
    let hash = key
        .strip_prefix("slidegate:default:a:{tenant=")
        .and_then(|rest| rest.strip_suffix("}:log"));
    let is_hash =
        |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(hash.is_some_and(is_hash), "{key}");
    let shown = observed.log();
    assert!(!shown.iter().any(|line| line.to_string().contains("ann-of-acme")), "{shown:#?}");
}

/// A key of a credential is redacted also without `--redact-keys`.
#[test]
fn spoiled_key_of_credential_is_redacted_in_log() {
    let redis = Redis::start();
    let observed = Observed::start(&redis.address(), &[]);
    let policy = "rules: [{ name: a, per: [header.authorization, ip], limits: [1000/h] }]";
    std::fs::write(observed.server.policy_path(), policy).unwrap();
    observed.server.wait_for_log("the policy has changed");
    let request = json!({ "attributes": { "header.authorization": "s3cret", "ip": "192.0.2.7" } });
    assert_eq!(observed.client.check(&request).json()["degraded"], false);
    spoil_keys(&redis, "LPUSH");
    assert_eq!(observed.client.check(&request).json()["degraded"], true);
    let line = &observed.lines_of_class("a call to the store failed", "wrongtype")[0];
    let key = line["key"].as_str().unwrap();
    assert!(!key.contains("s3cret") && key.contains("ip=192.0.2.7}"), "{key}");
}

/// All classes exist with 0 from the start, so that an alert sees the first failure.
#[test]
fn every_class_is_registered_at_start() {
    let observed = start_with_redis(&Redis::start());
    let documented = include_str!("../../../../docs/reference/errors.md");
    let section =
        documented.split("## Store errors").nth(1).unwrap().split("\n## ").next().unwrap();
    let classes: Vec<&str> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(class, _)| class))
        .filter(|class| !["class", "kind"].contains(class))
        .collect();
    assert!(classes.len() > 10, "{classes:?}");
    for class in classes {
        assert_eq!(observed.errors(class), 0.0, "{class}");
    }
}
