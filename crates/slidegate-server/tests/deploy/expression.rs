//! What a PromQL expression asks for: as much of the language as needs no parser. Whether it is right
//! altogether, Prometheus says.

use std::collections::BTreeSet;

use crate::documented::Metric;

/// Labels that Prometheus adds, or that make a histogram.
const GIVEN: [&str; 3] = ["job", "instance", "le"];

/// A metric of slidegate in an expression, with what its labels must be.
#[derive(Debug, PartialEq)]
pub struct Selector {
    pub name: String,
    /// Name and values; several if it is an alternative.
    pub labels: Vec<(String, Vec<String>)>,
}

/// Every metric of slidegate in an expression, or among series of an exporter.
pub fn selectors(expression: &str) -> Vec<Selector> {
    let of_name = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == ':';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(|char| of_name(char) || char == '"') {
        rest = &rest[start..];
        if let Some(quoted) = rest.strip_prefix('"') {
            rest = quoted.split_once('"').expect("a quote ends").1;
            continue;
        }
        let end = rest.find(|char| !of_name(char)).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        rest = behind;
        if name.contains("slidegate") {
            let labels = behind.strip_prefix('{').map(|inner| inner.split_once('}').unwrap().0);
            let labels = labels.map(matchers).unwrap_or_default();
            found.push(Selector { name: name.to_owned(), labels });
        }
    }
    found
}

/// `a="x", b=~"y|z"`. No value of ours has a comma.
fn matchers(inner: &str) -> Vec<(String, Vec<String>)> {
    let one = |matcher: &str| {
        let (name, value) = matcher.split_once(['=', '!']).unwrap();
        let value = value.split('"').nth(1).unwrap();
        (name.trim().to_owned(), value.split('|').map(str::to_owned).collect())
    };
    inner.split(',').filter(|matcher| !matcher.trim().is_empty()).map(one).collect()
}

/// What an expression asks for that no document tells of. `recorded` are names that rules make.
pub fn unknown(expression: &str, metrics: &[Metric], recorded: &BTreeSet<String>) -> Vec<String> {
    let selectors = selectors(expression);
    let asked = selectors.into_iter().filter(|selector| !recorded.contains(&selector.name));
    asked.filter_map(|selector| mistake(&selector, metrics)).collect()
}

fn mistake(selector: &Selector, metrics: &[Metric]) -> Option<String> {
    let name = &selector.name;
    let Some(metric) = metrics.iter().find(|metric| metric.series().contains(name)) else {
        return Some(format!("no metric `{name}`"));
    };
    selector.labels.iter().find_map(|(label, values)| {
        if GIVEN.contains(&label.as_str()) {
            return None;
        }
        let Some(label) = metric.labels.iter().find(|known| known.name == *label) else {
            return Some(format!("`{name}` has no label `{label}`"));
        };
        let free = label.values.is_empty();
        let wrong = values.iter().find(|value| !free && !label.values.contains(value))?;
        Some(format!("`{}` of `{name}` is never `{wrong}`", label.name))
    })
}

#[test]
fn selectors_are_found_with_their_labels() {
    let expression = "sum by (slide) (rate(slidegate_a_total{job=~\"x\",kind!=\"p|q\"}[5m])) / x:slidegate_b:y > on() f(\"slidegate_c{\")";
    let of = |name: &str, labels: &[(&str, &[&str])]| {
        let one = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect();
        let labels = labels.iter().map(|&(name, values)| (name.to_owned(), one(values))).collect();
        Selector { name: name.to_owned(), labels }
    };
    let wanted = [
        of("slidegate_a_total", &[("job", &["x"]), ("kind", &["p", "q"])]),
        of("x:slidegate_b:y", &[]),
    ];
    assert_eq!(selectors(expression), wanted);
}

#[test]
fn a_name_a_label_or_a_value_may_be_wrong() {
    let metrics = crate::documented::metrics();
    let wrong = |expression: &str| {
        unknown(expression, &metrics, &BTreeSet::from(["r:slidegate:x".to_owned()]))
    };
    for right in [
        "slidegate_keys{job=\"a\",instance=\"b\"}",
        "slidegate_request_seconds_bucket{le=\"1\"}",
        "slidegate_decisions_total{outcome=~\"allowed|denied\",rule=\"any\"}",
        "r:slidegate:x{any=\"thing\"}",
    ] {
        assert!(wrong(right).is_empty(), "{right}: {:?}", wrong(right));
    }
    for mistaken in [
        "slidegate_key",
        "slidegate_request_seconds",
        "slidegate_keys_count",
        "slidegate_keys{domain=\"a\"}",
        "slidegate_decisions_total{outcome=\"deny\"}",
        "slidegate_decisions_total{outcome=~\"allowed|deny\"}",
    ] {
        assert_eq!(wrong(mistaken).len(), 1, "{mistaken}");
    }
}
