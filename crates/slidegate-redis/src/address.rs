//! Addresses of Redis: one server, the master of a Sentinel service, or a Cluster. The text form of an address never
//! contains a password.

use std::fmt;
use std::str::FromStr;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use thiserror::Error;

/// Maximum number of hosts in an address. The hosts are Sentinels or nodes of a Cluster.
const MAX_HOSTS_PER_ADDRESS: usize = 64;

/// An address of Redis: `redis://`, `rediss://` (TLS) or `unix://` for one server, `redis+sentinel://` or
/// `redis+cluster://` (`rediss+…://` for TLS) for several.
///
/// The text form of an address omits user and password.
#[derive(Clone)]
pub struct Address {
    target: AddressTarget,
    display: Box<str>,
}

/// The servers that an address identifies.
#[derive(Clone)]
pub(crate) enum AddressTarget {
    /// One server.
    Server(ConnectionInfo),
    /// The master of a Redis service. Sentinels report its address.
    Sentinel(SentinelTarget),
    /// A Redis Cluster. The list has the addresses of some of its nodes, from which the store finds the masters.
    Cluster(Vec<ConnectionInfo>),
}

/// A Redis service with one master and replicas. Sentinels report the address of the current master.
#[derive(Clone)]
pub(crate) struct SentinelTarget {
    pub sentinels: Vec<ConnectionInfo>,
    pub service: String,
    /// Credentials and database for connections to the master. The host in this value is not used, because the
    /// Sentinels report the host of the master.
    pub login: ConnectionInfo,
}

/// The reason why a text is not an address of Redis. The error never quotes the text, which may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// The scheme is unknown.
    #[error(
        "unknown scheme; write redis://, rediss:// (TLS), unix://, redis+sentinel:// or redis+cluster:// (with TLS rediss+sentinel://, rediss+cluster://)"
    )]
    Scheme,
    /// The address of one server is invalid.
    #[error(
        "{0}; write redis://user:password@host:6379/0 (user, password, port and database are optional; percent-encode special characters in the password), or unix:///path?db=0&user=…&pass=…"
    )]
    SingleServerForm(String),
    /// The address of several servers is invalid.
    #[error(
        "{0}; write redis+sentinel://user:password@host:26379,host:26379/service?db=0&sentinel_user=…&sentinel_pass=… or redis+cluster://user:password@host:6379,host:6379 (user, password and parameters are optional)"
    )]
    MultiServerForm(String),
}

impl Address {
    /// Returns the servers that the address identifies.
    pub(crate) fn target(&self) -> AddressTarget {
        self.target.clone()
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let Some((scheme, rest)) = text.split_once("://") else { return Err(AddressError::Scheme) };
        match scheme {
            "redis+sentinel" => parse_sentinel_address("redis", rest),
            "rediss+sentinel" => parse_sentinel_address("rediss", rest),
            "redis+cluster" => parse_cluster_address("redis", rest),
            "rediss+cluster" => parse_cluster_address("rediss", rest),
            "redis" | "rediss" | "valkey" | "valkeys" => {
                parse_single_server_address(text, &["protocol"])
            }
            "unix" | "redis+unix" | "valkey+unix" => {
                parse_single_server_address(text, &["db", "user", "pass", "protocol"])
            }
            _ => Err(AddressError::Scheme),
        }
    }
}

/// Parses the address of one server.
fn parse_single_server_address(text: &str, parameters: &[&str]) -> Result<Address, AddressError> {
    let invalid = |problem: &str| AddressError::SingleServerForm(problem.to_owned());
    if text.contains('#') {
        // The `redis` crate reads the fragment `#insecure` of a URL as a request to skip the verification of
        // certificates. It is rejected here, because certificates are always verified.
        return Err(invalid("a fragment (`#`) is not allowed: in a password, write %23"));
    }
    let query = text.split_once('?').map_or("", |(_, query)| query);
    parse_query_parameters(query, parameters).map_err(|problem| invalid(&problem))?;
    let info = parse_server_url(text).map_err(invalid)?;
    let display = address_without_credentials(&info).into();
    Ok(Address { target: AddressTarget::Server(info), display })
}

