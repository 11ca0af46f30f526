//! The comparison of the names of a layer with the names of its policy, when the layer is created.

use std::sync::Arc;

use slidegate::{Gate, Store};

use super::RateLimitLayer;
use crate::extract::Attributes;
use crate::names::NamesError;

impl RateLimitLayer {
    /// Creates a layer as [`new`](Self::new) does, and [checks its names](Self::check_names).
    ///
    /// ```
    /// use slidegate::{Gate, MemoryStore, Policy};
    /// use slidegate_tower::{Attributes, RateLimitLayer, extract};
    ///
    /// let policy = Policy::from_yaml("rules: [{ name: a, per: [user_id], limits: [10/s] }]")?;
    /// let attributes = Attributes::new().with("user", extract::header("x-user"));
    /// let layer = RateLimitLayer::try_new(Gate::new(policy, MemoryStore::new()), attributes);
    /// let error = layer.err().map(|error| error.to_string());
    /// assert_eq!(
    ///     error.as_deref(),
    ///     Some("rule `a`: no extractor provides `user_id`, so the rule never applies; \
    ///           did you mean `user`? the extractors are `user`; no rule uses `user`")
    /// );
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    ///
    /// # Errors
    /// If a limit never applies because of a name.
    pub fn try_new<S: Store>(
        gate: impl Into<Arc<Gate<S>>>,
        attributes: Attributes,
    ) -> Result<Self, NamesError> {
        let layer = Self::new(gate, attributes);
        layer.check_names()?;
        Ok(layer)
    }
}

impl<R> RateLimitLayer<R> {
    /// Compares the names of the layer with the names of the policy. Call it after [`cost`](Self::cost). These are problems:
    ///
    /// - A rule of the [domain](Attributes::domain) uses an attribute that no extractor provides, in `per`, `when`,
    ///   `overrides` or `descriptor`. Of alternatives such as `api_key|ip`, one is enough, unless an extractor that no rule
    ///   uses has a similar name.
    /// - No rule has the domain, although the policy has rules.
    /// - No rule charges a [named cost](Attributes::named_cost), or the layer's [`cost`](Self::cost).
    ///
    /// An extractor that no rule uses is no error, because a policy changes without a build.
    ///
    /// # Errors
    /// If a limit never applies, or a cost has no effect, because of a name.
    pub fn check_names(&self) -> Result<(), NamesError> {
        self.config.backend.check_names(&self.config.options)
    }
}
