//! Alerts and recording rules of Prometheus.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::documented::metrics;
use crate::prometheus::{Prometheus, program};
use crate::{elements, exporter, expression, project, read, read_yaml, run_command, string};

const RULES: &str = "deploy/prometheus/slidegate.rules.yml";
const TESTS: &str = "deploy/prometheus/slidegate.tests.yml";

/// Returns all alerts and recording rules of the file.
fn rules() -> Vec<Value> {
    let file = read_yaml(RULES);
    elements(&file["groups"]).iter().flat_map(|group| elements(&group["rules"]).to_vec()).collect()
}

/// Returns the names of the recorded series.
pub fn recorded_names() -> BTreeSet<String> {
    rules().iter().filter_map(|rule| Some(rule["record"].as_str()?.to_owned())).collect()
}

/// Returns the names of the alerts.
pub fn alert_names() -> BTreeSet<String> {
    rules().iter().filter_map(|rule| Some(rule["alert"].as_str()?.to_owned())).collect()
}

#[test]
fn promtool_accepts_configuration_and_rules() {
    run_command(
        program("promtool")
            .args(["check", "config"])
            .arg(project("deploy/prometheus/prometheus.yml")),
    );
    run_command(program("promtool").args(["check", "rules", "--lint-fatal"]).arg(project(RULES)));
}

#[test]
fn alerts_fire_as_their_tests_expect() {
    run_command(program("promtool").args(["test", "rules"]).arg(project(TESTS)));
}

#[test]
fn every_alert_has_firing_and_silent_tests() {
    let file = read_yaml(TESTS);
    let tests: Vec<&Value> = elements(&file["tests"])
        .iter()
        .flat_map(|test| elements(&test["alert_rule_test"]))
        .collect();
    for alert in alert_names() {
        let own_tests = tests.iter().filter(|test| test["alertname"] == *alert);
        let (silent, fires) =
            own_tests.partition::<Vec<&Value>, _>(|test| elements(&test["exp_alerts"]).is_empty());
        assert!(!silent.is_empty() && !fires.is_empty(), "{alert}");
    }
}

#[test]
fn every_alert_has_summary_description_and_severity() {
    for rule in rules() {
        let Some(alert) = rule["alert"].as_str() else { continue };
        let annotation = |name: &str| rule["annotations"][name].as_str().unwrap_or_default().trim();
        assert!(annotation("summary").len() > 20 && annotation("summary").len() < 100, "{alert}");
        assert!(annotation("description").len() > annotation("summary").len(), "{alert}");
        let severity = string(&rule["labels"]["severity"]);
        assert!(["critical", "warning"].contains(&severity), "{alert}: {severity}");
    }
}

#[test]
fn documentation_lists_every_alert() {
    let document = read("docs/OPERATIONS.md");
    let rows = document.lines().filter(|line| line.starts_with("| `Slidegate"));
    let cell = |row: &str, nth: usize| row.split('|').nth(nth).unwrap().trim().replace('`', "");
    let documented: BTreeSet<_> = rows.map(|row| (cell(row, 1), cell(row, 3))).collect();
    let name_and_severity = |rule: &Value| {
        Some((rule["alert"].as_str()?.to_owned(), string(&rule["labels"]["severity"]).to_owned()))
    };
    assert_eq!(documented, rules().iter().filter_map(name_and_severity).collect());
}

#[test]
fn alerts_use_only_documented_metrics() {
    let (metrics, recorded) = (metrics(), recorded_names());
    let tests = read_yaml(TESTS);
    let series = elements(&tests["tests"]).iter().flat_map(|test| elements(&test["input_series"]));
    let series = series.map(|series| string(&series["series"]).to_owned());
    let expressions = rules().into_iter().map(|rule| string(&rule["expr"]).to_owned());
    let mut checked = 0;
    for expression in expressions.chain(series) {
        let errors = expression::find_errors(&expression, &metrics, &recorded);
        assert!(errors.is_empty(), "{expression}: {errors:?}");
        checked += 1;
    }
    assert!(checked > 50, "{checked}");
}

#[test]
fn prometheus_evaluates_every_rule() {
    let prometheus = Prometheus::start(&[exporter::start()]);
    let evaluated = prometheus.rules();
    assert_eq!(evaluated.len(), rules().len());
    for rule in &evaluated {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    for name in recorded_names() {
        prometheus.wait_for(&name);
    }
}
