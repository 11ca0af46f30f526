//! Tests of the Grafana dashboard in `deploy/grafana`. The tests check the queries, the descriptions and the layout of
//! the panels.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::common::documented_metrics::documented_metrics;
use crate::common::prometheus::Prometheus;
use crate::deploy::expression::{find_undocumented, parse_selectors};
use crate::deploy::{alerts, array_elements, expect_string, exporter, read_project_file};

/// The variables in the queries of the dashboard, each with an example value. Grafana substitutes `.*` for a variable
/// if "All" is selected.
const DASHBOARD_VARIABLE_VALUES: [(&str, &str); 5] = [
    ("$__rate_interval", "1s"),
    ("$__range", "1m"),
    ("$job", ".*"),
    ("$instance", ".*"),
    ("$domain", ".*"),
];

fn read_dashboard() -> Value {
    serde_json::from_str(&read_project_file("deploy/grafana/slidegate.json")).unwrap()
}

/// Returns all dashboard panels that show data. Row headings are omitted.
fn read_dashboard_panels() -> Vec<Value> {
    let dashboard = read_dashboard();
    let panels = array_elements(&dashboard["panels"]).iter().filter(|panel| panel["type"] != "row");
    panels.cloned().collect()
}

/// Returns the queries of a panel. Each query is a pair of a PromQL expression and a legend template. Grafana generates
/// the names of the displayed series from the template, such as `{{rule}}`.
fn panel_queries(panel: &Value) -> impl Iterator<Item = (&str, &str)> {
    array_elements(&panel["targets"])
        .iter()
        .map(|target| (expect_string(&target["expr"]), expect_string(&target["legendFormat"])))
}

/// Returns the queries with which Grafana loads the possible values of the dashboard variables. The queries have the
/// form `label_values(metric{…}, label)`. Each is returned as a pair of the metric selector and the label.
fn dashboard_variable_queries() -> Vec<(String, String)> {
    let dashboard = read_dashboard();
    let queries = array_elements(&dashboard["templating"]["list"]).iter();
    let queries = queries.filter_map(|variable| variable["query"]["query"].as_str());
    let parts = queries.map(|query| {
        let inner = query.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap();
        let (selector, label) = inner.rsplit_once(", ").unwrap();
        (selector.to_owned(), label.to_owned())
    });
    parts.collect()
}

/// Replaces the dashboard variables in a PromQL expression with the values of [`DASHBOARD_VARIABLE_VALUES`], as Grafana
/// does.
fn substitute_variables(expression: &str) -> String {
    let substituted = DASHBOARD_VARIABLE_VALUES
        .iter()
        .fold(expression.to_owned(), |text, (variable, value)| text.replace(variable, value));
    assert!(!substituted.contains('$'), "unknown variable: {substituted}");
    substituted
}

#[test]
fn prometheus_returns_data_for_every_panel() {
    let prometheus = Prometheus::start(&[exporter::start_fake_exporter()]);
    for panel in read_dashboard_panels() {
        for (expression, legend) in panel_queries(&panel) {
            let expression = substitute_variables(expression);
            let samples = prometheus.wait_for(&expression);
            for sample in &samples {
                assert!(sample.value.is_finite(), "{expression}: {sample:?}");
                let missing =
                    legend_label_names(legend).find(|&label| !sample.labels.contains_key(label));
                assert!(missing.is_none(), "{}: `{legend}` of {sample:?}", panel["title"]);
            }
        }
    }
    let variables = dashboard_variable_queries();
    for (selector, label) in &variables {
        let series = prometheus.series_labels(&substitute_variables(selector)).unwrap();
        let has = |series: &Value| series.get(label).is_some();
        assert!(!series.is_empty() && series.iter().all(has), "{selector}, {label}");
    }
    assert_eq!(variables.len(), 3);
}

/// Returns the label names in a legend template. The template `{{rule}} / {{limit}}` contains `rule` and `limit`.
fn legend_label_names(legend: &str) -> impl Iterator<Item = &str> {
    legend.split("{{").skip(1).map(|part| part.split_once("}}").unwrap().0)
}

