//! `slidegate convert`: converts files of Envoy's reference rate limit server to a policy, and prints the policy.

use std::error::Error;
use std::path::{Path, PathBuf};

use slidegate::Algorithm;

use crate::cli::args::parse_algorithm;
use crate::policy::file::{self, PolicyFileError, PolicySource};
use crate::policy::ratelimit_config::ConversionOptions;
use crate::policy::{FileText, SourceTexts, accept_any_limit};

/// The flags of `slidegate convert`.
#[derive(Debug, clap::Args)]
pub struct ConvertArgs {
    /// Algorithm of the limits: sliding_window, sliding_log, sliding_buckets, sliding_counter, token_bucket, or
    /// fixed_window, whose windows are aligned to the clock, as in the reference server
    #[arg(
        long,
        value_name = "ALGORITHM",
        default_value = "sliding_window",
        value_parser = parse_algorithm
    )]
    pub ratelimit_algorithm: Algorithm,

    /// Files of the reference server, or directories with such files (*.yaml, *.yml)
    #[arg(required = true, value_name = "DIR|FILE")]
    pub files: Vec<PathBuf>,
}

/// Runs `slidegate convert`, and returns the text of the policy.
pub fn run(args: ConvertArgs) -> Result<String, Box<dyn Error>> {
    let algorithm = args.ratelimit_algorithm;
    let mut texts: Vec<FileText> = Vec::new();
    for path in args.files {
        texts.extend_from_slice(&read_config_file_texts(path, algorithm)?);
    }
    let options = ConversionOptions { algorithm, supports: accept_any_limit };
    Ok(file::convert_ratelimit_config(Path::new(""), &texts, options)?.text)
}

/// Reads the configuration file at `path`, or all configuration files of the directory at `path`.
fn read_config_file_texts(
    path: PathBuf,
    algorithm: Algorithm,
) -> Result<SourceTexts, PolicyFileError> {
    PolicySource::RatelimitConfig { path, algorithm }.read_texts()
}
