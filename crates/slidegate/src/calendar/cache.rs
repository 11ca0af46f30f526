//! The period of the last decision with a calendar, the previous period and the next one. A decision reads them without
//! a lock.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::PeriodSpan;

/// The number of words that a cache stores: number and start of the previous, the current and the next period, and the
/// end of the next one. A period ends where the next one begins.
const CACHED_WORDS: usize = 7;

/// A sequence lock that never waits: a reader gets no period while a writer replaces the periods, and then computes the
/// period itself.
#[derive(Default)]
pub(super) struct PeriodCache {
    /// Odd while a writer changes the words.
    version: AtomicU64,
    words: [AtomicU64; CACHED_WORDS],
}

impl PeriodCache {
    /// Returns the cached period; `None` if there is none yet, or if another thread is replacing it.
    pub(super) fn current(&self) -> Option<PeriodSpan> {
        self.read(|words| {
            let word = |index: usize| words[index].load(Ordering::Relaxed);
            PeriodSpan { number: word(2), start_us: word(3), end_us: word(5) }
        })
    }

    /// Returns the previous, the current and the next period; `None` if there are none, or if they are being replaced.
    pub(super) fn periods(&self) -> Option<[PeriodSpan; 3]> {
        let spans = self.read(|words| {
            let word = |index: usize| words[index].load(Ordering::Relaxed);
            [0, 2, 4].map(|at| PeriodSpan {
                number: word(at),
                start_us: word(at + 1),
                end_us: word((at + 3).min(CACHED_WORDS - 1)),
            })
        })?;
        Some(spans)
    }

    fn read<T>(&self, read: impl Fn(&[AtomicU64; CACHED_WORDS]) -> T) -> Option<T> {
        let version = self.version.load(Ordering::Acquire);
        if version == 0 || !version.is_multiple_of(2) {
            return None;
        }
        let value = read(&self.words);
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == version).then_some(value)
    }

    /// Replaces the periods, unless another thread is replacing them.
    pub(super) fn replace(&self, [previous, current, next]: &[PeriodSpan; 3]) {
        let version = self.version.load(Ordering::Relaxed);
        let is_locked = version.is_multiple_of(2)
            && self
                .version
                .compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if !is_locked {
            return;
        }
        fence(Ordering::Release);
        let words = [
            previous.number,
            previous.start_us,
            current.number,
            current.start_us,
            next.number,
            next.start_us,
            next.end_us,
        ];
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(number: u64) -> [PeriodSpan; 3] {
        [number, number + 1, number + 2].map(|number| PeriodSpan {
            number,
            start_us: number * 10,
            end_us: number * 10 + 10,
        })
    }

    #[test]
    fn cache_returns_replaced_periods() {
        let cache = PeriodCache::default();
        assert_eq!((cache.current(), cache.periods()), (None, None));
        for number in [3, 9, 4] {
            cache.replace(&spans(number));
            assert_eq!(cache.periods(), Some(spans(number)));
            assert_eq!(cache.current(), Some(spans(number)[1]));
        }
    }

    #[test]
    fn concurrent_reader_sees_periods_of_one_write() {
        let cache = PeriodCache::default();
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let cache = &cache;
                scope.spawn(move || {
                    (0..20_000).for_each(|number| cache.replace(&spans(2 * number + writer)));
                });
            }
            for _ in 0..20_000 {
                if let Some(seen) = cache.periods() {
                    assert_eq!(seen, spans(seen[0].number));
                }
            }
        });
    }
}
