//! Rejects flags that have no effect: with the selected store, or without the flag that they depend on.

use clap::ArgMatches;
use clap::error::{Error, ErrorKind};
use clap::parser::ValueSource;

use super::listener::AddressOrNone;
use super::store::StoreArg;
use crate::boot::listen::ListenAddress;

/// A kind of store that `--store` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreKind {
    Memory,
    Redis,
    Cluster,
}

/// The flags that only one kind of store uses.
const STORE_FLAGS: [(&str, StoreKind); 23] = [
    ("redis_timeout", StoreKind::Redis),
    ("redis_clock", StoreKind::Redis),
    ("redis_prefix", StoreKind::Redis),
    ("deny_cache_ttl", StoreKind::Redis),
    ("redis_ca_file", StoreKind::Redis),
    ("redis_cert_file", StoreKind::Redis),
    ("redis_key_file", StoreKind::Redis),
    ("expected_instances", StoreKind::Redis),
    ("ready_needs_store", StoreKind::Redis),
    ("cluster_listen", StoreKind::Cluster),
    ("cluster_advertise", StoreKind::Cluster),
    ("cluster_seeds", StoreKind::Cluster),
    ("cluster_node_name", StoreKind::Cluster),
    ("cluster_sync_interval", StoreKind::Cluster),
    ("cluster_sync_wait", StoreKind::Cluster),
    ("cluster_max_clock_skew", StoreKind::Cluster),
    ("cluster_key", StoreKind::Cluster),
    ("cluster_key_file", StoreKind::Cluster),
    ("cluster_tls_cert", StoreKind::Cluster),
    ("cluster_tls_key", StoreKind::Cluster),
    ("cluster_tls_ca", StoreKind::Cluster),
    ("cluster_tls_name", StoreKind::Cluster),
    ("cluster_secret_file", StoreKind::Cluster),
];

/// The flags that have an effect only together with another flag.
const FLAGS_REQUIRING_ANOTHER_FLAG: [(&str, &str); 3] = [
    ("trace_sample", "otlp_endpoint"),
    ("trust_traceparent", "otlp_endpoint"),
    ("cluster_tls_name", "cluster_tls_cert"),
];

/// Returns an error if the command line or the environment sets flags of `slidegate serve` that have no effect. The
/// error has one line for each of them.
pub fn reject_ineffective_flags(matches: &ArgMatches) -> Result<(), Error> {
    let mut errors = Vec::new();
    let store = matches.get_one::<StoreArg>("store").and_then(|StoreArg(store)| store_kind(store));
    if let Some(store) = store {
        for (id, required) in STORE_FLAGS.into_iter().filter(|(_, required)| *required != store) {
            let (with, remedy) = (describe_store(store), store_remedy(required));
            errors.extend(describe_ineffective_flag(matches, id, &format!("with {with}"), remedy));
        }
    }
    for (id, required) in FLAGS_REQUIRING_ANOTHER_FLAG {
        if explicit_value_source(matches, required).is_none() {
            let required = flag_name(required);
            let remedy = format!("set {required}");
            errors.extend(describe_ineffective_flag(
                matches,
                id,
                &format!("without {required}"),
                &remedy,
            ));
        }
    }
    let admin = matches.get_one::<AddressOrNone<ListenAddress>>("admin");
    if admin.is_some_and(|AddressOrNone(address)| address.is_none()) {
        let condition = "with `--admin none`";
        errors.extend(describe_ineffective_flag(matches, "admin_host", condition, "set --admin"));
    }
    if errors.is_empty() { Ok(()) } else { Err(ineffective_flags_error(&errors)) }
}

/// Returns the error that reports ineffective flags, one per line.
pub fn ineffective_flags_error(lines: &[String]) -> Error {
    Error::raw(ErrorKind::ArgumentConflict, format_args!("{}\n", lines.join("\n")))
}

/// Returns the error message for the flag `id`, or `None` if neither the command line nor the environment sets it.
pub fn describe_ineffective_flag(
    matches: &ArgMatches,
    id: &str,
    condition: &str,
    remedy: &str,
) -> Option<String> {
    let flag = flag_name(id);
    Some(match explicit_value_source(matches, id)? {
        ValueSource::EnvVariable => {
            let variable = format!("SLIDEGATE_{}", id.to_uppercase());
            format!("{flag} ({variable}) has no effect {condition}; unset {variable}, or {remedy}")
        }
        _ => format!("{flag} has no effect {condition}; remove it, or {remedy}"),
    })
}

/// Returns the source of a flag that the command line or the environment sets. An empty variable, and a variable that
/// turns a flag off, count as unset.
pub fn explicit_value_source(matches: &ArgMatches, id: &str) -> Option<ValueSource> {
    let source = matches.value_source(id)?;
    let is_off = || matches.try_get_one::<bool>(id).is_ok_and(|value| value == Some(&false));
    let is_empty =
        || matches.get_raw(id).is_some_and(|mut values| values.all(|value| value.is_empty()));
    match source {
        ValueSource::CommandLine => Some(source),
        ValueSource::EnvVariable if !is_off() && !is_empty() => Some(source),
        _ => None,
    }
}

