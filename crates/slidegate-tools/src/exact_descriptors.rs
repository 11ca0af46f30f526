//! Descriptors of access log lines for files of Envoy's reference rate limit server.
//!
//! Each rule of such a file applies only to descriptors with certain attribute names, in a certain order. Envoy would
//! be configured to send these descriptors, so each line is replayed as one request with all of them.

use std::collections::BTreeSet;

use slidegate::{Descriptor, Policy, Request};

use super::json_line::JsonFields;
use super::line::{Line, is_attribute_name};

/// The attribute names of the descriptors that are built from each line.
#[derive(Debug)]
pub struct ExactDescriptors<'a>(Vec<Vec<&'a str>>);

impl<'a> ExactDescriptors<'a> {
    /// Returns the descriptors to which the rules of a domain apply. Omits a descriptor with an attribute that no line
    /// can have. Lines in JSON can have the attributes in `json_fields`.
    pub fn from_rules(policy: &'a Policy, domain: &str, json_fields: &JsonFields) -> Self {
        let rules = policy.rules().iter().filter(|rule| rule.domain() == domain);
        let lists = rules.filter_map(|rule| Some(rule.descriptor()?.collect::<Vec<_>>()));
        let distinct: BTreeSet<Vec<&str>> = lists.collect();
        let is_known = |name: &str| {
            is_attribute_name(name) || json_fields.other_attribute_names().any(|own| own == name)
        };
        let is_in_log = |names: &Vec<&str>| names.iter().all(|name| is_known(name));
        Self(distinct.into_iter().filter(is_in_log).collect())
    }

    /// Returns the request of a line. A line that lacks an attribute has no descriptor with that attribute.
    pub fn build_request<'r>(&'r self, domain: &'r str, line: &Line<'r>) -> Request<'r> {
        let descriptor = |names: &'r Vec<&'a str>| {
            let attribute = |name: &&'a str| line.value(name).map(|value| (*name, value));
            let attributes: Option<Vec<(&'r str, &'r str)>> = names.iter().map(attribute).collect();
            Some(Descriptor::new(attributes?).exact())
        };
        Request::with_descriptors(domain, self.0.iter().filter_map(descriptor))
    }
}
