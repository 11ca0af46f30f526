//! The attributes of one descriptor in the form in which rules match them: with a route, and with host names in
//! canonical form.
//!
//! A value that is too long for a key is hashed at most once per descriptor.

use std::cell::RefCell;

use super::route::Routes;
use crate::host::is_host_attribute;
use crate::key::{MAX_VALUE_BYTES, ShortenedValue, Value};
use crate::quota::Quota;
use crate::request::Descriptor;

/// The names and values of the attributes of a descriptor, prepared for matching. If the descriptor has no attribute
/// `route`, the route is derived from its attribute `path`.
pub(crate) struct DescriptorAttributes<'r, 'd> {
    /// Names and values of the attributes in the descriptor. A route that is derived from the path is not included.
    pub(super) pairs: &'d [(&'r str, &'r str)],
    /// The route template that matches the attribute `path`. `None` if no template matches, or if the descriptor
    /// contains an attribute `route`.
    route: Option<&'r str>,
    /// Whether the descriptor is exact. An exact descriptor matches only rules that name all of its attributes.
    pub(super) is_exact: bool,
    /// The limit that the descriptor contains; it replaces the limits of the rules.
    pub(super) limit: Option<Quota>,
    /// The original bytes of attribute values that are not UTF-8, by attribute name.
    bytes: &'d [(&'r str, &'r [u8])],
    /// Cache of shortened attribute values, by attribute name. A long value is hashed only once, even if several rules
    /// count by it.
    shortened: RefCell<Vec<(&'r str, ShortenedValue<'r>)>>,
}

impl<'r, 'd> DescriptorAttributes<'r, 'd> {
    /// Creates the attributes of a descriptor. `canonical` contains their names and values with host names in canonical
    /// form. If it is `None`, the names and values in the descriptor are used unchanged.
    pub(super) fn new<'a: 'r>(
        descriptor: &'d Descriptor<'a>,
        canonical: Option<&'d [(&'r str, &'r str)]>,
        routes: &'r Routes,
    ) -> Self {
        let pairs = canonical.unwrap_or(descriptor.attribute_pairs());
        let Descriptor { is_exact, limit, .. } = *descriptor;
        let (bytes, shortened) = (descriptor.non_utf8_attributes(), RefCell::default());
        let mut attributes = Self { pairs, route: None, is_exact, limit, bytes, shortened };
        if !routes.is_empty() && attributes.get("route").is_none() {
            attributes.route = attributes.get("path").and_then(|path| routes.match_path(path));
        }
        attributes
    }

    pub(super) fn get(&self, name: &str) -> Option<&'r str> {
        let pair = self.pairs.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
        pair.or_else(|| self.route.filter(|_| name == "route"))
    }

    /// Returns the shortened form of an attribute value, for use in a key. Returns `None` if the value is UTF-8 and
    /// short enough to be used unchanged.
    #[inline]
    pub(super) fn shorten_value(&self, name: &'r str, text: &'r str) -> Option<Value<'r>> {
        if self.bytes.is_empty() && text.len() <= MAX_VALUE_BYTES {
            return None;
        }
        self.find_or_shorten_value(name, text)
    }

    #[cold]
    fn find_or_shorten_value(&self, name: &'r str, text: &'r str) -> Option<Value<'r>> {
        // The bytes of a host are not in canonical form.
        let has_name = |(own, _): &&(&str, _)| *own == name && !is_host_attribute(name);
        let bytes = self.bytes.iter().find(has_name).map(|(_, bytes)| *bytes);
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

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'r str, &'r str)> {
        self.pairs.iter().copied().chain(self.route.map(|route| ("route", route)))
    }
}
