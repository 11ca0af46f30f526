//! Tests of a gRPC listener on a UNIX socket.

use std::fs;
use std::process::Stdio;

use crate::common::{Server, TempFile, slidegate_command};
use crate::grpc::client::{Client, Code, new_descriptor, new_request};

const POLICY: &str = "rules: [{ name: per-user, domain: api, per: [user], limits: [2/h] }]";

#[tokio::test]
async fn unix_socket_answers_also_after_kill_and_restart() {
    // The server creates the socket in place of the file, whose name is unique.
    let socket = TempFile::new(".sock", "");
    fs::remove_file(socket.path()).unwrap();
    let flag = format!("unix:{}", socket.path().display());
    for _ in 0..2 {
        // A killed server leaves its socket behind.
        let server =
            Server::start_with(POLICY, &["--grpc", &flag, "--max-connections-per-address", "1"]);
        assert!(server.startup_log().iter().any(|line| line.contains(&flag)), "{flag}");
        let first = Client::connect_unix(socket.path()).await;
        // All clients are on this machine, so they have no share of their address.
        let second = Client::connect_unix(socket.path()).await;
        for (client, code) in [(&first, Code::Ok), (&second, Code::Ok), (&first, Code::OverLimit)] {
            let request = new_request([new_descriptor(&[("user", "ann")])]);
            assert_eq!(client.check(request).await.overall_code(), code);
        }
    }
}

#[tokio::test]
async fn used_socket_and_other_files_are_kept() {
    let file = TempFile::new(".txt", "keep");
    let policy = TempFile::new(".yaml", POLICY);
    let start_failure = |path: &str| {
        let mut command = slidegate_command();
        command.args(["serve", "--http", "127.0.0.1:0", "--admin", "none", "--policy"]);
        command.arg(policy.path()).args(["--grpc", &format!("unix:{path}")]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let error = start_failure(file.path().to_str().unwrap());
    let remedy = "stop the process that uses it, or remove the file";
    assert!(
        error.contains("--grpc (SLIDEGATE_GRPC): cannot listen on ") && error.contains(remedy),
        "{error}"
    );
    assert_eq!(fs::read(file.path()).unwrap(), b"keep");

    let socket = TempFile::new(".sock", "");
    fs::remove_file(socket.path()).unwrap();
    let path = socket.path().to_str().unwrap();
    let _server = Server::start_with(POLICY, &["--grpc", &format!("unix:{path}")]);
    assert!(start_failure(path).contains(remedy));
    Client::connect_unix(socket.path()).await;
}
