//! Spans as a collector gets them.

use std::net::TcpListener;
use std::sync::Arc;

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use ureq::http::Request;

use crate::client::{Answer, Client};
use crate::collector::{Collector, Manner, attribute};
use crate::common::{Server, TempFile, slidegate};

const POLICY: &str = "rules: [{ name: per-tenant, per: [tenant], limits: [2/h], algorithm: sliding_log, on_store_error: deny }]";

const BODY: &str = r#"{"attributes":{"tenant":"user-value"}}"#;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// A server that traces so, and sends at once; without an address it is told none.
pub fn traced(url: &str, flags: &[&str], environment: &[(&str, &str)]) -> Server {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate();
    command.arg("serve").arg("--policy").arg(policy.path()).args(["--http", "127.0.0.1:0"]);
    if !url.is_empty() {
        command.args(["--otlp-endpoint", url]);
    }
    command.args(flags).env("OTEL_BSP_SCHEDULE_DELAY", "50");
    Server::spawn(command.envs(environment.iter().copied()))
}

fn ask(server: &Server, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::post(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Client::of(server).send(request.body(body.as_bytes().to_vec()).unwrap())
}

fn caller(flags: &str) -> String {
    format!("00-{TRACE}-{SPAN}-{flags}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The spans of one decision: its own, and that of the store.
fn pair(spans: &[Span]) -> (&Span, &Span) {
    let [one, other] = spans else { panic!("{spans:?}") };
    if one.name == "slidegate.store" { (other, one) } else { (one, other) }
}

#[track_caller]
fn assert_attributes(span: &Span, expected: &[(&str, &str)]) {
    let told: Vec<_> = expected.iter().map(|(name, _)| (*name, attribute(span, name))).collect();
    let expected: Vec<_> =
        expected.iter().map(|(name, value)| (*name, Some((*value).to_owned()))).collect();
    assert_eq!(told, expected);
    assert_eq!(span.attributes.len(), expected.len(), "and no others: {:?}", span.attributes);
}

#[test]
fn decision_span_links_caller_and_store() {
    let collector = Collector::that(Manner::Takes);
    let server = traced(&collector.url(), &["--trace-sample", "0%"], &[]);
    for (path, name, outcome, remaining, status) in [
        ("/v1/peek", "slidegate.peek", "allowed", "2", "200"),
        ("/v1/check", "slidegate.check", "allowed", "1", "200"),
        ("/v1/check", "slidegate.check", "allowed", "0", "200"),
        ("/v1/check", "slidegate.check", "denied", "0", "429"),
    ] {
        let headers = [("traceparent", &*caller("01")), ("tracestate", "vendor=1")];
        assert_eq!(ask(&server, path, BODY, &headers).status.to_string(), status);
        let spans = collector.spans(2);
        let (decision, store) = pair(&spans);
        assert_eq!((&*decision.name, decision.kind()), (name, SpanKind::Server));
        assert_eq!(hex(&decision.trace_id), TRACE);
        assert_eq!(hex(&decision.parent_span_id), SPAN);
        assert_eq!(decision.trace_state, "vendor=1");
        assert_attributes(
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
        assert_eq!(hex(&store.trace_id), TRACE);
        assert_eq!(store.parent_span_id, decision.span_id);
        assert_attributes(store, &[("slidegate.store", "memory")]);
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
fn export_names_service_and_hides_user_values() {
    let collector = Collector::that(Manner::Takes);
    let environment = [("OTEL_EXPORTER_OTLP_HEADERS", "x-token=abc")];
    let server = traced(&collector.url(), &["--trace-sample", "100%"], &environment);
    ask(&server, "/v1/check", BODY, &[]);
    let export = collector.next();
    assert_eq!(export.path, "/v1/traces");
    for header in ["content-type: application/x-protobuf", "x-token: abc"] {
        assert!(export.headers.iter().any(|one| one == header), "{:?}", export.headers);
    }
    let resource = export.message().resource_spans[0].resource.clone().unwrap();
    let resource = Span { attributes: resource.attributes, ..Span::default() };
    assert_eq!(attribute(&resource, "service.name").as_deref(), Some("slidegate"));
    assert!(attribute(&resource, "service.version").is_some());
    assert!(!String::from_utf8_lossy(&export.body).contains("user-value"));
}

#[test]
fn traceparent_overrides_sampling() {
    let collector = Collector::that(Manner::Takes);
    let all = traced(&collector.url(), &["--trace-sample", "100%"], &[]);
    ask(&all, "/v1/check", BODY, &[("traceparent", &*caller("00"))]);
    ask(&all, "/v1/check", BODY, &[]);
    let spans = collector.spans(2);
    let (decision, _) = pair(&spans);
    assert_eq!(decision.parent_span_id, b"", "that of the second, which has no caller");
    assert_ne!(hex(&decision.trace_id), TRACE);
    // Malformed, it says nothing.
    ask(&all, "/v1/check", BODY, &[("traceparent", &format!("{}-", caller("00")))]);
    assert_eq!(pair(&collector.spans(2)).0.parent_span_id, b"");
    let none = traced(&collector.url(), &["--trace-sample", "0%"], &[]);
    ask(&none, "/v1/check", BODY, &[]);
    none.signal("TERM");
    assert_eq!(none.exit_code(), Some(0));
    assert_eq!(collector.rest(), []);
}

/// Requests forwarded to `/v1/auth` with the headers of an end client, and the spans that come of them.
fn forwarded(flags: &[&str], traceparents: &[String]) -> Vec<Span> {
    let collector = Collector::that(Manner::Takes);
    let server = traced(&collector.url(), flags, &[]);
    for traceparent in traceparents {
        let headers = [("traceparent", &**traceparent), ("tracestate", "vendor=1")];
        assert_eq!(ask(&server, "/v1/auth", "", &headers).status, 200);
    }
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
    collector.rest()
}

/// A client's `traceparent` whose trace id a sampler by ratio always takes, and one that it never does.
fn chosen_ids(flags: &str) -> [String; 2] {
    ["0", "f"].map(|digit| format!("00-{TRACE:.16}{}-{SPAN}-{flags}", digit.repeat(16)))
}

#[test]
fn forwarded_traceparent_cannot_force_spans() {
    let mut sampled = chosen_ids("01").to_vec();
    sampled.push(caller("01"));
    assert_eq!(forwarded(&["--trace-sample", "0%"], &sampled), []);
    // A share that none of three requests is in, unless its trace id is chosen for it.
    assert_eq!(forwarded(&["--trace-sample", "0.0000001%"], &sampled), []);
    assert_eq!(forwarded(&["--trace-sample", "0.0000001%"], &chosen_ids("00")), []);
}

#[test]
fn forwarded_traceparent_cannot_suppress_spans() {
    for share in ["100%", "99.9999999%"] {
        let spans = forwarded(&["--trace-sample", share], &chosen_ids("00"));
        assert_eq!(spans.len(), 2, "{share}: {spans:?}");
        for span in spans {
            assert_eq!((&*span.name, &*span.parent_span_id), ("slidegate.auth", &[][..]));
            assert_eq!(span.trace_state, "");
            let [link] = &*span.links else { panic!("the client's span: {span:?}") };
            assert_ne!(span.trace_id, link.trace_id);
            assert!(hex(&link.trace_id).starts_with(&TRACE[..16]));
            assert_eq!((&*hex(&link.span_id), &*link.trace_state), (SPAN, ""));
        }
    }
}

#[test]
fn forwarded_traceparent_decides_if_trusted() {
    let trusting = ["--trust-traceparent", "--trace-sample", "0%"];
    let spans = forwarded(&trusting, &[caller("01")]);
    let [span] = &*spans else { panic!("{spans:?}") };
    assert_eq!((&*span.name, &*hex(&span.trace_id)), ("slidegate.auth", TRACE));
    assert_eq!((&*hex(&span.parent_span_id), &*span.trace_state), (SPAN, "vendor=1"));
    assert_eq!(span.links, []);
    let trusting = ["--trust-traceparent", "--trace-sample", "100%"];
    assert_eq!(forwarded(&trusting, &[caller("00")]), []);
}

#[test]
fn invalid_and_store_failures_have_outcomes() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let store = format!("redis://{nobody}");
    let collector = Collector::that(Manner::Takes);
    let server = traced(&collector.url(), &["--trace-sample", "100%", "--store", &store], &[]);
    ask(&server, "/v1/check", "nonsense", &[]);
    let spans = collector.spans(1);
    assert_attributes(
        &spans[0],
        &[("slidegate.outcome", "invalid"), ("http.response.status_code", "400")],
    );
    ask(&server, "/v1/check", BODY, &[]);
    let spans = collector.spans(2);
    let (decision, store) = pair(&spans);
    assert_attributes(
        decision,
        &[
            ("slidegate.domain", "default"),
            ("slidegate.outcome", "refused"),
            ("slidegate.degraded", "true"),
            ("http.response.status_code", "503"),
        ],
    );
    assert_attributes(store, &[("slidegate.store", "redis")]);
    for span in [decision, store] {
        assert_eq!(span.status.as_ref().unwrap().code(), StatusCode::Error);
    }
}

#[test]
fn pending_spans_are_sent_before_exit() {
    let collector = Collector::that(Manner::Takes);
    let environment = [("OTEL_BSP_SCHEDULE_DELAY", "600000")];
    let server = traced(&collector.url(), &["--trace-sample", "100%"], &environment);
    ask(&server, "/v1/check", BODY, &[]);
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
    assert_eq!(collector.spans(2).len(), 2);
}

#[test]
fn no_spans_without_otlp_endpoint() {
    let collector = Collector::that(Manner::Takes);
    // What the standard's own variable says does not turn it on.
    let environment = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url())];
    let server = traced("", &["--trace-sample", "100%"], &environment);
    ask(&server, "/v1/check", BODY, &[("traceparent", &*caller("01"))]);
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
    assert_eq!(collector.connections(), 0);
}

#[test]
fn tls_collector_requires_trusted_certificate() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let certificates: Vec<CertificateDer<'_>> = vec![made.cert.der().clone().into_owned()];
    let config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(certificates, key).unwrap();
    let collector = Collector::that(Manner::TakesByTls(Arc::new(config)));
    let url = format!("https://localhost:{}", collector.port());
    let certificate = TempFile::new(".pem", made.cert.pem());
    let trusted = ("SSL_CERT_FILE", certificate.path().to_str().unwrap());
    let flags = ["--trace-sample", "100%"];
    let server = traced(&url, &flags, &[trusted]);
    ask(&server, "/v1/check", BODY, &[]);
    assert_eq!(collector.spans(2).len(), 2);
    let stranger = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let stranger = TempFile::new(".pem", stranger.cert.pem());
    let wary = traced(&url, &flags, &[("SSL_CERT_FILE", stranger.path().to_str().unwrap())]);
    ask(&wary, "/v1/check", BODY, &[]);
    wary.wait_for_log(
        "traces were lost, the collector did not take them: invalid peer certificate",
    );
    assert_eq!(collector.rest(), []);
}

#[test]
fn invalid_otlp_endpoint_is_rejected_at_start() {
    for (url, why) in [
        ("localhost:4318", "write http://HOST:4318 or https://HOST:4318"),
        ("http://me:secret@localhost:4318", "OTEL_EXPORTER_OTLP_HEADERS"),
    ] {
        let policy = TempFile::new(".yaml", POLICY);
        let mut command = slidegate();
        command.arg("serve").arg("--policy").arg(policy.path()).args(["--otlp-endpoint", url]);
        let output = command.output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(told.contains("--otlp-endpoint") && told.contains(why), "{told}");
        assert!(!told.contains("secret"), "{told}");
    }
}
