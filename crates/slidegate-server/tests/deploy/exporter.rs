//! A fake server that exports every metric documented in docs/reference/metrics.md. The counters grow with each scrape.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use crate::common::documented_metrics::{DocumentedMetric, documented_metrics};

/// Starts the fake server, and returns its address. The server listens until the test process ends.
pub fn start_fake_exporter() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let metrics = documented_metrics();
    thread::spawn(move || {
        for (scrapes, stream) in (1_u32..).zip(listener.incoming()) {
            let mut stream = stream.unwrap();
            // The request has no body and arrives in one piece.
            let _ = stream.read(&mut [0; 4096]);
            let body = render_metrics(&metrics, scrapes);
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\nconnection: close";
            let _ = write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        }
    });
    address
}

/// Renders the metrics in the text format of Prometheus. `scrapes` is the number of scrapes so far, and determines the
/// values of the counters.
fn render_metrics(metrics: &[DocumentedMetric], scrapes: u32) -> String {
    let mut text = String::new();
    for metric in metrics {
        let DocumentedMetric { name, kind, .. } = metric;
        text += &format!("# TYPE {name} {kind}\n");
        for labels in label_value_combinations(metric) {
            let total = 20.0 * f64::from(scrapes);
            match kind.as_str() {
                "counter" => text += &format!("{name}{{{labels}}} {total}\n"),
                "gauge" => text += &format!("{name}{{{labels}}} 1\n"),
                _ => {
                    let comma = if labels.is_empty() { "" } else { "," };
                    for (le, share) in [("0.001", 0.9), ("0.01", 0.99), ("+Inf", 1.0)] {
                        let count = share * total;
                        text += &format!("{name}_bucket{{{labels}{comma}le=\"{le}\"}} {count}\n");
                    }
                    text += &format!("{name}_sum{{{labels}}} {}\n", 0.002 * total);
                    text += &format!("{name}_count{{{labels}}} {total}\n");
                }
            }
        }
    }
    text
}

/// Returns every combination of the documented label values of a metric, each as text such as `kind="a",outcome="b"`. A
/// label without a fixed list of values has the value `some`.
fn label_value_combinations(metric: &DocumentedMetric) -> Vec<String> {
    metric.labels.iter().fold(vec![String::new()], |before, label| {
        let some = ["some".to_owned()];
        let values = if label.values.is_empty() { &some[..] } else { &label.values };
        let extend = |labels: &String| {
            let comma = if labels.is_empty() { "" } else { "," };
            let append = |value| format!("{labels}{comma}{}=\"{value}\"", label.name);
            values.iter().map(append).collect::<Vec<_>>()
        };
        before.iter().flat_map(extend).collect()
    })
}
