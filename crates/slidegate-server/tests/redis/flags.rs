//! What is wrong with the flags of a store is told before anything starts.

use std::process::Output;

use crate::common::{Server, TempFile, slidegate};
use crate::server::Redis;

const POLICY: &str = "rules: [{ name: a, limits: [3/h] }]";

fn serve(flags: &[&str]) -> Output {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate();
    command.arg("serve").arg("--policy").arg(policy.path()).args(["--http", "127.0.0.1:0"]);
    command.args(flags).output().unwrap()
}

fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn a_wrong_address_is_told_with_what_would_be_right() {
    for (wrong, told) in [
        (
            "",
            "unknown scheme; write redis://, rediss:// (TLS), unix://, redis+sentinel:// or redis+cluster://",
        ),
        ("Memory", "is not `memory`, `cluster://` or a Redis address"),
        ("localhost:6379", "unknown scheme"),
        ("http://localhost", "unknown scheme"),
        ("redis://", "redis://user:password@host:6379/0"),
        ("redis://h:port", "redis://user:password@host:6379/0"),
        ("redis://h/zero", "redis://user:password@host:6379/0"),
        ("redis://h/-1", "the database must be a number from 0"),
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
        let output = serve(&["--store", wrong]);
        assert_eq!(output.status.code(), Some(1), "{wrong}: {}", stderr(&output));
        let line = stderr(&output);
        assert!(line.starts_with("--store (SLIDEGATE_STORE)") && line.contains(told), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}

#[test]
fn wrong_flags_are_told_with_what_would_be_right() {
    for (flag, wrong, told) in [
        ("--redis-timeout", "0ms", "write it as 15ms or 1s, from 1ms to 60s"),
        ("--redis-timeout", "15", "write it as 15ms or 1s, from 1ms to 60s"),
        ("--redis-clock", "sun", "[possible values: server, client]"),
        ("--redis-prefix", "{a}", "for example `slidegate:eu:`"),
        ("--redis-prefix", "", "for example `slidegate:eu:`"),
        ("--expected-instances", "0", "number would be zero"),
    ] {
        let output = serve(&[flag, wrong]);
        assert_eq!(output.status.code(), Some(2), "{flag} {wrong}");
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
}

#[test]
fn a_file_of_certificates_that_is_none_is_named() {
    let flags = ["--store", "rediss://localhost", "--redis-ca-file", "/nowhere/ca.pem"];
    let output = serve(&flags);
    assert_eq!(output.status.code(), Some(1));
    let told = "cannot trust the certificates in `/nowhere/ca.pem`: No such file";
    assert!(stderr(&output).contains(told), "{}", stderr(&output));
}

#[test]
fn the_log_tells_where_counts_live() {
    let redis = Redis::start();
    for (store, told) in
        [("memory", "store=memory".to_owned()), (&redis.address(), format!("{}0", redis.address()))]
    {
        let server = Server::start_with(POLICY, &["--store", store]);
        assert!(server.listening_log().ends_with(&told), "{}", server.listening_log());
    }
}