#[test]
fn dashboard_shows_all_and_only_documented_metrics() {
    let metrics = documented_metrics();
    let panels = read_dashboard_panels();
    let expressions =
        panels.iter().flat_map(panel_queries).map(|(expression, _)| expression.to_owned());
    let expressions: Vec<String> =
        expressions.chain(dashboard_variable_queries().into_iter().map(|(name, _)| name)).collect();
    let mut names = BTreeSet::new();
    for expression in &expressions {
        // The variables are not substituted: `find_undocumented` does not need their values.
        let errors = find_undocumented(expression, &metrics, &BTreeSet::new());
        assert!(errors.is_empty(), "{expression}: {errors:?}");
        names.extend(parse_selectors(expression).into_iter().map(|selector| selector.name));
    }
    let is_shown = |series: &String| names.contains(series);
    let hidden: Vec<_> =
        metrics.iter().filter(|metric| !metric.series_names().iter().any(is_shown)).collect();
    assert!(hidden.is_empty(), "on no panel: {hidden:?}");
}

#[test]
fn every_panel_filters_by_dashboard_variables() {
    for panel in read_dashboard_panels() {
        for (expression, _) in panel_queries(&panel) {
            for selector in parse_selectors(expression) {
                let has = |label: &str, value: &str| {
                    selector.labels.iter().any(|(name, is)| name == label && *is == [value])
                };
                let name = &selector.name;
                assert!(has("job", "$job") && has("instance", "$instance"), "{name}: {expression}");
                let has_domain = name.contains("decisions_total") && !name.contains("degraded")
                    || name.contains("near_limit")
                    || name.contains("unmatched_requests")
                    || name.contains("rules_never_applied")
                    || name.contains("observed_keys");
                assert_eq!(has("domain", "$domain"), has_domain, "{name}: {expression}");
            }
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
        for target in array_elements(&panel["targets"]) {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
        }
    }
}

#[test]
fn every_panel_has_title_description_and_unit() {
    let mut titles = BTreeSet::new();
    for panel in read_dashboard_panels() {
        let title = expect_string(&panel["title"]).to_owned();
        let description = expect_string(&panel["description"]);
        assert!(
            description.len() > title.len() && description.ends_with('.'),
            "{title}: {description}"
        );
        let unit = expect_string(&panel["fieldConfig"]["defaults"]["unit"]);
        let units = ["reqps", "ops", "percentunit", "s", "Bps", "bytes", "short", "none"];
        assert!(units.contains(&unit), "{title}: {unit}");
        assert!(titles.insert(title), "duplicate panel title: {}", panel["title"]);
    }
    assert!(titles.len() > 20, "{titles:?}");
}

#[test]
fn panels_do_not_overlap() {
    let dashboard = read_dashboard();
    let (mut occupied, mut ids) = (BTreeSet::new(), BTreeSet::new());
    for panel in array_elements(&dashboard["panels"]) {
        let position = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(
            position("x") + position("w") <= 24,
            "{}: exceeds the width of the grid",
            panel["title"]
        );
        assert!(
            ids.insert(panel["id"].as_u64().unwrap()),
            "{}: duplicate panel id",
            panel["title"]
        );
        for x in position("x")..position("x") + position("w") {
            for y in position("y")..position("y") + position("h") {
                assert!(
                    occupied.insert((x, y)),
                    "{}: overlaps another panel at {x}, {y}",
                    panel["title"]
                );
            }
        }
    }
}

#[test]
fn alerts_in_panel_descriptions_exist() {
    let panels = read_dashboard_panels();
    let words =
        panels.iter().flat_map(|panel| expect_string(&panel["description"]).split([' ', '.', ',']));
    let named_alerts: BTreeSet<&str> = words.filter(|word| word.starts_with("Slidegate")).collect();
    assert!(!named_alerts.is_empty());
    let alerts = alerts::alert_names();
    for alert in named_alerts {
        assert!(alerts.contains(alert), "no alert {alert}");
    }
}
