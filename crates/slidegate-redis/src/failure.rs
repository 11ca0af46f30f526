//! Classifies failed calls. The class determines whether the circuit breaker counts the failure, which error the
//! request gets, and whether another server must be called.

use std::borrow::Cow;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use slidegate::StoreError;
use slidegate::store::RejectionClass;

/// The reason why a call failed.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The server does not work. The circuit breaker counts this failure.
    Server(StoreError),
    /// A key has a value that slidegate did not write. Other keys are not affected, so the circuit breaker does not
    /// count this failure.
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

/// Maximum number of keys in the message of a failure whose cause may be any of the keys of a call.
const MAX_KEYS_IN_MESSAGE: usize = 4;

impl Failure {
    /// Classifies an error response. The failed request has charged nothing, but other requests in the same call may
    /// have been charged. Returns `None` if the error may have another cause than a response of the server. In this
    /// case, the effect of the call is unknown.
    pub fn from_redis_error(error: &RedisError) -> Option<Self> {
        let class = rejection_class(error)?;
        let target = error.redirect_node().map(|(address, _)| address.to_owned());
        Some(match (error.kind(), target) {
            (ErrorKind::Server(ServerErrorKind::Moved), Some(address)) => {
                Self::Redirect(Redirect::Moved(address))
            }
            (ErrorKind::Server(ServerErrorKind::Ask), Some(address)) => {
                Self::Redirect(Redirect::Ask(address))
            }
            (ErrorKind::Server(ServerErrorKind::TryAgain), _) => Self::Redirect(Redirect::TryAgain),
            _ => {
                let rejected = StoreError::Rejected { class, message: error_message(error) };
                if class.is_caused_by_key() { Self::Key(rejected) } else { Self::Server(rejected) }
            }
        })
    }

    /// Adds the keys of the call to the message, if the value of a key is the cause and the message does not name it.
    pub fn with_keys(self, keys: &[&str]) -> Self {
        match self {
            Self::Key(StoreError::Rejected { class, message })
                if !keys.iter().any(|key| message.ends_with(key)) =>
            {
                Self::Key(StoreError::Rejected {
                    class,
                    message: format!("{message}{}{}", MESSAGE_KEYS_SEPARATOR, list_keys(keys)),
                })
            }
            failure => failure,
        }
    }

    /// Returns the failure of a request with a key that another program has written.
    pub fn foreign_value<'k>(keys: impl IntoIterator<Item = &'k str>) -> Self {
        let keys: Vec<&str> = keys.into_iter().collect();
        let message = "FOREIGN value not written by slidegate".to_owned();
        Self::Key(StoreError::Rejected { class: RejectionClass::ForeignValue, message })
            .with_keys(&keys)
    }

    /// Converts the failure into the error that the store returns.
    pub fn into_error(self) -> StoreError {
        match self {
            Self::Server(error) | Self::Key(error) => error,
            Self::Redirect(Redirect::Moved(_) | Redirect::Ask(_)) => StoreError::Rejected {
                class: RejectionClass::Moved,
                message: "the server is a node of a Redis Cluster".to_owned(),
            },
            Self::Redirect(Redirect::TryAgain) => StoreError::Unavailable(
                "the Redis Cluster is moving the keys to another node; retry later".to_owned(),
            ),
        }
    }

    /// Converts the failure of one of several calls or requests into a timeout. The others may have charged, so the
    /// effect on the counters is unknown. A redirection and a lost connection stay unchanged.
    pub fn into_partial_call_failure(self) -> Self {
        match self {
            Self::Server(error) => Self::Server(into_partial_call_error(error)),
            Self::Key(error) => Self::Key(into_partial_call_error(error)),
            redirect => redirect,
        }
    }
}

/// Converts the error of one of several calls or requests into a timeout, because the others may have charged.
pub fn into_partial_call_error(error: StoreError) -> StoreError {
    match error {
        StoreError::ConnectionLost(_) | StoreError::TimedOut(_) => error,
        // Only the class is quoted, because the message of the error may contain a key.
        _ => StoreError::TimedOut(format!(
            "a part of the call failed ({}), and another part may have charged; {}",
            error.class(),
            error.remedy()
        )),
    }
}

