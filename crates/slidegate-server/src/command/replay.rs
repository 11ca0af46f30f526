//! `slidegate replay`: tries a policy on the requests of access logs.

use std::error::Error;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::json;
use slidegate::{DEFAULT_DOMAIN, MAX_UNITS, Policy, PolicyErrors};
use thiserror::Error;

use crate::policy_file;
use crate::replay::report::ReplayReport;
use crate::replay::run::{Replay, ReplayOptions, UnparsableLine};
use crate::replay::source::{LogSource, progress_bar};
use crate::replay::suggest::Headroom;

/// So many lines that are not understood are shown; the rest is only counted.
const SHOWN: u32 = 5;

#[derive(Debug, clap::Args)]
pub struct ReplayArgs {
    /// The rules to try, a YAML file; only --suggest does without
    #[arg(long, value_name = "FILE", required_unless_present = "suggest")]
    pub policy: Option<PathBuf>,

    /// The domain whose rules are tried
    #[arg(long, value_name = "NAME", default_value = DEFAULT_DOMAIN)]
    pub domain: String,

    /// Suggest limits: for each rule the smallest that would have denied 0.1 %, 1 % and 5 % of its clients
    #[arg(long)]
    pub suggest: bool,

    /// Without a policy, suggest for each value of these attributes, such as ip or ip,path
    #[arg(
        long,
        value_name = "ATTRIBUTES",
        value_delimiter = ',',
        default_value = "ip",
        requires = "suggest",
        conflicts_with = "policy"
    )]
    pub per: Vec<String>,

    /// How much more to suggest than clients did; then rounded up to a friendly number
    #[arg(long, value_name = "PERCENT", default_value = "20%", requires = "suggest")]
    pub headroom: Headroom,

    /// Write the report as JSON
    #[arg(long)]
    pub json: bool,

    /// How many of the most denied keys to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    /// How many keys (such as clients) to count at once
    #[arg(long, value_name = "N", default_value = "10000000")]
    pub max_keys: NonZeroUsize,

    /// Put lines in order that are up to that many seconds of the log's time late
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub reorder: u64,

    /// Logs in the common or combined format, plain or gzip, oldest first; `-` is standard input
    #[arg(required = true, value_name = "ACCESS_LOG")]
    pub logs: Vec<PathBuf>,
}

#[derive(Debug, Error)]
enum ReplayError {
    #[error("{}: cannot be read: {error}", log.display())]
    Unreadable { log: PathBuf, error: io::Error },
    #[error(
        "none of {0} lines is of an access log in the common or combined format, such as\n\
         192.0.2.7 - - [17/May/2015:10:05:03 +0000] \"GET /path HTTP/1.1\" 200 512 \"-\" \"curl/8.1\""
    )]
    NoAccessLog(u64),
    #[error("--per {per}: {mistakes}")]
    Per { per: String, mistakes: String },
}

pub fn run(args: ReplayArgs) -> Result<(), Box<dyn Error>> {
    let policy = match &args.policy {
        Some(file) => policy_file::read(file)?,
        None => any_request(&args)?,
    };
    warn_of_no_rules(&policy, &args.domain);
    let options = ReplayOptions {
        max_keys: args.max_keys.get(),
        reorder: Duration::from_secs(args.reorder),
        measure_demand: args.suggest,
    };
    let mut replay = Replay::new(&policy, &args.domain, options);
    read_logs(&args.logs, &mut replay)?;
    let tally = replay.stats();
    if tally.counts.requests == 0 && tally.unparsable > 0 {
        return Err(ReplayError::NoAccessLog(tally.unparsable).into());
    }
    let report = ReplayReport::new(&policy, &args.domain, tally, args.top);
    let report = match args.suggest {
        true => report.with_suggestions(&policy, &args.domain, tally, args.headroom),
        false => report,
    };
    let report = if args.policy.is_some() { report } else { report.without_policy() };
    match args.json {
        true => super::print(&format!("{}\n", serde_json::to_string(&report)?))?,
        false => super::print(&report.to_string())?,
    }
    Ok(())
}

/// A policy that denies nothing: all that it does is to tell clients apart.
fn any_request(args: &ReplayArgs) -> Result<Policy, ReplayError> {
    let name: String = format!("per-{}", args.per.join("-")).to_ascii_lowercase();
    let name = name.replace(|char: char| !char.is_ascii_alphanumeric() && char != '.', "-");
    let rule = json!({
        "name": name,
        "domain": args.domain,
        "per": args.per,
        "limits": [{ "max": MAX_UNITS, "window": "1s" }],
    });
    // JSON is YAML.
    let policy = json!({ "version": 1, "rules": [rule] }).to_string();
    Policy::from_yaml(&policy).map_err(|PolicyErrors(mistakes)| {
        let mistakes: Vec<_> = mistakes.into_iter().map(|mistake| mistake.message).collect();
        ReplayError::Per { per: args.per.join(","), mistakes: mistakes.join("; ") }
    })
}

fn warn_of_no_rules(policy: &Policy, domain: &str) {
    if policy.rules().iter().all(|rule| rule.domain() != domain) {
        eprintln!("no rule is of domain `{domain}`, so nothing is limited: see --domain");
    }
}

fn read_logs(logs: &[PathBuf], replay: &mut Replay<'_>) -> Result<(), ReplayError> {
    let bar = progress_bar(logs);
    let mut left_to_show = SHOWN;
    let done = logs.iter().try_for_each(|log| {
        let unreadable = |error| ReplayError::Unreadable { log: log.clone(), error };
        let mut source = LogSource::open(log, &bar).map_err(unreadable)?;
        let tell = |line: UnparsableLine| {
            if left_to_show > 0 {
                left_to_show -= 1;
                show(log, &line, &bar);
            }
        };
        replay.replay_log(&mut source, tell).map_err(unreadable)
    });
    replay.finish();
    bar.finish_and_clear();
    done
}

fn show(log: &Path, line: &UnparsableLine, bar: &ProgressBar) {
    bar.suspend(|| eprintln!("{}:{}: {}", log.display(), line.number, line.reason));
}
