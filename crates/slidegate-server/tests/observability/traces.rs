//! Tests of the trace spans that a collector receives from the server.

use std::net::TcpListener;
use std::sync::Arc;

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use ureq::http::Request;

use crate::common::{Server, TempFile, slidegate_command};
use crate::http::client::{Client, HttpResponse};
use crate::observability::collector::{CollectorMode, FakeCollector, attribute_text};

const POLICY: &str = "rules: [{ name: per-tenant, per: [tenant], limits: [2/h], algorithm: sliding_log, on_store_error: deny }]";

const CHECK_REQUEST_BODY: &str = r#"{"attributes":{"tenant":"user-value"}}"#;

const CALLER_TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER_SPAN_ID: &str = "b7ad6b7169203331";

/// Starts a server that exports spans to the collector at `url` with little delay. If `url` is empty, the server starts
/// without the flag `--otlp-endpoint`.
pub fn start_traced_server(url: &str, flags: &[&str], environment: &[(&str, &str)]) -> Server {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate_command();
    command.arg("serve").arg("--policy").arg(policy.path()).args(["--http", "127.0.0.1:0"]);
    if !url.is_empty() {
        command.args(["--otlp-endpoint", url]);
    }
    command.args(flags).env("OTEL_BSP_SCHEDULE_DELAY", "50");
    Server::spawn(command.envs(environment.iter().copied()))
}