/// The text between the cause and the keys in the message of a failure that the value of a key caused.
const MESSAGE_KEYS_SEPARATOR: &str = " at ";

/// Returns the keys as text, but at most the first [`MAX_KEYS_IN_MESSAGE`].
fn list_keys(keys: &[&str]) -> String {
    let named = keys[..keys.len().min(MAX_KEYS_IN_MESSAGE)].join(" or ");
    match keys.len() {
        0..=MAX_KEYS_IN_MESSAGE => named,
        _ => format!("{named} or others"),
    }
}

/// Returns the class of an error response, or `None` if the error is not a response of the server.
pub fn rejection_class(error: &RedisError) -> Option<RejectionClass> {
    match error.kind() {
        ErrorKind::AuthenticationFailed => Some(RejectionClass::WrongCredentials),
        ErrorKind::Server(_) | ErrorKind::Extension => {
            let text = error.detail().unwrap_or_default();
            Some(classify_response(error.code().unwrap_or_default(), text))
        }
        _ => None,
    }
}

/// Returns the class of a response with this error code and this text.
///
/// Since Redis 7, the error of a command that a script calls has its own code. Before, the code is only in the text:
/// `ERR Error running script (call to f_…): @user_script:1: @user_script: 1: -OOM …`. In no version, a missing
/// permission has a code in a script.
fn classify_response(code: &str, text: &str) -> RejectionClass {
    if let Some(class) = classify_error_code(code) {
        return class;
    }
    if code != "ERR" {
        return RejectionClass::Other;
    }
    // A missing permission in a script has the first text in Redis 6.2 and 7.0, and the second text in Redis 7.2 or
    // later and in Valkey.
    if text.contains("The user executing the script can't")
        || text.contains("ACL failure in script")
    {
        return RejectionClass::NoPermission;
    }
    // The `redis` crate replaces the code `NOAUTH` in the response to `SELECT`, so only the text shows that a login is
    // missing.
    if text.contains("without any password configured") || text == "Authentication required" {
        return RejectionClass::WrongCredentials;
    }
    if text.contains("DB index is out of range") {
        return RejectionClass::NoDatabase;
    }
    if text.contains("cluster is down") {
        return RejectionClass::ClusterDown;
    }
    let words = text.split_ascii_whitespace().map(|word| word.trim_start_matches('-'));
    let mut codes = words.filter_map(classify_error_code);
    match codes.next() {
        Some(class) if text.contains("user_script") => class,
        // A runtime error of the script, with `user_script:1:` in its text, is caused by the value of the key, because
        // the script is the same for every key. Errors of Redis itself only have `@user_script`.
        _ if has_runtime_error_of_script(text) => RejectionClass::ForeignValue,
        _ => RejectionClass::Other,
    }
}

fn classify_error_code(code: &str) -> Option<RejectionClass> {
    Some(match code {
        "NOPERM" => RejectionClass::NoPermission,
        "WRONGPASS" | "NOAUTH" => RejectionClass::WrongCredentials,
        "OOM" => RejectionClass::OutOfMemory,
        "READONLY" => RejectionClass::ReadOnly,
        "MISCONF" => RejectionClass::CannotPersist,
        "BUSY" => RejectionClass::Busy,
        "CLUSTERDOWN" => RejectionClass::ClusterDown,
        "NOREPLICAS" => RejectionClass::TooFewReplicas,
        "LOADING" => RejectionClass::Loading,
        "MOVED" | "ASK" => RejectionClass::Moved,
        "FOREIGN" => RejectionClass::ForeignValue,
        "WRONGTYPE" => RejectionClass::WrongType,
        _ => return None,
    })
}

fn has_runtime_error_of_script(text: &str) -> bool {
    text.match_indices("user_script:").any(|(at, _)| !text[..at].ends_with('@'))
}

