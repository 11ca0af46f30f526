//! The state of the compilation of one policy file. Other files of this folder add methods to [`Compiler`] that compile
//! the parts of a policy.
//!
//! Every error is added to the diagnostics, and the compilation continues, so that one run reports all errors.

use std::fmt;

use super::suggest::format_did_you_mean;
use crate::limit::Limit;
use crate::policy::error::{Diagnostics, SourceSpan};
use crate::policy::normalization::Normalizations;
use crate::policy::pattern::Pattern;
use crate::policy::route::Routes;

/// The maximum number of comparison steps for one policy. This many steps take about one second. The comparisons find
/// conditions that can never be met, and corrections that error messages suggest. If a policy needs more steps, some of
/// these errors and corrections are not found.
const MAX_COMPARISON_STEPS: usize = 200_000_000;

/// A function that checks whether the store supports a limit. The error contains the reason why the store does not
/// support it.
pub(super) type LimitSupportCheck<'b> = dyn Fn(&Limit) -> Result<(), String> + 'b;

/// A compiler that converts the specs of a policy file into rules and collects the errors.
pub(super) struct Compiler<'s> {
    diagnostics: &'s Diagnostics<'s>,
    supports: &'s LimitSupportCheck<'s>,
    pub(super) routes: Routes,
    /// Number of key scopes that the rules compiled so far need: one for each limit and each combination of attribute
    /// names in `per`.
    pub(super) scope_count: usize,
    /// Number of comparison steps that remain of [`MAX_COMPARISON_STEPS`].
    remaining_steps: usize,
    pub(super) normalizations: Normalizations,
    /// The domain of the rule that is being compiled.
    pub(super) domain: Box<str>,
    /// Whether the rule that is being compiled has the field `descriptor`. The attributes of such a rule may have any
    /// names and values.
    pub(super) has_descriptor: bool,
}

impl<'s> Compiler<'s> {
    /// Creates a compiler that adds its errors to `diagnostics`, which already contains the errors of the
    /// deserialization.
    pub(super) fn new(
        diagnostics: &'s Diagnostics<'s>,
        supports: &'s LimitSupportCheck<'s>,
    ) -> Self {
        Self {
            diagnostics,
            supports,
            routes: Routes::default(),
            scope_count: 0,
            remaining_steps: MAX_COMPARISON_STEPS,
            normalizations: Normalizations::default(),
            domain: Box::default(),
            has_descriptor: false,
        }
    }

    pub(super) fn report(&mut self, at: SourceSpan, message: impl fmt::Display) {
        self.diagnostics.push(at, message);
    }

    /// Returns the value of a result. If the result is an error, reports it at position `at` and returns `None`.
    pub(super) fn ok_or_report<T>(
        &mut self,
        at: SourceSpan,
        result: Result<T, impl fmt::Display>,
    ) -> Option<T> {
        result.map_err(|error| self.report(at, error)).ok()
    }

    /// Reports an error at position `at` if the store does not support the limit.
    pub(super) fn report_unsupported_limit(&mut self, limit: &Limit, at: SourceSpan) {
        self.ok_or_report(at, (self.supports)(limit));
    }

    /// Returns whether the store supports a limit.
    pub(super) fn store_supports(&self, limit: &Limit) -> bool {
        (self.supports)(limit).is_ok()
    }

    /// Subtracts `steps` from the remaining comparison steps and returns `true`. Returns `false` and subtracts nothing
    /// if fewer steps remain.
    pub(super) fn spend_comparison_steps(&mut self, steps: usize) -> bool {
        let remaining = self.remaining_steps.checked_sub(steps);
        self.remaining_steps = remaining.unwrap_or(self.remaining_steps);
        remaining.is_some()
    }

    /// Reports an error if the value of a condition on `route` matches none of the policy's `routes`. Does nothing if
    /// the policy has no `routes`, since callers then send the attribute `route` themselves.
    pub(super) fn report_unlisted_route(&mut self, text: &str, pattern: &Pattern, at: SourceSpan) {
        let route_count = self.routes.templates().len();
        let bytes: usize = self.routes.templates().map(str::len).sum();
        let (matches_route, steps): (&dyn Fn(&str) -> bool, _) = match pattern {
            Pattern::Glob(glob) => (&|route| glob.matches(route), bytes),
            _ => (&|route| route == text, route_count),
        };
        if route_count == 0 || !self.spend_comparison_steps(steps) {
            return;
        }
        if self.routes.templates().any(matches_route) {
            return;
        }
        // Suggestions are searched only while more than half of the steps remain, because finding errors is more
        // useful.
        let can_suggest = self.remaining_steps > MAX_COMPARISON_STEPS / 2;
        let mut remedy =
            if can_suggest && self.spend_comparison_steps(text.len().saturating_mul(bytes)) {
                format_did_you_mean(text, self.routes.templates())
            } else {
                String::new()
            };
        if remedy.is_empty() {
            remedy.push_str("; add it there, or write one of `routes`");
        }
        self.report(at, format_args!("`{text}` is not listed in `routes`{remedy}"));
    }
}