fn send_post(server: &Server, path: &str, body: &str, headers: &[(&str, &str)]) -> HttpResponse {
    let mut request = Request::post(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Client::new(server).send(request.body(body.as_bytes().to_vec()).unwrap())
}

fn caller_traceparent_with_flags(flags: &str) -> String {
    format!("00-{CALLER_TRACE_ID}-{CALLER_SPAN_ID}-{flags}")
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the two spans of a decided request: the span of the decision, and the span of the store call.
fn find_decision_and_store_spans(spans: &[Span]) -> (&Span, &Span) {
    let [first, second] = spans else { panic!("{spans:?}") };
    if first.name == "slidegate.store" { (second, first) } else { (first, second) }
}

#[track_caller]
fn assert_span_attributes(span: &Span, expected: &[(&str, &str)]) {
    let actual: Vec<_> =
        expected.iter().map(|(name, _)| (*name, attribute_text(span, name))).collect();
    let expected: Vec<_> =
        expected.iter().map(|(name, value)| (*name, Some((*value).to_owned()))).collect();
    assert_eq!(actual, expected);
    assert_eq!(
        span.attributes.len(),
        expected.len(),
        "unexpected attributes: {:?}",
        span.attributes
    );
}

#[test]
fn decision_span_has_caller_parent_and_store_child() {
    let collector = FakeCollector::with_mode(CollectorMode::Accept);
    let server = start_traced_server(&collector.url(), &["--trace-sample", "0%"], &[]);
    for (path, name, outcome, remaining, status) in [
        ("/v1/peek", "slidegate.peek", "allowed", "2", "200"),
        ("/v1/check", "slidegate.check", "allowed", "1", "200"),
        ("/v1/check", "slidegate.check", "allowed", "0", "200"),
        ("/v1/check", "slidegate.check", "denied", "0", "429"),
    ] {
        let headers =
            [("traceparent", &*caller_traceparent_with_flags("01")), ("tracestate", "vendor=1")];
        assert_eq!(
            send_post(&server, path, CHECK_REQUEST_BODY, &headers).status.to_string(),
            status
        );
        let spans = collector.next_spans(2);
        let (decision, store) = find_decision_and_store_spans(&spans);
        assert_eq!((&*decision.name, decision.kind()), (name, SpanKind::Server));
        assert_eq!(to_hex(&decision.trace_id), CALLER_TRACE_ID);
        assert_eq!(to_hex(&decision.parent_span_id), CALLER_SPAN_ID);
        assert_eq!(decision.trace_state, "vendor=1");
        assert_span_attributes(
            decision,
            &[
                ("slidegate.domain", "default"),
                ("slidegate.rule", "per-tenant"),
                ("slidegate.limit", "1h"),
                ("slidegate.outcome", outcome),
                ("slidegate.remaining", remaining),
                ("slidegate.degraded", "false"),
                ("http.response.status_code", status),
            ],
        );
        assert_eq!((&*store.name, store.kind()), ("slidegate.store", SpanKind::Client));
        assert_eq!(to_hex(&store.trace_id), CALLER_TRACE_ID);
        assert_eq!(store.parent_span_id, decision.span_id);
        assert_span_attributes(store, &[("slidegate.store", "memory")]);
        let times = [
            decision.start_time_unix_nano,
            store.start_time_unix_nano,
            store.end_time_unix_nano,
            decision.end_time_unix_nano,
        ];
        assert!(times.is_sorted(), "{times:?}");
    }
}

#[test]
fn trace_export_has_service_name_without_user_values() {
    let collector = FakeCollector::with_mode(CollectorMode::Accept);
    let environment = [("OTEL_EXPORTER_OTLP_HEADERS", "x-token=abc")];
    let server = start_traced_server(&collector.url(), &["--trace-sample", "100%"], &environment);
    send_post(&server, "/v1/check", CHECK_REQUEST_BODY, &[]);
    let export = collector.next_export();
    assert_eq!(export.path, "/v1/traces");
    for header in ["content-type: application/x-protobuf", "x-token: abc"] {
        assert!(export.headers.iter().any(|received| received == header), "{:?}", export.headers);
    }
    let resource = export.decode_message().resource_spans[0].resource.clone().unwrap();
    let resource = Span { attributes: resource.attributes, ..Span::default() };
    assert_eq!(attribute_text(&resource, "service.name").as_deref(), Some("slidegate"));
    assert!(attribute_text(&resource, "service.version").is_some());
    assert!(!String::from_utf8_lossy(&export.body).contains("user-value"));
}

#[test]
fn traceparent_sampled_flag_overrides_sampling_rate() {
    let collector = FakeCollector::with_mode(CollectorMode::Accept);
    let sampling_all = start_traced_server(&collector.url(), &["--trace-sample", "100%"], &[]);
    send_post(
        &sampling_all,
        "/v1/check",
        CHECK_REQUEST_BODY,
        &[("traceparent", &*caller_traceparent_with_flags("00"))],
    );
    send_post(&sampling_all, "/v1/check", CHECK_REQUEST_BODY, &[]);
    let spans = collector.next_spans(2);
    let (decision, _) = find_decision_and_store_spans(&spans);
    assert_eq!(
        decision.parent_span_id, b"",
        "only the second request, which has no traceparent, is traced"
    );
    assert_ne!(to_hex(&decision.trace_id), CALLER_TRACE_ID);
    // A malformed traceparent is ignored.
    send_post(
        &sampling_all,
        "/v1/check",
        CHECK_REQUEST_BODY,
        &[("traceparent", &format!("{}-more", caller_traceparent_with_flags("00")))],
    );
    assert_eq!(find_decision_and_store_spans(&collector.next_spans(2)).0.parent_span_id, b"");
    let sampling_none = start_traced_server(&collector.url(), &["--trace-sample", "0%"], &[]);
    send_post(&sampling_none, "/v1/check", CHECK_REQUEST_BODY, &[]);
    sampling_none.send_signal("TERM");
    assert_eq!(sampling_none.wait_for_exit_code(), Some(0));
    assert_eq!(collector.received_spans(), []);
}

/// Starts a server, sends one request to `/v1/auth` for each `traceparent` header of an end client, stops the server,
/// and returns all exported spans.
fn send_forwarded_requests_and_collect_spans(flags: &[&str], traceparents: &[String]) -> Vec<Span> {
    let collector = FakeCollector::with_mode(CollectorMode::Accept);
    let server = start_traced_server(&collector.url(), flags, &[]);
    for traceparent in traceparents {
        let headers = [("traceparent", &**traceparent), ("tracestate", "vendor=1")];
        assert_eq!(send_post(&server, "/v1/auth", "", &headers).status, 200);
    }
    server.send_signal("TERM");
    assert_eq!(server.wait_for_exit_code(), Some(0));
    collector.received_spans()
}

/// Returns two `traceparent` values that a hostile client might choose. A sampler that uses the trace ID would always
/// sample the first one, and never the second.
fn client_chosen_traceparents(flags: &str) -> [String; 2] {
    ["0", "f"].map(|digit| {
        format!("00-{CALLER_TRACE_ID:.16}{}-{CALLER_SPAN_ID}-{flags}", digit.repeat(16))
    })
}

#[test]
fn forwarded_traceparent_cannot_force_spans() {
    let mut sampled = client_chosen_traceparents("01").to_vec();
    sampled.push(caller_traceparent_with_flags("01"));
    assert_eq!(send_forwarded_requests_and_collect_spans(&["--trace-sample", "0%"], &sampled), []);
    // The share is so small that only a deliberately chosen trace id could be sampled.
    assert_eq!(
        send_forwarded_requests_and_collect_spans(&["--trace-sample", "0.0000001%"], &sampled),
        []
    );
    assert_eq!(
        send_forwarded_requests_and_collect_spans(
            &["--trace-sample", "0.0000001%"],
            &client_chosen_traceparents("00")
        ),
        []
    );
}

#[test]
fn forwarded_traceparent_cannot_suppress_spans() {
    for share in ["100%", "99.9999999%"] {
        let spans = send_forwarded_requests_and_collect_spans(
            &["--trace-sample", share],
            &client_chosen_traceparents("00"),
        );
        assert_eq!(spans.len(), 2, "{share}: {spans:?}");
        for span in spans {
            assert_eq!((&*span.name, &*span.parent_span_id), ("slidegate.auth", &[][..]));
            assert_eq!(span.trace_state, "");
            let [link] = &*span.links else { panic!("a link to the span of the client: {span:?}") };
            assert_ne!(span.trace_id, link.trace_id);
            assert!(to_hex(&link.trace_id).starts_with(&CALLER_TRACE_ID[..16]));
            assert_eq!((&*to_hex(&link.span_id), &*link.trace_state), (CALLER_SPAN_ID, ""));
        }
    }
}

#[test]
fn trusted_forwarded_traceparent_decides_sampling() {
    let flags = ["--trust-traceparent", "--trace-sample", "0%"];
    let spans =
        send_forwarded_requests_and_collect_spans(&flags, &[caller_traceparent_with_flags("01")]);
    let [span] = &*spans else { panic!("{spans:?}") };
    assert_eq!((&*span.name, &*to_hex(&span.trace_id)), ("slidegate.auth", CALLER_TRACE_ID));
    assert_eq!((&*to_hex(&span.parent_span_id), &*span.trace_state), (CALLER_SPAN_ID, "vendor=1"));
    assert_eq!(span.links, []);
    let flags = ["--trust-traceparent", "--trace-sample", "100%"];
    assert_eq!(
        send_forwarded_requests_and_collect_spans(&flags, &[caller_traceparent_with_flags("00")]),
        []
    );
}

#[test]
fn spans_of_failed_requests_have_outcome_attribute() {
    let unused_address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let store = format!("redis://{unused_address}");
    let collector = FakeCollector::with_mode(CollectorMode::Accept);
    let server =
        start_traced_server(&collector.url(), &["--trace-sample", "100%", "--store", &store], &[]);
    send_post(&server, "/v1/check", "nonsense", &[]);
    let spans = collector.next_spans(1);
    assert_span_attributes(
        &spans[0],
        &[("slidegate.outcome", "invalid"), ("http.response.status_code", "400")],
    );
    send_post(&server, "/v1/check", CHECK_REQUEST_BODY, &[]);
    let spans = collector.next_spans(2);
    let (decision, store) = find_decision_and_store_spans(&spans);
    assert_span_attributes(
        decision,
        &[
            ("slidegate.domain", "default"),
            ("slidegate.outcome", "store_unavailable"),
            ("slidegate.degraded", "true"),
            ("http.response.status_code", "503"),
        ],
    );
    let attributes = [("slidegate.store", "redis"), ("error.type", "unavailable")];
    assert_span_attributes(store, &attributes);
    for span in [decision, store] {
        assert_eq!(span.status.as_ref().unwrap().code(), StatusCode::Error);
    }
}

#[test]
fn pending_spans_are_sent_before_exit() {
    let collector = FakeCollector::with_mode(CollectorMode::Accept);
    let environment = [("OTEL_BSP_SCHEDULE_DELAY", "600000")];
    let server = start_traced_server(&collector.url(), &["--trace-sample", "100%"], &environment);
    send_post(&server, "/v1/check", CHECK_REQUEST_BODY, &[]);
    server.send_signal("TERM");
    assert_eq!(server.wait_for_exit_code(), Some(0));
    assert_eq!(collector.next_spans(2).len(), 2);
}

#[test]
fn no_spans_are_exported_without_otlp_endpoint() {
    let collector = FakeCollector::with_mode(CollectorMode::Accept);
    // The standard variable of OpenTelemetry does not enable traces.
    let environment = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url())];
    let server = start_traced_server("", &[], &environment);
    send_post(
        &server,
        "/v1/check",
        CHECK_REQUEST_BODY,
        &[("traceparent", &*caller_traceparent_with_flags("01"))],
    );
    server.send_signal("TERM");
    assert_eq!(server.wait_for_exit_code(), Some(0));
    assert_eq!(collector.connection_count(), 0);
}

