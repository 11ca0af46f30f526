//! The metrics of a server, as a scraper reads them.

use std::collections::BTreeMap;

use crate::client::Client;
use crate::common::Server;

/// Values by name and labels, in the syntax of the response.
pub struct MetricSamples(BTreeMap<String, f64>);

impl MetricSamples {
    /// Scrapes a server.
    pub fn scrape(server: &Server) -> Self {
        let response = Client::with_address(server.admin()).call("GET", "/metrics");
        assert_eq!(response.status, 200, "{}", response.body);
        Self::parse(&response.body)
    }

    /// Parses the text format.
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

    /// Returns the value of a sample. Panics if it is missing.
    #[track_caller]
    pub fn get(&self, name: &str) -> f64 {
        let sample = self.0.get(name);
        *sample.unwrap_or_else(|| panic!("no sample {name} in {:#?}", self.0.keys()))
    }

    /// Returns the sum of all samples of a metric whose labels contain `labels`.
    pub fn sum(&self, metric: &str, labels: &str) -> f64 {
        let matches = |name: &str| {
            name.strip_prefix(metric)
                .is_some_and(|rest| rest.starts_with('{') && rest.contains(labels))
        };
        self.0.iter().filter(|(name, _)| matches(name)).map(|(_, value)| value).sum()
    }
}
