//! Releases and renewals of permits, which bound the requests in flight.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use slidegate::StoreError;
use slidegate::store::{Charge, PermitChange, Receipt};
use tokio::time::Instant;

use super::RedisStoreInner;
use crate::failure::Failure;
use crate::permit::PermitCall;
use crate::script_request::parse_counter_id;

impl RedisStoreInner {
    /// Releases or renews a permit, with one script call for each slot. Returns `true` if the permit was live. If its
    /// charges in one slot cannot be renewed, its charges in all slots are released.
    pub(super) async fn change_permit(
        &self,
        permit: &Receipt,
        change: PermitChange,
    ) -> Result<bool, StoreError> {
        let mut slots: BTreeMap<u16, Vec<&Charge>> = BTreeMap::new();
        for charge in permit.permit_charges() {
            let Some((key, _)) = parse_counter_id(&charge.counter) else { return Ok(false) };
            slots.entry(self.topology.slot(key)).or_default().push(charge);
        }
        let was_live = self.change_permit_in_slots(&slots, change).await?;
        if change == PermitChange::Renew && !was_live && slots.len() > 1 {
            self.change_permit_in_slots(&slots, PermitChange::Release).await?;
        }
        Ok(was_live)
    }

    /// Releases or renews the charges of a permit, in all slots concurrently. Returns `true` if all of them were live.
    async fn change_permit_in_slots(
        &self,
        slots: &BTreeMap<u16, Vec<&Charge>>,
        change: PermitChange,
    ) -> Result<bool, StoreError> {
        let deadline = self.new_request_deadline();
        let margin_ms = self.keyspace.permit_expiry_margin_ms();
        let calls = slots.iter().map(|(slot, charges)| {
            self.run_permit_call(
                *slot,
                PermitCall { change, charges: charges.clone(), margin_ms },
                deadline,
            )
        });
        let parts = join_all(calls).await;
        let mut was_live = true;
        for part in parts {
            was_live &= part.map_err(|failure| match slots.len() {
                0 | 1 => Failure::into_error(failure),
                _ => failure.into_partial_call_failure().into_error(),
            })?;
        }
        Ok(was_live)
    }

    async fn run_permit_call(
        &self,
        slot: u16,
        call: PermitCall<'_>,
        deadline: Instant,
    ) -> Result<bool, Failure> {
        self.topology.run_operation(slot, &call, deadline).await
    }
}
