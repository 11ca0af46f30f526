//! Alerts and recording rules.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::documented::metrics;
use crate::prometheus::{Prometheus, program};
use crate::{exporter, expression, list, project, read, run, text, yaml};

const RULES: &str = "deploy/prometheus/slidegate.rules.yml";
const TESTS: &str = "deploy/prometheus/slidegate.tests.yml";

/// Every rule of the file.
fn rules() -> Vec<Value> {
    let file = yaml(RULES);
    list(&file["groups"]).iter().flat_map(|group| list(&group["rules"]).to_vec()).collect()
}

/// The names under which rules record.
pub fn recorded() -> BTreeSet<String> {
    rules().iter().filter_map(|rule| Some(rule["record"].as_str()?.to_owned())).collect()
}

/// The names of the alerts.
pub fn alerts() -> BTreeSet<String> {
    rules().iter().filter_map(|rule| Some(rule["alert"].as_str()?.to_owned())).collect()
}

#[test]
fn promtool_accepts_the_configuration_and_the_rules() {
    run(program("promtool")
        .args(["check", "config"])
        .arg(project("deploy/prometheus/prometheus.yml")));
    run(program("promtool").args(["check", "rules", "--lint-fatal"]).arg(project(RULES)));
}

#[test]
fn every_alert_fires_when_it_should() {
    run(program("promtool").args(["test", "rules"]).arg(project(TESTS)));
}

#[test]
fn every_alert_is_tried_when_it_fires_and_when_it_does_not() {
    let file = yaml(TESTS);
    let tests: Vec<&Value> =
        list(&file["tests"]).iter().flat_map(|test| list(&test["alert_rule_test"])).collect();
    for alert in alerts() {
        let tried = tests.iter().filter(|test| test["alertname"] == *alert);
        let (silent, fires) =
            tried.partition::<Vec<&Value>, _>(|test| list(&test["exp_alerts"]).is_empty());
        assert!(!silent.is_empty() && !fires.is_empty(), "{alert}");
    }
}

#[test]
fn every_alert_says_what_is_and_what_to_do() {
    for rule in rules() {
        let Some(alert) = rule["alert"].as_str() else { continue };
        let told = |what: &str| rule["annotations"][what].as_str().unwrap_or_default().trim();
        assert!(told("summary").len() > 20 && told("summary").len() < 100, "{alert}");
        assert!(told("description").len() > told("summary").len(), "{alert}");
        let severity = text(&rule["labels"]["severity"]);
        assert!(["critical", "warning"].contains(&severity), "{alert}: {severity}");
    }
}

#[test]
fn the_document_has_every_alert() {
    let document = read("docs/OPERATIONS.md");
    let rows = document.lines().filter(|line| line.starts_with("| `Slidegate"));
    let cell = |row: &str, nth: usize| row.split('|').nth(nth).unwrap().trim().replace('`', "");
    let told: BTreeSet<_> = rows.map(|row| (cell(row, 1), cell(row, 3))).collect();
    let of = |rule: &Value| {
        Some((rule["alert"].as_str()?.to_owned(), text(&rule["labels"]["severity"]).to_owned()))
    };
    assert_eq!(told, rules().iter().filter_map(of).collect());
}

#[test]
fn alerts_and_their_tests_name_only_documented_metrics() {
    let (metrics, recorded) = (metrics(), recorded());
    let tests = yaml(TESTS);
    let series = list(&tests["tests"]).iter().flat_map(|test| list(&test["input_series"]));
    let series = series.map(|series| text(&series["series"]).to_owned());
    let expressions = rules().into_iter().map(|rule| text(&rule["expr"]).to_owned());
    let mut tried = 0;
    for expression in expressions.chain(series) {
        let wrong = expression::unknown(&expression, &metrics, &recorded);
        assert!(wrong.is_empty(), "{expression}: {wrong:?}");
        tried += 1;
    }
    assert!(tried > 50, "{tried}");
}

#[test]
fn prometheus_evaluates_every_rule() {
    let prometheus = Prometheus::start(&[exporter::start()]);
    let evaluated = prometheus.rules();
    assert_eq!(evaluated.len(), rules().len());
    for rule in &evaluated {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    for name in recorded() {
        prometheus.wait_for(&name);
    }
}
