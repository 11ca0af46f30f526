//! What is wrong with the flags of a node is told before anything starts.

use std::process::Output;

use crate::common::{Server, TempFile, slidegate};
use crate::node::{address, rule};

fn serve(flags: &[&str]) -> Output {
    let policy = TempFile::new(".yaml", rule(9, 1));
    let mut command = slidegate();
    command.arg("serve").arg("--policy").arg(policy.path()).args(["--http", "127.0.0.1:0"]);
    command.args(flags).output().unwrap()
}

fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

const FREE: [&str; 4] = ["--store", "cluster://", "--cluster-listen", "127.0.0.1:0"];

#[test]
fn what_does_not_fit_together_is_told_in_a_line() {
    let short = TempFile::new(".key", "fifteen letters\n");
    let short = short.path().to_str().unwrap();
    let taken = Server::start_with(
        &rule(9, 1),
        &["--store", "cluster://", "--cluster-listen", &address().to_string()],
    );
    let place = format!("127.0.0.1:{}", taken.address().port());
    for (flags, flag, told) in [
        (
            &["--store", "cluster://a:1"][..],
            "--store (SLIDEGATE_STORE)",
            "set `a:1` as --cluster-seeds",
        ),
        (
            &["--cluster-listen", "0.0.0.0:0"],
            "--cluster-listen (SLIDEGATE_CLUSTER_LISTEN)",
            "a cluster needs a key",
        ),
        (
            &["--cluster-listen", "192.0.2.1:0"],
            "--cluster-listen (SLIDEGATE_CLUSTER_LISTEN)",
            "--cluster-key-file",
        ),
        (
            &["--cluster-listen", &place],
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
            &["--cluster-advertise", "0.0.0.0:0"],
            "--cluster-advertise (SLIDEGATE_CLUSTER_ADVERTISE)",
            "cannot reach this node at",
        ),
    ] {
        // The last of two counts.
        let given = |flag: &&str| !flags.contains(flag);
        let usual = FREE.chunks(2).filter(|pair| given(&pair[0])).flatten();
        let all: Vec<&str> = usual.chain(flags).copied().collect();
        let output = serve(&all);
        assert_eq!(output.status.code(), Some(1), "{all:?}: {}", stderr(&output));
        let line = stderr(&output);
        assert!(line.starts_with(flag) && line.contains(told), "{all:?}: {line}");
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(!line.contains("letters"), "{line}");
    }
}

#[test]
fn wrong_flags_are_told_with_what_would_be_right() {
    for (flag, wrong, told) in [
        ("--cluster-listen", "localhost:1", "invalid socket address"),
        ("--cluster-seeds", "a", "slidegate-nodes:7946"),
        ("--cluster-seeds", "a:1,,b:1", "separated by commas"),
        ("--cluster-node-name", "two words", "printable ASCII"),
        ("--cluster-sync-interval", "9ms", "from 10ms to 10s"),
        ("--cluster-sync-wait", "2s", "from 0ms to 1s"),
        ("--cluster-max-clock-skew", "2m", "from 0s to 60s"),
    ] {
        let output = serve(&[flag, wrong]);
        assert_eq!(output.status.code(), Some(2), "{flag} {wrong}");
        assert!(stderr(&output).contains(told), "{flag} {wrong}: {}", stderr(&output));
    }
}

#[test]
fn other_stores_do_not_look_at_what_is_for_nodes() {
    let flags =
        ["--cluster-listen", "0.0.0.0:0", "--cluster-key", "short", "--cluster-seeds", "a:1"];
    drop(Server::start_with(&rule(9, 1), &flags));
}

#[test]
fn the_key_is_shown_nowhere() {
    let secret = "as secret as it gets";
    let help = slidegate().args(["serve", "--help"]).env("SLIDEGATE_CLUSTER_KEY", secret).output();
    assert!(!String::from_utf8(help.unwrap().stdout).unwrap().contains(secret));
    let key = TempFile::new(".key", format!("{secret}\r\n"));
    let key = key.path().to_str().unwrap();
    for given in [["--cluster-key", secret], ["--cluster-key-file", key]] {
        let server = Server::start_with(
            &rule(9, 1),
            &[&FREE[..], &given, &["--log-level", "trace"]].concat(),
        );
        let told = server.startup_log().concat();
        assert!(!told.contains(secret), "{told}");
    }
}
