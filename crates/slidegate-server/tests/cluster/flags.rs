//! Tests that the server reports invalid cluster flags before it opens any listener.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use crate::cluster::node::{policy_with_max, unused_address};
use crate::common::certificates::{CertAuthority, CertFiles, path_str};
use crate::common::{Server, TempFile, slidegate_command};

fn run_serve_command(flags: &[&str]) -> Output {
    let policy = TempFile::new(".yaml", policy_with_max(9, 1));
    let mut command = slidegate_command();
    command.arg("serve").arg("--policy").arg(policy.path()).args(["--http", "127.0.0.1:0"]);
    command.args(flags).output().unwrap()
}

fn stderr_text(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

/// Flags of a server that forms a cluster with only one node, and listens for peers on any free port.
const SINGLE_NODE_CLUSTER_FLAGS: [&str; 4] =
    ["--store", "cluster://", "--cluster-listen", "127.0.0.1:0"];

#[test]
fn inconsistent_flags_fail_with_one_line_error() {
    let short = TempFile::new(".key", "fifteen letters\n");
    let short = short.path().to_str().unwrap();
    let [two_keys, three_keys, short_second_key] = [
        "sixteen letters.\nsixteen letters,\n",
        "sixteen letters.\nsixteen letters,\nsixteen letters!\n",
        "sixteen letters.\nfifteen letters",
    ]
    .map(|keys| TempFile::new(".key", keys));
    let [two_keys, three_keys, short_second_key] =
        [&two_keys, &three_keys, &short_second_key].map(|file| path_str(file.path()));
    let occupant = Server::start_with(
        &policy_with_max(9, 1),
        &["--store", "cluster://", "--cluster-listen", &unused_address().to_string()],
    );
    let occupied = format!("127.0.0.1:{}", occupant.address().port());
    for (flags, flag, expected) in [
        (
            &["--store", "cluster://a:1"][..],
            "--store (SLIDEGATE_STORE)",
            "set `a:1` as --cluster-seeds",
        ),
        (
            &["--cluster-listen", "0.0.0.0:0"],
            "--cluster-listen (SLIDEGATE_CLUSTER_LISTEN)",
            "other machines can reach 0.0.0.0:0",
        ),
        (
            &["--cluster-listen", "192.0.2.1:0"],
            "--cluster-listen (SLIDEGATE_CLUSTER_LISTEN)",
            "--cluster-key-file",
        ),
        (
            &["--cluster-listen", &occupied],
            "--cluster-listen (SLIDEGATE_CLUSTER_LISTEN)",
            "cannot listen on",
        ),
        (
            &["--cluster-key", "fifteen letters"],
            "--cluster-key (SLIDEGATE_CLUSTER_KEY)",
            "16 bytes or more",
        ),
        (
            &["--cluster-key-file", short],
            "--cluster-key-file (SLIDEGATE_CLUSTER_KEY_FILE)",
            "has 15 bytes",
        ),
        (
            &["--cluster-key-file", "/nowhere/key"],
            "--cluster-key-file",
            "`/nowhere/key` cannot be read",
        ),
        (
            &["--cluster-key-file", two_keys],
            "--cluster-secret-file (SLIDEGATE_CLUSTER_SECRET_FILE)",
            "required with two cluster keys; set a file with the key that the nodes had before",
        ),
        (
            &["--cluster-key-file", three_keys],
            "--cluster-key-file (SLIDEGATE_CLUSTER_KEY_FILE)",
            "has 3 lines, each of them a secret; keep at most 2",
        ),
        (
            &["--cluster-key-file", short_second_key],
            "--cluster-key-file (SLIDEGATE_CLUSTER_KEY_FILE): line 2",
            "has 15 bytes",
        ),
        (
            &["--cluster-secret-file", short],
            "--cluster-secret-file (SLIDEGATE_CLUSTER_SECRET_FILE)",
            "has 15 bytes",
        ),
        (
            &["--cluster-advertise", "0.0.0.0:0"],
            "--cluster-advertise (SLIDEGATE_CLUSTER_ADVERTISE)",
            "cannot reach this node at",
        ),
    ] {
        // A default flag is left out if `flags` sets it.
        let is_default = |flag: &&str| !flags.contains(flag);
        let defaults =
            SINGLE_NODE_CLUSTER_FLAGS.chunks(2).filter(|pair| is_default(&pair[0])).flatten();
        let all: Vec<&str> = defaults.chain(flags).copied().collect();
        let output = run_serve_command(&all);
        assert_eq!(output.status.code(), Some(1), "{all:?}: {}", stderr_text(&output));
        let line = stderr_text(&output);
        assert!(line.starts_with(flag) && line.contains(expected), "{all:?}: {line}");
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(!line.contains("letters"), "{line}");
    }
}

/// Returns the line that a server prints instead of starting with these flags of a cluster node.
fn startup_error_line(flags: &[&str]) -> String {
    let output = run_serve_command(&[&SINGLE_NODE_CLUSTER_FLAGS, flags].concat());
    assert_eq!(output.status.code(), Some(1), "{flags:?}: {}", stderr_text(&output));
    assert_eq!(stderr_text(&output).lines().count(), 1, "{}", stderr_text(&output));
    stderr_text(&output).to_owned()
}

#[test]
fn invalid_certificates_fail_with_flag_and_file() {
    let authority = CertAuthority::new();
    let nonsense = TempFile::new(".pem", "nonsense");
    let ca = TempFile::new(".pem", authority.certificate_pem());
    let secret = TempFile::new(".secret", "sixteen letters.");
    let node = CertFiles::new(&authority.issue_node_certificate("slidegate-cluster"));
    let other_name = CertFiles::new(&authority.issue_certificate());
    let files = [&node.cert, &node.key, &ca, &secret, &nonsense, &other_name.cert, &other_name.key];
    let [cert, key, ca, secret, nonsense, other_cert, other_key] =
        files.map(|file| path_str(file.path()));
    let missing = "/nowhere/cert.pem";
    for (cert, key, ca, flag, file, problem) in [
        (missing, key, ca, "--cluster-tls-cert (SLIDEGATE_CLUSTER_TLS_CERT)", missing, "read"),
        (nonsense, key, ca, "--cluster-tls-cert (SLIDEGATE_CLUSTER_TLS_CERT)", nonsense, "PEM"),
        (cert, nonsense, ca, "--cluster-tls-key (SLIDEGATE_CLUSTER_TLS_KEY)", nonsense, "PEM"),
        (cert, key, nonsense, "--cluster-tls-ca (SLIDEGATE_CLUSTER_TLS_CA)", nonsense, "PEM"),
        (cert, other_key, ca, "--cluster-tls-cert", cert, "must belong together"),
        (other_cert, other_key, ca, "--cluster-tls-cert", other_cert, "`slidegate-cluster`"),
    ] {
        let flags = ["--cluster-tls-cert", cert, "--cluster-tls-key", key, "--cluster-tls-ca", ca];
        let line = startup_error_line(&[&flags[..], &["--cluster-secret-file", secret]].concat());
        assert!(line.starts_with(flag) && line.contains(&format!(": {file}: ")), "{line}");
        assert!(line.contains(problem), "{line}");
    }
    let flags = ["--cluster-tls-cert", cert, "--cluster-tls-key", key, "--cluster-tls-ca", ca];
    let line = startup_error_line(&flags);
    assert!(line.contains("required with certificates; set a file with a secret"), "{line}");
    let both =
        [&flags[..], &["--cluster-key", "sixteen letters.", "--cluster-secret-file", secret]];
    let line = startup_error_line(&both.concat());
    assert!(line.contains("--cluster-key (SLIDEGATE_CLUSTER_KEY): both are set"), "{line}");
    let output = run_serve_command(&[&SINGLE_NODE_CLUSTER_FLAGS, &flags[..4]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr_text(&output).contains("--cluster-tls-ca <FILE>"), "{}", stderr_text(&output));
}

#[test]
fn invalid_flag_value_error_names_valid_values() {
    for (flag, value, expected) in [
        ("--cluster-listen", "localhost", "write IP:PORT or HOST:PORT"),
        ("--cluster-advertise", "localhost:1", "write IP:PORT, for example 192.0.2.11:7946"),
        ("--cluster-seeds", "a", "slidegate-nodes:7946"),
        ("--cluster-seeds", "a:1,,b:1", "separated by commas"),
        ("--cluster-node-name", "two words", "printable ASCII"),
        ("--cluster-tls-name", "two words", "write a DNS name, for example slidegate-cluster"),
        ("--cluster-sync-interval", "9ms", "a duration from 10ms to 10s"),
        ("--cluster-sync-wait", "2s", "a duration from 0s to 1s"),
        ("--cluster-max-clock-skew", "2m", "a duration from 0s to 1m"),
    ] {
        let output = run_serve_command(&[flag, value]);
        assert_eq!(output.status.code(), Some(2), "{flag} {value}");
        assert!(
            stderr_text(&output).contains(expected),
            "{flag} {value}: {}",
            stderr_text(&output)
        );
    }
}

#[test]
fn memory_store_rejects_cluster_flags() {
    let flags =
        ["--cluster-listen", "0.0.0.0:0", "--cluster-key", "letters", "--cluster-seeds", "a:1"];
    let output = run_serve_command(&flags);
    assert_eq!(output.status.code(), Some(2));
    let expected = "\
error: --cluster-listen has no effect with `--store memory`; remove it, or use `--store cluster://`
--cluster-seeds has no effect with `--store memory`; remove it, or use `--store cluster://`
--cluster-key has no effect with `--store memory`; remove it, or use `--store cluster://`
";
    assert_eq!(stderr_text(&output), expected);
}

#[test]
fn ineffective_variable_error_names_variable() {
    let policy = TempFile::new(".yaml", policy_with_max(9, 1));
    let mut command = slidegate_command();
    command.arg("serve").arg("--policy").arg(policy.path()).args(SINGLE_NODE_CLUSTER_FLAGS);
    // A variable that turns a flag off is not an error.
    command.env("SLIDEGATE_READY_NEEDS_STORE", "false");
    let output = command.env("SLIDEGATE_REDIS_TIMEOUT", "5ms").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        stderr_text(&output),
        "error: --redis-timeout (SLIDEGATE_REDIS_TIMEOUT) has no effect with `--store cluster://`; unset SLIDEGATE_REDIS_TIMEOUT, or use a redis:// store\n"
    );
}

#[test]
fn cluster_node_listens_on_host_name() {
    let flags = ["--store", "cluster://", "--cluster-listen", "localhost:0"];
    let server = Server::start_with(&policy_with_max(9, 1), &flags);
    let log = server.startup_log().concat();
    let is_loopback =
        ["127.0.0.1:", "[::1]:"].map(|ip| log.contains(&format!("reachable at {ip}")));
    assert!(is_loopback.contains(&true), "{log}");
}

#[test]
fn readable_secret_files_are_warned_about() {
    let [keys, secret] =
        ["sixteen letters.", "sixteen letters,"].map(|text| TempFile::new(".secret", text));
    let flags = [
        "--cluster-key-file",
        path_str(keys.path()),
        "--cluster-secret-file",
        path_str(secret.path()),
    ];
    let warnings = || {
        let flags = [&SINGLE_NODE_CLUSTER_FLAGS[..], &flags].concat();
        let server = Server::start_with(&policy_with_max(9, 1), &flags);
        let lines = server.startup_log().iter().filter(|line| line.contains("every user of"));
        lines.cloned().collect::<Vec<_>>()
    };
    for (mode, expected) in [(0o604, 2), (0o640, 0)] {
        for file in [&keys, &secret] {
            fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
        }
        assert_eq!(warnings().len(), expected, "{mode:o}: {:?}", warnings());
    }
}

#[test]
fn cluster_key_is_never_printed() {
    let secret = "as secret as it gets";
    let help =
        slidegate_command().args(["serve", "--help"]).env("SLIDEGATE_CLUSTER_KEY", secret).output();
    assert!(!String::from_utf8(help.unwrap().stdout).unwrap().contains(secret));
    let key = TempFile::new(".key", format!("{secret}\r\n"));
    let key = key.path().to_str().unwrap();
    for key_flag in [["--cluster-key", secret], ["--cluster-key-file", key]] {
        let server = Server::start_with(
            &policy_with_max(9, 1),
            &[&SINGLE_NODE_CLUSTER_FLAGS[..], &key_flag, &["--log-level", "trace"]].concat(),
        );
        let log = server.startup_log().concat();
        assert!(!log.contains(secret), "{log}");
    }
}
