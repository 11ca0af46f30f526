//! The two that are compared: slidegate's scripts, called as its store calls them, and plain ones.

use std::error::Error;

use redis::{Cmd, Value};
use slidegate::{
    Algorithm, Hit, Key, Limit, Scope, Store, StoreError, Timestamp, Value as Attribute,
};
use slidegate_redis::bench_api::ScriptCaller;
use slidegate_redis::{RedisStore, Settings};

use crate::course::Ask;

/// A script, and how it is called.
pub trait Side: Send + Sync {
    /// Its text.
    fn script(&self) -> String;

    /// Asks.
    fn take(&self, ask: Ask) -> Cmd;

    /// Whether that is the answer of an ask that is admitted.
    fn admits(&self, answer: &Value) -> bool;
}

/// slidegate with the limits of one rule.
pub struct Slidegate {
    caller: ScriptCaller,
    limits: Vec<(Scope, Limit)>,
}

impl Slidegate {
    /// With these quotas under an algorithm.
    pub fn new(quotas: &[&str], algorithm: Algorithm) -> Result<Self, Box<dyn Error>> {
        Self::with_settings(quotas, algorithm, &Settings::default())
    }

    /// As a store with these settings calls them.
    pub fn with_settings(
        quotas: &[&str],
        algorithm: Algorithm,
        settings: &Settings,
    ) -> Result<Self, Box<dyn Error>> {
        let mut limits = Vec::new();
        for quota in quotas {
            let limit = Limit::new(quota.parse()?, algorithm)?;
            let id = limit.quota().to_string();
            let id = id.split('/').next_back().unwrap_or_default();
            limits.push((Scope::new("api", "per-user", id, &["user"]), limit));
        }
        Ok(Self { caller: ScriptCaller::new(settings), limits })
    }

    /// Charges units of one of the limits at some time, whether they fit or not.
    pub fn spend(&self, who: usize, limit: usize, units: u64, now: Timestamp) -> Cmd {
        self.with_hits(who, |hits| {
            let hit = Hit { cost: units, ..hits[limit] }.reported();
            self.caller.take(Some(now), &[hit])
        })
    }

    /// The script that charges one of the limits.
    pub fn script_of_one(&self) -> String {
        self.with_hits(0, |hits| self.caller.script(&hits[..1]).to_owned())
    }

    /// Takes one unit by a store; whether that is admitted.
    pub async fn take_by(&self, store: &RedisStore, who: usize) -> Result<bool, StoreError> {
        let name = user(who);
        let values = [name.as_str().into()];
        Ok(store.take(&self.hits(&values)).await?.allowed)
    }

    fn with_hits<T>(&self, who: usize, then: impl FnOnce(&[Hit<'_>]) -> T) -> T {
        let name = user(who);
        let values = [name.as_str().into()];
        then(&self.hits(&values))
    }

    fn hits<'a>(&'a self, values: &'a [Attribute<'a>]) -> Vec<Hit<'a>> {
        let hit = |(scope, limit)| Hit::new(Key::new(scope, values), limit, 1);
        self.limits.iter().map(|(scope, limit)| hit((scope, limit))).collect()
    }
}

impl Side for Slidegate {
    fn script(&self) -> String {
        self.with_hits(0, |hits| self.caller.script(hits).to_owned())
    }

    fn take(&self, ask: Ask) -> Cmd {
        self.with_hits(ask.who, |hits| self.caller.take(ask.now, hits))
    }

    fn admits(&self, answer: &Value) -> bool {
        let Value::BulkString(reply) = answer else { panic!("slidegate's script: {answer:?}") };
        match self.with_hits(0, |hits| self.caller.is_admitted(hits, reply)) {
            Some(admitted) => admitted,
            None => panic!("no answer to so many hits: {reply:?}"),
        }
    }
}

/// A plain script with one key.
pub struct Plain<A> {
    script: &'static str,
    sha: String,
    /// What it takes after its key.
    arguments: A,
}

impl<A: Fn(Ask) -> Vec<String>> Plain<A> {
    /// This script.
    pub fn new(script: &'static str, arguments: A) -> Self {
        Self { script, sha: redis::Script::new(script).get_hash().to_owned(), arguments }
    }
}

impl<A: Fn(Ask) -> Vec<String> + Send + Sync> Side for Plain<A> {
    fn script(&self) -> String {
        self.script.to_owned()
    }

    fn take(&self, ask: Ask) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(1).arg(plain_key(ask.who)).arg((self.arguments)(ask));
        command
    }

    fn admits(&self, answer: &Value) -> bool {
        match answer {
            Value::Array(words) => words.first() == Some(&Value::Int(1)),
            // Of the hash of buckets: 1 is "over the limit".
            Value::Int(over) => *over == 0,
            other => panic!("a plain script: {other:?}"),
        }
    }
}

fn user(who: usize) -> String {
    format!("{who:08}")
}

/// The key of an identity for plain scripts: as long as slidegate's, so that naming is not what is compared.
pub fn plain_key(who: usize) -> String {
    format!("ratelimit:api:per-user:{{user={}}}", user(who))
}
