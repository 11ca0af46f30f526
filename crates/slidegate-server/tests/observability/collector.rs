//! A collector of traces: as much of OTLP over HTTP as exporters need.

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

/// Far more than anything takes: a test should fail, not hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a collector treats those that send.
#[derive(Clone)]
pub enum Manner {
    Takes,
    TakesByTls(Arc<ServerConfig>),
    Fails,
    NeverAnswers,
}

pub struct Collector {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    exports: Receiver<Export>,
}

/// One export, as it came.
pub struct Export {
    pub path: String,
    pub headers: Vec<String>,
    pub body: Vec<u8>,
}

impl Collector {
    pub fn that(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, (sender, exports)) = (Arc::new(AtomicUsize::new(0)), channel());
        let count = connections.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
                let (manner, sender) = (manner.clone(), sender.clone());
                thread::spawn(move || serve(stream.unwrap(), &manner, &sender));
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

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub fn next(&self) -> Export {
        self.exports.recv_timeout(PATIENCE).expect("an export")
    }

    /// Waits until so many spans have come. No other may come with them.
    pub fn spans(&self, count: usize) -> Vec<Span> {
        let mut spans = Vec::new();
        while spans.len() < count {
            spans.extend(self.next().spans());
        }
        assert_eq!(spans.len(), count, "{spans:?}");
        spans
    }

    /// What has come since.
    pub fn rest(&self) -> Vec<Span> {
        self.exports.try_iter().flat_map(|export| export.spans()).collect()
    }
}

impl Export {
    pub fn message(&self) -> ExportTraceServiceRequest {
        ExportTraceServiceRequest::decode(&*self.body).unwrap()
    }

    fn spans(&self) -> Vec<Span> {
        let resources = self.message().resource_spans.into_iter();
        resources.flat_map(|one| one.scope_spans).flat_map(|one| one.spans).collect()
    }
}

fn serve(stream: TcpStream, manner: &Manner, sender: &Sender<Export>) {
    match manner {
        Manner::TakesByTls(config) => {
            let tls = ServerConnection::new(config.clone()).unwrap();
            exchange(StreamOwned::new(tls, stream), "200 OK", sender);
        }
        Manner::Takes => exchange(stream, "200 OK", sender),
        Manner::Fails => exchange(stream, "500 Internal Server Error", sender),
        Manner::NeverAnswers => {
            // Until the other side goes.
            let _ = (&stream).read_to_end(&mut Vec::new());
        }
    }
}

fn exchange(stream: impl Read + Write, status: &str, sender: &Sender<Export>) {
    let mut stream = BufReader::new(stream);
    while let Some(export) = read(&mut stream) {
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        stream.get_mut().write_all(answer.as_bytes()).unwrap();
        // The test may be over.
        let _ = sender.send(export);
    }
}

fn read(stream: &mut BufReader<impl Read>) -> Option<Export> {
    let mut line = String::new();
    match stream.read_line(&mut line) {
        // Whoever does not trust a certificate ends the connection so.
        Err(error) if error.kind() == ErrorKind::InvalidData => return None,
        read => (read.unwrap_or(0) > 0).then_some(())?,
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
    Some(Export { path, headers, body })
}

/// An attribute of a span, as text.
pub fn attribute(span: &Span, name: &str) -> Option<String> {
    let value = span.attributes.iter().find(|attribute| attribute.key == name)?.value.clone();
    match value?.value? {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        Value::BoolValue(whether) => Some(whether.to_string()),
        other => panic!("{other:?}"),
    }
}