/// Returns an error as text for users and logs. The text of a response begins with its code. It has no keys and
/// arguments of commands, except the key after the code `FOREIGN`.
pub fn error_message(error: &RedisError) -> String {
    let Some(class) = rejection_class(error) else { return error.to_string() };
    let code = match error.code() {
        Some(code) => code,
        // The `redis` crate replaces the response to `AUTH` with an error without a code.
        None if class == RejectionClass::WrongCredentials => "WRONGPASS",
        None => "ERR",
    };
    let text = match error.detail() {
        Some(text) => Cow::from(text),
        None => Cow::from(error.to_string()),
    };
    // Removes values of clients: Redis quotes the arguments of an unknown command, and some versions of Redis quote a
    // key for which a permission is missing.
    let text = text.split(", with args beginning with").next().unwrap_or_default();
    let text = match (class, text.find(" the '")) {
        (RejectionClass::NoPermission, Some(at)) if text.ends_with("' key") => &text[..at],
        _ => text,
    };
    // Removes the position in the script, which is of no use without the text of the script.
    let text = text.split(" script: ").next().unwrap_or_default();
    format!("{code} {}", text.trim_end_matches('.'))
}

/// Returns the error of a call that found no connection, for this reason. If the reason is a response of the server, it
/// begins with its code, as [`error_message`] returns it.
pub fn no_connection_error(reason: &str) -> StoreError {
    let (code, text) = reason.split_once(' ').unwrap_or((reason, ""));
    match classify_error_code(code) {
        Some(class) => StoreError::Rejected { class, message: reason.to_owned() },
        None if code == "ERR" => StoreError::Rejected {
            class: classify_response(code, text),
            message: reason.to_owned(),
        },
        None => StoreError::Unavailable(format!("no connection to Redis: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RejectionClass::*;

    /// The texts are from the sources of Redis 6.2, 7.0, 7.2 to 8, and Valkey 8.
    #[test]
    fn errors_of_all_redis_versions_have_classes() {
        const NO_COMMAND: &str =
            "The user executing the script can't run this command or subcommand";
        const NO_KEY: &str = "The user executing the script can't access at least one of the keys mentioned in the command arguments";
        const IN_6: &str = "Error running script (call to f_8a2f): @user_script:12: ";
        const IN_7: &str = " script: 8a2f, on @user_script:12.";
        let in_6 = |text: &str| format!("{IN_6}@user_script: 12: {text}");
        let in_7 = |text: &str| format!("{text}{IN_7}");
        let oom = "command not allowed when used memory > 'maxmemory'.";
        let wrong_type = "Operation against a key holding the wrong kind of value";
        for (code, text, expected) in [
            ("NOPERM", "this user has no permissions to run the 'evalsha' command or its subcommand".into(), NoPermission),
            ("NOPERM", "No permissions to access a key".into(), NoPermission),
            ("ERR", in_6(NO_COMMAND), NoPermission),
            ("ERR", in_6(NO_KEY), NoPermission),
            ("ERR", in_7(NO_COMMAND), NoPermission),
            ("ERR", in_7(NO_KEY), NoPermission),
            ("ERR", in_7("ACL failure in script: User ann has no permissions to run the 'zadd' command"), NoPermission),
            ("ERR", in_7("ACL failure in script: No permissions to access a key"), NoPermission),
            ("WRONGPASS", "invalid username-password pair or user is disabled.".into(), WrongCredentials),
            ("NOAUTH", "Authentication required.".into(), WrongCredentials),
            ("NOAUTH", "HELLO must be called with the client already authenticated".into(), WrongCredentials),
            ("ERR", "AUTH <password> called without any password configured for the default user.".into(), WrongCredentials),
            ("ERR", in_6(&format!("-OOM {oom}")), OutOfMemory),
            ("OOM", in_7(oom), OutOfMemory),
            ("OOM", "allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'".into(), OutOfMemory),
            ("ERR", in_6("-READONLY You can't write against a read only replica."), ReadOnly),
            ("READONLY", in_7("You can't write against a read only replica."), ReadOnly),
            ("ERR", in_6("-MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk."), CannotPersist),
            ("MISCONF", in_7("Valkey is configured to save RDB snapshots, but it's currently unable to persist to disk."), CannotPersist),
            ("MISCONF", in_7("Errors writing to the AOF file: No space left on device"), CannotPersist),
            ("BUSY", "Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.".into(), Busy),
            ("CLUSTERDOWN", "Hash slot not served".into(), ClusterDown),
            ("ERR", in_7("Script attempted to access keys while the cluster is down"), ClusterDown),
            ("ERR", in_6("-NOREPLICAS Not enough good replicas to write."), TooFewReplicas),
            ("NOREPLICAS", in_7("Not enough good replicas to write."), TooFewReplicas),
            ("LOADING", "Redis is loading the dataset in memory".into(), Loading),
            ("ERR", "DB index is out of range".into(), NoDatabase),
            ("ERR", "Authentication required".into(), WrongCredentials),
            ("ERR", format!("{IN_6}WRONGTYPE {wrong_type}"), WrongType),
            ("WRONGTYPE", in_7(wrong_type), WrongType),
            ("FOREIGN", "value not written by slidegate at slidegate:default:a:{ip=::1}".into(), ForeignValue),
            ("ERR", format!("{IN_6}user_script:12: attempt to compare nil with number"), ForeignValue),
            ("ERR", in_7("user_script:12: bad argument #1 to 'unpack'"), ForeignValue),
            ("ERR", in_7("Unknown Redis command called from script"), Other),
            ("ERR", in_6("Unknown Redis command called from Lua script"), Other),
            ("ERR", in_7("Script attempted to access keys that do not hash to the same slot"), Other),
            ("ERR", "unknown command 'EVALSHA', with args beginning with: 'OOM' ".into(), Other),
            ("MASTERDOWN", "Link with MASTER is down".into(), Other),
        ] {
            assert_eq!(classify_response(code, &text), expected, "{code} {text}");
        }
    }

    fn response(code: &str, text: &str) -> RedisError {
        let line = format!("-{code} {text}\r\n");
        match redis::parse_redis_value(line.as_bytes()).unwrap().extract_error() {
            Err(error) => error,
            Ok(value) => panic!("{value:?} is not an error"),
        }
    }

    #[test]
    fn message_has_code_and_no_arguments() {
        for (code, text, expected) in [
            ("OOM", "no script: 8a, on @user_script:1.", "OOM no"),
            (
                "ERR",
                "unknown command 'EVALSHA', with args beginning with: 'key'",
                "ERR unknown command 'EVALSHA'",
            ),
            (
                "NOPERM",
                "User a has no permissions to access the 'x' key",
                "NOPERM User a has no permissions to access",
            ),
            (
                "NOPERM",
                "User a has no permissions to run the 'get' command",
                "NOPERM User a has no permissions to run the 'get' command",
            ),
        ] {
            assert_eq!(error_message(&response(code, text)), expected);
        }
        let refused =
            RedisError::from((ErrorKind::AuthenticationFailed, "Password authentication failed"));
        assert!(error_message(&refused).starts_with("WRONGPASS Password authentication failed"));
        let error = no_connection_error(&error_message(&refused));
        assert_eq!(error.class(), "wrongpass");
        assert_eq!(no_connection_error("Connection refused").class(), "unavailable");
    }

    #[test]
    fn failure_of_value_names_keys_once() {
        let keys = ["slidegate:a", "slidegate:b", "c", "d", "e"];
        let message = |code: &str, text: &str, keys: &[&str]| match Failure::from_redis_error(
            &response(code, text),
        )
        .unwrap()
        .with_keys(keys)
        {
            Failure::Key(StoreError::Rejected { message, .. }) => message,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            message("FOREIGN", "value not written by slidegate at slidegate:b", &keys),
            "FOREIGN value not written by slidegate at slidegate:b"
        );
        assert_eq!(message("WRONGTYPE", "wrong", &keys[..1]), "WRONGTYPE wrong at slidegate:a");
        assert!(message("WRONGTYPE", "wrong", &keys).ends_with(" or d or others"));
        let partial =
            Failure::foreign_value(keys).into_partial_call_failure().into_error().to_string();
        assert!(partial.contains("(foreign)") && !partial.contains("slidegate:"), "{partial}");
    }
}
