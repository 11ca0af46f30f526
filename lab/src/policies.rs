//! Generates policies with many similar rules, and requests that each match exactly one of the rules.

use std::error::Error;

use slidegate::clock::{Clock, SystemClock};
use slidegate::{Decision, Descriptor, Gate, MemoryStore, Policy, Request};

/// A policy that allows all requests. An HTTP request of the benchmarks matches three rules, and each descriptor of a
/// gRPC call matches one rule.
pub const THREE_LIMITS_POLICY: &str = "
rules:
  - { name: tenant, per: [tenant|header.x-tenant], limits: [100000000/s] }
  - { name: writes, when: { method: POST }, per: [tenant|header.x-tenant], limits: [100000000/s] }
  - { name: everybody, limits: [100000000/s] }
  - { name: per-tenant, domain: bench, per: [tenant], limits: [100000000/s] }
  - { name: per-route, domain: bench, when: { method: POST }, per: [tenant, route], limits: [100000000/s] }
  - { name: all, domain: bench, when: { generic_key: all }, limits: [100000000/s] }
";

/// The number of requests of a workload. It is a multiple of both 1,000 and 3, the numbers of rules in the benchmarks,
/// so that all rules match equally often.
pub const REQUESTS: usize = 3_000;

/// A generator of rules that differ in certain attributes, and of requests that match these rules.
#[derive(Clone, Copy)]
pub struct PolicyShape {
    /// The name of the shape in tables.
    pub name: &'static str,
    /// A function that returns the YAML fields of the rule with this number, except `name` and `limits`.
    rule_fields: fn(usize) -> String,
    /// A function that returns the route template of the rule with this number; `None` if the rules do not use routes.
    route_template: Option<fn(usize) -> String>,
    /// A function that returns the attributes, as (name, value), of a request that matches the rule with this number.
    request_attributes: fn(usize) -> Vec<(String, String)>,
}

/// Shapes for which the policy finds the matching rules with a few index lookups, instead of evaluating every rule.
pub const SHAPES: [PolicyShape; 8] = [
    PolicyShape {
        name: "route templates",
        rule_fields: |nth| format!("when: {{ route: '/v1/r{nth}/{{id}}' }}, per: [client]"),
        route_template: Some(|nth| format!("/v1/r{nth}/{{id}}")),
        request_attributes: |nth| new_single_attribute("path", format!("/v1/r{nth}/77")),
    },
    PolicyShape {
        name: "tenant and method",
        rule_fields: |nth| {
            let (tenant, method) = (nth / 4, HTTP_METHODS[nth % 4]);
            format!("when: {{ tenant: t{tenant}, method: {method} }}, per: [client]")
        },
        route_template: None,
        request_attributes: |nth| {
            let tenant = ("tenant".to_owned(), format!("t{}", nth / 4));
            vec![tenant, ("method".to_owned(), HTTP_METHODS[nth % 4].to_owned())]
        },
    },
    PolicyShape {
        name: "path globs",
        rule_fields: |nth| format!("when: {{ path: '/v1/r{nth}/*' }}, per: [client]"),
        route_template: None,
        request_attributes: |nth| new_single_attribute("path", format!("/v1/r{nth}/77")),
    },
    PolicyShape {
        name: "path globs of 40 lengths",
        rule_fields: |nth| {
            format!("when: {{ path: '/{}/r{nth}/*' }}, per: [client]", "a".repeat(nth % 40))
        },
        route_template: None,
        request_attributes: |nth| {
            new_single_attribute("path", format!("/{}/r{nth}/77", "a".repeat(nth % 40)))
        },
    },
    PolicyShape {
        name: "networks of one length",
        rule_fields: |nth| {
            format!("when: {{ ip: {}/24 }}, per: [client]", nth_network_address(nth, 8))
        },
        route_template: None,
        request_attributes: |nth| new_single_attribute("ip", nth_network_address(nth, 8)),
    },
    PolicyShape {
        name: "networks of 10 lengths",
        rule_fields: |nth| {
            format!(
                "when: {{ ip: {}/{} }}, per: [client]",
                nth_network_address(nth, 10),
                22 + nth % 10
            )
        },
        route_template: None,
        request_attributes: |nth| new_single_attribute("ip", nth_network_address(nth, 10)),
    },
    PolicyShape {
        name: "own attribute in `per` for each rule",
        rule_fields: |nth| format!("per: [key{nth}]"),
        route_template: None,
        request_attributes: |nth| {
            new_single_attribute(&format!("key{nth}"), format!("value-{nth}"))
        },
    },
    PolicyShape {
        name: "lists of 20 tenants",
        rule_fields: |nth| {
            let tenants: Vec<String> = (0..20).map(|tenant| format!("t{nth}-{tenant}")).collect();
            format!("when: {{ tenant: [{}] }}, per: [client]", tenants.join(", "))
        },
        route_template: None,
        request_attributes: |nth| new_single_attribute("tenant", format!("t{nth}-{}", nth % 20)),
    },
];

