//! Locks and atomics for the memory store. They come from parking_lot and std. With `--cfg shuttle`, they come from
//! shuttle, a test tool that explores thread schedules.

#[cfg(not(shuttle))]
pub(crate) use {
    parking_lot::{Mutex, MutexGuard},
    std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering},
};

#[cfg(shuttle)]
pub(crate) use {
    shuttle::sync::MutexGuard,
    shuttle::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering},
    shuttle_mutex::Mutex,
};

#[cfg(shuttle)]
mod shuttle_mutex {
    /// A mutex of shuttle, without poisoning, that has the same methods as the mutex of parking_lot.
    pub struct Mutex<T>(shuttle::sync::Mutex<T>);

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
