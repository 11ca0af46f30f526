//! `slidegate explain`: what a policy makes of one request, rule by rule, and why.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::Value;
use slidegate::{DEFAULT_DOMAIN, Descriptor, Gate, MAX_UNITS, MemoryStore, Policy, Request};
use thiserror::Error;

use super::print;
use crate::explain::Explanation;
use crate::policy_file;

#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// The rules, a YAML file: as if nobody had asked before
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_POLICY", required_unless_present = "server")]
    pub policy: Option<PathBuf>,

    /// The admin address of a server, such as http://127.0.0.1:6070: by the policy and the counts that it
    /// now has; --policy is not read then. Nothing is charged
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,

    /// The domain of the request
    #[arg(long, value_name = "NAME", default_value = DEFAULT_DOMAIN)]
    pub domain: String,

    /// Units of rules that state no cost, or NAME=N for rules with a named cost; 0 checks only. May be given several
    /// times. 1 by default
    #[arg(long, value_name = "[NAME=]N")]
    pub cost: Vec<CostArg>,

    /// The request is one to the rate limit service: descriptors with a `+` between them, such as
    /// plan=free user=ann + user=ann. A rule applies to a descriptor only if it names all its attributes
    #[arg(long)]
    pub descriptors: bool,

    /// The attributes of the request, in order, such as method=GET ip=192.0.2.7
    #[arg(value_name = "NAME=VALUE")]
    pub attributes: Vec<Word>,
}

/// A cost of the request.
#[derive(Clone, Debug)]
pub struct CostArg {
    /// `None` is the cost of rules that state none.
    name: Option<String>,
    units: u64,
}

/// Why a text is no cost.
#[derive(Debug, Error)]
#[error("a cost is a number of units up to {MAX_UNITS}, or NAME=N such as tokens=1800")]
pub struct CostArgError;

impl FromStr for CostArg {
    type Err = CostArgError;

    fn from_str(text: &str) -> Result<Self, CostArgError> {
        let (name, units) = match text.split_once('=') {
            Some((name, units)) if !name.is_empty() => (Some(name.to_owned()), units),
            Some(_) => return Err(CostArgError),
            None => (None, text),
        };
        let units = units.parse().ok().filter(|units| *units <= MAX_UNITS);
        Ok(Self { name, units: units.ok_or(CostArgError)? })
    }
}

impl ExplainArgs {
    /// Returns the cost of rules that state none.
    fn plain_cost(&self) -> Option<u64> {
        self.cost.iter().find(|cost| cost.name.is_none()).map(|cost| cost.units)
    }

    /// Returns the named costs.
    fn named_costs(&self) -> impl Iterator<Item = (&str, u64)> {
        self.cost.iter().filter_map(|cost| Some((cost.name.as_deref()?, cost.units)))
    }
}

/// A part of a request.
#[derive(Clone, Debug)]
pub enum Word {
    Attribute {
        name: String,
        value: String,
    },
    /// `+`
    NextDescriptor,
}

/// Why a text is no attribute.
#[derive(Debug, Error)]
#[error("an attribute is NAME=VALUE, such as ip=192.0.2.7")]
pub struct AttributeError;

impl FromStr for Word {
    type Err = AttributeError;

    fn from_str(text: &str) -> Result<Self, AttributeError> {
        if text == "+" {
            return Ok(Self::NextDescriptor);
        }
        let (name, value) = text.split_once('=').ok_or(AttributeError)?;
        match name.is_empty() {
            true => Err(AttributeError),
            false => Ok(Self::Attribute { name: name.to_owned(), value: value.to_owned() }),
        }
    }
}

/// Attributes in their order.
#[derive(Default)]
struct Attributes<'a>(Vec<(&'a str, &'a str)>);

impl Serialize for Attributes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// The body of a request to `/v1/explain`.
#[derive(Serialize)]
struct Ask<'a> {
    domain: &'a str,
    #[serde(flatten)]
    of: AskOf<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum AskOf<'a> {
    One(DescriptorAsk<'a>),
    Several { descriptors: Vec<DescriptorAsk<'a>> },
}

#[derive(Serialize)]
struct DescriptorAsk<'a> {
    attributes: Attributes<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    costs: BTreeMap<&'a str, u64>,
}

#[derive(Debug, Error)]
enum ExplainError {
    #[error("`{0}` is given twice: a request has each attribute once")]
    Twice(String),
    #[error("`{0}` is given twice in one descriptor: the second is `{0}#2`")]
    TwiceInDescriptor(String),
    #[error("a `+` stands between descriptors: give `--descriptors`, too")]
    NextDescriptor,
    #[error("a descriptor without attributes: no rule applies to it")]
    EmptyDescriptor,
    #[error("no rule is of domain `{domain}`, so everything passes: the policy has {}", known.join(", "))]
    NoDomain { domain: String, known: Vec<String> },
    #[error(
        "--server takes the admin address of a server over plain HTTP, such as http://127.0.0.1:6070"
    )]
    Url,
    #[error("{url} does not answer: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("{url} says {status}: {detail}")]
    Refused { url: String, status: u16, detail: String },
    #[error("{url} does not answer as slidegate's admin address does: {reason}")]
    Strange { url: String, reason: String },
}

