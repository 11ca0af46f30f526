//! A fake trace collector, which receives exported traces over HTTP in the OpenTelemetry protocol (OTLP).

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Maximum wait for an export. Longer than any export takes, so that a broken test fails instead of hanging.
const TRACE_EXPORT_TIMEOUT: Duration = Duration::from_secs(30);

/// The behaviour of a fake collector when the server exports traces.
#[derive(Clone)]
pub enum CollectorMode {
    /// Accepts exports over plain HTTP.
    Accept,
    /// Accepts exports over TLS.
    AcceptTls(Arc<ServerConfig>),
    /// Receives exports and responds with status 500.
    Fail,
    /// Accepts connections and never responds.
    Hang,
}

/// A fake trace collector on a local port, which keeps the received exports for the test.
pub struct FakeCollector {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    exports: Receiver<TraceExport>,
}

/// An export of traces as the collector received it: path, headers and body of the HTTP request.
pub struct TraceExport {
    pub path: String,
    pub headers: Vec<String>,
    pub body: Vec<u8>,
}

impl FakeCollector {
    pub fn with_mode(mode: CollectorMode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, (sender, exports)) = (Arc::new(AtomicUsize::new(0)), channel());
        let connection_count = connections.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                connection_count.fetch_add(1, Ordering::SeqCst);
                let (mode, sender) = (mode.clone(), sender.clone());
                thread::spawn(move || serve_collector_connection(stream.unwrap(), &mode, &sender));
            }
        });
        Self { address, connections, exports }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn connection_count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Waits for the next export, and returns it. Panics after [`TRACE_EXPORT_TIMEOUT`].
    pub fn next_export(&self) -> TraceExport {
        self.exports.recv_timeout(TRACE_EXPORT_TIMEOUT).expect("an export")
    }

    /// Waits until exports with `count` spans have arrived, and returns the spans. Panics if the exports contain more
    /// spans.
    pub fn next_spans(&self, count: usize) -> Vec<Span> {
        let mut spans = Vec::new();
        while spans.len() < count {
            spans.extend(self.next_export().decode_spans());
        }
        assert_eq!(spans.len(), count, "{spans:?}");
        spans
    }

    /// Returns all received spans that no earlier call returned. Does not wait for exports.
    pub fn received_spans(&self) -> Vec<Span> {
        self.exports.try_iter().flat_map(|export| export.decode_spans()).collect()
    }
}

impl TraceExport {
    pub fn decode_message(&self) -> ExportTraceServiceRequest {
        ExportTraceServiceRequest::decode(&*self.body).unwrap()
    }

    fn decode_spans(&self) -> Vec<Span> {
        let resources = self.decode_message().resource_spans.into_iter();
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }
}

fn serve_collector_connection(
    stream: TcpStream,
    mode: &CollectorMode,
    sender: &Sender<TraceExport>,
) {
    match mode {
        CollectorMode::AcceptTls(config) => {
            let tls = ServerConnection::new(config.clone()).unwrap();
            respond_to_trace_exports(StreamOwned::new(tls, stream), "200 OK", sender);
        }
        CollectorMode::Accept => respond_to_trace_exports(stream, "200 OK", sender),
        CollectorMode::Fail => {
            respond_to_trace_exports(stream, "500 Internal Server Error", sender)
        }
        CollectorMode::Hang => {
            // Reads until the client closes the connection.
            let _ = (&stream).read_to_end(&mut Vec::new());
        }
    }
}

fn respond_to_trace_exports(stream: impl Read + Write, status: &str, sender: &Sender<TraceExport>) {
    let mut stream = BufReader::new(stream);
    while let Some(export) = read_trace_export(&mut stream) {
        let response = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        stream.get_mut().write_all(response.as_bytes()).unwrap();
        // The channel is closed if the test has ended.
        let _ = sender.send(export);
    }
}

fn read_trace_export(stream: &mut BufReader<impl Read>) -> Option<TraceExport> {
    let mut line = String::new();
    match stream.read_line(&mut line) {
        // A client that does not trust the certificate aborts the handshake.
        Err(error) if error.kind() == ErrorKind::InvalidData => return None,
        length => (length.unwrap_or(0) > 0).then_some(())?,
    }
    let path = line.strip_prefix("POST ")?.split(' ').next()?.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        match line.trim_end() {
            "" => break,
            header => headers.push(header.to_lowercase()),
        }
    }
    let length = headers.iter().find_map(|header| header.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    Some(TraceExport { path, headers, body })
}

/// Returns the value of a span attribute as text, or `None` if the span has no such attribute.
pub fn attribute_text(span: &Span, name: &str) -> Option<String> {
    let value = span.attributes.iter().find(|attribute| attribute.key == name)?.value.clone();
    match value?.value? {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        Value::BoolValue(boolean) => Some(boolean.to_string()),
        other => panic!("{other:?}"),
    }
}
