//! `slidegate explain`: what a policy makes of one request, rule by rule, and why.

use std::error::Error;
use std::fmt::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;

use slidegate::policy::{Match, Misfit};
use slidegate::{
    DEFAULT_DOMAIN, Descriptor, Gate, MAX_UNITS, MemoryStore, Policy, Request, Ruling, Standing,
};
use thiserror::Error;

use super::print;
use crate::{policy_file, words};

#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// The rules, a YAML file
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_POLICY")]
    pub policy: PathBuf,

    /// The domain of the request
    #[arg(long, value_name = "NAME", default_value = DEFAULT_DOMAIN)]
    pub domain: String,

    /// Units that the request takes; 0 asks whether one would fit
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=MAX_UNITS))]
    pub cost: u64,

    /// What is known of the request, such as method=GET ip=192.0.2.7
    #[arg(value_name = "NAME=VALUE")]
    pub attributes: Vec<Attribute>,
}

/// `name=value`
#[derive(Clone, Debug)]
pub struct Attribute {
    name: String,
    value: String,
}

/// Why a text is no attribute.
#[derive(Debug, Error)]
#[error("an attribute is NAME=VALUE, such as ip=192.0.2.7")]
pub struct AttributeError;

impl FromStr for Attribute {
    type Err = AttributeError;

    fn from_str(text: &str) -> Result<Self, AttributeError> {
        let (name, value) = text.split_once('=').ok_or(AttributeError)?;
        match name.is_empty() {
            true => Err(AttributeError),
            false => Ok(Self { name: name.to_owned(), value: value.to_owned() }),
        }
    }
}

#[derive(Debug, Error)]
enum ExplainError {
    #[error("`{0}` is given twice: a request has each attribute once")]
    Twice(String),
    #[error("no rule is of domain `{domain}`, so everything passes: the policy has {}", known.join(", "))]
    NoDomain { domain: String, known: Vec<String> },
}

pub fn run(args: ExplainArgs) -> Result<(), Box<dyn Error>> {
    let policy = policy_file::read(&args.policy)?;
    let attributes = &args.attributes;
    for (nth, one) in attributes.iter().enumerate() {
        if attributes[..nth].iter().any(|other| other.name == one.name) {
            return Err(ExplainError::Twice(one.name.clone()).into());
        }
    }
    needs_domain(&policy, &args.domain)?;
    let pairs = attributes.iter().map(|one| (one.name.as_str(), one.value.as_str()));
    let request = Request::new(&args.domain, Descriptor::new(pairs).cost(args.cost));
    let gate = Gate::new(policy, MemoryStore::new());
    let ruling = gate.check_now(&request);
    let mut told = route(gate.policy(), attributes);
    explain(&mut told, gate.policy(), &request, &ruling)?;
    print(&told)?;
    Ok(())
}

fn needs_domain(policy: &Policy, domain: &str) -> Result<(), ExplainError> {
    let mut known: Vec<String> =
        policy.rules().iter().map(|rule| format!("`{}`", rule.domain())).collect();
    known.sort_unstable();
    known.dedup();
    match policy.rules().iter().any(|rule| rule.domain() == domain) {
        true => Ok(()),
        false => Err(ExplainError::NoDomain { domain: domain.to_owned(), known }),
    }
}

/// The route that the request gets of its path.
fn route(policy: &Policy, attributes: &[Attribute]) -> String {
    let given = |name: &str| attributes.iter().find(|one| one.name == name);
    match given("path") {
        Some(path) if given("route").is_none() && policy.routes().next().is_some() => {
            match policy.route_of(&path.value) {
                Some(route) => format!("its path gives it the route `{route}`\n"),
                None => "its path is of none of `routes`\n".into(),
            }
        }
        _ => String::new(),
    }
}

fn explain(
    told: &mut String,
    policy: &Policy,
    request: &Request<'_>,
    ruling: &Ruling,
) -> fmt::Result {
    let mut standings = ruling.limits();
    for (rule, fit) in policy.explain(request) {
        match fit {
            Err(misfit) => writeln!(told, "{}: does not apply: {}", rule.name(), why(&misfit))?,
            Ok(one) => {
                writeln!(told, "{}: applies{}", rule.name(), by(&one))?;
                let standings = standings.by_ref();
                for (hit, standing) in one.hits().zip(standings) {
                    writeln!(told, "  {}", outcome(&standing))?;
                    writeln!(told, "    counted as {}", hit.key)?;
                }
            }
        }
    }
    writeln!(told, "{}", verdict(ruling))
}

fn why(misfit: &Misfit<'_>) -> String {
    match misfit {
        Misfit::When { attribute, wanted, found } => match found {
            Some(found) => format!("{attribute} is `{found}`, and {}", words::must(wanted)),
            None => format!("there is no {attribute}, and it {}", words::must(wanted)),
        },
        Misfit::Missing(entry) => {
            let names: Vec<&str> = entry.names().collect();
            format!("there is no {}, per which it counts", names.join(" or "))
        }
        _ => "it is switched off".into(),
    }
}

/// By which terms.
fn by(one: &Match<'_>) -> String {
    let terms = match one.chosen_override() {
        Some((nth, other)) => format!(", by {}", words::override_name(nth, other)),
        None if one.lacks_attribute() => ", and lacks what it counts per".into(),
        None => String::new(),
    };
    match one.limits() {
        [] => format!("{terms}: everything passes"),
        _ => terms,
    }
}

fn outcome(standing: &Standing<'_>) -> String {
    let limit = standing.limit.limit();
    let (name, left) = (standing.policy_name(), standing.outcome.remaining());
    let limit = match limit.capacity() {
        0 => "nothing passes".into(),
        _ => limit.to_string(),
    };
    let fits = match (standing.outcome.fits(), standing.vetoes()) {
        (true, _) => format!("fits, {left} left"),
        (false, true) => "does not fit: denied".into(),
        (false, false) => "does not fit, but is not denied".into(),
    };
    let watches = if standing.is_observed() { " (only watches)" } else { "" };
    format!("{name}: {limit}: {fits}{watches}")
}

fn verdict(ruling: &Ruling) -> String {
    let decision = ruling.decision();
    let by = ruling.binding().map(|standing| standing.policy_name());
    match (decision.is_allowed(), by) {
        (true, None) => "allowed: nothing limits it".into(),
        (true, Some(name)) => format!("allowed: {name} has the least left"),
        (false, Some(name)) => format!("denied by {name}"),
        (false, None) => "denied".into(),
    }
}
