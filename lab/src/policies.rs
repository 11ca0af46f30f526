//! Policies with many similar rules, and requests of which each matches exactly one of the rules.

use std::error::Error;

use slidegate::{Clock, Descriptor, Gate, MemoryStore, Policy, Request, Ruling, SystemClock};

/// The number of requests: a multiple of both 1,000 rules and 3 rules, so that all rules match equally often.
pub const REQUESTS: usize = 3_000;

/// A family of similar rules, and of requests that match them.
#[derive(Clone, Copy)]
pub struct PolicyShape {
    /// The name shown in tables.
    pub name: &'static str,
    /// Returns the fields of the `nth` rule, except its name and limits.
    rule_fields: fn(usize) -> String,
    /// Returns the route template of the `nth` rule, if the rules are for routes.
    route_template: Option<fn(usize) -> String>,
    /// Returns the attributes of a request that matches the `nth` rule.
    request_attributes: fn(usize) -> Vec<(String, String)>,
}

/// Shapes whose matching rules are found with a few index lookups.
pub const SHAPES: [PolicyShape; 8] = [
    PolicyShape {
        name: "route templates",
        rule_fields: |nth| format!("when: {{ route: '/v1/r{nth}/{{id}}' }}, per: [client]"),
        route_template: Some(|nth| format!("/v1/r{nth}/{{id}}")),
        request_attributes: |nth| single_attribute("path", format!("/v1/r{nth}/77")),
    },
    PolicyShape {
        name: "tenant and method",
        rule_fields: |nth| {
            let (tenant, method) = (nth / 4, METHODS[nth % 4]);
            format!("when: {{ tenant: t{tenant}, method: {method} }}, per: [client]")
        },
        route_template: None,
        request_attributes: |nth| {
            let tenant = ("tenant".to_owned(), format!("t{}", nth / 4));
            vec![tenant, ("method".to_owned(), METHODS[nth % 4].to_owned())]
        },
    },
    PolicyShape {
        name: "path globs",
        rule_fields: |nth| format!("when: {{ path: '/v1/r{nth}/*' }}, per: [client]"),
        route_template: None,
        request_attributes: |nth| single_attribute("path", format!("/v1/r{nth}/77")),
    },
    PolicyShape {
        name: "path globs of 40 lengths",
        rule_fields: |nth| {
            format!("when: {{ path: '/{}/r{nth}/*' }}, per: [client]", "a".repeat(nth % 40))
        },
        route_template: None,
        request_attributes: |nth| {
            single_attribute("path", format!("/{}/r{nth}/77", "a".repeat(nth % 40)))
        },
    },
    PolicyShape {
        name: "networks of one length",
        rule_fields: |nth| format!("when: {{ ip: {}/24 }}, per: [client]", network(nth, 8)),
        route_template: None,
        request_attributes: |nth| single_attribute("ip", network(nth, 8)),
    },
    PolicyShape {
        name: "networks of 10 lengths",
        rule_fields: |nth| {
            format!("when: {{ ip: {}/{} }}, per: [client]", network(nth, 10), 22 + nth % 10)
        },
        route_template: None,
        request_attributes: |nth| single_attribute("ip", network(nth, 10)),
    },
    PolicyShape {
        name: "own attribute in `per` for each rule",
        rule_fields: |nth| format!("per: [key{nth}]"),
        route_template: None,
        request_attributes: |nth| single_attribute(&format!("key{nth}"), format!("value-{nth}")),
    },
    PolicyShape {
        name: "lists of 20 tenants",
        rule_fields: |nth| {
            let tenants: Vec<String> = (0..20).map(|tenant| format!("t{nth}-{tenant}")).collect();
            format!("when: {{ tenant: [{}] }}, per: [client]", tenants.join(", "))
        },
        route_template: None,
        request_attributes: |nth| single_attribute("tenant", format!("t{nth}-{}", nth % 20)),
    },
];

/// Rules that differ only in globs with a leading star: no index helps, so every rule is evaluated.
pub const LEADING_STAR_GLOBS: PolicyShape = PolicyShape {
    name: "globs with a leading star",
    rule_fields: |nth| format!("when: {{ path: '*/r{nth}' }}, per: [client]"),
    route_template: None,
    request_attributes: |nth| single_attribute("path", format!("/v1/users/r{nth}")),
};

const METHODS: [&str; 4] = ["GET", "POST", "PUT", "DELETE"];

fn single_attribute(name: &str, value: String) -> Vec<(String, String)> {
    vec![(name.to_owned(), value)]
}

/// Returns the `nth` network with this number of host bits.
fn network(nth: usize, bits: u32) -> String {
    std::net::Ipv4Addr::from_bits((10 << 24) + ((nth as u32) << bits)).to_string()
}

impl PolicyShape {
    /// Returns the text of a policy with this number of rules.
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

    /// Returns the attributes of a request that matches the rule, as many as proxies usually send.
    fn request(&self, rule: usize, client: usize) -> Vec<(String, String)> {
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

/// A gate, and requests of which each matches one rule and has its own key.
pub struct Workload<C: Clock> {
    gate: Gate<MemoryStore<C>>,
    requests: Vec<Vec<(String, String)>>,
}

impl Workload<SystemClock> {
    /// Creates a workload with this number of rules and a default store.
    ///
    /// # Errors
    /// If the policy of the shape is invalid, or a request does not match exactly one rule.
    pub fn new(shape: PolicyShape, rules: usize) -> Result<Self, Box<dyn Error>> {
        Self::with_store(shape, rules, MemoryStore::new())
    }
}

impl<C: Clock> Workload<C> {
    /// Creates a workload with this store.
    ///
    /// # Errors
    /// If the policy of the shape is invalid, or a request does not match exactly one rule.
    pub fn with_store(
        shape: PolicyShape,
        rules: usize,
        store: MemoryStore<C>,
    ) -> Result<Self, Box<dyn Error>> {
        let gate = Gate::new(Policy::from_yaml(&shape.policy(rules))?, store);
        let mut requests: Vec<_> =
            (0..REQUESTS).map(|nth| shape.request(nth % rules, nth)).collect();
        // In an order that the branch predictor cannot learn.
        fastrand::Rng::with_seed(1).shuffle(&mut requests);
        let workload = Self { gate, requests };
        let rules_of = |nth| workload.gate.policy().apply(&workload.request(nth)).matches().count();
        match (0..REQUESTS).find(|&nth| rules_of(nth) != 1) {
            Some(nth) => Err(format!("{}: {:?}", shape.name, workload.requests[nth]).into()),
            None => Ok(workload),
        }
    }

    #[inline]
    fn request(&self, nth: usize) -> Request<'_> {
        let attributes = self.requests[nth % REQUESTS].iter();
        let attributes = attributes.map(|(name, value)| (name.as_str(), value.as_str()));
        Request::new("default", Descriptor::new(attributes))
    }

    /// Checks the `nth` request.
    #[inline]
    pub fn check(&self, nth: usize) -> Ruling {
        self.gate.check_now(&self.request(nth))
    }

    /// Checks `decisions` requests, one after the other. Returns the number of denials.
    pub fn count_denied(&self, decisions: usize) -> usize {
        (0..decisions).filter(|&nth| !self.check(nth).decision().is_allowed()).count()
    }
}
