//! How answers over HTTP are counted.

use opentelemetry::KeyValue;

use super::answer::Reply;
use super::problem::Problem;
use crate::decisions::Told;
use crate::watch::metrics::Answered;

impl Told for Result<Reply, Problem> {
    fn answered(&self) -> Answered {
        self.as_ref().map_or_else(Problem::answered, |reply| reply.answered)
    }

    fn code(&self) -> KeyValue {
        let status = self.as_ref().map_or_else(Problem::status, |reply| reply.response.status());
        KeyValue::new("http.response.status_code", i64::from(status.as_u16()))
    }
}
