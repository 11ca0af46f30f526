//! A password is used, and never told.

use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use crate::client::Client;
use crate::common::{Server, TempFile, slidegate};
use crate::server::Redis;

const POLICY: &str = "rules: [{ name: a, limits: [3/h] }]";

/// A Redis that asks for a password: this one of `ann`, and of whoever gives no name.
const PASSWORD: &str = "sesame-unlocks";
const GUARDED: [&str; 8] =
    ["--requirepass", PASSWORD, "--user", "ann", "on", ">sesame-unlocks", "~*", "+@all"];

/// What is left of an outcome once the server has answered twice: whether Redis was heard, and all that it
/// has told at its most talkative.
pub fn heard_and_told(store: &str) -> (bool, String) {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate();
    command.arg("serve").arg("--policy").arg(policy.path()).args(["--http", "127.0.0.1:0"]);
    command.args(["--log-level", "trace", "--redis-timeout", "2s"]).env("SLIDEGATE_STORE", store);
    let server = Server::spawn(command.stdout(Stdio::null()));
    let client = Client::of(&server);
    let answers = [(); 6].map(|()| client.check(&json!({"attributes": {}})));
    let mut told = server.listening().to_owned();
    answers.iter().for_each(|answer| told += &answer.body);
    server.signal("TERM");
    while let Some(line) = server.next_log(Duration::from_secs(10)) {
        told += &line;
    }
    assert!(told.contains("stopped"), "{told}");
    (answers[0].json()["degraded"] == false, told)
}

#[test]
fn valid_and_invalid_passwords_are_never_logged() {
    let redis = Redis::with(&GUARDED);
    let at = format!("127.0.0.1:{}", redis.port());
    for (store, is_right) in [
        (format!("redis://:{PASSWORD}@{at}"), true),
        (format!("redis://ann:{PASSWORD}@{at}/3"), true),
        (format!("redis://bob:{PASSWORD}@{at}"), false),
        (format!("redis://:{PASSWORD}-not@{at}"), false),
    ] {
        let (is_heard, told) = heard_and_told(&store);
        assert_eq!(is_heard, is_right, "{store}: {told}");
        assert!(!told.contains("sesame") && !told.contains("unlocks"), "{told}");
        assert!(told.contains(&format!("store=redis://{at}/")), "{told}");
    }
}

#[test]
fn address_errors_never_contain_passwords() {
    let policy = TempFile::new(".yaml", POLICY);
    for store in [
        "redis:/:sesame@h",
        "http://ann:sesame@h",
        ":sesame@h",
        "redis://ann:sesame",
        "redis://ann:sesame@h:port",
        "redis://ann:sesame@h/zero",
        "redis://ann:sesame@h?password=sesame",
        "redis://ann:ses#ame@h",
        "unix:///nowhere?password=sesame",
        "rediss://ann:sesame@h/#insecure",
        "redis+cluster://ann:sesame@h,h:port",
        "redis+cluster://ann:sesame@h/1",
        "redis+cluster://ann:sesame@h?password=sesame",
        "redis+sentinel://ann:sesame@h,h",
        "redis+sentinel://ann:sesame@h/service?password=sesame",
        "redis+sentinel://ann:sesame@h/service?sentinel_pass=sesame&db=sesame",
    ] {
        let mut command = slidegate();
        command.arg("serve").arg("--policy").arg(policy.path()).env("SLIDEGATE_STORE", store);
        let output = command.output().unwrap();
        let told = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(1), "{store}: {told}");
        assert!(told.contains("SLIDEGATE_STORE") && !told.contains("ses"), "{store}: {told}");
    }
}

#[test]
fn help_hides_environment_values() {
    for help in ["-h", "--help"] {
        let mut command = slidegate();
        let store = "redis://ann:sesame@h";
        let output = command.args(["serve", help]).env("SLIDEGATE_STORE", store).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(told.contains("If the address has a password, give it by the environment"));
        assert!(told.contains("SLIDEGATE_STORE") && !told.contains("sesame"), "{told}");
    }
}
