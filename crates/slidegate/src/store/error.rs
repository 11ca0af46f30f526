//! The failures of a store, and their classes. A class is the label of a failure in metrics and logs, and has one
//! remedy.

use std::fmt;

use thiserror::Error;

/// A failure of a store. A denial is not an error.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached. Nothing was charged.
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    /// The connection to the store was lost while the call was in flight. The charge may or may not have been made, so
    /// the call must not be repeated, unless the store applies it once.
    #[error("the connection to the store was lost during the call: {0}")]
    ConnectionLost(String),
    /// The store did not respond in time. The charge may or may not have been made, so the call must not be repeated.
    #[error("the store did not respond in time: {0}")]
    TimedOut(String),
    /// The circuit breaker is open after repeated failures, so the store was not called. Nothing was charged.
    #[error("circuit breaker open after repeated store failures")]
    BreakerOpen,
    /// The store does not support the call or its limit, for the given reason. Nothing was charged, and a retry fails
    /// again. [`Store::supports`](super::Store::supports) checks limits in advance.
    #[error("the store does not support this call: {0}")]
    Unsupported(String),
    /// The server of the store responded with an error. Nothing was charged. The exception is a script that Redis ends
    /// at a command without permission: the effects of its earlier commands stay.
    #[error("the store rejected the call ({class}): {message}; {}", class.remedy())]
    Rejected {
        /// The class of the cause.
        class: RejectionClass,
        /// The response of the server. If the value of a key is the cause, the text ends with ` at ` and [the
        /// key](StoreError::keys_with_foreign_values).
        message: String,
    },
}

/// The class and the remedy of each variant of [`StoreError`] without a class of its own.
const UNAVAILABLE_CLASS_AND_REMEDY: (&str, &str) = (
    "unavailable",
    "check the store, its address and the network, or raise the timeout of its calls (--redis-timeout)",
);
const CONNECTION_LOST_CLASS_AND_REMEDY: (&str, &str) = (
    "connection_lost",
    "check whether the store was restarted, and which proxy closes connections",
);
const TIMED_OUT_CLASS_AND_REMEDY: (&str, &str) = (
    "timed_out",
    "check the latency of the store, or raise the timeout of its calls (--redis-timeout)",
);
const BREAKER_OPEN_CLASS_AND_REMEDY: (&str, &str) =
    ("breaker_open", "correct the cause of the earlier failures");
const UNSUPPORTED_CLASS_AND_REMEDY: (&str, &str) =
    ("unsupported", "use another algorithm, or another store");

impl StoreError {
    /// Returns the class of the failure, a label that never changes, such as `timed_out` or `noperm`.
    pub fn class(&self) -> &'static str {
        self.class_and_remedy().0
    }

    /// Returns the remedy for failures of this class.
    pub fn remedy(&self) -> &'static str {
        self.class_and_remedy().1
    }

    /// Returns all classes with their remedies.
    pub fn classes_with_remedies() -> impl Iterator<Item = (&'static str, &'static str)> {
        let rejections = RejectionClass::ALL.map(|class| (class.label(), class.remedy()));
        [
            UNAVAILABLE_CLASS_AND_REMEDY,
            CONNECTION_LOST_CLASS_AND_REMEDY,
            TIMED_OUT_CLASS_AND_REMEDY,
            BREAKER_OPEN_CLASS_AND_REMEDY,
            UNSUPPORTED_CLASS_AND_REMEDY,
        ]
        .into_iter()
        .chain(rejections)
    }

    fn class_and_remedy(&self) -> (&'static str, &'static str) {
        match self {
            Self::Unavailable(_) => UNAVAILABLE_CLASS_AND_REMEDY,
            Self::ConnectionLost(_) => CONNECTION_LOST_CLASS_AND_REMEDY,
            Self::TimedOut(_) => TIMED_OUT_CLASS_AND_REMEDY,
            Self::BreakerOpen => BREAKER_OPEN_CLASS_AND_REMEDY,
            Self::Unsupported(_) => UNSUPPORTED_CLASS_AND_REMEDY,
            Self::Rejected { class, .. } => (class.label(), class.remedy()),
        }
    }

    /// Returns the key whose value another program wrote, if such a value is the cause of the failure. If several keys
    /// can be the cause, they are separated by ` or `. A key contains the values that the rule counts by.
    pub fn keys_with_foreign_values(&self) -> Option<&str> {
        match self {
            Self::Rejected { class, message } if class.is_caused_by_key() => {
                message.split_once(" at ").map(|(_, keys)| keys)
            }
            _ => None,
        }
    }

    /// Returns `true` if the call may have charged, because it was sent and its result is unknown.
    pub fn may_have_charged(&self) -> bool {
        matches!(self, Self::ConnectionLost(_) | Self::TimedOut(_))
    }
}

