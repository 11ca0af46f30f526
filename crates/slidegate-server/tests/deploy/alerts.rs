//! Tests of the alerts and recording rules in `deploy/prometheus`. The tests run Prometheus and promtool.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::common::documented_metrics::documented_metrics;
use crate::common::project_path;
use crate::common::prometheus::{Prometheus, prometheus_program};
use crate::deploy::{
    array_elements, expect_string, exporter, expression, read_project_file, read_project_yaml,
    run_command,
};

const PROMETHEUS_RULES_FILE: &str = "deploy/prometheus/slidegate.rules.yml";
const PROMTOOL_TESTS_FILE: &str = "deploy/prometheus/slidegate.tests.yml";

/// Returns all alerts and recording rules of [`PROMETHEUS_RULES_FILE`].
fn read_prometheus_rules() -> Vec<Value> {
    let file = read_project_yaml(PROMETHEUS_RULES_FILE);
    array_elements(&file["groups"])
        .iter()
        .flat_map(|group| array_elements(&group["rules"]).to_vec())
        .collect()
}

/// Returns the names of the series that the recording rules create.
pub fn recorded_series_names() -> BTreeSet<String> {
    read_prometheus_rules()
        .iter()
        .filter_map(|rule| Some(rule["record"].as_str()?.to_owned()))
        .collect()
}

/// Returns the names of all alerts in [`PROMETHEUS_RULES_FILE`].
pub fn alert_names() -> BTreeSet<String> {
    read_prometheus_rules()
        .iter()
        .filter_map(|rule| Some(rule["alert"].as_str()?.to_owned()))
        .collect()
}

#[test]
fn promtool_accepts_configuration_and_rules() {
    run_command(
        prometheus_program("promtool")
            .args(["check", "config"])
            .arg(project_path("deploy/prometheus/prometheus.yml")),
    );
    run_command(
        prometheus_program("promtool")
            .args(["check", "rules", "--lint-fatal"])
            .arg(project_path(PROMETHEUS_RULES_FILE)),
    );
}

#[test]
fn alerts_pass_promtool_tests() {
    run_command(
        prometheus_program("promtool")
            .args(["test", "rules"])
            .arg(project_path(PROMTOOL_TESTS_FILE)),
    );
}

#[test]
fn every_alert_is_tested_both_firing_and_not_firing() {
    let file = read_project_yaml(PROMTOOL_TESTS_FILE);
    let tests: Vec<&Value> = array_elements(&file["tests"])
        .iter()
        .flat_map(|test| array_elements(&test["alert_rule_test"]))
        .collect();
    for alert in alert_names() {
        let own_tests = tests.iter().filter(|test| test["alertname"] == *alert);
        let (silent, fires) = own_tests
            .partition::<Vec<&Value>, _>(|test| array_elements(&test["exp_alerts"]).is_empty());
        assert!(!silent.is_empty() && !fires.is_empty(), "{alert}");
    }
}

#[test]
fn every_alert_has_summary_description_and_severity() {
    for rule in read_prometheus_rules() {
        let Some(alert) = rule["alert"].as_str() else { continue };
        let annotation = |name: &str| rule["annotations"][name].as_str().unwrap_or_default().trim();
        assert!(annotation("summary").len() > 20 && annotation("summary").len() < 100, "{alert}");
        assert!(annotation("description").len() > annotation("summary").len(), "{alert}");
        let severity = expect_string(&rule["labels"]["severity"]);
        assert!(["critical", "warning"].contains(&severity), "{alert}: {severity}");
    }
}

#[test]
fn documentation_lists_every_alert() {
    let document = read_project_file("docs/how-to/monitor-with-prometheus-and-grafana.md");
    let rows = document.lines().filter(|line| line.starts_with("| `Slidegate"));
    let cell = |row: &str, nth: usize| row.split('|').nth(nth).unwrap().trim().replace('`', "");
    let documented: BTreeSet<_> = rows.map(|row| (cell(row, 1), cell(row, 3))).collect();
    let name_and_severity = |rule: &Value| {
        Some((
            rule["alert"].as_str()?.to_owned(),
            expect_string(&rule["labels"]["severity"]).to_owned(),
        ))
    };
    assert_eq!(documented, read_prometheus_rules().iter().filter_map(name_and_severity).collect());
}

#[test]
fn alerts_use_only_documented_metrics() {
    let (metrics, recorded) = (documented_metrics(), recorded_series_names());
    let tests = read_project_yaml(PROMTOOL_TESTS_FILE);
    let series = array_elements(&tests["tests"])
        .iter()
        .flat_map(|test| array_elements(&test["input_series"]));
    let series = series.map(|series| expect_string(&series["series"]).to_owned());
    let expressions =
        read_prometheus_rules().into_iter().map(|rule| expect_string(&rule["expr"]).to_owned());
    let mut checked = 0;
    for expression in expressions.chain(series) {
        let errors = expression::find_undocumented(&expression, &metrics, &recorded);
        assert!(errors.is_empty(), "{expression}: {errors:?}");
        checked += 1;
    }
    assert!(checked > 50, "{checked}");
}

#[test]
fn prometheus_evaluates_every_rule() {
    let prometheus = Prometheus::start(&[exporter::start_fake_exporter()]);
    let evaluated = prometheus.evaluated_rules();
    assert_eq!(evaluated.len(), read_prometheus_rules().len());
    for rule in &evaluated {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    for name in recorded_series_names() {
        prometheus.wait_for(&name);
    }
}
