//! The locks and atomics of the memory store: from parking_lot and std, or, with `--cfg shuttle`, from shuttle, which
//! explores thread schedules.

#[cfg(not(shuttle))]
pub(crate) use {
    parking_lot::{Mutex, MutexGuard},
    std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

#[cfg(shuttle)]
pub(crate) use {
    shuttle::sync::MutexGuard,
    shuttle::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    shuttle_mutex::Mutex,
};

#[cfg(shuttle)]
mod shuttle_mutex {
    /// shuttle's mutex without poisoning, with the interface of parking_lot's.
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> super::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
        }

        pub(crate) fn try_lock(&self) -> Option<super::MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}
