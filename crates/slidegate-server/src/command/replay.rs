//! `slidegate replay`: tests a policy on the requests of access logs.

use std::error::Error;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use slidegate::{DEFAULT_DOMAIN, MAX_UNITS, Policy, PolicyErrors};
use thiserror::Error;

use crate::policy_file;
use crate::replay::progress::ReplayProgress;
use crate::replay::report::ReplayReport;
use crate::replay::run::{Replay, ReplayOptions, UnparsableLine};
use crate::replay::source::LogSource;
use crate::replay::suggest::Headroom;

/// The maximum number of unparsable lines that are printed. Further unparsable lines are only counted.
const MAX_PRINTED_UNPARSABLE_LINES: u32 = 5;

/// The flags of `slidegate replay`.
#[derive(Debug, clap::Args)]
pub struct ReplayArgs {
    /// YAML file with the policy to test; optional with --suggest
    #[arg(long, value_name = "FILE", required_unless_present = "suggest")]
    pub policy: Option<PathBuf>,

    /// Domain of the rules to test
    #[arg(long, value_name = "NAME", default_value = DEFAULT_DOMAIN)]
    pub domain: String,

    /// Suggestions: for each rule, the lowest limits that would have denied at most 0.1 %, 1 % and 5 % of its clients
    #[arg(long)]
    pub suggest: bool,

    /// Attributes by which suggestions without a policy count, such as ip or ip,path
    #[arg(
        long,
        value_name = "ATTRIBUTES",
        value_delimiter = ',',
        default_value = "ip",
        requires = "suggest",
        conflicts_with = "policy"
    )]
    pub per: Vec<String>,

    /// Margin added to each suggested limit, which is then rounded up to a round number; 0% adds none
    #[arg(long, value_name = "PERCENT", default_value = "20%", requires = "suggest")]
    pub headroom: Headroom,

    /// Report as JSON
    #[arg(long)]
    pub json: bool,

    /// Number of the most denied keys in the report; 0 shows none
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    /// Maximum number of keys, such as clients, that are counted at once; keys above it are missing from the most
    /// denied keys and from suggestions
    #[arg(long, value_name = "N", default_value = "10000000")]
    pub max_keys: NonZeroUsize,

    /// Maximum delay of a line in seconds of log time; lines within it are sorted by time, and 0 sorts none
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub reorder: u64,

    /// Access logs in the common or combined format, plain or gzip, oldest first; `-` is standard input
    #[arg(required = true, value_name = "ACCESS_LOG")]
    pub logs: Vec<PathBuf>,
}

/// An error that ends a replay.
#[derive(Debug, Error)]
enum ReplayError {
    #[error("{}: cannot be read: {error}", log.display())]
    Unreadable { log: PathBuf, error: io::Error },
    #[error(
        "none of {0} lines is an access log line in the common or combined format, such as\n\
         192.0.2.7 - - [17/May/2015:10:05:03 +0000] \"GET /path HTTP/1.1\" 200 512 \"-\" \"curl/8.1\""
    )]
    NotAnAccessLog(u64),
    #[error("--per {per}: {errors}")]
    InvalidPer { per: String, errors: String },
}

/// Runs `slidegate replay`.
pub fn run(args: ReplayArgs) -> Result<(), Box<dyn Error>> {
    let policy = match &args.policy {
        Some(file) => policy_file::read_policy(file)?,
        None => build_policy_allowing_all_requests(&args)?,
    };
    warn_if_domain_has_no_rules(&policy, &args.domain);
    let options = ReplayOptions {
        max_keys: args.max_keys.get(),
        reorder: Duration::from_secs(args.reorder),
        measure_demand: args.suggest,
    };
    let mut replay = Replay::new(&policy, &args.domain, options);
    let progress = ReplayProgress::new(&args.logs);
    replay_access_logs(&args.logs, &mut replay, &progress)?;
    progress.start_report();
    let stats = replay.stats();
    if stats.counts.requests == 0 && stats.unparsable > 0 {
        return Err(ReplayError::NotAnAccessLog(stats.unparsable).into());
    }
    let report = ReplayReport::new(&policy, &args.domain, stats, args.top);
    let report = match args.suggest {
        true => report.with_suggestions(&policy, &args.domain, stats, args.headroom),
        false => report,
    };
    let report = if args.policy.is_some() { report } else { report.without_policy() };
    drop(progress);
    match args.json {
        true => super::print_to_stdout(&format!("{}\n", serde_json::to_string(&report)?))?,
        false => super::print_to_stdout(&report.to_string())?,
    }
    Ok(())
}

/// Returns a policy that allows every request, and counts requests by the attributes of `--per`.
fn build_policy_allowing_all_requests(args: &ReplayArgs) -> Result<Policy, ReplayError> {
    let name: String = format!("per-{}", args.per.join("-")).to_ascii_lowercase();
    let name = name.replace(|char: char| !char.is_ascii_alphanumeric() && char != '.', "-");
    let rule = json!({
        "name": name,
        "domain": args.domain,
        "per": args.per,
        "limits": [{ "max": MAX_UNITS, "window": "1s" }],
    });
    // JSON is a subset of YAML.
    let policy = json!({ "version": 1, "rules": [rule] }).to_string();
    Policy::from_yaml(&policy).map_err(|PolicyErrors(errors)| {
        let messages: Vec<_> = errors.into_iter().map(|error| error.message).collect();
        ReplayError::InvalidPer { per: args.per.join(","), errors: messages.join("; ") }
    })
}

fn warn_if_domain_has_no_rules(policy: &Policy, domain: &str) {
    if policy.rules().iter().all(|rule| rule.domain() != domain) {
        eprintln!("no rule has domain `{domain}`, so nothing is limited; set --domain");
    }
}

fn replay_access_logs(
    logs: &[PathBuf],
    replay: &mut Replay<'_>,
    progress: &ReplayProgress,
) -> Result<(), ReplayError> {
    let mut lines_left_to_show = MAX_PRINTED_UNPARSABLE_LINES;
    for (index, log) in logs.iter().enumerate() {
        progress.start_log(index, log);
        let unreadable = |error| ReplayError::Unreadable { log: log.clone(), error };
        let mut source = LogSource::open(log, progress.bar()).map_err(unreadable)?;
        let on_unparsable = |line: UnparsableLine| {
            if lines_left_to_show > 0 {
                lines_left_to_show -= 1;
                print_unparsable_line(log, &line, progress);
            }
        };
        replay.replay_log(&mut source, on_unparsable).map_err(unreadable)?;
    }
    replay.finish();
    Ok(())
}

/// Prints the position of an unparsable line and the reason, without disturbing the progress bar.
fn print_unparsable_line(log: &Path, line: &UnparsableLine, progress: &ReplayProgress) {
    progress.bar().suspend(|| eprintln!("{}:{}: {}", log.display(), line.number, line.reason));
}
