//! Parses the table of metrics in docs/reference/metrics.md. Tests compare the table with the metrics that the program
//! exports.

use std::fs;
use std::path::Path;

/// A metric as described by a row of the table in docs/reference/metrics.md.
#[derive(Debug)]
pub struct DocumentedMetric {
    pub name: String,
    /// Metric type: `counter`, `gauge` or `histogram`.
    pub kind: String,
    pub labels: Vec<DocumentedLabel>,
}

/// A documented label of a metric.
#[derive(Debug)]
pub struct DocumentedLabel {
    pub name: String,
    /// All possible values of the label. The list is empty if the values are not fixed, for example if they are rule
    /// names.
    pub values: Vec<String>,
}

impl DocumentedMetric {
    /// Returns the names of all series of the metric. A histogram has three series names, which end with `_bucket`,
    /// `_sum` and `_count`. Other metrics have one, the metric name.
    pub fn series_names(&self) -> Vec<String> {
        let suffixes: &[&str] = match self.kind.as_str() {
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        suffixes.iter().map(|suffix| format!("{}{suffix}", self.name)).collect()
    }
}

/// Returns all metrics of the table in section `Metrics` of docs/reference/metrics.md, in the order of the table.
pub fn documented_metrics() -> Vec<DocumentedMetric> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let document = fs::read_to_string(path).unwrap();
    let (_, section) = document.split_once("\n## Metrics\n").expect("a section `Metrics`");
    let section = section.split("\n## ").next().unwrap();
    let metrics: Vec<DocumentedMetric> = section
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(parse_metric_table_row)
        .collect();
    assert!(metrics.len() > 10, "{metrics:?}");
    metrics
}

/// Parses one row of the table of metrics.
fn parse_metric_table_row(row: &str) -> DocumentedMetric {
    let cells: Vec<&str> = row.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [name, kind, labels, meaning] = cells[..] else { panic!("four cells: {row}") };
    assert!(["counter", "gauge", "histogram"].contains(&kind), "{row}");
    assert_eq!(name.ends_with("_total`"), kind == "counter", "{row}");
    assert!(!meaning.is_empty(), "{row}");
    let labels =
        labels.split(';').filter(|label| !label.is_empty()).map(parse_documented_label).collect();
    DocumentedMetric { name: words_in_backticks(name).remove(0), kind: kind.to_owned(), labels }
}

/// Parses the description of a label: the quoted name, which may be followed by all possible values, also quoted.
fn parse_documented_label(text: &str) -> DocumentedLabel {
    let mut words = words_in_backticks(text);
    let name = words.remove(0);
    DocumentedLabel { name, values: words }
}

/// Returns all parts of a text that are enclosed in backticks.
fn words_in_backticks(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
