//! The attributes of one descriptor in the form in which rules match them: with a route, and with normalized values.
//!
//! A value that is too long for a key is hashed at most once per descriptor.

use std::cell::{Cell, RefCell};
use std::iter;

use super::normalization::DomainNormalization;
use super::route::Routes;
use crate::key::{MAX_VALUE_BYTES, ShortenedValue, Value};
use crate::quota::Quota;
use crate::request::Descriptor;

/// Name of the attribute `route`, which is derived from the attribute `path` unless the descriptor has a route.
const ROUTE_ATTRIBUTE: &str = "route";

/// The names and values of the attributes of a descriptor, prepared for matching. If the descriptor has no attribute
/// `route`, the route is derived from its attribute `path`.
pub(crate) struct DescriptorAttributes<'r, 'd> {
    /// Names and values of the attributes in the descriptor. A route that is derived from the path is not included.
    pub(super) pairs: &'d [(&'r str, &'r str)],
    routes: &'r Routes,
    /// Cache of the route template that matches the attribute `path`. The outer `None` means that the search has not
    /// run yet, the inner `None` that no template matches. The search runs on first use, because not every request is
    /// compared with a rule that uses the route.
    route: Cell<Option<Option<&'r str>>>,
    /// Whether the descriptor is exact. An exact descriptor matches only rules that name all of its attributes.
    pub(super) is_exact: bool,
    /// The limit that the descriptor contains; it replaces the limits of the rules.
    pub(super) limit: Option<Quota>,
    /// The original bytes of attribute values that are not UTF-8, by attribute name.
    bytes: &'d [(&'r str, &'r [u8])],
    normalization: Option<&'d DomainNormalization>,
    /// Cache of shortened attribute values, by attribute name. A long value is hashed only once, even if several rules
    /// count by it.
    shortened: RefCell<Vec<(&'r str, ShortenedValue<'r>)>>,
}

impl<'r, 'd> DescriptorAttributes<'r, 'd> {
    /// Creates the attributes of a descriptor. `normalized` contains their names and normalized values. If it is
    /// `None`, the names and values in the descriptor are used unchanged.
    pub(super) fn new<'a: 'r>(
        descriptor: &'d Descriptor<'a>,
        normalized: Option<&'d [(&'r str, &'r str)]>,
        normalization: Option<&'d DomainNormalization>,
        routes: &'r Routes,
    ) -> Self {
        let pairs = normalized.unwrap_or(descriptor.attribute_pairs());
        let Descriptor { is_exact, limit, .. } = *descriptor;
        let (bytes, shortened) = (descriptor.non_utf8_attributes(), RefCell::default());
        let route = Cell::new(None);
        Self { pairs, routes, route, is_exact, limit, bytes, normalization, shortened }
    }

    /// Returns the value of an attribute; `None` if the descriptor does not have the attribute.
    pub(super) fn get(&self, name: &str) -> Option<&'r str> {
        match self.find_value_in_descriptor(name) {
            None if name == ROUTE_ATTRIBUTE && !self.routes.is_empty() => self.derived_route(),
            value => value,
        }
    }

    fn find_value_in_descriptor(&self, name: &str) -> Option<&'r str> {
        self.pairs.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
    }

    /// Returns the route template that matches the attribute `path`.
    fn derived_route(&self) -> Option<&'r str> {
        if let Some(route) = self.route.get() {
            return route;
        }
        let route =
            self.find_value_in_descriptor("path").and_then(|path| self.routes.match_path(path));
        self.route.set(Some(route));
        route
    }

    /// Returns the shortened form of an attribute value, for use in a key. Returns `None` if the value is UTF-8 and
    /// short enough to be used unchanged.
    pub(super) fn shorten_for_key(&self, name: &'r str, text: &'r str) -> Option<Value<'r>> {
        if self.bytes.is_empty() && text.len() <= MAX_VALUE_BYTES {
            return None;
        }
        self.find_or_shorten_value(name, text)
    }

    fn find_or_shorten_value(&self, name: &'r str, text: &'r str) -> Option<Value<'r>> {
        // The original bytes are not normalized, so they are not used for an attribute whose values are normalized.
        let is_normalized = self.normalization.is_some_and(|steps| steps.applies_to(name));
        let bytes = self.bytes.iter().find(|(own, _)| *own == name && !is_normalized);
        let bytes = bytes.map(|(_, bytes)| *bytes);
        if bytes.is_none() && text.len() <= MAX_VALUE_BYTES {
            return None;
        }
        let mut shortened = self.shortened.borrow_mut();
        let found = shortened.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
        Some(Value::Shortened(found.unwrap_or_else(|| {
            let value = ShortenedValue::new(text, bytes.unwrap_or(text.as_bytes()));
            shortened.push((name, value));
            value
        })))
    }

    /// Returns the names of the attributes for which [`get`](Self::get) may return a value. A name can occur several
    /// times.
    pub(super) fn names(&self) -> impl Iterator<Item = &'r str> {
        let route = iter::once(ROUTE_ATTRIBUTE).filter(|_| !self.routes.is_empty());
        self.pairs.iter().map(|(name, _)| *name).chain(route)
    }
}
