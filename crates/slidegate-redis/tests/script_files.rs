//! Tests that the scripts with a JSON argument share their counters with a [`Gate`] of slidegate.

use std::time::Duration;

use serde_json::{Value, json};
use slidegate::{Descriptor, Gate, Policy, Request};
use slidegate_redis::{RedisSettings, RedisStore, script_files};

use crate::server::{LONG, Redis};

/// The number of units of each limit in these tests.
const MAX: u64 = 10;

/// The part of a key before the identity, for the rule `r` of the default domain.
const SCOPE: &str = "slidegate:default:r:";

const DAY_MS: u64 = 86_400_000;

/// A limit as the fields of a rule in a policy, as a JSON argument, and the end of its key. The windows are so long that
/// no test crosses one of their ends.
struct LimitCase {
    rule: &'static str,
    limit: Value,
    key_end: &'static str,
}

fn limit_cases() -> Vec<LimitCase> {
    let case = |rule, limit, key_end| LimitCase { rule, limit, key_end };
    vec![
        case("limits: [10/d]", json!({"max": 10, "window_ms": DAY_MS}), ":log"),
        case(
            "limits: [{ max: 10, window: 90m, name: per-shift, resolution: 8 }]",
            json!({"id": "per-shift", "max": 10, "window_ms": 5_400_000, "resolution": 8}),
            ":log",
        ),
        // This window is rounded up to a whole number of ticks.
        case(
            "limits: [{ max: 10, window: 33554433ms }]",
            json!({"max": 10, "window_ms": 33_554_433}),
            ":log",
        ),
        case(
            "limits: [10/30d], algorithm: sliding_log",
            json!({"algorithm": "sliding_log", "max": 10, "window_ms": 30 * DAY_MS}),
            ":30d:sliding_log:30d",
        ),
        case(
            "limits: [10/7d], algorithm: sliding_buckets",
            json!({"algorithm": "sliding_buckets", "max": 10, "window_ms": 7 * DAY_MS}),
            ":1w:sliding_buckets:1w:1008m",
        ),
        case(
            "limits: [{ max: 10, window: 2d, algorithm: sliding_buckets, precision: 2h }]",
            json!({"algorithm": "sliding_buckets", "max": 10, "window_ms": 2 * DAY_MS, "precision_ms": 7_200_000}),
            ":2d:sliding_buckets:2d:2h",
        ),
        case(
            "limits: [10/45d], algorithm: sliding_counter",
            json!({"algorithm": "sliding_counter", "max": 10, "window_ms": 45 * DAY_MS}),
            "",
        ),
        case(
            "limits: [10/366d], algorithm: fixed_window",
            json!({"algorithm": "fixed_window", "max": 10, "window_ms": 366 * DAY_MS}),
            "",
        ),
        case(
            "limits: [{ max: 10, window: 366d, algorithm: fixed_window, align: clock }]",
            json!({"algorithm": "fixed_window", "max": 10, "window_ms": 366 * DAY_MS, "align": "clock"}),
            "",
        ),
        case(
            "limits: [{ max: 1, window: 3d, burst: 10 }], algorithm: token_bucket",
            json!({"algorithm": "token_bucket", "max": 1, "window_ms": 3 * DAY_MS, "burst": 10}),
            "",
        ),
    ]
}

impl LimitCase {
    fn key(&self) -> String {
        format!("{SCOPE}{{client=ann}}{}", self.key_end)
    }

    /// Returns the JSON argument of a call with this limit. `fields` are its other fields.
    fn argument(&self, mut fields: Value) -> Value {
        fields["limits"] = json!([self.limit]);
        fields
    }
}

/// The scripts, called on one connection.
struct Scripts(redis::Connection);

impl Scripts {
    /// Calls a script, and returns its reply, or its error as text.
    fn try_call(&mut self, name: &str, keys: &[&str], argument: &Value) -> Result<String, String> {
        let files = script_files();
        let file = files.iter().find(|file| file.path == format!("{name}.lua")).unwrap();
        let mut command = redis::cmd("EVAL");
        command.arg(&file.text).arg(keys.len()).arg(keys).arg(argument.to_string());
        command.query(&mut self.0).map_err(|error| error.to_string())
    }

