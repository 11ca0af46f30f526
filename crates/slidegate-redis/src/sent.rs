//! What a store sends, for who sends it in another way: the lab's benchmark.

use redis::Cmd;
use slidegate::{Hit, Timestamp};

use crate::call::{Mode, Wording};
use crate::connect::Settings;
use crate::reply;
use crate::script::Scripts;
use crate::store::command;

/// Makes the calls that a store with these settings makes.
#[derive(Debug)]
pub struct Caller {
    wording: Wording,
    scripts: Scripts,
}

impl Caller {
    /// As a store with these settings.
    pub fn new(settings: &Settings) -> Self {
        Self { wording: Wording::of(settings), scripts: Scripts::new() }
    }

    /// Takes hits, by a script that Redis has to know.
    pub fn take(&self, now: Option<Timestamp>, hits: &[Hit<'_>]) -> Cmd {
        let call = self.wording.ask(&self.scripts, Mode::Take, now, hits);
        command("EVALSHA", &call.script.sha, &call)
    }

    /// The script that takes hits.
    pub fn script(&self, hits: &[Hit<'_>]) -> &str {
        &self.wording.ask(&self.scripts, Mode::Take, None, hits).script.text
    }

    /// The key of a hit.
    pub fn key(&self, hit: &Hit<'_>) -> String {
        self.wording.key(hit)
    }

    /// Whether the answer admits these hits. None if it is no answer to them.
    pub fn admits(&self, hits: &[Hit<'_>], reply: &[u8]) -> Option<bool> {
        Some(slidegate::store::admits(hits, &reply::outcomes(hits, reply)?))
    }
}
