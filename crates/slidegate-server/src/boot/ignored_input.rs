//! Warns at start about input that Envoy's reference rate limit server reads, and slidegate ignores.

use std::env;

use tracing::warn;

use crate::policy::file::PolicySource;
use crate::policy::ratelimit_config::folder;

/// Maximum number of names in a warning.
const MAX_LISTED_NAMES: usize = 50;

/// The environment variables of the reference server, sorted, as of 2026. Without `HOST`, which shells set.
#[rustfmt::skip]
const ENVOY_RATELIMIT_ENV_VARS: [&str; 113] = [
    "BACKEND_TYPE", "CACHE_KEY_PREFIX", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
    "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "CONFIG_GRPC_XDS_NODE_ID",
    "CONFIG_GRPC_XDS_NODE_METADATA", "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
    "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
    "CONFIG_GRPC_XDS_SERVER_URL", "CONFIG_GRPC_XDS_SERVER_USE_TLS", "CONFIG_TYPE", "DEBUG_HOST",
    "DEBUG_PORT", "DISABLE_STATS", "EXPIRATION_JITTER_MAX_SECONDS", "EXTRA_TAGS",
    "FORCE_START_WITHOUT_INITIAL_CONFIG", "GRPC_CLIENT_TLS_CACERT", "GRPC_CLIENT_TLS_SAN",
    "GRPC_HOST", "GRPC_MAX_CONNECTION_AGE", "GRPC_MAX_CONNECTION_AGE_GRACE", "GRPC_PORT",
    "GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_SERVER_USE_TLS", "GRPC_UDS",
    "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER",
    "LIMIT_RESET_HEADER", "LIMIT_RESPONSE_HEADERS_ENABLED", "LOCAL_CACHE_SIZE_IN_BYTES",
    "LOG_FORMAT", "LOG_LEVEL", "MEMCACHE_HOST_PORT", "MEMCACHE_MAX_IDLE_CONNS", "MEMCACHE_SRV",
    "MEMCACHE_SRV_REFRESH", "MEMCACHE_TLS", "MEMCACHE_TLS_CACERT", "MEMCACHE_TLS_CLIENT_CERT",
    "MEMCACHE_TLS_CLIENT_KEY", "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "MERGE_DOMAIN_CONFIG",
    "NEAR_LIMIT_RATIO", "PORT", "PROMETHEUS_ADDR", "PROMETHEUS_MAPPER_YAML", "PROMETHEUS_PATH",
    "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "QUOTA_MODE", "REDIS_AUTH",
    "REDIS_CLUSTER_PIPELINE_PARALLELISM", "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "REDIS_PERSECOND",
    "REDIS_PERSECOND_AUTH", "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
    "REDIS_PERSECOND_PIPELINE_LIMIT", "REDIS_PERSECOND_PIPELINE_WINDOW",
    "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "REDIS_PERSECOND_POOL_SIZE",
    "REDIS_PERSECOND_SENTINEL_AUTH", "REDIS_PERSECOND_SOCKET_TYPE", "REDIS_PERSECOND_TIMEOUT",
    "REDIS_PERSECOND_TLS", "REDIS_PERSECOND_TYPE", "REDIS_PERSECOND_URL", "REDIS_PIPELINE_LIMIT",
    "REDIS_PIPELINE_WINDOW", "REDIS_POOL_ON_EMPTY_BEHAVIOR", "REDIS_POOL_SIZE",
    "REDIS_SENTINEL_AUTH", "REDIS_SOCKET_TYPE", "REDIS_STARTUP_INITIAL_INTERVAL",
    "REDIS_STARTUP_MAX_ELAPSED_TIME", "REDIS_STARTUP_MAX_INTERVAL", "REDIS_TIMEOUT", "REDIS_TLS",
    "REDIS_TLS_CACERT", "REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY",
    "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "REDIS_TYPE", "REDIS_URL", "RESPONSE_DYNAMIC_METADATA",
    "RUNTIME_APPDIRECTORY", "RUNTIME_IGNOREDOTFILES", "RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY",
    "RUNTIME_WATCH_ROOT", "SHADOW_MODE", "STATSD_HOST", "STATSD_PORT", "STATS_FLUSH_INTERVAL",
    "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "TRACING_ENABLED", "TRACING_EXPORTER_PROTOCOL",
    "TRACING_SAMPLING_RATE", "TRACING_SERVICE_INSTANCE_ID", "TRACING_SERVICE_NAME",
    "TRACING_SERVICE_NAMESPACE", "USE_DOG_STATSD", "USE_DOG_STATSD_MOGRIFIERS", "USE_PROMETHEUS",
    "USE_STATSD", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "XDS_CLIENT_BACKOFF_JITTER",
    "XDS_CLIENT_BACKOFF_MAX_INTERVAL", "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
    "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
];

/// If the policy is from files of the reference server, warns about variables of the reference server that are set, and
/// about files of the folder that are not read.
pub fn warn_about_ignored_input(source: &PolicySource) {
    let PolicySource::RatelimitConfig { path, .. } = source else { return };
    let variables: Vec<&str> =
        ENVOY_RATELIMIT_ENV_VARS.into_iter().filter(|name| env_var_has_effect(name)).collect();
    if !variables.is_empty() {
        warn!(
            variables = list_names(&variables),
            "environment variables of Envoy's reference server have no effect; use the flags of slidegate, such as \
             --store and --observe"
        );
    }
    // An error of reading the folder is ignored here, because it has been reported already.
    let ignored = if source.is_folder() { folder::ignored_entries(path) } else { Ok(Vec::new()) };
    if let Ok(ignored) = ignored
        && !ignored.is_empty()
    {
        warn!(
            folder = path.display().to_string(),
            ignored = list_names(&ignored),
            "only *.yaml and *.yml files directly in the folder are read; the reference server reads all of them"
        );
    }
}

/// Returns whether a variable has a value that would change the reference server. An empty value has no effect there,
/// and `false` only switches off features that slidegate does not have.
fn env_var_has_effect(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| !value.is_empty() && value != "false")
}

/// Joins the names, at most [`MAX_LISTED_NAMES`] of them.
fn list_names(names: &[impl AsRef<str>]) -> String {
    let mut listed: Vec<&str> =
        names.iter().take(MAX_LISTED_NAMES).map(|name| name.as_ref()).collect();
    let omitted = names.len().saturating_sub(MAX_LISTED_NAMES).to_string();
    if omitted != "0" {
        listed.extend(["and", &*omitted, "more"]);
    }
    listed.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_list_of_names_is_cut() {
        assert_eq!(list_names(&["a", "b/"]), "a b/");
        let cut = list_names(&["a"; MAX_LISTED_NAMES + 2]);
        assert!(cut.ends_with("a a and 2 more"), "{cut}");
    }
}
