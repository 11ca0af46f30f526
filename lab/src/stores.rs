//! Decisions of a store, through the trait that all stores implement.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use slidegate::Store;
use slidegate::store::{Hit, Scope};

/// Returns the scope of the keys in benchmarks of stores: one attribute, the tenant.
pub fn new_tenant_scope() -> Scope {
    Scope::new("api", "per-tenant", "1d", &["tenant"])
}

/// Charges hits in a store. Returns `true` if the charge is allowed; `false` if it is denied, or if the store would
/// have to wait.
#[inline(always)]
pub fn charge_in_store(store: &impl Store, hits: &[Hit<'_>]) -> bool {
    match pin!(store.charge_async(hits)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(charge)) => charge.allowed,
        _ => false,
    }
}
