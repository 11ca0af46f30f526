//! Finds the slidegate metrics in PromQL expressions, and checks that all metrics, labels and label values are
//! documented.
//!
//! The scan does not fully parse the expressions. Prometheus itself checks the syntax.

use std::collections::BTreeSet;

use crate::common::documented_metrics::DocumentedMetric;

/// Labels that are allowed on every metric: `job` and `instance`, which Prometheus adds, and the histogram label `le`.
const IMPLICIT_METRIC_LABELS: [&str; 3] = ["job", "instance", "le"];

/// A slidegate metric in a PromQL expression, with its label matchers.
#[derive(Debug, PartialEq)]
pub struct MetricSelector {
    pub name: String,
    /// The label matchers, each as the label name and the values. A matcher such as `kind=~"p|q"` has several values.
    pub labels: Vec<(String, Vec<String>)>,
}

/// Returns all slidegate metrics in a PromQL expression, including series of recording rules, such as
/// `a:slidegate_b:c`.
pub fn parse_selectors(expression: &str) -> Vec<MetricSelector> {
    let is_name_char = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == ':';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(|char| is_name_char(char) || char == '"') {
        rest = &rest[start..];
        if let Some(quoted) = rest.strip_prefix('"') {
            rest = quoted.split_once('"').expect("a closing quote").1;
            continue;
        }
        let end = rest.find(|char| !is_name_char(char)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        if name.contains("slidegate") {
            let labels = after.strip_prefix('{').map(|inner| inner.split_once('}').unwrap().0);
            let labels = labels.map(parse_label_matchers).unwrap_or_default();
            found.push(MetricSelector { name: name.to_owned(), labels });
        }
    }
    found
}

/// Parses label matchers such as `a="x", b=~"y|z"`, and returns each label name with its values. Assumes that no value
/// contains a comma.
fn parse_label_matchers(inner: &str) -> Vec<(String, Vec<String>)> {
    let parse = |matcher: &str| {
        let (name, value) = matcher.split_once(['=', '!']).unwrap();
        let value = value.split('"').nth(1).unwrap();
        (name.trim().to_owned(), value.split('|').map(str::to_owned).collect())
    };
    inner.split(',').filter(|matcher| !matcher.trim().is_empty()).map(parse).collect()
}

/// Returns an error for each undocumented metric, label or label value in a PromQL expression. Series in `recorded`,
/// which recording rules create, are allowed.
pub fn find_undocumented(
    expression: &str,
    metrics: &[DocumentedMetric],
    recorded: &BTreeSet<String>,
) -> Vec<String> {
    let selectors = parse_selectors(expression);
    let own_metrics = selectors.into_iter().filter(|selector| !recorded.contains(&selector.name));
    own_metrics.filter_map(|selector| undocumented_selector_error(&selector, metrics)).collect()
}

/// Returns an error if the metric, a label or a label value of a selector is not documented.
fn undocumented_selector_error(
    selector: &MetricSelector,
    metrics: &[DocumentedMetric],
) -> Option<String> {
    let name = &selector.name;
    let Some(metric) = metrics.iter().find(|metric| metric.series_names().contains(name)) else {
        return Some(format!("no metric `{name}`"));
    };
    selector.labels.iter().find_map(|(label, values)| {
        if IMPLICIT_METRIC_LABELS.contains(&label.as_str()) {
            return None;
        }
        let Some(label) = metric.labels.iter().find(|known| known.name == *label) else {
            return Some(format!("`{name}` has no label `{label}`"));
        };
        let has_free_values = label.values.is_empty();
        let unknown =
            values.iter().find(|value| !has_free_values && !label.values.contains(value))?;
        Some(format!("`{}` of `{name}` is never `{unknown}`", label.name))
    })
}

#[test]
fn metric_selectors_are_parsed_with_labels() {
    let expression = "sum by (slide) (rate(slidegate_a_total{job=~\"x\",kind!=\"p|q\"}[5m])) / x:slidegate_b:y > on() f(\"slidegate_c{\")";
    let selector = |name: &str, labels: &[(&str, &[&str])]| {
        let owned = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect();
        let labels =
            labels.iter().map(|&(name, values)| (name.to_owned(), owned(values))).collect();
        MetricSelector { name: name.to_owned(), labels }
    };
    let expected = [
        selector("slidegate_a_total", &[("job", &["x"]), ("kind", &["p", "q"])]),
        selector("x:slidegate_b:y", &[]),
    ];
    assert_eq!(parse_selectors(expression), expected);
}

#[test]
fn undocumented_names_labels_and_values_are_reported() {
    let metrics = crate::common::documented_metrics::documented_metrics();
    let errors = |expression: &str| {
        find_undocumented(expression, &metrics, &BTreeSet::from(["r:slidegate:x".to_owned()]))
    };
    for valid in [
        "slidegate_keys{job=\"a\",instance=\"b\"}",
        "slidegate_request_seconds_bucket{le=\"1\"}",
        "slidegate_decisions_total{outcome=~\"allowed|denied\",rule=\"any\"}",
        "r:slidegate:x{any=\"thing\"}",
    ] {
        assert!(errors(valid).is_empty(), "{valid}: {:?}", errors(valid));
    }
    for invalid in [
        "slidegate_key",
        "slidegate_request_seconds",
        "slidegate_keys_count",
        "slidegate_keys{domain=\"a\"}",
        "slidegate_decisions_total{outcome=\"deny\"}",
        "slidegate_decisions_total{outcome=~\"allowed|deny\"}",
    ] {
        assert_eq!(errors(invalid).len(), 1, "{invalid}");
    }
}
