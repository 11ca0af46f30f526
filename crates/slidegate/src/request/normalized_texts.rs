//! Normalized attribute values of a descriptor, which the rules that match it borrow.

use std::sync::OnceLock;

/// The normalized values of the attributes of a descriptor. A policy reload can apply a second normalization to it.
#[derive(Clone, Debug, Default)]
pub(super) struct NormalizedTexts(OnceLock<Box<CachedNormalization>>);

#[derive(Clone, Debug)]
struct CachedNormalization {
    /// Identifies the normalization.
    id: u64,
    /// One entry per attribute; `None` if the normalized value is a part of the value.
    texts: Box<[Option<Box<str>>]>,
    of_others: NormalizedTexts,
}

impl NormalizedTexts {
    /// Returns the texts of the normalization `id`. Computes them on first use.
    pub(super) fn get_or_compute(
        &self,
        id: u64,
        compute: impl Fn() -> Box<[Option<Box<str>>]>,
    ) -> &[Option<Box<str>>] {
        let mut slot = self;
        loop {
            let new = || {
                let of_others = Self::default();
                Box::new(CachedNormalization { id, texts: compute(), of_others })
            };
            match &**slot.0.get_or_init(new) {
                found if found.id == id => return &found.texts,
                other => slot = &other.of_others,
            }
        }
    }
}
