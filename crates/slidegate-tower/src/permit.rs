//! The permit of a request in flight, which is renewed until it is dropped, and then released.

use std::fmt;
use std::sync::Arc;

use slidegate::Permit;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::backend::Backend;

/// The number of renewals of a permit within its time to live: with 3, two of them may fail before the permit expires.
const RENEWALS_PER_TTL: u32 = 3;

/// The permit of a request in flight. [`RateLimit`](crate::RateLimit) adds it to the extensions of the response. When the
/// last clone is dropped, the permit is released.
///
/// [`RateLimitLayer::hold_permits`](crate::RateLimitLayer::hold_permits) moves it into the body of the response. An outer
/// layer whose work outlives the response can keep a clone of it.
#[derive(Clone)]
pub struct HeldPermit(
    #[expect(dead_code, reason = "released when it is dropped")] Arc<PermitHolder>,
);

struct PermitHolder {
    backend: Arc<dyn Backend>,
    /// `None` once the permit has been released.
    permit: Option<Permit>,
    /// The task that renews the permit; `None` outside of a tokio runtime.
    renewal: Option<AbortHandle>,
}

impl HeldPermit {
    /// Holds a permit, and renews it in a tokio task. Outside of a tokio runtime, it is not renewed.
    pub(crate) fn new(backend: Arc<dyn Backend>, permit: Permit) -> Self {
        let renewal = Handle::try_current().ok().map(|runtime| {
            runtime.spawn(renew_until_expired(backend.clone(), permit.clone())).abort_handle()
        });
        Self(Arc::new(PermitHolder { backend, permit: Some(permit), renewal }))
    }
}

/// Renews a permit until it is not live any more.
async fn renew_until_expired(backend: Arc<dyn Backend>, permit: Permit) {
    let interval = permit.ttl() / RENEWALS_PER_TTL;
    loop {
        sleep(interval).await;
        if !backend.clone().renew(permit.clone()).await {
            return;
        }
    }
}

impl Drop for PermitHolder {
    fn drop(&mut self) {
        if let Some(renewal) = &self.renewal {
            renewal.abort();
        }
        if let Some(permit) = self.permit.take() {
            self.backend.release(permit);
        }
    }
}

impl fmt::Debug for HeldPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldPermit").finish_non_exhaustive()
    }
}