    fn call(&mut self, name: &str, keys: &[&str], argument: &Value) -> Value {
        let reply = self.try_call(name, keys, argument).unwrap();
        if reply == "OK" { json!("OK") } else { serde_json::from_str(&reply).unwrap() }
    }
}

fn new_gate(redis: &Redis, rule: &str) -> Gate<RedisStore> {
    let policy = format!("rules: [{{ name: r, per: [client], {rule} }}]");
    // Without the cache, a refund of a script is seen at once.
    let settings =
        RedisSettings { timeout: LONG, deny_cache_ttl: Duration::ZERO, ..RedisSettings::default() };
    let store = RedisStore::open(&redis.address(), settings).unwrap();
    Gate::new(Policy::from_yaml(&policy).unwrap(), store)
}

fn request_of(client: &str) -> Request<'_> {
    Request::new("default", Descriptor::new([("client", client)]))
}

#[tokio::test]
async fn json_check_shares_counters_with_gate() {
    for case in limit_cases() {
        let redis = Redis::start();
        let (gate, mut scripts, key) =
            (new_gate(&redis, case.rule), Scripts(redis.connection()), case.key());
        for used in (0..MAX).step_by(2) {
            let decision = gate.check_async(&request_of("ann")).await;
            assert_eq!((decision.is_allowed(), decision.remaining()), (true, MAX - used - 1));
            let reply = scripts.call("check", &[&key], &case.argument(json!({})));
            let limit = &reply["limits"][0];
            assert_eq!((&reply["allowed"], &limit["allowed"]), (&json!(true), &json!(true)));
            assert_eq!(reply["remaining"], MAX - used - 2, "{}: {reply}", case.rule);
            assert_eq!(limit["charged_units"], 1);
            assert_eq!(reply["retry_after_ms"], Value::Null);
        }
        let decision = gate.check_async(&request_of("ann")).await;
        let reply = scripts.call("check", &[&key], &case.argument(json!({"charge": "never"})));
        assert!(!decision.is_allowed() && reply["allowed"] == false, "{}: {reply}", case.rule);
        let (wait_ms, script_wait_ms) = (
            decision.retry_after().unwrap().as_millis() as u64,
            reply["retry_after_ms"].as_u64().unwrap(),
        );
        assert!(wait_ms.abs_diff(script_wait_ms) < 10_000, "{wait_ms} {script_wait_ms}");
        assert!(reply["limits"][0]["reset_after_ms"].as_u64().unwrap() >= script_wait_ms);
    }
}

#[tokio::test]
async fn json_scripts_count_units_above_32_bits() {
    const LARGE_MAX: u64 = 5_000_000_000;
    let redis = Redis::start();
    let mut scripts = Scripts(redis.connection());
    for (algorithm, key_end) in [
        ("sliding_window", ":log"),
        ("fixed_window", ""),
        ("sliding_buckets", ":1d:sliding_buckets:1d:144m"),
    ] {
        let key = format!("{SCOPE}{{client=ann}}{key_end}");
        let limit = json!({"algorithm": algorithm, "max": LARGE_MAX, "window_ms": DAY_MS});
        let check = |cost| json!({"limits": [limit], "cost": cost});
        let allowed = scripts.call("check", &[&key], &check(LARGE_MAX - 1));
        assert_eq!((&allowed["allowed"], &allowed["remaining"]), (&json!(true), &json!(1)));
        let denied = scripts.call("check", &[&key], &check(2));
        assert_eq!((&denied["allowed"], &denied["remaining"]), (&json!(false), &json!(1)));
        let mut charged = limit.clone();
        for field in ["charged_units", "charged_at_us"] {
            charged[field] = allowed["limits"][0][field].clone();
        }
        assert_eq!(charged["charged_units"], LARGE_MAX - 1);
        scripts.call("revert", &[&key], &json!({"limits": [charged]}));
        let refund = json!({"limits": [limit], "units": 1});
        let reverted = scripts.call("refund", &[&key], &refund);
        assert_eq!(reverted["limits"][0]["remaining"], LARGE_MAX, "{algorithm}");
    }
}

