//! `slidegate replay`: tests a policy on the requests of access logs.

use std::error::Error;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ArgMatches;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use serde_json::json;
use slidegate::limit::MAX_UNITS;
use slidegate::policy::DEFAULT_DOMAIN;
use slidegate::{Policy, PolicyErrors};
use slidegate_tools::{
    ATTRIBUTE_NAMES, ExactDescriptors, FieldMapping, Headroom, JsonFields, LogSource, Replay,
    ReplayOptions, ReplayProgress, ReplayReport, ReplayStats, UnparsableLine,
};
use thiserror::Error;

use crate::cli::args::{DurationRange, PolicySourceArgs, parse_nonzero};
use crate::policy::file;

/// The maximum number of unparsable lines that are printed. Further unparsable lines are only counted.
const MAX_PRINTED_UNPARSABLE_LINES: u32 = 5;

/// The flags of `slidegate replay`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "slidegate replay [OPTIONS] <--policy FILE | --ratelimit-config DIR | --suggest> <ACCESS_LOG>..."
)]
pub struct ReplayArgs {
    #[command(flatten)]
    pub policy_source: PolicySourceArgs,

    /// Domain of the rules to test
    #[arg(
        long,
        value_name = "NAME",
        default_value = DEFAULT_DOMAIN,
        help_heading = "Policy"
    )]
    pub domain: String,

    /// Suggest limits for each rule, or without a policy for each value of --per
    ///
    /// The suggestions are the lowest limits that would have denied at most 0.1 %, 1 % and 5 % of the clients. With
    /// --suggest, only the command line selects a policy, and the environment does not.
    #[arg(long, help_heading = "Suggestions")]
    pub suggest: bool,

    /// Attributes by which suggestions without a policy count, such as ip or ip,path
    #[arg(
        long,
        value_name = "ATTRIBUTES",
        value_delimiter = ',',
        default_value = "ip",
        requires = "suggest",
        help_heading = "Suggestions"
    )]
    pub per: Vec<String>,

    /// Margin added to each suggested limit, which is then rounded up to a round number; 0% adds none
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "20%",
        requires = "suggest",
        help_heading = "Suggestions"
    )]
    pub headroom: Headroom,

    /// Report as JSON
    #[arg(long)]
    pub json: bool,

    /// Number of the most denied keys in the report; 0 shows none
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = parse_top_count)]
    pub top: usize,

    /// Maximum number of keys, such as clients, that are counted at once
    ///
    /// Keys above it are missing from the most denied keys and from suggestions.
    #[arg(
        long,
        value_name = "N",
        default_value = "10000000",
        value_parser = parse_nonzero::<NonZeroUsize>
    )]
    pub max_keys: NonZeroUsize,

    /// Maximum delay of a line in log time, from 0s to 168h; 0s sorts no lines
    ///
    /// Lines within it are sorted by time.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "60s",
        value_parser = parse_reorder_delay
    )]
    pub reorder: Duration,

    /// Attribute of lines in JSON, and the field that has it; `time` is the time
    ///
    /// Such as header.x-api-key=request.headers.X-Api-Key. Can be repeated. By default, the fields of Caddy, Traefik, Envoy
    /// and nginx, and a field with the name of the attribute.
    #[arg(long, value_name = "ATTRIBUTE=FIELD")]
    pub map: Vec<FieldMapping>,

    /// Access logs in the common or combined format, or lines of JSON, plain or gzip, oldest first; `-` is standard input
    #[arg(required = true, value_name = "ACCESS_LOG")]
    pub logs: Vec<PathBuf>,
}

fn parse_top_count(text: &str) -> Result<usize, &'static str> {
    text.parse().map_err(|_| "write a whole number, for example 10")
}

fn parse_reorder_delay(text: &str) -> Result<Duration, String> {
    let max = Duration::from_secs(168 * 3600);
    DurationRange { min: Duration::ZERO, max, example: "60s" }.parse(text)
}

impl ReplayArgs {
    /// Selects the source of the policy. With `--suggest`, a policy is optional, so that a policy in the environment
    /// must not change the suggestions.
    ///
    /// # Errors
    /// If flags exclude each other.
    pub fn resolve_policy_source(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let source = &mut self.policy_source;
        if self.suggest {
            let is_set = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
            source.policy.take_if(|_| !is_set("policy"));
            source.ratelimit_config.take_if(|_| !is_set("ratelimit_config"));
        }
        source.resolve_policy_source_precedence(matches)?;
        if !self.suggest && !source.has_source() {
            let message = "a replay needs a policy to test: set --policy FILE, or --ratelimit-config DIR; --suggest derives limits from the log instead\n";
            return Err(clap::Error::raw(ErrorKind::MissingRequiredArgument, message));
        }
        if source.has_source() && matches.value_source("per") == Some(ValueSource::CommandLine) {
            let message =
                "--per has no effect with a policy, whose rules name the attributes; remove it\n";
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
        }
        Ok(())
    }
}

