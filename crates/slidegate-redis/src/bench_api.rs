//! Builds the script calls of a [`RedisStore`](crate::RedisStore) without sending them, for benchmarks in the lab that
//! use their own connection.

use redis::Cmd;
use slidegate::Timestamp;
use slidegate::store::Hit;

use crate::call;
use crate::reply::ScriptReply;
use crate::script::Scripts;
use crate::script_request::{RedisKeyspace, ScriptMode, ScriptRequest};
use crate::settings::RedisSettings;

/// A builder of the script calls that a store would send, and a decoder of their replies.
#[derive(Debug)]
pub struct ScriptCaller {
    keyspace: RedisKeyspace,
    scripts: Scripts,
}

impl ScriptCaller {
    /// Creates a builder of the calls that a store with these settings would send.
    pub fn new(settings: &RedisSettings) -> Self {
        Self {
            keyspace: RedisKeyspace::new(settings, std::sync::Arc::default()),
            scripts: Scripts::new(),
        }
    }

    /// Creates the request of a script call that charges the hits.
    fn build_charging_request(&self, hits: &[Hit<'_>]) -> ScriptRequest {
        ScriptRequest { mode: ScriptMode::Take, hits: self.keyspace.keyed_hits(hits) }
    }

    /// Builds the `EVALSHA` command that charges the hits. Redis must have loaded the script before. `None` for `now`
    /// selects the clock of Redis.
    pub fn take(&self, now: Option<Timestamp>, hits: &[Hit<'_>]) -> Cmd {
        let request = self.build_charging_request(hits);
        let call =
            call::build_decide_call(&self.scripts, now, self.keyspace.expiry_margin_s, &[&request]);
        call.command("EVALSHA", &call.script.sha)
    }

    /// Returns the source text of the script that [`take`](Self::take) calls for these hits.
    pub fn script(&self, hits: &[Hit<'_>]) -> &str {
        let request = self.build_charging_request(hits);
        &call::build_decide_call(&self.scripts, None, self.keyspace.expiry_margin_s, &[&request])
            .script
            .text
    }

    /// Returns the Redis key of a hit's counter.
    pub fn key(&self, hit: &Hit<'_>) -> String {
        self.keyspace.key(hit)
    }

    /// Returns `Some(true)` if the reply admits a request of these hits, `Some(false)` if the reply denies it, and
    /// `None` if the reply cannot be decoded as a reply to these hits.
    pub fn is_admitted(&self, hits: &[Hit<'_>], reply: &[u8]) -> Option<bool> {
        Some(
            ScriptReply::decode(hits.len(), reply)
                .ok()?
                .is_admitted(&self.build_charging_request(hits).hits),
        )
    }
}