/// The class of an error response of the store's server. The label of a class is the error code of Redis in lower case,
/// if Redis has a code for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectionClass {
    /// The user may not run a command, or may not access a key.
    NoPermission,
    /// The user or the password is wrong or missing.
    WrongCredentials,
    /// The server does not have the database of the address.
    NoDatabase,
    /// The memory is full.
    OutOfMemory,
    /// The server is a replica.
    ReadOnly,
    /// The server cannot write its data to the disk.
    CannotPersist,
    /// A script or a module blocks the server.
    Busy,
    /// No master serves the slot of the key.
    ClusterDown,
    /// The master has fewer replicas than it requires.
    TooFewReplicas,
    /// The server is loading its data.
    Loading,
    /// The server is a node of a Redis Cluster that does not have the slot of the key.
    Moved,
    /// The value of a key was not written by slidegate.
    ForeignValue,
    /// The value of a key has another type than slidegate writes.
    WrongType,
    /// Any other cause.
    Other,
}

impl RejectionClass {
    /// All classes.
    pub const ALL: [Self; 14] = [
        Self::NoPermission,
        Self::WrongCredentials,
        Self::NoDatabase,
        Self::OutOfMemory,
        Self::ReadOnly,
        Self::CannotPersist,
        Self::Busy,
        Self::ClusterDown,
        Self::TooFewReplicas,
        Self::Loading,
        Self::Moved,
        Self::ForeignValue,
        Self::WrongType,
        Self::Other,
    ];

    /// Returns the label of the class.
    pub const fn label(self) -> &'static str {
        match self {
            Self::NoPermission => "noperm",
            Self::WrongCredentials => "wrongpass",
            Self::NoDatabase => "nodb",
            Self::OutOfMemory => "oom",
            Self::ReadOnly => "readonly",
            Self::CannotPersist => "misconf",
            Self::Busy => "busy",
            Self::ClusterDown => "clusterdown",
            Self::TooFewReplicas => "noreplicas",
            Self::Loading => "loading",
            Self::Moved => "moved",
            Self::ForeignValue => "foreign",
            Self::WrongType => "wrongtype",
            Self::Other => "other",
        }
    }

    /// Returns the remedy. `docs/reference/errors.md` has the same text, which a test compares.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::NoPermission => {
                "give the Redis user the access rights of docs/how-to/share-limits-through-redis.md"
            }
            Self::WrongCredentials => {
                "correct the user and the password in the address, for Sentinels sentinel_user and sentinel_pass"
            }
            Self::NoDatabase => {
                "correct the database in the address: Redis has the databases 0 to 15, unless its setting databases differs"
            }
            Self::OutOfMemory => "raise maxmemory of Redis, or remove data of other programs",
            Self::ReadOnly => {
                "use the address of the master, because this server is a replica, or use Sentinels"
            }
            Self::CannotPersist => {
                "make Redis save to its disk again, whose log has the cause, or set stop-writes-on-bgsave-error no"
            }
            Self::Busy => {
                "end the script that blocks Redis with SCRIPT KILL, and correct its program"
            }
            Self::ClusterDown => {
                "find the slots without a master in CLUSTER SLOTS, and restore their nodes"
            }
            Self::TooFewReplicas => "restore the replicas of Redis, or lower min-replicas-to-write",
            Self::Loading => "wait until Redis has loaded its data",
            Self::Moved => "use an address that begins with redis+cluster://",
            Self::ForeignValue | Self::WrongType => {
                "delete the key, and let the other program write to other keys or another Redis"
            }
            Self::Other => "correct the cause that the message of Redis states",
        }
    }

    /// Returns `true` if the value of a key is the cause, so that calls for other keys are not affected.
    pub const fn is_caused_by_key(self) -> bool {
        matches!(self, Self::ForeignValue | Self::WrongType)
    }
}

impl fmt::Display for RejectionClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_error_class_is_listed_once() {
        let labels: Vec<&str> =
            StoreError::classes_with_remedies().map(|(class, _)| class).collect();
        let distinct: BTreeSet<&str> = labels.iter().copied().collect();
        assert_eq!(distinct.len(), labels.len(), "{labels:?}");
        for label in &labels {
            let is_label_char = |char: char| char.is_ascii_lowercase() || char == '_';
            assert!(label.chars().all(is_label_char), "{label}");
        }
        let rejected = |class| StoreError::Rejected { class, message: "ERR no".to_owned() };
        for error in RejectionClass::ALL.map(rejected).iter().chain([&StoreError::BreakerOpen]) {
            assert!(
                StoreError::classes_with_remedies().any(|it| it == (error.class(), error.remedy()))
            );
        }
    }

    #[test]
    fn displayed_rejection_has_class_and_remedy() {
        let error = StoreError::Rejected {
            class: RejectionClass::OutOfMemory,
            message: "OOM command not allowed when used memory > 'maxmemory'.".to_owned(),
        };
        assert_eq!(
            error.to_string(),
            "the store rejected the call (oom): OOM command not allowed when used memory > 'maxmemory'.; \
             raise maxmemory of Redis, or remove data of other programs"
        );
        assert!(!error.may_have_charged());
    }
}
