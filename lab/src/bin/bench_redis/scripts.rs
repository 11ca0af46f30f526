//! The compared scripts: slidegate's scripts, called as slidegate's store calls them, and plain scripts as commonly
//! published.

use std::error::Error;

use redis::{Cmd, Value};
use slidegate::store::{Hit, Key, Scope, Value as Attribute};
use slidegate::{Algorithm, Limit, Store, StoreError, Timestamp};
use slidegate_redis::bench_api::ScriptCaller;
use slidegate_redis::{RedisSettings, RedisStore};

/// A request for one unit of an identity. An identity is a user that is limited separately.
#[derive(Clone, Copy)]
pub struct UnitRequest {
    /// The number of the identity that requests the unit.
    pub identity: usize,
    /// The number of the request.
    pub nth: u64,
    /// The time of the request by the clock of the caller; `None` if Redis reads its own clock.
    pub now: Option<Timestamp>,
}

/// A Redis script: its source text, the command that calls it, and the meaning of its reply.
pub trait BenchScript: Send + Sync {
    /// Returns the Lua source text of the script.
    fn lua_source(&self) -> String;

    /// Returns the Redis command that calls the script for a request.
    fn new_call_command(&self, request: UnitRequest) -> Cmd;

    /// Returns `true` if the reply allows the request.
    fn reply_allows_request(&self, reply: &Value) -> bool;
}

/// The scripts of slidegate for a rule with one or more limits.
pub struct SlidegateScripts {
    caller: ScriptCaller,
    limits: Vec<(Scope, Limit)>,
}

impl SlidegateScripts {
    /// Creates the scripts of a rule whose limits have these quotas and this algorithm. They are called as a store with
    /// default settings calls them.
    pub fn new(quotas: &[&str], algorithm: Algorithm) -> Result<Self, Box<dyn Error>> {
        Self::with_settings(quotas, algorithm, &RedisSettings::default())
    }

    /// Creates the scripts of a rule whose limits have these quotas and this algorithm. They are called as a store with
    /// these settings calls them.
    pub fn with_settings(
        quotas: &[&str],
        algorithm: Algorithm,
        settings: &RedisSettings,
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

    /// Returns the command that charges units to an identity, even beyond the maximum. `limit` is the index of the
    /// limit that is charged.
    pub fn charge_command(&self, identity: usize, limit: usize, units: u64, now: Timestamp) -> Cmd {
        self.with_hits_for_identity(identity, |hits| {
            let hit = Hit { cost: units, ..hits[limit] }.reported();
            self.caller.take(Some(now), &[hit])
        })
    }

    /// Returns the Lua source text of the script that charges a single limit.
    pub fn single_limit_script(&self) -> String {
        self.with_hits_for_identity(0, |hits| self.caller.script(&hits[..1]).to_owned())
    }

    /// Requests one unit of an identity through a store. Returns `true` if the request is allowed.
    pub async fn take_from_store(
        &self,
        store: &RedisStore,
        identity: usize,
    ) -> Result<bool, StoreError> {
        let name = format_user_name(identity);
        let values = [name.as_str().into()];
        Ok(store.charge_async(&self.new_hits_for_values(&values)).await?.allowed)
    }

    fn with_hits_for_identity<T>(&self, identity: usize, call: impl FnOnce(&[Hit<'_>]) -> T) -> T {
        let name = format_user_name(identity);
        let values = [name.as_str().into()];
        call(&self.new_hits_for_values(&values))
    }

    fn new_hits_for_values<'a>(&'a self, values: &'a [Attribute<'a>]) -> Vec<Hit<'a>> {
        let hit = |(scope, limit)| Hit::new(Key::new(scope, values), limit, 1);
        self.limits.iter().map(|(scope, limit)| hit((scope, limit))).collect()
    }
}

impl BenchScript for SlidegateScripts {
    fn lua_source(&self) -> String {
        self.with_hits_for_identity(0, |hits| self.caller.script(hits).to_owned())
    }

    fn new_call_command(&self, request: UnitRequest) -> Cmd {
        self.with_hits_for_identity(request.identity, |hits| self.caller.take(request.now, hits))
    }

    fn reply_allows_request(&self, reply: &Value) -> bool {
        let Value::BulkString(bytes) = reply else { panic!("slidegate's script: {reply:?}") };
        match self.with_hits_for_identity(0, |hits| self.caller.is_admitted(hits, bytes)) {
            Some(admitted) => admitted,
            None => panic!("the reply does not match the hits: {bytes:?}"),
        }
    }
}

/// A commonly published script, which is called with one key.
pub struct PlainScript<A> {
    script: &'static str,
    sha: String,
    /// A function that returns the arguments that follow the key in the call for a request.
    arguments: A,
}

impl<A: Fn(UnitRequest) -> Vec<String>> PlainScript<A> {
    /// Creates a script. `script` is its Lua source text; `arguments` is a function that returns the arguments that
    /// follow the key in the call for a request.
    pub fn new(script: &'static str, arguments: A) -> Self {
        Self { script, sha: redis::Script::new(script).get_hash().to_owned(), arguments }
    }
}

impl<A: Fn(UnitRequest) -> Vec<String> + Send + Sync> BenchScript for PlainScript<A> {
    fn lua_source(&self) -> String {
        self.script.to_owned()
    }

    fn new_call_command(&self, request: UnitRequest) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(&self.sha)
            .arg(1)
            .arg(plain_key(request.identity))
            .arg((self.arguments)(request));
        command
    }

    fn reply_allows_request(&self, reply: &Value) -> bool {
        match reply {
            Value::Array(items) => items.first() == Some(&Value::Int(1)),
            // The script with a hash of buckets returns 1 if the request is over the limit.
            Value::Int(is_over) => *is_over == 0,
            other => panic!("a plain script: {other:?}"),
        }
    }
}

fn format_user_name(identity: usize) -> String {
    format!("{identity:08}")
}

/// Returns the key of an identity for a plain script. The key is as long as the key of slidegate, so that the key
/// length does not affect the comparison.
pub fn plain_key(identity: usize) -> String {
    format!("ratelimit:api:per-user:{{user={}}}", format_user_name(identity))
}

/// The window length of the two-key script in seconds: a day, so that no window ends during a run.
pub const DAY_S: u64 = 86_400;

/// Returns the two-key script, which runs GET twice, and then INCRBY and EXPIRE. Its windows last a day, and the caller
/// sends the time of each request.
pub fn two_keys_with_caller_clock(max: u64) -> impl BenchScript {
    PlainScript::new(include_str!("plain/counter.lua"), move |request: UnitRequest| {
        let now_s = request.now.map_or(0, Timestamp::as_micros) as f64 / 1e6;
        [format!("{now_s:.3}"), DAY_S.to_string(), max.to_string(), "1".into()].into()
    })
}

/// Returns the variant of the two-key script in which Redis reads its own clock. Its windows last a day.
pub fn two_keys_with_redis_clock(max: u64) -> impl BenchScript {
    PlainScript::new(include_str!("plain/counter_time.lua"), move |_: UnitRequest| {
        [DAY_S.to_string(), max.to_string(), "1".into()].into()
    })
}
