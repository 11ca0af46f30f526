//! The calls of a store, for benchmarks in the lab that send them over another connection.

use redis::Cmd;
use slidegate::{Hit, Timestamp};

use crate::call;
use crate::connect::Settings;
use crate::reply::ScriptReply;
use crate::script::Scripts;
use crate::script_request::{RedisKeyspace, ScriptMode, ScriptRequest};

/// Builds the calls of a store and decodes their replies.
#[derive(Debug)]
pub struct ScriptCaller {
    keyspace: RedisKeyspace,
    scripts: Scripts,
}

impl ScriptCaller {
    /// Creates a caller that behaves like a store with these settings.
    pub fn new(settings: &Settings) -> Self {
        Self { keyspace: RedisKeyspace::new(settings), scripts: Scripts::new() }
    }

    /// Creates the request for hits.
    fn request(&self, hits: &[Hit<'_>]) -> ScriptRequest {
        self.keyspace.request(ScriptMode::Take, hits)
    }

    /// Builds the call that takes hits, with a script that Redis must have loaded.
    pub fn take(&self, now: Option<Timestamp>, hits: &[Hit<'_>]) -> Cmd {
        let request = self.request(hits);
        let call =
            call::build_decide(&self.scripts, now, self.keyspace.expiry_margin_s, &[&request]);
        call.command("EVALSHA", &call.script.sha)
    }

    /// Returns the script that takes hits.
    pub fn script(&self, hits: &[Hit<'_>]) -> &str {
        let request = self.request(hits);
        &call::build_decide(&self.scripts, None, self.keyspace.expiry_margin_s, &[&request])
            .script
            .text
    }

    /// Returns the key of a hit.
    pub fn key(&self, hit: &Hit<'_>) -> String {
        self.keyspace.key(hit)
    }

    /// Returns whether the reply admits these hits, or `None` if it does not match them.
    pub fn is_admitted(&self, hits: &[Hit<'_>], reply: &[u8]) -> Option<bool> {
        Some(ScriptReply::decode(hits.len(), reply).ok()?.is_admitted(&self.request(hits).hits))
    }
}