/// An error that ends a replay.
#[derive(Debug, Error)]
enum ReplayError {
    #[error("{}: cannot be read: {error}", log.display())]
    Unreadable { log: PathBuf, error: io::Error },
    #[error(
        "none of {0} lines is an access log line in JSON, or in the common or combined format, such as\n\
         192.0.2.7 - - [17/May/2015:10:05:03 +0000] \"GET /path HTTP/1.1\" 200 512 \"-\" \"curl/8.1\""
    )]
    NotAnAccessLog(u64),
    #[error("--per {per}: {errors}")]
    InvalidPer { per: String, errors: String },
}

/// Runs `slidegate replay`.
pub fn run(args: ReplayArgs) -> Result<(), Box<dyn Error>> {
    let has_policy = args.policy_source.has_source();
    let has_exact_descriptors = args.policy_source.ratelimit_config.is_some();
    let policy = if has_policy {
        file::read_policy_source(args.policy_source.clone().into_source())?
    } else {
        build_policy_allowing_all_requests(&args)?
    };
    warn_if_domain_has_no_rules(&policy, &args.domain);
    let options = ReplayOptions {
        max_keys: args.max_keys.get(),
        reorder: args.reorder,
        measure_demand: args.suggest,
    };
    let names = policy.attribute_names();
    let names = names.iter().copied().filter(|name| *name != "route");
    let json_fields = JsonFields::new(names, &args.map);
    let replay = Replay::new(&policy, &args.domain, options);
    let replay = if has_exact_descriptors {
        let descriptors = ExactDescriptors::from_rules(&policy, &args.domain, &json_fields);
        replay.with_exact_descriptors(descriptors)
    } else {
        replay
    };
    let mut replay = replay.with_json_fields(json_fields);
    let progress = ReplayProgress::new(&args.logs);
    replay_access_logs(&args.logs, &mut replay, &progress)?;
    progress.start_report();
    let stats = replay.stats();
    if stats.counts.requests == 0 && stats.unparsable > 0 {
        return Err(ReplayError::NotAnAccessLog(stats.unparsable).into());
    }
    let report = ReplayReport::new(&policy, &args.domain, stats, args.top);
    let report = if args.suggest {
        report.with_suggestions(&policy, &args.domain, stats, args.headroom)
    } else {
        report
    };
    let report = if has_policy { report } else { report.without_policy() };
    drop(progress);
    if has_exact_descriptors {
        warn_if_no_rule_applied(&args.domain, stats);
    }
    if args.json {
        crate::cli::print_to_stdout(&format!("{}\n", serde_json::to_string(&report)?))?
    } else {
        crate::cli::print_to_stdout(&report.to_string())?
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
    // JSON is a subset of YAML, so the parser of policy files reads it.
    let policy = json!({ "version": 1, "rules": [rule] }).to_string();
    Policy::from_yaml(&policy).map_err(|PolicyErrors(errors)| {
        let messages: Vec<_> = errors.into_iter().map(|error| error.message).collect();
        ReplayError::InvalidPer { per: args.per.join(","), errors: messages.join("; ") }
    })
}

fn warn_if_domain_has_no_rules(policy: &Policy, domain: &str) {
    if policy.rules().iter().all(|rule| rule.domain() != domain) {
        let remedy = crate::cli::unknown_domain_remedy(policy);
        crate::cli::print_to_stderr(&format!(
            "no rule has domain `{domain}`, so no request is denied; {remedy}\n"
        ));
    }
}

/// Prints a warning if no rule applied to any line of the logs. The rules come from a file of Envoy's reference rate
/// limit server, so they apply only to descriptors with certain keys.
fn warn_if_no_rule_applied(domain: &str, stats: &ReplayStats) {
    let applied = stats.rules.iter().any(|rule| rule.counts.requests > 0);
    if stats.counts.requests > 0 && !applied {
        crate::cli::print_to_stderr(&format!(
            "no rule of domain `{domain}` applied to a line, so no request was denied; the keys of a descriptor must be among {}, fields of a line in JSON, or named by --map\n",
            ATTRIBUTE_NAMES.join(", ")
        ));
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
    let text = format!("{}:{}: {}\n", log.display(), line.number, line.reason);
    progress.bar().suspend(|| crate::cli::print_to_stderr(&text));
}
