//! Scrapes and parses the metrics of a server, as Prometheus does.

use std::collections::BTreeMap;

use crate::common::Server;
use crate::http::client::Client;

/// The values of all series in a scrape. The keys are series names with labels, such as `name{label="value"}`.
pub struct MetricSamples(BTreeMap<String, f64>);

impl MetricSamples {
    /// Fetches and parses `/metrics` of the server. Panics if the status is not 200.
    pub fn scrape(server: &Server) -> Self {
        let response = Client::with_address(server.admin_address()).call("GET", "/metrics");
        assert_eq!(response.status, 200, "{}", response.body);
        Self::parse(&response.body)
    }

    /// Parses metrics in the Prometheus text format.
    pub fn parse(text: &str) -> Self {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        Self(
            samples
                .map(|line| {
                    let (name, value) = line.rsplit_once(' ').unwrap();
                    (name.to_owned(), value.parse().unwrap())
                })
                .collect(),
        )
    }

    /// Returns the value of a series. `name` includes the labels, as in a scrape. Panics if the series is missing.
    #[track_caller]
    pub fn get(&self, name: &str) -> f64 {
        let sample = self.0.get(name);
        *sample.unwrap_or_else(|| panic!("no sample {name} in {:#?}", self.0.keys()))
    }

    /// Returns the sum of all series of `metric` whose labels, written as in a scrape, contain the text `labels`.
    pub fn sum(&self, metric: &str, labels: &str) -> f64 {
        let matches = |name: &str| {
            name.strip_prefix(metric)
                .is_some_and(|rest| rest.starts_with('{') && rest.contains(labels))
        };
        self.0.iter().filter(|(name, _)| matches(name)).map(|(_, value)| value).sum()
    }
}