/// Parses the query parameters of an address, which follow the `?`. Fails if the name of a parameter is not in the list
/// `known`.
fn parse_query_parameters<'t>(
    query: &'t str,
    known: &[&str],
) -> Result<Vec<(&'t str, &'t str)>, String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs: Vec<_> = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
    if pairs.iter().all(|(name, _)| known.contains(name)) {
        Ok(pairs)
    } else if known.is_empty() {
        Err("parameters (`?`) are not allowed".to_owned())
    } else {
        Err(format!("only these parameters are allowed: {}", known.join(", ")))
    }
}

/// Parses the URL of one server. The error omits the message of the `redis` crate, which may quote a part of the URL,
/// and with it a password.
fn parse_server_url(text: &str) -> Result<ConnectionInfo, &'static str> {
    let info = text
        .into_connection_info()
        .map_err(|_| "the user, password, host, port or database cannot be parsed")?;
    if info.redis_settings().db() < 0 {
        return Err("the database must be 0 or a positive number");
    }
    if info.redis_settings().password().is_none() {
        return Ok(info);
    }
    // With a login, the `redis` crate must not call `CLIENT SETINFO` after it has connected, because a user with the
    // documented rights may not call it. Without a login, the call stays: it makes sure that the server responds before
    // the connection is used.
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    Ok(info.set_redis_settings(settings))
}

/// Splits `user:password@host:port,host:port` into the part up to and including the `@`, and the list of hosts.
fn split_login_and_hosts(authority: &str) -> Result<(&str, Vec<&str>), String> {
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (&authority[..user.len() + 1], hosts),
        None => ("", authority),
    };
    let hosts: Vec<&str> = hosts.split(',').collect();
    match (hosts.iter().any(|host| host.is_empty()), hosts.len() > MAX_HOSTS_PER_ADDRESS) {
        (true, _) => Err("a host is missing".to_owned()),
        (_, true) => Err(format!("more than {MAX_HOSTS_PER_ADDRESS} hosts are not allowed")),
        _ => Ok((user, hosts)),
    }
}

/// Parses the address of a Sentinel service. `scheme` is `redis` or `rediss`, and `rest` is the part after `://`.
fn parse_sentinel_address(scheme: &str, rest: &str) -> Result<Address, AddressError> {
    let invalid = |problem: &str| AddressError::MultiServerForm(problem.to_owned());
    if rest.contains('#') {
        return Err(invalid("a fragment (`#`) is not allowed: in a password, write %23"));
    }
    let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
    let known = ["db", "sentinel_user", "sentinel_pass"];
    let parameters = parse_query_parameters(query, &known).map_err(|problem| invalid(&problem))?;
    let parameter =
        |name| parameters.iter().find(|(other, _)| *other == name).map_or("", |(_, value)| *value);
    let (authority, service) = location.split_once('/').unwrap_or((location, ""));
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if service.is_empty() || !service.bytes().all(is_name_byte) {
        return Err(invalid("the name of the Sentinel service must follow the hosts"));
    }
    let (user, hosts) = split_login_and_hosts(authority).map_err(|problem| invalid(&problem))?;
    let sentinel_user = match (parameter("sentinel_user"), parameter("sentinel_pass")) {
        ("", "") => String::new(),
        (name, password) => format!("{name}:{password}@"),
    };
    let sentinel_url = |host: &&str| {
        if has_port(host) {
            format!("{scheme}://{sentinel_user}{host}")
        } else {
            format!("{scheme}://{sentinel_user}{host}:26379")
        }
    };
    let sentinels: Result<Vec<_>, _> =
        hosts.iter().map(|host| parse_server_url(&sentinel_url(host))).collect();
    let sentinels = sentinels.map_err(invalid)?;
    // The host `localhost` is a placeholder. Only the credentials and the database of this URL are used, because the
    // Sentinels report the host of the master.
    let login = parse_server_url(&format!("{scheme}://{user}localhost/{}", parameter("db")))
        .map_err(invalid)?;
    let names: Vec<String> = sentinels.iter().map(|info| host_and_port(info.addr())).collect();
    let db = login.redis_settings().db();
    let db = if db == 0 { String::new() } else { format!("?db={db}") };
    let display = format!("{scheme}+sentinel://{}/{service}{db}", names.join(","));
    let target = SentinelTarget { sentinels, service: service.to_owned(), login };
    Ok(Address { target: AddressTarget::Sentinel(target), display: display.into() })
}

