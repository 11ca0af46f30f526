//! The answer as JSON. Not by serde: it looks at every letter of every name, which takes as long as to decide. That it
//! is what serde would write, a test says.

use std::io;

use slidegate::Reason;

use super::{Answer, Limit, Standing};

/// Writes JSON behind what is there.
struct Writer<'o>(&'o mut Vec<u8>);

impl Answer<'_> {
    /// Writes it behind what is there.
    pub fn write(&self, json: &mut Vec<u8>) -> io::Result<()> {
        let mut to = Writer(json);
        to.raw(r#"{"allowed":"#);
        to.truth(self.allowed);
        to.raw(r#","reason":"#);
        to.or_null(self.reason.map(Reason::name), Writer::text)?;
        to.raw(r#","rule":"#);
        to.or_null(self.rule, Writer::text)?;
        to.raw(r#","limit":"#);
        to.or_null(self.limit.as_ref(), |to, limit| limit.write(to))?;
        to.raw(r#","remaining":"#);
        to.or_null(self.remaining, Writer::number)?;
        to.raw(r#","reset_after_ms":"#);
        to.or_null(self.reset_after_ms, Writer::number)?;
        to.raw(r#","retry_after_ms":"#);
        to.or_null(self.retry_after_ms, Writer::number)?;
        to.raw(r#","degraded":"#);
        to.truth(self.degraded);
        to.raw(r#","limits":["#);
        for (nth, standing) in self.limits.iter().enumerate() {
            to.raw(if nth == 0 { "" } else { "," });
            standing.write(&mut to)?;
        }
        to.raw("]}");
        Ok(())
    }
}

impl Standing<'_> {
    fn write(&self, to: &mut Writer<'_>) -> io::Result<()> {
        to.raw(r#"{"rule":"#);
        to.text(self.rule)?;
        to.raw(r#","limit":"#);
        self.limit.write(to)?;
        to.raw(r#","algorithm":"#);
        to.text(self.algorithm)?;
        to.raw(r#","allowed":"#);
        to.truth(self.allowed);
        to.raw(r#","observed":"#);
        to.truth(self.observed);
        to.raw(r#","remaining":"#);
        to.number(self.remaining)?;
        to.raw(r#","reset_after_ms":"#);
        to.number(self.reset_after_ms)?;
        to.raw(r#","retry_after_ms":"#);
        to.or_null(self.retry_after_ms, Writer::number)?;
        to.raw("}");
        Ok(())
    }
}

impl Limit<'_> {
    fn write(&self, to: &mut Writer<'_>) -> io::Result<()> {
        to.raw(r#"{"name":"#);
        to.text(self.name)?;
        to.raw(r#","max":"#);
        to.number(self.max)?;
        to.raw(r#","window_ms":"#);
        to.number(self.window_ms)?;
        to.raw("}");
        Ok(())
    }
}

impl Writer<'_> {
    fn raw(&mut self, json: &str) {
        self.0.extend_from_slice(json.as_bytes());
    }

    fn truth(&mut self, is_so: bool) {
        self.raw(if is_so { "true" } else { "false" });
    }

    fn number(&mut self, number: u64) -> io::Result<()> {
        self.raw(itoa::Buffer::new().format(number));
        Ok(())
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        if text.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
            return Ok(serde_json::to_writer(&mut *self.0, text)?);
        }
        self.raw("\"");
        self.raw(text);
        self.raw("\"");
        Ok(())
    }

    fn or_null<T>(
        &mut self,
        value: Option<T>,
        write: impl FnOnce(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        match value {
            Some(value) => write(self, value),
            None => {
                self.raw("null");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A rule's name, a limit's, and what they say.
    type Drawn = (String, String, [bool; 2], [u64; 4], Option<u64>);

    fn standing(drawn: &Drawn) -> Standing<'_> {
        let (rule, name, [allowed, observed], [max, window_ms, remaining, reset_after_ms], wait) =
            drawn;
        Standing {
            rule,
            limit: Limit { name, max: *max, window_ms: *window_ms },
            algorithm: "sliding_window",
            allowed: *allowed,
            observed: *observed,
            remaining: *remaining,
            reset_after_ms: *reset_after_ms,
            retry_after_ms: *wait,
        }
    }

    proptest! {
        #[test]
        fn it_is_what_serde_would_write(
            drawn in vec(any::<Drawn>(), 0..3),
            allowed: bool,
            degraded: bool,
        ) {
            let binding = drawn.first().map(standing);
            let answer = Answer {
                allowed,
                reason: (!allowed).then_some(Reason::LimitExceeded),
                rule: binding.as_ref().map(|standing| standing.rule),
                remaining: binding.as_ref().map(|standing| standing.remaining),
                reset_after_ms: binding.as_ref().map(|standing| standing.reset_after_ms),
                retry_after_ms: binding.as_ref().and_then(|standing| standing.retry_after_ms),
                limit: binding.map(|standing| standing.limit),
                degraded,
                limits: drawn.iter().map(standing).collect(),
            };
            let mut json = Vec::new();
            answer.write(&mut json).unwrap();
            prop_assert_eq!(String::from_utf8(json).unwrap(), serde_json::to_string(&answer).unwrap());
        }
    }
}
