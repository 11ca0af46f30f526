//! `slidegate explain`: what a policy makes of one request, rule by rule, and why.

use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value, json};
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
const MOST_BYTES: u64 = 64 * 1024 * 1024;

pub fn run(args: ExplainArgs) -> Result<(), Box<dyn Error>> {
    let attributes = &args.attributes;
    for (nth, one) in attributes.iter().enumerate() {
        if attributes[..nth].iter().any(|other| other.name == one.name) {
            return Err(ExplainError::Twice(one.name.clone()).into());
        }
    }
    let explanation = match (&args.server, &args.policy) {
        (Some(url), _) => by_server(url, &args)?,
        (None, policy) => {
            by_policy(&policy_file::read(&policy.clone().unwrap_or_default())?, &args)?
        }
    };
    print(&explanation.to_string())?;
    Ok(())
}

/// As if nobody had asked before.
fn by_policy(policy: &Policy, args: &ExplainArgs) -> Result<Explanation, ExplainError> {
    let pairs = args.attributes.iter().map(|one| (one.name.as_str(), one.value.as_str()));
    let request = Request::new(&args.domain, Descriptor::new(pairs).cost(args.cost));
    let gate = Gate::new(policy.clone(), MemoryStore::new());
    let explanation = Explanation::of(policy, &request, &gate.peek_now(&request));
    if explanation.has_rules() {
        return Ok(explanation);
    }
    let mut known: Vec<String> =
        policy.rules().iter().map(|rule| format!("`{}`", rule.domain())).collect();
    known.sort_unstable();
    known.dedup();
    Err(ExplainError::NoDomain { domain: args.domain.clone(), known })
}

fn by_server(url: &str, args: &ExplainArgs) -> Result<Explanation, ExplainError> {
    if !url.starts_with("http://") {
        return Err(ExplainError::Url);
    }
    let url = format!("{}/v1/explain", url.trim_end_matches('/'));
    let attributes: Map<String, Value> =
        args.attributes.iter().map(|one| (one.name.clone(), one.value.clone().into())).collect();
    let ask = json!({ "domain": args.domain, "attributes": attributes, "cost": args.cost });
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
    let body = response.body_mut().with_config().limit(MOST_BYTES).read_to_string();
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
