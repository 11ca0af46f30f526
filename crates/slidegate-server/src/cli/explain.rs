//! `slidegate explain`: explains the decision about one request, rule by rule.

use std::collections::BTreeMap;
use std::error::Error;
use std::str::FromStr;
use std::time::Duration;

use clap::error::ErrorKind;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::Value;
use slidegate::limit::MAX_UNITS;
use slidegate::policy::DEFAULT_DOMAIN;
use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::cli::args::PolicySourceArgs;
use crate::cli::client::{self, ResponseBounds};
use crate::decide::error::CallError;
use crate::decide::names::check_costs;
use crate::explain::Explanation;
use crate::policy::file;

/// The flags of `slidegate explain`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "slidegate explain [OPTIONS] <--policy FILE | --server URL> [NAME=VALUE]..."
)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub policy_source: PolicySourceArgs,

    /// Admin listener of a server, such as http://127.0.0.1:6070, in place of a policy
    ///
    /// Explains with the current policy and counters of the server, and charges nothing. --policy and
    /// --ratelimit-config are then ignored.
    #[arg(long, value_name = "URL", help_heading = "Policy")]
    pub server: Option<String>,

    /// Domain of the request
    #[arg(long, value_name = "NAME", default_value = DEFAULT_DOMAIN, help_heading = "Request")]
    pub domain: String,

    /// Cost of the request in units, or NAME=N for rules with a named cost; 0 only checks
    ///
    /// A number without a name is the cost in rules that state no cost. Can be repeated; 1 by default.
    #[arg(long, value_name = "[NAME=]N", help_heading = "Request")]
    pub cost: Vec<CostArg>,

    /// Request of Envoy's rate limit protocol: descriptors, separated by `+`
    ///
    /// Such as plan=free user=ann + user=ann. A rule applies to a descriptor only if it names all attributes of the
    /// descriptor.
    #[arg(long, help_heading = "Request")]
    pub descriptors: bool,

    /// Attributes of the request, in order, such as method=GET ip=192.0.2.7
    #[arg(value_name = "NAME=VALUE")]
    pub attributes: Vec<AttributeArg>,
}

/// A value of `--cost`.
#[derive(Clone, Debug)]
pub struct CostArg {
    /// The name, such as `tokens` in `--cost tokens=1800`. `None` for a plain number such as `--cost 5`, which is the
    /// cost in all rules that set no cost in the policy.
    name: Option<String>,
    units: u64,
}

/// The error for a value of `--cost` that is not a valid cost.
#[derive(Debug, Error)]
#[error("write a number of units up to {MAX_UNITS}, or NAME=N, for example tokens=1800")]
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
    /// Checks that the command line or the environment names a policy or a server.
    pub fn require_policy_or_server(&self) -> Result<(), clap::Error> {
        if self.server.is_some() || self.policy_source.has_source() {
            return Ok(());
        }
        let message = "nothing decides about the request: set --server http://127.0.0.1:6070 for the policy and counters of a running server, or --policy FILE or --ratelimit-config DIR for unused limits\n";
        Err(clap::Error::raw(ErrorKind::MissingRequiredArgument, message))
    }

    /// Returns the number in `--cost N`, which is the cost in all rules that set no cost in the policy. Returns `None`
    /// if the command line has no such flag.
    fn unnamed_cost(&self) -> Option<u64> {
        self.cost.iter().find(|cost| cost.name.is_none()).map(|cost| cost.units)
    }

    /// Returns the name and the units of each `--cost NAME=N`.
    fn named_costs(&self) -> impl Iterator<Item = (&str, u64)> {
        self.cost.iter().filter_map(|cost| Some((cost.name.as_deref()?, cost.units)))
    }
}

/// A positional argument of `slidegate explain`, which is a part of the request.
#[derive(Clone, Debug)]
pub enum AttributeArg {
    /// An attribute, written as `NAME=VALUE`.
    Attribute { name: String, value: String },
    /// A `+`, after which the next descriptor begins.
    DescriptorSeparator,
}

/// The error for an argument that is not an attribute `NAME=VALUE`.
#[derive(Debug, Error)]
#[error("write an attribute as NAME=VALUE, for example ip=192.0.2.7")]
pub struct AttributeArgError;