#[test]
fn tls_collector_requires_trusted_certificate() {
    let server_certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(
        server_certificate.signing_key.serialize_der(),
    ));
    let certificates: Vec<CertificateDer<'_>> =
        vec![server_certificate.cert.der().clone().into_owned()];
    let config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(certificates, key).unwrap();
    let collector = FakeCollector::with_mode(CollectorMode::AcceptTls(Arc::new(config)));
    let url = format!("https://localhost:{}", collector.port());
    let certificate = TempFile::new(".pem", server_certificate.cert.pem());
    let trusted = ("SSL_CERT_FILE", certificate.path().to_str().unwrap());
    let flags = ["--trace-sample", "100%"];
    let server = start_traced_server(&url, &flags, &[trusted]);
    send_post(&server, "/v1/check", CHECK_REQUEST_BODY, &[]);
    assert_eq!(collector.next_spans(2).len(), 2);
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = TempFile::new(".pem", other.cert.pem());
    let distrusting =
        start_traced_server(&url, &flags, &[("SSL_CERT_FILE", other.path().to_str().unwrap())]);
    send_post(&distrusting, "/v1/check", CHECK_REQUEST_BODY, &[]);
    let warning =
        distrusting.wait_for_log("traces lost, because the collector did not accept them");
    assert!(warning.contains(r#"problem="invalid peer certificate"#), "{warning}");
    assert_eq!(collector.received_spans(), []);
}

#[test]
fn invalid_otlp_endpoint_is_rejected_at_start() {
    for (url, expected) in [
        ("localhost:4318", "write http://HOST:4318 or https://HOST:4318"),
        ("http://me:secret@localhost:4318", "OTEL_EXPORTER_OTLP_HEADERS"),
    ] {
        let policy = TempFile::new(".yaml", POLICY);
        let mut command = slidegate_command();
        command.arg("serve").arg("--policy").arg(policy.path()).args(["--otlp-endpoint", url]);
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr.contains("--otlp-endpoint") && stderr.contains(expected), "{stderr}");
        assert!(!stderr.contains("secret"), "{stderr}");
    }
}
