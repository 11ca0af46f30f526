//! `slidegate convert`: converts files of Envoy's reference rate limit server, or of nginx, to a policy, and prints the policy.

mod nginx;

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use slidegate::Algorithm;

use crate::cli::args::parse_algorithm;
use crate::policy::file::{self, PolicyFileError, PolicySource};
use crate::policy::ratelimit_config::ConversionOptions;
use crate::policy::{FileText, SourceTexts, accept_any_limit};

/// The flags of `slidegate convert`.
#[derive(Debug, clap::Args)]
pub struct ConvertArgs {
    /// Format of the files
    #[arg(long, value_name = "FORMAT", default_value = "ratelimit")]
    from: Format,

    /// Algorithm of the limits of a reference server: sliding_window (default), sliding_log, sliding_buckets,
    /// sliding_counter, token_bucket, or fixed_window, whose windows are aligned to the clock, as in the reference
    /// server
    #[arg(long, value_name = "ALGORITHM", value_parser = parse_algorithm)]
    ratelimit_algorithm: Option<Algorithm>,

    /// Files to convert, or directories with files of a reference server (*.yaml, *.yml); with --from nginx, `-` is the
    /// standard input
    #[arg(required = true, value_name = "DIR|FILE")]
    files: Vec<PathBuf>,
}

/// The format of the files.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    /// Envoy's reference rate limit server
    Ratelimit,
    /// limit_req_zone and limit_req of nginx: its files, or the output of `nginx -T`
    Nginx,
}

/// Runs `slidegate convert`, and returns the text of the policy.
pub fn run(args: ConvertArgs) -> Result<String, Box<dyn Error>> {
    if let Format::Nginx = args.from {
        if args.ratelimit_algorithm.is_some() {
            return Err("--ratelimit-algorithm has no effect with --from nginx: its limits are token buckets; remove the flag".into());
        }
        let read = |path: PathBuf| -> Result<FileText, Box<dyn Error>> {
            let text = if path.as_os_str() == "-" {
                io::read_to_string(io::stdin())?
            } else {
                file::read_text(&path)?
            };
            Ok(FileText { path, text: text.into() })
        };
        let files = args.files.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        return Ok(nginx::convert(&files)?);
    }
    let algorithm = args.ratelimit_algorithm.unwrap_or_default();
    let mut texts: Vec<FileText> = Vec::new();
    for path in args.files {
        texts.extend_from_slice(&read_config_file_texts(path, algorithm)?);
    }
    let options = ConversionOptions { algorithm, supports: accept_any_limit };
    match file::convert_ratelimit_config(Path::new(""), &texts, options) {
        Ok(conversion) => Ok(conversion.text),
        Err(error) if texts.iter().any(|file| file.text.contains("limit_req")) => {
            Err(format!("{error}\nto convert files of nginx, add --from nginx").into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads the configuration file at `path`, or all configuration files of the directory at `path`.
fn read_config_file_texts(
    path: PathBuf,
    algorithm: Algorithm,
) -> Result<SourceTexts, PolicyFileError> {
    PolicySource::RatelimitConfig { path, algorithm }.read_texts()
}
