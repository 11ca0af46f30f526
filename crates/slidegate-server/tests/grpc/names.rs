//! Tests of requests that no rule applies to because of misspelt names of entries.

use std::time::Duration;

use crate::common::Server;
use crate::grpc::client::{Client, Code, new_descriptor, new_request};

const POLICY: &str = "rules: [{ name: per-user, domain: api, per: [user], limits: [2/min] }]";

/// Returns the next line of the log that contains `text`.
fn log_line(server: &Server, text: &str) -> String {
    loop {
        let line = server.next_log_line(Duration::from_secs(30)).expect(text);
        if line.contains(text) {
            return line;
        }
    }
}

#[tokio::test]
async fn descriptor_with_misspelt_entry_is_logged() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = Client::connect(&server).await;
    let response = client.check(new_request([new_descriptor(&[("usr", "ann")])])).await;
    assert_eq!(response.overall_code(), Code::Ok);
    let line = log_line(&server, "no rule applies to a request with attributes that no rule uses");
    assert!(line.contains("sent=\"`usr`\"") && line.contains("did_you_mean=\"user\""), "{line}");
}

#[tokio::test]
async fn request_without_descriptors_is_logged() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = Client::connect(&server).await;
    let error = client.check_error(new_request([])).await;
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
    assert!(log_line(&server, "rejected request without descriptors").contains("WARN"));
}

#[tokio::test]
async fn strict_server_rejects_misspelt_entry() {
    let server = Server::start_with_grpc(POLICY, &["--strict"]);
    let client = Client::connect(&server).await;
    let error = client.check_error(new_request([new_descriptor(&[("usr", "ann")])])).await;
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
    assert!(error.message().contains("uses `usr`"), "{error}");
    let without_entries = client.check_error(new_request([new_descriptor(&[])])).await;
    assert!(without_entries.message().contains("has no attributes"), "{without_entries}");
    // One descriptor with a rule is enough.
    let two = [new_descriptor(&[("user", "ann")]), new_descriptor(&[("generic", "x")])];
    assert_eq!(client.check(new_request(two)).await.overall_code(), Code::Ok);
}
