//! The flags of the log and of tracing.

use std::str::FromStr;

use thiserror::Error;
use tracing::level_filters::LevelFilter;

use crate::telemetry::log::LogFormat;

/// The flags of the log and of tracing.
#[derive(Debug, clap::Args)]
pub struct ObservabilityArgs {
    /// Level of the log on standard error: off, error, warn, info, debug or trace
    #[arg(
        long,
        value_name = "LEVEL",
        env = "SLIDEGATE_LOG_LEVEL",
        default_value = "info",
        value_parser = parse_log_level,
        help_heading = "Log"
    )]
    pub log_level: LevelFilter,

    /// Format of the log on standard error: text, or json with one object per line
    #[arg(
        long,
        value_name = "FORMAT",
        env = "SLIDEGATE_LOG_FORMAT",
        default_value = "text",
        hide_possible_values = true,
        help_heading = "Log"
    )]
    pub log_format: LogFormat,

    /// Maximum number of denials in the log per second and rule, from 0 to 1000; 0 logs none
    ///
    /// Denials that a rule only observes have a budget of their own. A later line has the number of omitted denials, and
    /// their keys.
    #[arg(
        long,
        value_name = "N",
        env = "SLIDEGATE_LOG_DENIALS",
        default_value = "1",
        value_parser = parse_log_denials,
        help_heading = "Log"
    )]
    pub log_denials: u16,

    /// Show hashes in place of key values in the log and in the top keys
    ///
    /// Equal values have equal hashes until the server stops.
    #[arg(long, env = "SLIDEGATE_REDACT_KEYS", help_heading = "Log")]
    pub redact_keys: bool,

    // The URL may contain a password, so the help does not print the value of the variable.
    /// OTLP/HTTP collector for traces of decisions, such as http://127.0.0.1:4318
    ///
    /// By default nothing is traced.
    #[arg(
        long,
        value_name = "URL",
        env = "SLIDEGATE_OTLP_ENDPOINT",
        hide_env_values = true,
        help_heading = "Tracing"
    )]
    pub otlp_endpoint: Option<String>,

    /// Share of traced decisions among requests without a traceparent header
    ///
    /// 0% traces only requests with a sampled traceparent. Requires --otlp-endpoint.
    #[arg(
        long,
        value_name = "PERCENT",
        env = "SLIDEGATE_TRACE_SAMPLE",
        default_value = "1%",
        help_heading = "Tracing"
    )]
    pub trace_sample: SampleRatio,

    /// Trust the traceparent header of requests at /v1/auth
    ///
    /// Only for proxies that replace the client's header. By default --trace-sample applies there. Requires
    /// --otlp-endpoint.
    #[arg(long, env = "SLIDEGATE_TRUST_TRACEPARENT", help_heading = "Tracing")]
    pub trust_traceparent: bool,
}

fn parse_log_level(text: &str) -> Result<LevelFilter, &'static str> {
    text.parse().map_err(|_| "write off, error, warn, info, debug or trace")
}

fn parse_log_denials(text: &str) -> Result<u16, &'static str> {
    let number = text.parse().ok().filter(|number| *number <= 1000);
    number.ok_or("write a whole number from 0 to 1000")
}

/// The share of decisions that are traced, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRatio(pub f64);

/// The error for a text that is not a percentage.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("write a percentage from 0% to 100%, for example 1% or 0.1%")]
pub struct SampleRatioError;

impl FromStr for SampleRatio {
    type Err = SampleRatioError;

    fn from_str(text: &str) -> Result<Self, SampleRatioError> {
        let number = text.strip_suffix('%').ok_or(SampleRatioError)?;
        // Only digits and a point are accepted, whereas the parser of `f64` also accepts a sign, an exponent and
        // infinity.
        if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return Err(SampleRatioError);
        }
        let percent: f64 = number.parse().map_err(|_| SampleRatioError)?;
        if percent > 100.0 { Err(SampleRatioError) } else { Ok(Self(percent / 100.0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_ratio_accepts_fractional_percentage() {
        for (text, share) in [("0%", 0.0), ("1%", 0.01), ("0.5%", 0.005), ("100%", 1.0)] {
            assert_eq!(text.parse(), Ok(SampleRatio(share)), "{text}");
        }
        for invalid in ["", "%", "1", "0.01", "101%", "100.1%", "-1%", "+1%", "1e1%", "inf%", "1 %"]
        {
            assert_eq!(invalid.parse::<SampleRatio>(), Err(SampleRatioError), "{invalid}");
        }
    }
}
