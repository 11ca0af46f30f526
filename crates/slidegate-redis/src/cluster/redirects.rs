//! Redirections: a node redirects a call if it does not have the slot of its keys.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Cluster;
use crate::failure::{Failure, Redirect};
use crate::node::{BatchKey, Node};

/// Maximum number of redirections that a call follows.
const MAX_REDIRECTS_PER_CALL: usize = 5;

/// Delay before a call is retried because its slot is being migrated and only some of its keys have moved.
const SLOT_MIGRATION_RETRY_DELAY: Duration = Duration::from_millis(1);

impl Cluster {
    /// Sends a call to the master of a slot and follows redirections. A redirected call has charged nothing, so it can be
    /// sent again.
    pub async fn call_master<T, F>(
        &self,
        slot: u16,
        deadline: Instant,
        send: impl Fn(Arc<Node>, BatchKey) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut batch_key = BatchKey { slot, ..BatchKey::default() };
        let mut node = self.master(slot, deadline).await?;
        let mut redirects = 0;
        loop {
            let redirect = match send(node.clone(), batch_key).await {
                Err(Failure::Redirect(redirect)) => redirect,
                Err(failure) => {
                    if matches!(failure, Failure::Server(_)) {
                        self.request_refresh();
                    }
                    return Err(failure);
                }
                result => return result,
            };
            match &redirect {
                Redirect::Moved(_) | Redirect::Ask(_) if redirects == MAX_REDIRECTS_PER_CALL => {
                    return Err(Failure::Redirect(redirect));
                }
                Redirect::Moved(address) => {
                    self.request_refresh();
                    node = self.redirect_target(&node, address)?;
                    (batch_key.is_asking, redirects) = (false, redirects + 1);
                }
                Redirect::Ask(address) => {
                    node = self.redirect_target(&node, address)?;
                    (batch_key.is_asking, redirects) = (true, redirects + 1);
                }
                Redirect::TryAgain if Instant::now() + SLOT_MIGRATION_RETRY_DELAY >= deadline => {
                    return Err(Failure::Redirect(redirect));
                }
                Redirect::TryAgain => {
                    // The first retry is for this request alone, whose keys may all be on one node. Further retries
                    // wait.
                    if batch_key.one_request_per_call {
                        sleep(SLOT_MIGRATION_RETRY_DELAY).await;
                    }
                    node = self.master(slot, deadline).await?;
                    (batch_key.is_asking, batch_key.one_request_per_call) = (false, true);
                }
            }
        }
    }
}