/// Parses the address of a Cluster. `scheme` is `redis` or `rediss`, and `rest` is the part after `://`.
fn parse_cluster_address(scheme: &str, rest: &str) -> Result<Address, AddressError> {
    let invalid = |problem: &str| AddressError::MultiServerForm(problem.to_owned());
    if rest.contains(['#', '?']) {
        return Err(invalid(
            "a fragment (`#`) or parameters (`?`) are not allowed: in a password, write %23 or %3F",
        ));
    }
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains('/') {
        return Err(invalid("a Cluster has only one database, so no path can follow the hosts"));
    }
    let (user, hosts) = split_login_and_hosts(authority).map_err(|problem| invalid(&problem))?;
    let seed = |host: &&str| parse_server_url(&format!("{scheme}://{user}{host}"));
    let seeds: Result<Vec<_>, _> = hosts.iter().map(seed).collect();
    let seeds = seeds.map_err(invalid)?;
    let names: Vec<String> = seeds.iter().map(|info| host_and_port(info.addr())).collect();
    let display = format!("{scheme}+cluster://{}", names.join(","));
    Ok(Address { target: AddressTarget::Cluster(seeds), display: display.into() })
}

/// Returns `true` if the text is a host with a port. The colons of an IPv6 address, in brackets, do not count as the
/// start of a port.
fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'))
}

/// Returns `host:port`, with brackets around an IPv6 address.
pub(crate) fn host_and_port(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
        }
        other => other.to_string(),
    }
}

/// Returns a copy of `template` with another address, `host:port`. Returns `None` if the address does not have this
/// form.
pub(crate) fn with_host_and_port(
    template: &ConnectionInfo,
    address: &str,
) -> Option<ConnectionInfo> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = port.parse().ok()?;
    let address = match template.addr() {
        ConnectionAddr::TcpTls { insecure, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: None }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    Some(template.clone().set_addr(address))
}

/// Returns the text form of the address of one server, without user and password.
fn address_without_credentials(info: &ConnectionInfo) -> String {
    let db = info.redis_settings().db();
    match info.addr() {
        address @ ConnectionAddr::Tcp(..) => format!("redis://{}/{db}", host_and_port(address)),
        address @ ConnectionAddr::TcpTls { .. } => {
            format!("rediss://{}/{db}", host_and_port(address))
        }
        ConnectionAddr::Unix(path) if db == 0 => format!("unix://{}", path.display()),
        ConnectionAddr::Unix(path) => format!("unix://{}?db={db}", path.display()),
        // `ConnectionAddr` of the `redis` crate is non-exhaustive, so kinds of addresses that it adds later need a text
        // too.
        _ => "redis".to_owned(),
    }
}