#[tokio::test]
async fn json_check_states_window_as_first_reset() {
    let redis = Redis::start();
    let mut scripts = Scripts(redis.connection());
    for days in [1, 366] {
        let (key, limit) = (
            format!("{SCOPE}{{client=ann}}:log"),
            json!({"id": format!("{days}d"), "max": 10, "window_ms": days * DAY_MS}),
        );
        let reply = scripts.call("check", &[&key], &json!({"limits": [limit]}));
        assert_eq!(reply["limits"][0]["reset_after_ms"], days * DAY_MS, "{reply}");
    }
}

#[tokio::test]
async fn json_revert_refund_and_reset_change_counters_of_gate() {
    for case in limit_cases() {
        let redis = Redis::start();
        let (gate, mut scripts, key) =
            (new_gate(&redis, case.rule), Scripts(redis.connection()), case.key());
        let check = case.argument(json!({"cost": 4}));
        let charged = scripts.call("check", &[&key], &check)["limits"][0].clone();
        let mut revert = case.argument(json!({}));
        for field in ["charged_units", "charged_at_us"] {
            revert["limits"][0][field] = charged[field].clone();
        }
        assert_eq!(scripts.call("revert", &[&key], &revert), "OK");
        assert_eq!(gate.peek_async(&request_of("ann")).await.remaining(), MAX, "{}", case.rule);

        scripts.call("check", &[&key], &check);
        let refunded = scripts.call("refund", &[&key], &case.argument(json!({"units": 3})));
        assert_eq!(refunded["limits"][0]["remaining"], MAX - 1, "{}", case.rule);
        assert_eq!(gate.peek_async(&request_of("ann")).await.remaining(), MAX - 1);

        assert_eq!(scripts.call("reset", &[&key], &case.argument(json!({}))), "OK");
        assert_eq!(gate.peek_async(&request_of("ann")).await.remaining(), MAX);
        assert_eq!(scripts.call("check", &[&key], &check)["remaining"], MAX - 4);
    }
}

#[test]
fn every_script_file_compiles_in_redis() {
    let redis = Redis::start();
    let files = script_files();
    assert_eq!(files.len(), 8 + slidegate::Algorithm::ALL.len());
    for file in files {
        redis.try_command::<String>(&["SCRIPT", "LOAD", &file.text]).expect(&file.path);
    }
}

