//! Classifies failed calls. The class determines whether the circuit breaker counts the failure, which error the
//! request gets, and whether another server must be called.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use slidegate::StoreError;

/// The reason why a call failed.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The server does not work. The circuit breaker counts this failure.
    Server(StoreError),
    /// A key has a value of the wrong type. Other keys are not affected, so the circuit breaker does not count this
    /// failure.
    Key(StoreError),
    /// The call must be sent again, to another node of the Cluster or a little later. Nothing was charged.
    Redirect(Redirect),
}

/// A redirection that a Redis Cluster node returned instead of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redirect {
    /// The slot has moved to the node at this address.
    Moved(String),
    /// The slot is being migrated to the node at this address. The keys of the call have moved already, or do not exist
    /// yet.
    Ask(String),
    /// The slot is being migrated, and only some keys of the call have moved: retry the call a little later.
    TryAgain,
}

/// Error codes with which a server refuses to write any key. Up to Redis 6.2, the error of a script has such a code
/// only in its text.
const REFUSED_WRITE_ERROR_CODES: [&str; 4] = ["-OOM", "-READONLY", "-MISCONF", "-NOREPLICAS"];

impl Failure {
    /// Classifies an error response. The failed request has charged nothing, but other requests in the same call may
    /// have been charged. Returns `None` if the error may have another cause than a response of the server. In this
    /// case, the effect of the call is unknown.
    pub fn from_redis_error(error: &RedisError) -> Option<Self> {
        let unavailable = || StoreError::Unavailable(error.to_string());
        let target = || error.redirect_node().map(|(address, _)| address.to_owned());
        Some(match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => match target() {
                Some(address) => Self::Redirect(Redirect::Moved(address)),
                None => Self::Server(unavailable()),
            },
            ErrorKind::Server(ServerErrorKind::Ask) => match target() {
                Some(address) => Self::Redirect(Redirect::Ask(address)),
                None => Self::Server(unavailable()),
            },
            ErrorKind::Server(ServerErrorKind::TryAgain) => Self::Redirect(Redirect::TryAgain),
            _ if is_caused_by_value_of_key(error) => Self::Key(unavailable()),
            ErrorKind::Server(_) | ErrorKind::Extension => Self::Server(unavailable()),
            _ => return None,
        })
    }

    /// Converts the failure into the error that the store returns.
    pub fn into_error(self) -> StoreError {
        match self {
            Self::Server(error) | Self::Key(error) => error,
            Self::Redirect(Redirect::Moved(_) | Redirect::Ask(_)) => StoreError::Unavailable(
                "the server is a node of a Redis Cluster; use an address that begins with redis+cluster://"
                    .to_owned(),
            ),
            Self::Redirect(Redirect::TryAgain) => StoreError::Unavailable(
                "the Redis Cluster is moving the keys to another node; retry later".to_owned(),
            ),
        }
    }

    /// Converts the failure of one of several calls or requests into a timeout. The others may have charged, so the
    /// effect on the counters is unknown. A redirection and a lost connection stay unchanged.
    pub fn into_partial(self) -> Self {
        let timed_out = |error: StoreError| match error {
            StoreError::ConnectionLost(_) => error,
            _ => StoreError::TimedOut(error.to_string()),
        };
        match self {
            Self::Server(error) => Self::Server(timed_out(error)),
            Self::Key(error) => Self::Key(timed_out(error)),
            redirect => redirect,
        }
    }
}

/// Returns `true` if a script failed because of the value of a key, so that calls for other keys are not affected.
fn is_caused_by_value_of_key(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or_default();
    match error.code() {
        Some("WRONGTYPE" | "FOREIGN") => true,
        // A runtime error of the script, caused by the value that it read: everything else is the same for every key.
        Some("ERR") => {
            text.contains("user_script")
                && !REFUSED_WRITE_ERROR_CODES.iter().any(|code| text.contains(code))
        }
        _ => false,
    }
}