/// Replaces user, password and parameters of an address with `…`. The address may be invalid, for example without a
/// scheme.
pub(crate) fn redact_password(address: &str) -> String {
    let redacted = match address.rfind('@') {
        Some(at) => {
            let login_start = address[..at].find("://").map_or(0, |scheme| scheme + 3);
            format!("{}…{}", &address[..login_start], &address[at..])
        }
        None => address.to_owned(),
    };
    match redacted.split_once('?') {
        Some((base, _)) => format!("{base}?…"),
        None => redacted,
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_address_has_no_credentials() {
        for (text, expected) in [
            ("redis://localhost", "redis://localhost:6379/0"),
            ("redis://ann:secret@h:7000/3", "redis://h:7000/3"),
            ("redis://:secret@[::1]:7000", "redis://[::1]:7000/0"),
            ("redis://:p%40%2Fss@h", "redis://h:6379/0"),
            ("rediss://ann:secret@h/1?protocol=resp3", "rediss://h:6379/1"),
            ("unix:///run/redis.sock?pass=secret", "unix:///run/redis.sock"),
            ("unix:///run/redis.sock?db=2&user=ann&pass=secret", "unix:///run/redis.sock?db=2"),
            ("redis+sentinel://a,b:1/main", "redis+sentinel://a:26379,b:1/main"),
            (
                "rediss+sentinel://ann:p%40secret@[::1]:1,b/m.1?db=2&sentinel_user=s&sentinel_pass=secret",
                "rediss+sentinel://[::1]:1,b:26379/m.1?db=2",
            ),
            ("redis+cluster://a,[::1]:7", "redis+cluster://a:6379,[::1]:7"),
            ("rediss+cluster://:secret@a:1,b:2/", "rediss+cluster://a:1,b:2"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), expected);
            assert_eq!(format!("{address:?}"), format!("Address({expected})"));
        }
    }

    #[test]
    fn address_error_omits_address_text() {
        for (text, expected) in [
            ("", "unknown scheme"),
            ("secret", "unknown scheme"),
            ("localhost:6379", "unknown scheme"),
            ("redis:/ann:secret@h", "unknown scheme"),
            ("http://ann:secret@h", "unknown scheme"),
            ("redis+clusters://secret@h", "unknown scheme"),
            ("redis+cluster://ann:secret@", "a host is missing"),
            ("redis+cluster://ann:secret@a,,b", "a host is missing"),
            ("redis+cluster://ann:secret@a/1", "only one database"),
            ("redis+cluster://ann:secret@a?db=1", "or parameters (`?`) are not allowed"),
            ("redis+cluster://ann:secret@a:secret", "cannot be parsed"),
            ("redis+sentinel://ann:secret@a,b", "the name of the Sentinel service"),
            ("redis+sentinel://ann:secret@a,b/", "the name of the Sentinel service"),
            ("redis+sentinel://ann:secret@a,b/se%20cret", "the name of the Sentinel service"),
            (
                "redis+sentinel://a,b/m?pass=secret",
                "only these parameters are allowed: db, sentinel_user, sentinel_pass",
            ),
            ("redis+sentinel://a,b/m?db=secret", "cannot be parsed"),
            ("redis+sentinel://a,b/m?db=-1", "the database must be 0 or a positive number"),
            ("redis://", "redis://user:password@host:6379/0"),
            ("redis://ann:secret", "redis://user:password@host:6379/0"),
            ("redis://ann:sec/ret@h", "redis://user:password@host:6379/0"),
            ("redis://ann:sec#ret@h", "a fragment (`#`) is not allowed"),
            ("redis://ann:sec?ret@h", "only these parameters are allowed: protocol"),
            ("redis://h/secret", "database"),
            ("redis://h/-1", "the database must be 0 or a positive number"),
            ("redis://h?password=secret", "only these parameters are allowed: protocol"),
            ("rediss://ann:secret@h#insecure", "a fragment (`#`) is not allowed"),
            (
                "unix:///run/redis.sock?password=secret",
                "only these parameters are allowed: db, user, pass, protocol",
            ),
            ("unix:///run/redis.sock?db=secret", "database"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("secret") && !error.contains("sec/"), "{text}: {error}");
        }
    }

    #[test]
    fn redacted_address_has_no_password() {
        for (address, redacted) in [
            ("redis://u:p@h:1/2", "redis://…@h:1/2"),
            ("redis://:p@q?@h", "redis://…@h"),
            ("unix:///run/redis?pass=p&db=1", "unix:///run/redis?…"),
            ("redis://h", "redis://h"),
            ("u:p@h:6379", "…@h:6379"),
            ("@://", "…@://"),
        ] {
            assert_eq!(redact_password(address), redacted);
        }
    }
}
