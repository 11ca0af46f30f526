//! Reads the table of metrics in docs/OPERATIONS.md, with which tests compare the metrics of the program.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::path::Path;

/// A row of the table of metrics.
#[derive(Debug)]
pub struct DocumentedMetric {
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    pub labels: Vec<DocumentedLabel>,
}

/// A label of a metric.
#[derive(Debug)]
pub struct DocumentedLabel {
    pub name: String,
    /// All possible values. Empty if they depend on the policy or the program.
    pub values: Vec<String>,
}

impl DocumentedMetric {
    /// Returns the names of its series.
    pub fn series(&self) -> Vec<String> {
        let suffixes: &[&str] = match self.kind.as_str() {
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        suffixes.iter().map(|suffix| format!("{}{suffix}", self.name)).collect()
    }
}

/// Returns the rows of the table in section `Metrics`, in the order of the document.
pub fn documented_metrics() -> Vec<DocumentedMetric> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/OPERATIONS.md");
    let document = fs::read_to_string(path).unwrap();
    let (_, section) = document.split_once("\n## Metrics\n").expect("a section `Metrics`");
    let section = section.split("\n## ").next().unwrap();
    let metrics: Vec<DocumentedMetric> =
        section.lines().filter(|line| line.starts_with("| `")).map(parse_metric_row).collect();
    assert!(metrics.len() > 10, "{metrics:?}");
    metrics
}

/// Parses a row of the table.
fn parse_metric_row(row: &str) -> DocumentedMetric {
    let cells: Vec<&str> = row.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [name, kind, labels, meaning] = cells[..] else { panic!("four cells: {row}") };
    assert!(["counter", "gauge", "histogram"].contains(&kind), "{row}");
    assert_eq!(name.ends_with("_total`"), kind == "counter", "{row}");
    assert!(!meaning.is_empty(), "{row}");
    let labels = labels.split(';').filter(|label| !label.is_empty()).map(parse_label).collect();
    DocumentedMetric { name: words_in_backticks(name).remove(0), kind: kind.to_owned(), labels }
}

/// Parses a label: `name`, or `name`: `value`, `value`.
fn parse_label(text: &str) -> DocumentedLabel {
    let mut words = words_in_backticks(text);
    let name = words.remove(0);
    DocumentedLabel { name, values: words }
}

/// Returns the words in backticks.
fn words_in_backticks(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