#[test]
fn json_request_with_several_limits_charges_all_or_none() {
    let redis = Redis::start();
    let mut scripts = Scripts(redis.connection());
    let cases = limit_cases();
    let keys: Vec<String> = cases.iter().map(LimitCase::key).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut limits: Vec<Value> = cases.iter().map(|case| case.limit.clone()).collect();
    limits[3]["max"] = json!(1);

    let first = scripts.call("check", &keys, &json!({"limits": limits}));
    assert_eq!((&first["allowed"], &first["remaining"]), (&json!(true), &json!(0)), "{first}");
    let second = scripts.call("check", &keys, &json!({"limits": limits}));
    assert_eq!(second["allowed"], false);
    let remaining: Vec<u64> = second["limits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| limit["remaining"].as_u64().unwrap())
        .collect();
    assert_eq!(remaining, [9, 9, 9, 0, 9, 9, 9, 9, 9, 9]);
    assert_eq!(second["retry_after_ms"], second["limits"][3]["retry_after_ms"]);

    // Charged in full although one limit denies.
    let always =
        scripts.call("check", &keys, &json!({"limits": limits, "charge": "always", "cost": 2}));
    assert_eq!((&always["allowed"], &always["limits"][0]["remaining"]), (&json!(false), &json!(7)));
    // A cost above max never fits.
    let never = scripts.call("check", &keys, &json!({"limits": limits, "cost": 11}));
    assert_eq!((&never["allowed"], &never["retry_after_ms"]), (&json!(false), &Value::Null));
    // Two limits in one value, one of them with its own cost.
    limits[0]["cost"] = json!(5);
    limits[3]["cost"] = json!(0);
    let own_cost = scripts.call("check", &keys[..2], &json!({"limits": limits[..2]}));
    assert_eq!(
        (&own_cost["limits"][0]["remaining"], &own_cost["limits"][1]["remaining"]),
        (&json!(2), &json!(6)),
        "{own_cost}"
    );
}

#[test]
fn invalid_json_argument_is_error_without_charge() {
    let redis = Redis::start();
    let mut scripts = Scripts(redis.connection());
    let key = "slidegate:default:r:{client=ann}:log";
    let limit = json!({"max": 10, "window_ms": DAY_MS});
    let with = |field: &str, value: Value| {
        let mut limit = limit.clone();
        limit[field] = value;
        json!({"limits": [limit]})
    };
    for (argument, expected) in [
        (json!(5), "the argument must be an object"),
        (json!({}), "`limits` must be a list of at least one limit"),
        (json!({"limits": [limit, limit]}), "2 limits, but the call has 1 keys"),
        (json!({"limits": [limit], "charges": 1}), "unknown field `charges`; write `charge`"),
        (
            json!({"limits": [limit], "costs": 1}),
            "the argument: unknown field `costs`; write `cost`",
        ),
        (json!({"limits": [limit], "cost": -1}), "`cost` must be a whole number"),
        (json!({"limits": [limit], "charge": "yes"}), "if_admitted, always, never"),
        (with("window", json!("1m")), "limits[0]: unknown field `window`; write `window_ms`"),
        (with("calendar", json!("month")), "unknown field `calendar`; remove it"),
        (with("burst", json!(5)), "unknown field `burst`"),
        (with("max", json!(1.5)), "`max` must be a whole number from 0 to 9007199254740991"),
        (with("max", Value::Null), "`max` must be a whole number"),
        (with("window_ms", json!(31_622_400_001_u64)), "`window_ms` must be a whole number"),
        (with("resolution", json!(4)), "`resolution` must be a whole number from 8 to 1024"),
        (with("id", json!("per shift")), "`id` must have 1 to 128 of the characters"),
        (with("algorithm", json!("gcra")), "`algorithm` must be one of sliding_window, "),
        (
            with("algorithm", json!("sliding_log")),
            "default:RULE:{client=ann}:1d:sliding_log:1d, but it",
        ),
        (with("algorithm", json!("token_bucket")), "must end with {IDENTITY}, such as slidegate:"),
    ] {
        let error = scripts.try_call("check", &[key], &argument).unwrap_err();
        assert!(error.contains(expected), "{argument}: {error}");
    }
    // Two limits with one counter would charge it twice. Another `id` makes them different.
    let other_max = json!({"max": 20, "window_ms": DAY_MS});
    let error = scripts.try_call("check", &[key, key], &json!({"limits": [limit, other_max]}));
    assert!(error.unwrap_err().contains("limits[0] and limits[1] have the same counter"));
    let files = script_files();
    let check = files.iter().find(|file| file.path == "check.lua").unwrap();
    let missing: redis::RedisResult<()> =
        redis::cmd("EVAL").arg(&check.text).arg(1).arg(key).query(&mut scripts.0);
    assert!(missing.unwrap_err().to_string().contains("ARGV[1] is missing"));
    assert_eq!(redis.command(&["DBSIZE"]), redis::Value::Int(0));
    let named = json!({"id": "daily", "max": 20, "window_ms": DAY_MS});
    let reply = scripts.call("check", &[key, key], &json!({"limits": [limit, named]}));
    assert_eq!(reply["limits"][1]["remaining"], 19);
    redis.command(&["DEL", key]);

    redis.command(&["SET", key, "foreign"]);
    let error = scripts.try_call("check", &[key], &json!({"limits": [limit]})).unwrap_err();
    assert!(error.contains("value not written by slidegate"), "{error}");
}
