//! `slidegate convert`: converts files of Envoy's reference rate limit server, or of nginx, to a policy, and prints the policy.

mod nginx;

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use slidegate::Algorithm;

use crate::cli::args::parse_algorithm;
use crate::cli::print_to_stderr;
use crate::policy::file::{self, PolicyFileError, PolicySource};
use crate::policy::ratelimit_config::{Conversion, ConversionOptions};
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

/// Runs `slidegate convert`, and returns the text of the policy. Standard error gets the number of its notes.
pub fn run(args: ConvertArgs) -> Result<String, Box<dyn Error>> {
    if let Format::Ratelimit = args.from {
        return convert_ratelimit_files(args);
    }
    if args.ratelimit_algorithm.is_some() {
        return Err("--ratelimit-algorithm has no effect with --from nginx: its limits are token buckets; remove the flag".into());
    }
    let files = args.files.into_iter().map(read_nginx_file).collect::<Result<Vec<_>, _>>()?;
    let Conversion { text, notes, .. } = nginx::convert(&files)?;
    print_to_stderr(&notes_line(notes.len()));
    Ok(text)
}

/// Returns a line with the number of notes above a policy; the empty text if there are none.
fn notes_line(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => "1 note: read it in the comments at the top of the policy\n".to_owned(),
        _ => format!("{count} notes: read them in the comments at the top of the policy\n"),
    }
}

/// Reads the file of nginx at `path`; `-` is the standard input.
fn read_nginx_file(path: PathBuf) -> Result<FileText, Box<dyn Error>> {
    if path.as_os_str() == "-" {
        let text = io::read_to_string(io::stdin())?;
        return Ok(FileText { path: PathBuf::from("stdin"), text: text.into() });
    }
    let text = file::read_text(&path)?;
    Ok(FileText { path, text: text.into() })
}

/// Converts files of Envoy's reference rate limit server, and returns the text of the policy.
fn convert_ratelimit_files(args: ConvertArgs) -> Result<String, Box<dyn Error>> {
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
