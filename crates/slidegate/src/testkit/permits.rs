//! Properties of permits, which bound the requests in flight.

use std::time::Duration;

use fastrand::Rng;

use super::properties::unwrap_store_response;
use crate::clock::{Clock, ManualClock, Timestamp};
use crate::hit::Hit;
use crate::key::{Key, Scope, Value};
use crate::limit::Limit;
use crate::store::{PermitChange, Receipt, Store};

/// A permit of the oracle, which keeps all permits forever.
#[derive(Debug)]
struct OraclePermit {
    receipt: Receipt,
    expires_at: Timestamp,
    is_released: bool,
}

impl OraclePermit {
    fn is_live(&self, now: Timestamp) -> bool {
        !self.is_released && now < self.expires_at
    }
}

/// Tests a store with requests that take a permit of a tenant and a permit of a user, together with a unit of a rate. An
/// oracle keeps all permits, and counts them one by one:
/// - Never more permits are live than the max of either limit.
/// - A request is admitted exactly if both limits have a free permit, and the rate has a free unit. A denied request takes
///   nothing.
/// - A release frees at once, and only once. A permit that is not live cannot be renewed.
/// - All permits are free after a silence of the time to live.
pub async fn permits_stay_below_max<S: Store>(store: &S, clock: &ManualClock, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let ttl = Duration::from_secs(rng.u64(1..100));
    let new_limit = |max| Limit::concurrent(max, ttl).unwrap_or_else(|_| Limit::deny_all());
    let (tenant_max, user_max) = (rng.u64(2..8), rng.u64(1..4));
    let (tenant_limit, user_limit) = (new_limit(tenant_max), new_limit(user_max));
    let Ok(rate): Result<Limit, _> = "100/h".parse() else { return };
    let [tenant_scope, user_scope, rate_scope] =
        ["tenant", "user", "rate"].map(|rule| Scope::new("test", rule, "in-flight", &["key"]));
    let tenant = [Value::Text("acme")];
    let names = ["ann", "bob", "eve"];
    let users = names.map(|name| [Value::Text(name)]);
    clock.set(Timestamp::from_micros(1_750_000_000_000_000));
    // All permits so far, each with the index of its user.
    let mut permits: Vec<(usize, OraclePermit)> = Vec::new();
    let mut charged_units = 0;
    for _ in 0..400 {
        // The ids of permits are times that are at least one microsecond apart, so the clock advances by as much.
        clock.advance(Duration::from_micros(1));
        let now = clock.now();
        let user = rng.usize(..users.len());
        let live = |user: Option<usize>| {
            let of_user =
                permits.iter().filter(|(holder, _)| user.is_none_or(|user| user == *holder));
            of_user.filter(|(_, permit)| permit.is_live(now)).count() as u64
        };
        let (of_tenant, of_user) = (live(None), live(Some(user)));
        assert!(of_tenant <= tenant_max && of_user <= user_max, "seed {seed}");
        let hits = [
            Hit::new(Key::new(&rate_scope, &tenant), &rate, 1),
            Hit::new(Key::new(&user_scope, &users[user]), &user_limit, 1),
            Hit::new(Key::new(&tenant_scope, &tenant), &tenant_limit, 1),
        ];
        match rng.u32(..10) {
            0..=3 => {
                let result = unwrap_store_response(store.charge_async(&hits).await);
                let fits = of_tenant < tenant_max && of_user < user_max && charged_units < 100;
                assert_eq!(result.allowed, fits, "seed {seed}: {of_tenant} and {of_user} live");
                if fits {
                    charged_units += 1;
                    let expires_at = now.after(ttl);
                    let permit =
                        OraclePermit { receipt: result.receipt, expires_at, is_released: false };
                    permits.push((user, permit));
                }
            }
            nth @ 4..=7 => {
                let Some(index) = rng.usize(..100).checked_rem(permits.len()) else { continue };
                let permit = &mut permits[index].1;
                let was_live = permit.is_live(now);
                let change = [PermitChange::Release, PermitChange::Renew][nth as usize % 2];
                let response = store.change_permit_async(&permit.receipt, change).await;
                assert_eq!(unwrap_store_response(response), was_live, "seed {seed}: {change:?}");
                match change {
                    PermitChange::Release => permit.is_released = true,
                    PermitChange::Renew if was_live => permit.expires_at = now.after(ttl),
                    PermitChange::Renew => {}
                }
            }
            8 => clock.advance(ttl.mul_f64(rng.f64() / 2.0)),
            _ => {
                let outcomes = unwrap_store_response(store.peek_async(&hits).await);
                let remaining = outcomes.iter().map(|outcome| outcome.remaining());
                let free = [100 - charged_units, user_max - of_user, tenant_max - of_tenant];
                assert!(remaining.eq(free), "seed {seed}: {outcomes:?}, expected {free:?}");
            }
        }
    }
    clock.advance(ttl);
    let hits = users.iter().map(|user| Hit::new(Key::new(&user_scope, user), &user_limit, 1));
    let hits: Vec<Hit<'_>> =
        hits.chain([Hit::new(Key::new(&tenant_scope, &tenant), &tenant_limit, 1)]).collect();
    let outcomes = unwrap_store_response(store.peek_async(&hits).await);
    for (outcome, hit) in outcomes.iter().zip(&hits) {
        assert_eq!(outcome.remaining(), hit.limit.capacity(), "seed {seed}: after a silence");
        assert_eq!(outcome.reset_after(), Duration::ZERO, "seed {seed}");
    }
}