fn flag_name(id: &str) -> String {
    format!("--{}", id.replace('_', "-"))
}

/// Returns the kind of the store. Returns `None` if the value is invalid, which the module `settings` reports.
fn store_kind(store: &str) -> Option<StoreKind> {
    match store.split_once("://") {
        None => (store == "memory").then_some(StoreKind::Memory),
        Some(("cluster", _)) => Some(StoreKind::Cluster),
        Some((scheme, _)) => {
            (scheme.starts_with("redis") || scheme == "unix").then_some(StoreKind::Redis)
        }
    }
}

/// Describes the selected store, without the address of a Redis, which may contain a password.
fn describe_store(store: StoreKind) -> &'static str {
    match store {
        StoreKind::Memory => "`--store memory`",
        StoreKind::Redis => "a Redis store",
        StoreKind::Cluster => "`--store cluster://`",
    }
}

fn store_remedy(required: StoreKind) -> &'static str {
    match required {
        StoreKind::Memory => "use `--store memory`",
        StoreKind::Redis => "use a redis:// store",
        StoreKind::Cluster => "use `--store cluster://`",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Args as _, Command};

    use super::*;
    use crate::cli::args::ServeArgs;

    /// Returns the error for flags of `slidegate serve`, or an empty text.
    fn ineffective_flags(flags: &[&str]) -> String {
        let serve = ServeArgs::augment_args(Command::new("serve"));
        let arguments = [&["serve", "--policy", "p"], flags].concat();
        let matches = serve.try_get_matches_from(arguments).unwrap();
        reject_ineffective_flags(&matches).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn every_store_specific_flag_is_in_table() {
        let serve = ServeArgs::augment_args(Command::new("serve"));
        let is_specific = |id: &&str| id.starts_with("redis_") || id.starts_with("cluster_");
        let ids: BTreeSet<&str> = serve.get_arguments().map(|arg| arg.get_id().as_str()).collect();
        let table: BTreeSet<&str> = STORE_FLAGS.iter().map(|(id, _)| *id).collect();
        assert!(table.is_subset(&ids), "{table:?}");
        let specific: BTreeSet<&str> = ids.iter().copied().filter(is_specific).collect();
        assert!(specific.is_subset(&table), "{specific:?}");
    }

    #[test]
    fn flag_of_other_store_is_rejected() {
        assert_eq!(
            ineffective_flags(&["--redis-timeout", "5ms"]),
            "error: --redis-timeout has no effect with `--store memory`; remove it, or use a redis:// store\n"
        );
        for (flags, expected) in [
            (&["--ready-needs-store"][..], "--ready-needs-store has no effect with `--store mem"),
            (&["--store", "cluster://", "--deny-cache-ttl", "1s"], "with `--store cluster://`"),
            (&["--store", "redis://h", "--cluster-key", "x"], "--cluster-key has no effect with a"),
            (&["--store", "unix:///p", "--cluster-seeds", "a:1"], "or use `--store cluster://`"),
            (&["--admin", "none", "--admin-host", "a"], "--admin-host has no effect with `--admin"),
            (&["--trace-sample", "1%"], "without --otlp-endpoint; remove it, or set --otlp-end"),
            (&["--trust-traceparent"], "--trust-traceparent has no effect without --otlp-endpoint"),
            (&["--store", "cluster://", "--cluster-tls-name", "a"], "without --cluster-tls-cert"),
        ] {
            let error = ineffective_flags(flags);
            assert!(error.contains(expected), "{flags:?}: {error}");
        }
        let both = ineffective_flags(&["--redis-prefix", "a:", "--cluster-node-name", "a"]);
        assert_eq!(both.lines().count(), 2, "{both}");
    }

    #[test]
    fn flags_of_selected_store_are_accepted() {
        for flags in [
            &[][..],
            &["--max-keys", "5", "--max-memory", "1GiB"],
            &["--admin-host", "a.internal,b", "--admin-host", "c"],
            &["--store", "redis://h", "--redis-timeout", "5ms", "--max-keys", "5"],
            &["--store", "redis+cluster://h", "--expected-instances", "2", "--ready-needs-store"],
            &["--store", "cluster://", "--cluster-key", "x", "--cluster-listen", "0.0.0.0:0"],
            &["--otlp-endpoint", "http://h:1", "--trace-sample", "1%", "--trust-traceparent"],
            // The address is invalid, which is reported later.
            &["--store", "Memory", "--redis-timeout", "5ms"],
        ] {
            assert_eq!(ineffective_flags(flags), "", "{flags:?}");
        }
    }
}
