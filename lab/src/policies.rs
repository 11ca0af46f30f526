//! Policies of many rules of one shape, and requests of which each is for one of the rules.

use std::error::Error;

use slidegate::{Clock, Descriptor, Gate, MemoryStore, Policy, Request, Ruling, SystemClock};

/// So many that they are for each of a thousand rules alike, and for each of three.
pub const REQUESTS: usize = 3_000;

/// How the rules of a policy look, and what requests for them say.
#[derive(Clone, Copy)]
pub struct BucketLayout {
    /// What it is called in the tables.
    pub name: &'static str,
    /// The fields of a rule beside its name and limits.
    rule: fn(usize) -> String,
    /// The template of the rule's route, if it is for one.
    route: Option<fn(usize) -> String>,
    /// The attributes by which a request is for that rule.
    own: fn(usize) -> Vec<(String, String)>,
}

/// Shapes in which a request leads to its rules by a look-up or a few.
pub const SHAPES: [BucketLayout; 8] = [
    BucketLayout {
        name: "routes, by templates",
        rule: |nth| format!("when: {{ route: '/v1/r{nth}/{{id}}' }}, per: [client]"),
        route: Some(|nth| format!("/v1/r{nth}/{{id}}")),
        own: |nth| one("path", format!("/v1/r{nth}/77")),
    },
    BucketLayout {
        name: "tenant and method",
        rule: |nth| {
            let (tenant, method) = (nth / 4, METHODS[nth % 4]);
            format!("when: {{ tenant: t{tenant}, method: {method} }}, per: [client]")
        },
        route: None,
        own: |nth| {
            let tenant = ("tenant".to_owned(), format!("t{}", nth / 4));
            vec![tenant, ("method".to_owned(), METHODS[nth % 4].to_owned())]
        },
    },
    BucketLayout {
        name: "globs of paths",
        rule: |nth| format!("when: {{ path: '/v1/r{nth}/*' }}, per: [client]"),
        route: None,
        own: |nth| one("path", format!("/v1/r{nth}/77")),
    },
    BucketLayout {
        name: "globs of paths, of 40 lengths",
        rule: |nth| {
            format!("when: {{ path: '/{}/r{nth}/*' }}, per: [client]", "a".repeat(nth % 40))
        },
        route: None,
        own: |nth| one("path", format!("/{}/r{nth}/77", "a".repeat(nth % 40))),
    },
    BucketLayout {
        name: "networks of one length",
        rule: |nth| format!("when: {{ ip: {}/24 }}, per: [client]", network(nth, 8)),
        route: None,
        own: |nth| one("ip", network(nth, 8)),
    },
    BucketLayout {
        name: "networks of 10 lengths",
        rule: |nth| {
            format!("when: {{ ip: {}/{} }}, per: [client]", network(nth, 10), 22 + nth % 10)
        },
        route: None,
        own: |nth| one("ip", network(nth, 10)),
    },
    BucketLayout {
        name: "each its own attribute in `per`",
        rule: |nth| format!("per: [key{nth}]"),
        route: None,
        own: |nth| one(&format!("key{nth}"), format!("value-{nth}")),
    },
    BucketLayout {
        name: "lists of 20 tenants",
        rule: |nth| {
            let tenants: Vec<String> = (0..20).map(|own| format!("t{nth}-{own}")).collect();
            format!("when: {{ tenant: [{}] }}, per: [client]", tenants.join(", "))
        },
        route: None,
        own: |nth| one("tenant", format!("t{nth}-{}", nth % 20)),
    },
];

/// Rules that only their own glob tells apart: every one is looked at.
pub const WITHOUT_A_BEGINNING: BucketLayout = BucketLayout {
    name: "globs that begin with a star",
    rule: |nth| format!("when: {{ path: '*/r{nth}' }}, per: [client]"),
    route: None,
    own: |nth| one("path", format!("/v1/users/r{nth}")),
};

const METHODS: [&str; 4] = ["GET", "POST", "PUT", "DELETE"];

fn one(name: &str, value: String) -> Vec<(String, String)> {
    vec![(name.to_owned(), value)]
}

/// The `nth` network of addresses with so many bits behind it.
fn network(nth: usize, bits: u32) -> String {
    std::net::Ipv4Addr::from_bits((10 << 24) + ((nth as u32) << bits)).to_string()
}

impl BucketLayout {
    /// The text of a policy of so many rules.
    pub fn policy(&self, rules: usize) -> String {
        let rule = self.rule;
        let routes = self.route.map_or_else(String::new, |route| {
            let routes = (0..rules).map(|nth| format!("  - '{}'\n", route(nth)));
            format!("routes:\n{}", routes.collect::<String>())
        });
        let rules = (0..rules)
            .map(|nth| format!("  - {{ name: r{nth}, {}, limits: [500000000/w] }}\n", rule(nth)));
        format!("{routes}rules:\n{}", rules.collect::<String>())
    }

    /// What a request says that is for that rule: as much as proxies say.
    fn request(&self, rule: usize, client: usize) -> Vec<(String, String)> {
        let mut attributes = (self.own)(rule);
        let client = format!("client-{client:06}");
        for (name, value) in
            [("client", &*client), ("method", "GET"), ("path", "/"), ("ip", "192.0.2.7")]
        {
            if attributes.iter().all(|(own, _)| own != name) {
                attributes.push((name.to_owned(), value.to_owned()));
            }
        }
        attributes
    }
}

/// A gate, and requests of which each is for one of its rules. Each counts by a key of its own.
pub struct Workload<C: Clock> {
    gate: Gate<MemoryStore<C>>,
    requests: Vec<Vec<(String, String)>>,
}

impl Workload<SystemClock> {
    /// Of so many rules of one shape.
    ///
    /// # Errors
    /// If the shape's policy is not one, or its requests are not for one rule each.
    pub fn new(shape: BucketLayout, rules: usize) -> Result<Self, Box<dyn Error>> {
        Self::with(shape, rules, MemoryStore::new())
    }
}

impl<C: Clock> Workload<C> {
    /// The same over a store.
    ///
    /// # Errors
    /// If the shape's policy is not one, or its requests are not for one rule each.
    pub fn with(
        shape: BucketLayout,
        rules: usize,
        store: MemoryStore<C>,
    ) -> Result<Self, Box<dyn Error>> {
        let gate = Gate::new(Policy::from_yaml(&shape.policy(rules))?, store);
        let mut requests: Vec<_> =
            (0..REQUESTS).map(|nth| shape.request(nth % rules, nth)).collect();
        // In no order that a processor could foresee.
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

    /// Has the `nth` request decided.
    #[inline]
    pub fn check(&self, nth: usize) -> Ruling {
        self.gate.check_now(&self.request(nth))
    }

    /// Has so many requests decided, one after the other; how many were denied.
    pub fn decide(&self, decisions: usize) -> usize {
        (0..decisions).filter(|&nth| !self.check(nth).decision().is_allowed()).count()
    }
}
