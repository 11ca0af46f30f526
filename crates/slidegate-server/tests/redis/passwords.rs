//! Tests that the server authenticates with Redis passwords, and that the passwords never appear in logs, errors or
//! help texts.

use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use crate::common::{Server, TempFile, slidegate_command};
use crate::http::client::Client;
use crate::redis_server::Redis;

const POLICY: &str = "rules: [{ name: a, limits: [3/h] }]";

/// The password of the Redis user `ann` and of the default Redis user.
const PASSWORD: &str = "sesame-unlocks";
/// Arguments of the Redis server that set [`PASSWORD`] for both users.
const REDIS_SERVER_PASSWORD_ARGS: [&str; 8] =
    ["--requirepass", PASSWORD, "--user", "ann", "on", ">sesame-unlocks", "~*", "+@all"];

/// Runs a server with the store address `store` and the log level `trace`, and sends six requests. Returns `true` if
/// Redis decided the first request, and a text with all log lines and response bodies of the server.
pub fn run_and_collect_output(store: &str) -> (bool, String) {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate_command();
    command.arg("serve").arg("--policy").arg(policy.path()).args(["--http", "127.0.0.1:0"]);
    command.args(["--log-level", "trace", "--redis-timeout", "2s"]).env("SLIDEGATE_STORE", store);
    let server = Server::spawn(command.stdout(Stdio::null()));
    let client = Client::new(&server);
    let responses = [(); 6].map(|()| client.check(&json!({"attributes": {}})));
    let mut output = server.listening_log().to_owned();
    responses.iter().for_each(|response| output += &response.body);
    server.send_signal("TERM");
    while let Some(line) = server.next_log_line(Duration::from_secs(10)) {
        output += &line;
    }
    assert!(output.contains("stopped"), "{output}");
    (responses[0].json()["degraded"] == false, output)
}

#[test]
fn valid_and_invalid_passwords_are_never_logged() {
    let redis = Redis::with_args(&REDIS_SERVER_PASSWORD_ARGS);
    let host = format!("127.0.0.1:{}", redis.port());
    for (store, is_valid) in [
        (format!("redis://:{PASSWORD}@{host}"), true),
        (format!("redis://ann:{PASSWORD}@{host}/3"), true),
        (format!("redis://bob:{PASSWORD}@{host}"), false),
        (format!("redis://:{PASSWORD}-not@{host}"), false),
    ] {
        let (is_connected, output) = run_and_collect_output(&store);
        assert_eq!(is_connected, is_valid, "{store}: {output}");
        assert!(!output.contains("sesame") && !output.contains("unlocks"), "{output}");
        assert!(output.contains(&format!("store=redis://{host}/")), "{output}");
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
        let mut command = slidegate_command();
        command.arg("serve").arg("--policy").arg(policy.path()).env("SLIDEGATE_STORE", store);
        let output = command.output().unwrap();
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(1), "{store}: {printed}");
        assert!(
            printed.contains("SLIDEGATE_STORE") && !printed.contains("ses"),
            "{store}: {printed}"
        );
    }
}

#[test]
fn help_hides_values_of_environment_variables() {
    for help in ["-h", "--help"] {
        let mut command = slidegate_command();
        let store = "redis://ann:sesame@h";
        let output = command.args(["serve", help]).env("SLIDEGATE_STORE", store).output().unwrap();
        let help_text = String::from_utf8(output.stdout).unwrap();
        let help_text = help_text.split_whitespace().collect::<Vec<_>>().join(" ");
        let has_advice = help_text.contains("password in the environment");
        assert_eq!(has_advice, help == "--help", "{help_text}");
        assert!(
            help_text.contains("SLIDEGATE_STORE") && !help_text.contains("sesame"),
            "{help_text}"
        );
    }
}
