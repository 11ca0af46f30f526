//! The dashboard of Grafana.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::documented::metrics;
use crate::expression::{selectors, unknown};
use crate::prometheus::Prometheus;
use crate::{alerts, exporter, list, read, text};

/// What Grafana puts in the place of its variables, all of them chosen.
const VARIABLES: [(&str, &str); 5] = [
    ("$__rate_interval", "1s"),
    ("$__range", "1m"),
    ("$job", ".*"),
    ("$instance", ".*"),
    ("$domain", ".*"),
];

fn dashboard() -> Value {
    serde_json::from_str(&read("deploy/grafana/slidegate.json")).unwrap()
}

/// Every panel that shows something: no heading of a row.
fn panels() -> Vec<Value> {
    let dashboard = dashboard();
    let panels = list(&dashboard["panels"]).iter().filter(|panel| panel["type"] != "row");
    panels.cloned().collect()
}

/// What a panel asks, and the text that names each series of the answer.
fn targets(panel: &Value) -> impl Iterator<Item = (&str, &str)> {
    list(&panel["targets"])
        .iter()
        .map(|target| (text(&target["expr"]), text(&target["legendFormat"])))
}

/// The queries of variables: `label_values(metric{…}, label)`.
fn of_variables() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let queries = list(&dashboard["templating"]["list"]).iter();
    let queries = queries.filter_map(|variable| variable["query"]["query"].as_str());
    let parts = queries.map(|query| {
        let inner = query.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap();
        let (selector, label) = inner.rsplit_once(", ").unwrap();
        (selector.to_owned(), label.to_owned())
    });
    parts.collect()
}

/// An expression as Grafana sends it.
fn sent(expression: &str) -> String {
    let sent = VARIABLES
        .iter()
        .fold(expression.to_owned(), |text, (variable, value)| text.replace(variable, value));
    assert!(!sent.contains('$'), "which variable is that? {sent}");
    sent
}

#[test]
fn prometheus_answers_every_panel_and_every_variable() {
    let prometheus = Prometheus::start(&[exporter::start()]);
    for panel in panels() {
        for (expression, legend) in targets(&panel) {
            let expression = sent(expression);
            let samples = prometheus.wait_for(&expression);
            for sample in &samples {
                assert!(sample.value.is_finite(), "{expression}: {sample:?}");
                let lost = named(legend).find(|&label| !sample.labels.contains_key(label));
                assert!(lost.is_none(), "{}: `{legend}` of {sample:?}", panel["title"]);
            }
        }
    }
    let variables = of_variables();
    for (selector, label) in &variables {
        let series = prometheus.series(&sent(selector)).unwrap();
        let has = |series: &Value| series.get(label).is_some();
        assert!(!series.is_empty() && series.iter().all(has), "{selector}, {label}");
    }
    assert_eq!(variables.len(), 3);
}

/// The labels in `{{rule}} / {{limit}}`.
fn named(legend: &str) -> impl Iterator<Item = &str> {
    legend.split("{{").skip(1).map(|part| part.split_once("}}").unwrap().0)
}

#[test]
fn it_asks_for_every_documented_metric_and_for_no_other() {
    let metrics = metrics();
    let panels = panels();
    let asked = panels.iter().flat_map(targets).map(|(expression, _)| expression.to_owned());
    let asked: Vec<String> =
        asked.chain(of_variables().into_iter().map(|(name, _)| name)).collect();
    let mut names = BTreeSet::new();
    for expression in &asked {
        // With variables: what they stand for is known only to Grafana.
        let wrong = unknown(expression, &metrics, &BTreeSet::new());
        assert!(wrong.is_empty(), "{expression}: {wrong:?}");
        names.extend(selectors(expression).into_iter().map(|selector| selector.name));
    }
    let shown = |series: &String| names.contains(series);
    let hidden: Vec<_> =
        metrics.iter().filter(|metric| !metric.series().iter().any(shown)).collect();
    assert!(hidden.is_empty(), "on no panel: {hidden:?}");
}

#[test]
fn every_panel_listens_to_the_variables() {
    for panel in panels() {
        for (expression, _) in targets(&panel) {
            for selector in selectors(expression) {
                let has = |label: &str, value: &str| {
                    selector.labels.iter().any(|(name, is)| name == label && *is == [value])
                };
                let name = &selector.name;
                assert!(has("job", "$job") && has("instance", "$instance"), "{name}: {expression}");
                let of_rules = name.contains("decisions_total") && !name.contains("degraded")
                    || name.contains("near_limit")
                    || name.contains("unmatched_requests");
                assert_eq!(has("domain", "$domain"), of_rules, "{name}: {expression}");
            }
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
        for target in list(&panel["targets"]) {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
        }
    }
}

#[test]
fn every_panel_says_what_it_shows_and_in_what_unit() {
    let mut titles = BTreeSet::new();
    for panel in panels() {
        let title = text(&panel["title"]).to_owned();
        let description = text(&panel["description"]);
        assert!(
            description.len() > title.len() && description.ends_with('.'),
            "{title}: {description}"
        );
        let unit = text(&panel["fieldConfig"]["defaults"]["unit"]);
        let units = ["reqps", "ops", "percentunit", "s", "Bps", "bytes", "short", "none"];
        assert!(units.contains(&unit), "{title}: {unit}");
        assert!(titles.insert(title), "two panels of one title: {}", panel["title"]);
    }
    assert!(titles.len() > 20, "{titles:?}");
}

#[test]
fn no_panel_lies_over_another() {
    let dashboard = dashboard();
    let (mut taken, mut ids) = (BTreeSet::new(), BTreeSet::new());
    for panel in list(&dashboard["panels"]) {
        let at = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{}: too far to the right", panel["title"]);
        assert!(
            ids.insert(panel["id"].as_u64().unwrap()),
            "{}: its id is another's",
            panel["title"]
        );
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{}: another is at {x}, {y}", panel["title"]);
            }
        }
    }
}

#[test]
fn the_alerts_that_it_names_exist() {
    let panels = panels();
    let words = panels.iter().flat_map(|panel| text(&panel["description"]).split([' ', '.', ',']));
    let named: BTreeSet<&str> = words.filter(|word| word.starts_with("Slidegate")).collect();
    assert!(!named.is_empty());
    let alerts = alerts::alerts();
    for alert in named {
        assert!(alerts.contains(alert), "no alert {alert}");
    }
}
