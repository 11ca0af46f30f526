//! Tests that the server reports invalid store flags before it opens any listener.

use std::process::Output;

use crate::common::{Server, TempFile, slidegate_command};
use crate::redis_server::Redis;

const POLICY: &str = "rules: [{ name: a, limits: [3/h] }]";

fn run_serve_command(flags: &[&str]) -> Output {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate_command();
    command.arg("serve").arg("--policy").arg(policy.path()).args(["--http", "127.0.0.1:0"]);
    command.args(flags).output().unwrap()
}

fn stderr_text(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn invalid_store_address_error_names_valid_forms() {
    for (address, expected) in [
        (
            "",
            "unknown scheme; write redis://, rediss:// (TLS), unix://, redis+sentinel:// or redis+cluster://",
        ),
        ("Memory", "this is not `memory`, `cluster://` or a Redis address"),
        ("localhost:6379", "unknown scheme"),
        ("http://localhost", "unknown scheme"),
        ("redis://", "redis://user:password@host:6379/0"),
        ("redis://h:port", "redis://user:password@host:6379/0"),
        ("redis://h/zero", "redis://user:password@host:6379/0"),
        ("redis://h/-1", "the database must be 0 or a positive number"),
        ("rediss://h/#insecure", "a fragment (`#`) is not allowed"),
        ("unix://", "unix:///path"),
        ("redis+cluster://", "a host is missing"),
        ("redis+cluster://a,,b", "a host is missing"),
        ("redis+cluster://a:port", "cannot be parsed"),
        ("redis+cluster://a/1", "a Cluster has only one database"),
        ("redis+sentinel://a,b", "the name of the Sentinel service must follow the hosts"),
        ("redis+sentinel://a,b/", "the name of the Sentinel service must follow the hosts"),
        ("redis+sentinel:///service", "a host is missing"),
        (
            "redis+sentinel://a/service?name=b",
            "only these parameters are allowed: db, sentinel_user, sentinel_pass",
        ),
        ("redis+sentinels://a/service", "unknown scheme"),
    ] {
        let output = run_serve_command(&["--store", address]);
        assert_eq!(output.status.code(), Some(1), "{address}: {}", stderr_text(&output));
        let line = stderr_text(&output);
        assert!(line.starts_with("--store (SLIDEGATE_STORE)") && line.contains(expected), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}

#[test]
fn invalid_flag_value_error_names_valid_values() {
    for (flag, value, expected) in [
        ("--redis-timeout", "0ms", "write a duration from 1ms to 1m, for example 15ms"),
        ("--redis-timeout", "15", "write a duration with its unit, for example 15ms"),
        ("--redis-clock", "sun", "[possible values: server, client]"),
        ("--redis-prefix", "{a}", "for example `slidegate:eu:`"),
        ("--redis-prefix", "", "for example `slidegate:eu:`"),
        ("--expected-instances", "0", "write a whole number of 1 or more"),
    ] {
        let output = run_serve_command(&[flag, value]);
        assert_eq!(output.status.code(), Some(2), "{flag} {value}");
        assert!(stderr_text(&output).contains(expected), "{}", stderr_text(&output));
    }
}

#[test]
fn missing_certificate_file_error_names_file() {
    let flags = ["--store", "rediss://localhost", "--redis-ca-file", "/nowhere/ca.pem"];
    let output = run_serve_command(&flags);
    assert_eq!(output.status.code(), Some(1));
    let expected = "cannot load the CA certificates in `/nowhere/ca.pem`: No such file";
    assert!(stderr_text(&output).contains(expected), "{}", stderr_text(&output));
}

#[test]
fn startup_log_names_redis_store() {
    let redis = Redis::start();
    for (store, expected) in
        [("memory", "store=memory".to_owned()), (&redis.address(), format!("{}0", redis.address()))]
    {
        let server = Server::start_with(POLICY, &["--store", store]);
        assert!(server.listening_log().ends_with(&expected), "{}", server.listening_log());
    }
}
