//! Warnings about arguments and variables that are valid, but endanger the server or have no effect.

use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clap::{Command, CommandFactory};
use slidegate::policy::most_similar_word;
use slidegate_tower::TrustedProxies;

use super::cluster::{CLUSTER_KEY_FLAGS, CLUSTER_SECRET_FLAG};
use super::secret::{command_line_warning, readable_file_warning};
use super::{REDIS_KEY_FLAG, TOKEN_KEY_FLAGS};
use crate::cli::Args;
use crate::cli::args::ServeArgs;
use crate::tls::{CLUSTER_TLS_KEY_FLAG, TLS_KEY_FLAG};

/// The prefix of all variables.
const VARIABLE_PREFIX: &str = "SLIDEGATE_";

/// Returns the warnings about the arguments and the environment.
pub fn find_warnings(args: &ServeArgs) -> Vec<String> {
    let set = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let unknown = unknown_variables(&Args::command(), set);
    exposed_secrets(args).chain(trust_warning(&args.trusted_proxies)).chain(unknown).collect()
}

/// Returns warnings about secrets that every user of the machine can read.
fn exposed_secrets(args: &ServeArgs) -> impl Iterator<Item = String> {
    let token_key_file = args.store.token_key_file.as_deref();
    let cluster = &args.cluster.credentials;
    let warnings = [
        command_line_warning(args.is_token_key_on_command_line, TOKEN_KEY_FLAGS),
        command_line_warning(args.is_cluster_key_on_command_line, CLUSTER_KEY_FLAGS),
        readable_file_warning(token_key_file, TOKEN_KEY_FLAGS.file),
        readable_file_warning(cluster.cluster_key_file.as_deref(), CLUSTER_KEY_FLAGS.file),
        readable_file_warning(cluster.cluster_secret_file.as_deref(), CLUSTER_SECRET_FLAG),
        readable_file_warning(cluster.cluster_tls_key.as_deref(), CLUSTER_TLS_KEY_FLAG),
        readable_file_warning(args.tls.tls_key.as_deref(), TLS_KEY_FLAG),
        readable_file_warning(args.store.redis_key_file.as_deref(), REDIS_KEY_FLAG),
    ];
    warnings.into_iter().flatten()
}

/// Returns a warning if every IPv4 or every IPv6 address is trusted as a proxy.
fn trust_warning(trusted: &TrustedProxies) -> Option<String> {
    let ends: [[IpAddr; 2]; 2] = [
        [Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::BROADCAST.into()],
        [Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::from(u128::MAX).into()],
    ];
    ends.iter().any(|ends| ends.iter().all(|end| trusted.contains(*end))).then(|| {
        "--trusted-proxies (SLIDEGATE_TRUSTED_PROXIES): every address is trusted, so each client chooses the address by \
         which it is limited; list only the addresses of your proxies"
            .to_owned()
    })
}

/// Returns a warning for each variable in `set` whose name has the prefix of the variables of `program`, although
/// `program` does not read it.
fn unknown_variables(program: &Command, set: impl Iterator<Item = String>) -> Vec<String> {
    let arguments = program.get_subcommands().flat_map(Command::get_arguments);
    let known: Vec<&str> = arguments.filter_map(|argument| argument.get_env()?.to_str()).collect();
    let unknown = set.filter(|name| !known.contains(&name.as_str()) && !is_from_kubernetes(name));
    let warnings = unknown.filter_map(|name| {
        let without_prefix = name.strip_prefix(VARIABLE_PREFIX)?;
        // Names are compared in lower case, and without the prefix, which would make all of them similar.
        let words = known.iter().filter_map(|name| name.strip_prefix(VARIABLE_PREFIX));
        let words: Vec<String> = words.map(str::to_lowercase).collect();
        let remedy = match most_similar_word(without_prefix, words.iter().map(|word| &**word)) {
            Some(word) => format!("did you mean {VARIABLE_PREFIX}{}?", word.to_uppercase()),
            None => "`slidegate serve --help` lists the variables".to_owned(),
        };
        Some(format!("{name}: there is no such variable, and it has no effect; {remedy}"))
    });
    warnings.collect()
}

/// Returns whether Kubernetes may have set the variable for a service whose name begins with `slidegate`.
fn is_from_kubernetes(name: &str) -> bool {
    name.ends_with("_PORT") || ["_PORT_", "_SERVICE_"].iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(names: &[&str]) -> Vec<String> {
        unknown_variables(&Args::command(), names.iter().map(|name| (*name).to_owned()))
    }

    #[test]
    fn misspelt_variable_causes_warning() {
        for (name, remedy) in [
            ("SLIDEGATE_STROE", "did you mean SLIDEGATE_STORE?"),
            ("SLIDEGATE_TRUSTED_PROXY", "did you mean SLIDEGATE_TRUSTED_PROXIES?"),
            ("SLIDEGATE_COLOUR", "`slidegate serve --help` lists the variables"),
        ] {
            let expected =
                format!("{name}: there is no such variable, and it has no effect; {remedy}");
            assert_eq!(warnings(&[name]), [expected]);
        }
    }

    #[test]
    fn other_variables_cause_no_warning() {
        let service = ["SLIDEGATE_PORT", "SLIDEGATE_PORT_8080_TCP_ADDR", "SLIDEGATE_REDIS_PORT"];
        assert_eq!(warnings(&service), [""; 0]);
        let names =
            ["SLIDEGATE_STORE", "SLIDEGATE_SERVICE_HOST", "SLIDEGATE_SERVICE_PORT_GRPC", "STROE"];
        assert_eq!(warnings(&names), [""; 0]);
    }

    #[test]
    fn trust_in_every_address_causes_warning() {
        for (trusted, is_warned) in [
            ("0.0.0.0/0", true),
            ("10.0.0.0/8,::/0", true),
            ("0.0.0.0/1,128.0.0.0/1", true),
            ("10.0.0.0/8,fd00::/8", false),
            ("none", false),
        ] {
            assert_eq!(trust_warning(&trusted.parse().unwrap()).is_some(), is_warned, "{trusted}");
        }
    }
}
