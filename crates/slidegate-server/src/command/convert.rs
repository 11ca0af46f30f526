//! `slidegate convert`: prints the policy that files of the reference server mean.

use std::error::Error;
use std::path::{Path, PathBuf};

use slidegate::Algorithm;

use super::print;
use crate::args;
use crate::policy_file::{self, FileText, PolicyFileError, PolicySource};
use crate::ratelimit_config::Counting;

#[derive(Debug, clap::Args)]
pub struct ConvertArgs {
    /// How the limits count: sliding_window, sliding_log, sliding_buckets, token_bucket, or fixed_window, whose
    /// windows then begin on the clock, as the reference server's do
    #[arg(
        long,
        value_name = "ALGORITHM",
        default_value = "sliding_window",
        value_parser = args::algorithm
    )]
    pub ratelimit_algorithm: Algorithm,

    /// Files of the reference server, or directories of them, of which *.yaml and *.yml are read
    #[arg(required = true, value_name = "DIR|FILE")]
    pub files: Vec<PathBuf>,
}

pub fn run(args: ConvertArgs) -> Result<(), Box<dyn Error>> {
    let algorithm = args.ratelimit_algorithm;
    let mut texts: Vec<FileText> = Vec::new();
    for path in args.files {
        texts.extend_from_slice(&read(path, algorithm)?);
    }
    let counting = Counting { algorithm, supports: policy_file::any_limit };
    print(&policy_file::convert(Path::new(""), &texts, counting)?.text)?;
    Ok(())
}

fn read(path: PathBuf, algorithm: Algorithm) -> Result<policy_file::Texts, PolicyFileError> {
    PolicySource::Ratelimit { path, algorithm }.texts()
}