/// How long to wait for a server.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of an answer that are read at most: a policy has many rules.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

pub fn run(args: ExplainArgs) -> Result<(), Box<dyn Error>> {
    let descriptors = descriptors(&args)?;
    let explanation = match (&args.server, &args.policy) {
        (Some(url), _) => by_server(url, &args, descriptors)?,
        (None, policy) => {
            let policy = policy_file::read(&policy.clone().unwrap_or_default())?;
            by_policy(&policy, &args, &descriptors)?
        }
    };
    print(&explanation.to_string())?;
    Ok(())
}

/// Returns the descriptors of the request: one, unless `--descriptors` is given.
fn descriptors(args: &ExplainArgs) -> Result<Vec<Attributes<'_>>, ExplainError> {
    let mut descriptors = vec![Attributes::default()];
    for word in &args.attributes {
        let Some(Attributes(last)) = descriptors.last_mut() else { break };
        match word {
            Word::NextDescriptor if !args.descriptors => return Err(ExplainError::NextDescriptor),
            Word::NextDescriptor => descriptors.push(Attributes::default()),
            Word::Attribute { name, .. } if last.iter().any(|(other, _)| other == name) => {
                return Err(match args.descriptors {
                    true => ExplainError::TwiceInDescriptor(name.clone()),
                    false => ExplainError::Twice(name.clone()),
                });
            }
            Word::Attribute { name, value } => last.push((name, value)),
        }
    }
    match args.descriptors && descriptors.iter().any(|one| one.0.is_empty()) {
        true => Err(ExplainError::EmptyDescriptor),
        false => Ok(descriptors),
    }
}

/// As if nobody had asked before.
fn by_policy(
    policy: &Policy,
    args: &ExplainArgs,
    descriptors: &[Attributes<'_>],
) -> Result<Explanation, ExplainError> {
    let descriptors = descriptors.iter().map(|one| {
        let mut descriptor = Descriptor::new(one.0.iter().copied());
        if let Some(cost) = args.plain_cost() {
            descriptor = descriptor.cost(cost);
        }
        for (name, units) in args.named_costs() {
            descriptor = descriptor.with_cost(name, units);
        }
        if args.descriptors { descriptor.exact() } else { descriptor }
    });
    let request = Request::with_descriptors(&args.domain, descriptors);
    let gate = Gate::new(policy.clone(), MemoryStore::new());
    let explanation = Explanation::from_ruling(policy, &request, &gate.peek_now(&request));
    if explanation.has_rules() {
        return Ok(explanation);
    }
    let mut known: Vec<String> =
        policy.rules().iter().map(|rule| format!("`{}`", rule.domain())).collect();
    known.sort_unstable();
    known.dedup();
    Err(ExplainError::NoDomain { domain: args.domain.clone(), known })
}

fn by_server(
    url: &str,
    args: &ExplainArgs,
    descriptors: Vec<Attributes<'_>>,
) -> Result<Explanation, ExplainError> {
    if !url.starts_with("http://") {
        return Err(ExplainError::Url);
    }
    let url = format!("{}/v1/explain", url.trim_end_matches('/'));
    let ask = |attributes| DescriptorAsk {
        attributes,
        cost: args.plain_cost(),
        costs: args.named_costs().collect(),
    };
    let mut descriptors = descriptors.into_iter().map(ask);
    let of = match (args.descriptors, descriptors.next()) {
        (false, Some(one)) => AskOf::One(one),
        (_, first) => {
            AskOf::Several { descriptors: first.into_iter().chain(descriptors).collect() }
        }
    };
    let ask = Ask { domain: &args.domain, of };
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        .build();
    let unreachable = |error: ureq::Error| ExplainError::Unreachable {
        url: url.clone(),
        reason: error.to_string(),
    };
    let strange = |reason: String| ExplainError::Strange { url: url.clone(), reason };
    let mut response = config.new_agent().post(&url).send_json(ask).map_err(unreachable)?;
    let status = response.status().as_u16();
    let body = response.body_mut().with_config().limit(MAX_BYTES).read_to_string();
    let body = body.map_err(unreachable)?;
    if status == 200 {
        return serde_json::from_str(&body).map_err(|error| strange(error.to_string()));
    }
    let problem: Value = serde_json::from_str(&body).unwrap_or_default();
    match problem["detail"].as_str() {
        Some(detail) => {
            Err(ExplainError::Refused { url: url.clone(), status, detail: detail.to_owned() })
        }
        None => Err(strange(format!("its status is {status}"))),
    }
}
