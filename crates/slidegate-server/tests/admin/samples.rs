//! Metrics as a scraper reads them.

use std::collections::BTreeMap;

use crate::client::Client;
use crate::common::Server;

/// Samples by name and labels, as they are written.
pub struct Samples(BTreeMap<String, f64>);

impl Samples {
    /// What a server tells now.
    pub fn of(server: &Server) -> Self {
        let answer = Client::at(server.admin()).call("GET", "/metrics");
        assert_eq!(answer.status, 200, "{}", answer.body);
        Self::read(&answer.body)
    }

    /// What a text tells.
    pub fn read(text: &str) -> Self {
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

    /// A sample, which must be there.
    #[track_caller]
    pub fn get(&self, name: &str) -> f64 {
        let sample = self.0.get(name);
        *sample.unwrap_or_else(|| panic!("no sample {name} in {:#?}", self.0.keys()))
    }

    /// The sum of all samples of a metric whose labels have this in them.
    pub fn sum(&self, metric: &str, labels: &str) -> f64 {
        let of = |name: &str| {
            name.strip_prefix(metric)
                .is_some_and(|rest| rest.starts_with('{') && rest.contains(labels))
        };
        self.0.iter().filter(|(name, _)| of(name)).map(|(_, value)| value).sum()
    }
}
