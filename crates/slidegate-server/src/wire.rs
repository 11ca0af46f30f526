//! The one place that picks a store.

use slidegate::{Gate, MemoryStore, SystemClock};

use crate::settings::Settings;

/// Where counts live.
pub type Store = MemoryStore;

/// A gate that enforces the policy by the store of the settings.
pub fn gate(settings: Settings) -> Gate<Store> {
    let store = MemoryStore::with(SystemClock::new(), settings.max_keys.get());
    Gate::new(settings.policy, store)
}
