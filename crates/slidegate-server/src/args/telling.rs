//! What is told to the log, and to a collector of traces.

use std::str::FromStr;

use clap::ValueEnum;
use thiserror::Error;

/// What is told to the log, and to a collector of traces.
#[derive(Debug, clap::Args)]
pub struct TellingArgs {
    /// What the log on standard error looks like: text, or json with one object in each line
    #[arg(
        long,
        value_name = "FORMAT",
        env = "SLIDEGATE_LOG_FORMAT",
        default_value = "text",
        hide_possible_values = true
    )]
    pub log_format: LogFormat,

    /// How many denials at most to log in one second, from 0 to 1000; a line says how many were left out
    /// before it
    #[arg(
        long,
        value_name = "N",
        env = "SLIDEGATE_LOG_DENIALS",
        default_value = "1",
        value_parser = clap::value_parser!(u16).range(0..=1000)
    )]
    pub log_denials: u16,

    /// Log hashes instead of the values of keys; equal values have equal hashes until the server stops
    #[arg(long, env = "SLIDEGATE_REDACT_KEYS")]
    pub redact_keys: bool,

    // What a variable holds would stand in the help.
    /// The collector that is told of decisions as traces, by OTLP over HTTP, such as http://127.0.0.1:4318
    #[arg(long, value_name = "URL", env = "SLIDEGATE_OTLP_ENDPOINT", hide_env_values = true)]
    pub otlp_endpoint: Option<String>,

    /// The share of decisions that are traced where the caller's traceparent does not say
    #[arg(long, value_name = "PERCENT", env = "SLIDEGATE_TRACE_SAMPLE", default_value = "1%")]
    pub trace_sample: Sample,

    /// Let the traceparent of a request forwarded to /v1/auth decide whether it is traced. For proxies that replace the
    /// client's own; without this flag, --trace-sample decides there
    #[arg(long, env = "SLIDEGATE_TRUST_TRACEPARENT")]
    pub trust_traceparent: bool,
}

/// What the log looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// A share of decisions, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample(pub f64);

/// Why a text is no such share.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("write a percentage from 0% to 100%, for example 1% or 0.1%")]
pub struct SampleError;

impl FromStr for Sample {
    type Err = SampleError;

    fn from_str(text: &str) -> Result<Self, SampleError> {
        let number = text.strip_suffix('%').ok_or(SampleError)?;
        // What a float may be beside: a sign, an exponent, infinity.
        if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return Err(SampleError);
        }
        let percent: f64 = number.parse().map_err(|_| SampleError)?;
        if percent > 100.0 { Err(SampleError) } else { Ok(Self(percent / 100.0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_a_percentage_also_a_small_one() {
        for (text, share) in [("0%", 0.0), ("1%", 0.01), ("0.5%", 0.005), ("100%", 1.0)] {
            assert_eq!(text.parse(), Ok(Sample(share)), "{text}");
        }
        for wrong in ["", "%", "1", "0.01", "101%", "100.1%", "-1%", "+1%", "1e1%", "inf%", "1 %"] {
            assert_eq!(wrong.parse::<Sample>(), Err(SampleError), "{wrong}");
        }
    }
}
