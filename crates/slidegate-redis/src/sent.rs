//! What a store sends, for who sends it in another way: the lab's benchmark.

use redis::Cmd;
use slidegate::{Hit, Timestamp};

use crate::ask::{Ask, Mode, Wording};
use crate::call;
use crate::connect::Settings;
use crate::reply::Answer;
use crate::script::Scripts;

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

    fn ask(&self, hits: &[Hit<'_>]) -> Ask {
        self.wording.ask(Mode::Take, hits)
    }

    /// Takes hits, by a script that Redis has to know.
    pub fn take(&self, now: Option<Timestamp>, hits: &[Hit<'_>]) -> Cmd {
        let ask = self.ask(hits);
        let call = call::decide(&self.scripts, now, self.wording.keep_s, &[&ask]);
        call.command("EVALSHA", &call.script.sha)
    }

    /// The script that takes hits.
    pub fn script(&self, hits: &[Hit<'_>]) -> &str {
        let ask = self.ask(hits);
        &call::decide(&self.scripts, None, self.wording.keep_s, &[&ask]).script.text
    }

    /// The key of a hit.
    pub fn key(&self, hit: &Hit<'_>) -> String {
        self.wording.key(hit)
    }

    /// Whether the answer admits these hits. None if it is no answer to them.
    pub fn admits(&self, hits: &[Hit<'_>], reply: &[u8]) -> Option<bool> {
        Some(Answer::read(hits.len(), reply).ok()?.admits(&self.ask(hits).hits))
    }
}
