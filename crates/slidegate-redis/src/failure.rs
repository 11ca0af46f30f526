//! Why there is no answer.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use slidegate::StoreError;

/// Why there is no answer.
#[derive(Clone, Debug)]
pub enum Failure {
    /// Redis does not do its work: the breaker hears of it.
    Down(StoreError),
    /// Something else stands at this key; others are well.
    Key(StoreError),
    /// Somebody else is to be asked. Nothing was charged.
    Elsewhere(Elsewhere),
}

/// Who is to be asked instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// The slot is now another's, at this address.
    Moved(String),
    /// The slot is being moved there, and these keys are there already, or not at all yet.
    Asking(String),
    /// The slot is being moved, and only some of these keys are there already: the same again, a little
    /// later.
    Again,
}

/// What Redis says when it cannot write at all. Up to 6.2 the error of a script only quotes it.
const CANNOT_WRITE: [&str; 4] = ["-OOM", "-READONLY", "-MISCONF", "-NOREPLICAS"];

impl Failure {
    /// An error that a server has answered with: a script that fails has written nothing. None if it is
    /// not known whether anybody has answered.
    pub fn answered(error: &RedisError) -> Option<Self> {
        let unavailable = || StoreError::Unavailable(error.to_string());
        let to = || error.redirect_node().map(|(address, _)| address.to_owned());
        Some(match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => match to() {
                Some(address) => Self::Elsewhere(Elsewhere::Moved(address)),
                None => Self::Down(unavailable()),
            },
            ErrorKind::Server(ServerErrorKind::Ask) => match to() {
                Some(address) => Self::Elsewhere(Elsewhere::Asking(address)),
                None => Self::Down(unavailable()),
            },
            ErrorKind::Server(ServerErrorKind::TryAgain) => Self::Elsewhere(Elsewhere::Again),
            _ if is_of_a_key(error) => Self::Key(unavailable()),
            ErrorKind::Server(_) | ErrorKind::Extension => Self::Down(unavailable()),
            _ => return None,
        })
    }

    /// What it is to those outside.
    pub fn into_error(self) -> StoreError {
        match self {
            Self::Down(error) | Self::Key(error) => error,
            Self::Elsewhere(Elsewhere::Moved(_) | Elsewhere::Asking(_)) => StoreError::Unavailable(
                "it is a node of a Redis Cluster: its address begins with redis+cluster://"
                    .to_owned(),
            ),
            Self::Elsewhere(Elsewhere::Again) => {
                StoreError::Unavailable("the keys are just being moved to another node".to_owned())
            }
        }
    }

    /// The same of several calls, of which others may have been charged.
    pub fn of_several(self) -> Self {
        let timed_out = |error: StoreError| StoreError::TimedOut(error.to_string());
        match self {
            Self::Down(error) => Self::Down(timed_out(error)),
            Self::Key(error) => Self::Key(timed_out(error)),
            elsewhere => elsewhere,
        }
    }
}

/// Whether it is the value of a key that the script could not work with.
fn is_of_a_key(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or_default();
    match error.code() {
        Some("WRONGTYPE" | "FOREIGN") => true,
        // The script stumbled, over what it has read: all else is the same for every key.
        Some("ERR") => {
            text.contains("user_script") && !CANNOT_WRITE.iter().any(|why| text.contains(why))
        }
        _ => false,
    }
}
