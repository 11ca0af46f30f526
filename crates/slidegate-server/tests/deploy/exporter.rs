//! A stand-in for slidegate: every series that docs/OPERATIONS.md tells of, and all of them grow.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use crate::documented::{Metric, metrics};

/// Listens until the process ends.
pub fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let metrics = metrics();
    thread::spawn(move || {
        for (scrapes, stream) in (1_u32..).zip(listener.incoming()) {
            let mut stream = stream.unwrap();
            // A request without a body, which comes in one piece.
            let _ = stream.read(&mut [0; 4096]);
            let body = exposition(&metrics, scrapes);
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\nconnection: close";
            let _ = write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        }
    });
    address
}

fn exposition(metrics: &[Metric], scrapes: u32) -> String {
    let mut text = String::new();
    for metric in metrics {
        let Metric { name, kind, .. } = metric;
        text += &format!("# TYPE {name} {kind}\n");
        for labels in combinations(metric) {
            let many = 20.0 * f64::from(scrapes);
            match kind.as_str() {
                "counter" => text += &format!("{name}{{{labels}}} {many}\n"),
                "gauge" => text += &format!("{name}{{{labels}}} 1\n"),
                _ => {
                    let comma = if labels.is_empty() { "" } else { "," };
                    for (le, share) in [("0.001", 0.9), ("0.01", 0.99), ("+Inf", 1.0)] {
                        let count = share * many;
                        text += &format!("{name}_bucket{{{labels}{comma}le=\"{le}\"}} {count}\n");
                    }
                    text += &format!("{name}_sum{{{labels}}} {}\n", 0.002 * many);
                    text += &format!("{name}_count{{{labels}}} {many}\n");
                }
            }
        }
    }
    text
}

/// The labels of each series: every value with every other, and `some` where nobody says which there are.
fn combinations(metric: &Metric) -> Vec<String> {
    metric.labels.iter().fold(vec![String::new()], |before, label| {
        let some = ["some".to_owned()];
        let values = if label.values.is_empty() { &some[..] } else { &label.values };
        let with = |labels: &String| {
            let comma = if labels.is_empty() { "" } else { "," };
            let one = |value| format!("{labels}{comma}{}=\"{value}\"", label.name);
            values.iter().map(one).collect::<Vec<_>>()
        };
        before.iter().flat_map(with).collect()
    })
}