/// A shape whose rules differ only in globs with a leading star. No index supports such globs, so every rule is
/// evaluated.
pub const LEADING_STAR_GLOBS: PolicyShape = PolicyShape {
    name: "globs with a leading star",
    rule_fields: |nth| format!("when: {{ path: '*/r{nth}' }}, per: [client]"),
    route_template: None,
    request_attributes: |nth| new_single_attribute("path", format!("/v1/users/r{nth}")),
};

const HTTP_METHODS: [&str; 4] = ["GET", "POST", "PUT", "DELETE"];

fn new_single_attribute(name: &str, value: String) -> Vec<(String, String)> {
    vec![(name.to_owned(), value)]
}

/// Returns the first IPv4 address of the network with the number `nth`. All networks have `bits` host bits.
fn nth_network_address(nth: usize, bits: u32) -> String {
    std::net::Ipv4Addr::from_bits((10 << 24) + ((nth as u32) << bits)).to_string()
}

impl PolicyShape {
    /// Returns the YAML text of a policy with this number of rules.
    pub fn policy(&self, rules: usize) -> String {
        let rule_fields = self.rule_fields;
        let routes = self.route_template.map_or_else(String::new, |route_template| {
            let routes = (0..rules).map(|nth| format!("  - '{}'\n", route_template(nth)));
            format!("routes:\n{}", routes.collect::<String>())
        });
        let rules = (0..rules).map(|nth| {
            format!("  - {{ name: r{nth}, {}, limits: [500000000/w] }}\n", rule_fields(nth))
        });
        format!("{routes}rules:\n{}", rules.collect::<String>())
    }

    /// Returns the attributes of a request that matches the rule with the number `rule`. The request has as many
    /// attributes as proxies usually send.
    fn new_request_attributes(&self, rule: usize, client: usize) -> Vec<(String, String)> {
        let mut attributes = (self.request_attributes)(rule);
        let client = format!("client-{client:06}");
        for (name, value) in
            [("client", &*client), ("method", "GET"), ("path", "/"), ("ip", "192.0.2.7")]
        {
            if attributes.iter().all(|(known, _)| known != name) {
                attributes.push((name.to_owned(), value.to_owned()));
            }
        }
        attributes
    }
}

/// A gate (a policy and a store), and the requests that it checks. Each request matches exactly one rule and has its
/// own key.
pub struct Workload<C: Clock> {
    gate: Gate<MemoryStore<C>>,
    requests: Vec<Vec<(String, String)>>,
}

impl Workload<SystemClock> {
    /// Creates a workload with this number of rules and a default memory store.
    ///
    /// # Errors
    /// If the generated policy is invalid, or if a request does not match exactly one rule.
    pub fn new(shape: PolicyShape, rules: usize) -> Result<Self, Box<dyn Error>> {
        Self::with_store(shape, rules, MemoryStore::new())
    }
}

impl<C: Clock> Workload<C> {
    /// Creates a workload with this number of rules and this memory store.
    ///
    /// # Errors
    /// If the generated policy is invalid, or if a request does not match exactly one rule.
    pub fn with_store(
        shape: PolicyShape,
        rules: usize,
        store: MemoryStore<C>,
    ) -> Result<Self, Box<dyn Error>> {
        let gate = Gate::new(Policy::from_yaml(&shape.policy(rules))?, store);
        let mut requests: Vec<_> =
            (0..REQUESTS).map(|nth| shape.new_request_attributes(nth % rules, nth)).collect();
        // Shuffles the requests, so that the branch predictor cannot learn their order.
        fastrand::Rng::with_seed(1).shuffle(&mut requests);
        let workload = Self { gate, requests };
        let rules_of =
            |nth| workload.gate.policy().apply(&workload.nth_request(nth)).matches().count();
        match (0..REQUESTS).find(|&nth| rules_of(nth) != 1) {
            Some(nth) => Err(format!("{}: {:?}", shape.name, workload.requests[nth]).into()),
            None => Ok(workload),
        }
    }

    #[inline]
    fn nth_request(&self, nth: usize) -> Request<'_> {
        let attributes = self.requests[nth % REQUESTS].iter();
        let attributes = attributes.map(|(name, value)| (name.as_str(), value.as_str()));
        Request::new("default", Descriptor::new(attributes))
    }

    /// Checks the request with the number `nth`. After the last request, the numbers continue with the first request.
    #[inline]
    pub fn check(&self, nth: usize) -> Decision<'static> {
        self.gate.check(&self.nth_request(nth))
    }
}