impl FromStr for AttributeArg {
    type Err = AttributeArgError;

    fn from_str(text: &str) -> Result<Self, AttributeArgError> {
        if text == "+" {
            return Ok(Self::DescriptorSeparator);
        }
        let (name, value) = text.split_once('=').ok_or(AttributeArgError)?;
        if name.is_empty() {
            Err(AttributeArgError)
        } else {
            Ok(Self::Attribute { name: name.to_owned(), value: value.to_owned() })
        }
    }
}

/// The names and values of attributes, in the order of the command-line arguments.
#[derive(Default)]
struct OrderedAttributes<'a>(Vec<(&'a str, &'a str)>);

impl Serialize for OrderedAttributes<'_> {
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
struct ExplainRequestBody<'a> {
    domain: &'a str,
    #[serde(flatten)]
    descriptors: DescriptorOrList<'a>,
}

/// The descriptors in the body of a request to `/v1/explain`: either the fields of a single descriptor, or a list of
/// descriptors.
#[derive(Serialize)]
#[serde(untagged)]
enum DescriptorOrList<'a> {
    Single(DescriptorJson<'a>),
    List { descriptors: Vec<DescriptorJson<'a>> },
}

/// One descriptor in the body of a request to `/v1/explain`.
#[derive(Serialize)]
struct DescriptorJson<'a> {
    attributes: OrderedAttributes<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    costs: BTreeMap<&'a str, u64>,
}

/// The reason why `slidegate explain` cannot explain a request.
#[derive(Debug, Error)]
enum ExplainError {
    #[error("`{0}` occurs twice; write each attribute once")]
    DuplicateAttribute(String),
    #[error("`{0}` occurs twice in one descriptor; name the second one `{0}#2`")]
    DuplicateInDescriptor(String),
    #[error("header names are lower-case, so no rule applies to `{0}`; did you mean `{lower_case}`?", lower_case = .0.to_ascii_lowercase())]
    UpperCaseHeader(String),
    #[error(
        "{url}: no rule has domain `{domain}`, so no request is denied; correct --domain, or add a rule"
    )]
    UnknownDomainOfServer { url: String, domain: String },
    #[error("`+` separates descriptors; add `--descriptors`")]
    SeparatorWithoutFlag,
    #[error("a descriptor has no attributes; write NAME=VALUE on both sides of each `+`")]
    EmptyDescriptor,
    #[error("--cost: {0}")]
    UnknownCost(#[from] CallError),
    #[error("no rule has domain `{domain}`, so no request is denied; {remedy}")]
    UnknownDomain { domain: String, remedy: String },
    #[error(
        "--server: the URL of an admin listener begins with http://; write for example http://127.0.0.1:6070"
    )]
    UnsupportedUrl,
    #[error("{url}: the server is unreachable: {reason}; check the address of --admin")]
    Unreachable { url: String, reason: String },
    #[error("{url}: the server returned status {status}: {detail}")]
    ErrorResponse { url: String, status: u16, detail: String },
    #[error(
        "{url}: this is not an admin listener of slidegate: {reason}; use the address of --admin"
    )]
    InvalidResponse { url: String, reason: String },
}

/// The bounds of a server's response. The explanation of a policy with the maximum number of rules is below the size.
const RESPONSE_BOUNDS: ResponseBounds =
    ResponseBounds { timeout: Duration::from_secs(10), max_body_bytes: 64 * 1024 * 1024 };

/// Runs `slidegate explain`, and returns the explanation as text.
pub fn run(args: ExplainArgs) -> Result<String, Box<dyn Error>> {
    let descriptors = parse_descriptors(&args)?;
    let explanation = match &args.server {
        Some(url) => explain_with_server(url, &args, descriptors)?,
        None => {
            let policy = file::read_policy_source(args.policy_source.clone().into_source())?;
            explain_with_policy(&policy, &args, &descriptors)?
        }
    };
    Ok(explanation.to_string())
}

/// Parses the descriptors of the request: exactly one, unless `--descriptors` is set.
fn parse_descriptors(args: &ExplainArgs) -> Result<Vec<OrderedAttributes<'_>>, ExplainError> {
    let mut descriptors = vec![OrderedAttributes::default()];
    for argument in &args.attributes {
        let Some(OrderedAttributes(last)) = descriptors.last_mut() else { break };
        match argument {
            AttributeArg::DescriptorSeparator if !args.descriptors => {
                return Err(ExplainError::SeparatorWithoutFlag);
            }
            AttributeArg::DescriptorSeparator => descriptors.push(OrderedAttributes::default()),
            AttributeArg::Attribute { name, .. } if last.iter().any(|(other, _)| other == name) => {
                return Err(if args.descriptors {
                    ExplainError::DuplicateInDescriptor(name.clone())
                } else {
                    ExplainError::DuplicateAttribute(name.clone())
                });
            }
            AttributeArg::Attribute { name, .. }
                if name.starts_with("header.") && name.bytes().any(|b| b.is_ascii_uppercase()) =>
            {
                return Err(ExplainError::UpperCaseHeader(name.clone()));
            }
            AttributeArg::Attribute { name, value } => last.push((name, value)),
        }
    }
    if args.descriptors && descriptors.iter().any(|attributes| attributes.0.is_empty()) {
        Err(ExplainError::EmptyDescriptor)
    } else {
        Ok(descriptors)
    }
}

/// Explains the decision with a policy file, as if all limits were unused.
fn explain_with_policy(
    policy: &Policy,
    args: &ExplainArgs,
    descriptors: &[OrderedAttributes<'_>],
) -> Result<Explanation, ExplainError> {
    let descriptors = descriptors.iter().map(|attributes| {
        let mut descriptor = Descriptor::new(attributes.0.iter().copied());
        if let Some(cost) = args.unnamed_cost() {
            descriptor = descriptor.cost(cost);
        }
        for (name, units) in args.named_costs() {
            descriptor = descriptor.with_cost(name, units);
        }
        if args.descriptors { descriptor.exact() } else { descriptor }
    });
    let request = Request::with_descriptors(&args.domain, descriptors);
    check_costs(policy, &request)?;
    let gate = Gate::new(policy.clone(), MemoryStore::new());
    let (decision, never_cancelled) = (gate.peek(&request), CancellationToken::new());
    let explanation = Explanation::from_decision(policy, &request, &decision, &never_cancelled);
    if explanation.has_rules() {
        return Ok(explanation);
    }
    let (domain, remedy) = (args.domain.clone(), super::unknown_domain_remedy(policy));
    Err(ExplainError::UnknownDomain { domain, remedy })
}

/// Explains the decision with the current policy and counters of a server.
fn explain_with_server(
    url: &str,
    args: &ExplainArgs,
    descriptors: Vec<OrderedAttributes<'_>>,
) -> Result<Explanation, ExplainError> {
    if !url.starts_with("http://") {
        return Err(ExplainError::UnsupportedUrl);
    }
    let url = format!("{}/v1/explain", url.trim_end_matches('/'));
    let descriptor_body = |attributes| DescriptorJson {
        attributes,
        cost: args.unnamed_cost(),
        costs: args.named_costs().collect(),
    };
    let mut descriptors = descriptors.into_iter().map(descriptor_body);
    let descriptors = match (args.descriptors, descriptors.next()) {
        (false, Some(single)) => DescriptorOrList::Single(single),
        (_, first) => {
            DescriptorOrList::List { descriptors: first.into_iter().chain(descriptors).collect() }
        }
    };
    let body = ExplainRequestBody { domain: &args.domain, descriptors };
    let response = client::post_json(&url, &body, RESPONSE_BOUNDS).map_err(|error| {
        ExplainError::Unreachable { url: url.clone(), reason: error.to_string() }
    })?;
    let invalid = |reason: String| ExplainError::InvalidResponse { url: url.clone(), reason };
    let (status, body) = (response.status().as_u16(), response.body());
    if status == 200 {
        let explanation: Explanation =
            serde_json::from_slice(body).map_err(|error| invalid(error.to_string()))?;
        if explanation.has_rules() {
            return Ok(explanation);
        }
        return Err(ExplainError::UnknownDomainOfServer { url, domain: args.domain.clone() });
    }
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    match problem["detail"].as_str() {
        Some(detail) => {
            Err(ExplainError::ErrorResponse { url: url.clone(), status, detail: detail.to_owned() })
        }
        None => Err(invalid(format!("unexpected status {status}"))),
    }
}
