//! Requests: a domain, descriptors with attributes and costs, and the options of the call.

mod normalized_texts;

use std::borrow::Cow;
use std::time::Duration;

use smallvec::SmallVec;

use crate::call::CallIdentity;
use crate::idempotency_key::IdempotencyKey;
use crate::quota::Quota;

use normalized_texts::NormalizedTexts;

/// The input of one decision: a domain and one or more descriptors. A request over HTTP has one descriptor, a request
/// from Envoy may have several. It may also have an idempotency key and a maximum wait.
///
/// ```
/// use slidegate::{Descriptor, Request};
///
/// let request = Request::new("api", Descriptor::new([("tenant", "acme"), ("method", "GET")]));
/// let costly = Request::new("api", Descriptor::new([("tenant", "acme")]).cost(50));
/// ```
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub(crate) domain: &'a str,
    pub(crate) descriptors: SmallVec<[Descriptor<'a>; 1]>,
    /// The identity of the call, if it has an idempotency key.
    identity: Option<CallIdentity>,
    max_wait: Duration,
    waits_for_settlements: bool,
}

impl<'a> Request<'a> {
    /// Creates a request with one descriptor.
    pub fn new(domain: &'a str, descriptor: Descriptor<'a>) -> Self {
        Self::with_descriptor_list(domain, SmallVec::from_buf([descriptor]))
    }

    /// Creates a request with several descriptors, which are decided together.
    pub fn with_descriptors(
        domain: &'a str,
        descriptors: impl IntoIterator<Item = Descriptor<'a>>,
    ) -> Self {
        Self::with_descriptor_list(domain, descriptors.into_iter().collect())
    }

    fn with_descriptor_list(domain: &'a str, descriptors: SmallVec<[Descriptor<'a>; 1]>) -> Self {
        Self {
            domain,
            descriptors,
            identity: None,
            max_wait: Duration::ZERO,
            waits_for_settlements: false,
        }
    }

    /// Sets the idempotency key: if an earlier request with the same key was admitted, its decision is returned, and
    /// nothing is charged. A denied request is decided again.
    ///
    /// ```
    /// use slidegate::{Descriptor, Gate, IdempotencyKey, MemoryStore, Policy, Reason, Request};
    ///
    /// let policy = Policy::from_yaml("rules: [{ name: a, per: [client], limits: [1/min] }]")?;
    /// let gate = Gate::new(policy, MemoryStore::new());
    /// let request = |client, key| {
    ///     let request = Request::new("default", Descriptor::new([("client", client)]));
    ///     request.with_idempotency_key(IdempotencyKey::new(key))
    /// };
    /// assert!(gate.check(&request("ann", "order-17")).is_allowed());
    /// assert!(gate.check(&request("ann", "order-17")).is_allowed());      // a repetition
    /// assert!(!gate.check(&request("ann", "order-18")).is_allowed());
    /// let other = gate.check(&request("bob", "order-17"));
    /// assert_eq!(other.reason(), Some(Reason::IdempotencyKeyReused));
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    #[must_use]
    pub fn with_idempotency_key(self, key: IdempotencyKey<'_>) -> Self {
        Self { identity: Some(self.to_call_identity(key)), ..self }
    }

    /// Sets the time for which a check waits until the request fits, zero by default. A request that does not fit
    /// within this time is denied as soon as this is known. Waiting requests for the same limit and key are admitted in
    /// the order of their arrival; see [`Gate::wait`](crate::Gate::wait).
    ///
    /// Asynchronous methods wait on the timer of tokio, and need the feature `tokio`. Without it, a debug build panics,
    /// and a release build does not wait.
    ///
    /// ```
    /// use std::time::Duration;
    /// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
    ///
    /// let policy = Policy::from_yaml("rules: [{ name: all, limits: [1/50ms] }]")?;
    /// let gate = Gate::new(policy, MemoryStore::new());
    /// let request = |wait| {
    ///     Request::new("default", Descriptor::new([])).with_max_wait(Duration::from_millis(wait))
    /// };
    /// assert!(gate.check(&request(0)).is_allowed());
    /// assert!(!gate.check(&request(5)).is_allowed());        // immediately
    /// assert!(gate.check(&request(1_000)).is_allowed());     // after 50 ms
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    #[must_use]
    pub fn with_max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// Makes a check wait for its whole [maximum wait](Self::with_max_wait) if it does not fit, because settlements of
    /// other requests may return units. By default, a check is denied as soon as it is known that the units in use
    /// leave the window too late.
    #[must_use]
    pub fn waiting_for_settlements(self) -> Self {
        Self { waits_for_settlements: true, ..self }
    }

    /// Returns whether the request [waits for settlements](Self::waiting_for_settlements).
    pub(crate) fn waits_for_settlements(&self) -> bool {
        self.waits_for_settlements
    }

    /// Returns the domain. Only rules of this domain apply.
    pub fn domain(&self) -> &'a str {
        self.domain
    }

    /// Returns the identity of the call; `None` if the request has no idempotency key.
    pub fn call_identity(&self) -> Option<&CallIdentity> {
        self.identity.as_ref()
    }

    /// Returns the identity of a call with this idempotency key. It has a digest of the request, which shows whether
    /// the key is reused for another request. The digest does not depend on the order of attributes and costs.
    fn to_call_identity(&self, key: IdempotencyKey<'_>) -> CallIdentity {
        key.call_identity(|digest| {
            digest.write(self.domain.as_bytes());
            for descriptor in &self.descriptors {
                let Descriptor { attributes, bytes, costs, is_refund, is_exact, limit, .. } =
                    descriptor;
                let mut attributes = attributes.clone();
                attributes.sort_unstable();
                digest.write_number(attributes.len() as u64);
                for (name, value) in attributes {
                    digest.write(name.as_bytes());
                    digest.write(value.as_bytes());
                }
                digest.write_number(bytes.len() as u64);
                for (name, bytes) in bytes {
                    digest.write(name.as_bytes());
                    digest.write(bytes);
                }
                let mut named = costs.named.clone();
                named.sort_unstable();
                digest.write_number(named.len() as u64);
                for (name, units) in named {
                    digest.write(name.as_bytes());
                    digest.write_number(units);
                }
                for cost in [costs.plain, costs.any] {
                    digest.write_number(cost.is_some().into());
                    digest.write_number(cost.unwrap_or_default());
                }
                for flag in [costs.is_consumed, *is_refund, *is_exact] {
                    digest.write_number(flag.into());
                }
                digest.write(limit.map_or(String::new(), |limit| limit.to_string()).as_bytes());
            }
        })
    }

    /// Returns the options of the call; `None` if it neither waits nor has an idempotency key.
    pub(crate) fn call_options(&self) -> Option<Box<CallOptions>> {
        let (identity, max_wait) = (self.identity, self.max_wait);
        if identity.is_none() && max_wait.is_zero() {
            return None;
        }
        let waits_for_settlements = self.waits_for_settlements;
        let request_bytes = self.memory_bytes();
        Some(Box::new(CallOptions { identity, max_wait, waits_for_settlements, request_bytes }))
    }

    /// Returns the bytes of memory that the descriptors take; see [`Descriptor::memory_bytes`].
    pub(crate) fn memory_bytes(&self) -> usize {
        self.descriptors.iter().map(Descriptor::memory_bytes).sum()
    }

    /// Returns the descriptors.
    pub fn descriptors(&self) -> &[Descriptor<'a>] {
        &self.descriptors
    }
}

/// The options of a call that waits or has an idempotency key.
#[derive(Clone, Debug)]
pub(crate) struct CallOptions {
    pub(crate) identity: Option<CallIdentity>,
    pub(crate) max_wait: Duration,
    pub(crate) waits_for_settlements: bool,
    /// The bytes that the request takes while the call waits.
    pub(crate) request_bytes: usize,
}

/// Attribute names with their values.
pub(crate) type AttributePairs<'a> = SmallVec<[(&'a str, &'a str); 6]>;

/// A set of attributes (name to value) of a request, with the cost that is charged to the rules that apply to it.
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    attributes: AttributePairs<'a>,
    /// The bytes of values that are not UTF-8, by attribute name. Usually empty.
    bytes: Vec<(&'a str, &'a [u8])>,
    pub(crate) costs: DescriptorCosts<'a>,
    pub(crate) is_refund: bool,
    pub(crate) is_exact: bool,
    pub(crate) limit: Option<Quota>,
    /// Normalized attribute values. Computed on first use, if the policy normalizes attributes and a value changes.
    normalized: NormalizedTexts,
}

/// The costs that a descriptor specifies.
#[derive(Clone, Debug, Default)]
pub(crate) struct DescriptorCosts<'a> {
    /// The cost for rules without a `cost` field. `None` means 1.
    pub(crate) plain: Option<u64>,
    pub(crate) named: Vec<(&'a str, u64)>,
    /// The cost for every rule whose `cost` is not a constant. It takes precedence over `plain` and `named`.
    pub(crate) any: Option<u64>,
    /// Whether the request has consumed the units already. Then the units are charged even if the request is denied.
    /// Rules with a constant cost are checked but charge nothing, because they charged an earlier check of the same
    /// request.
    pub(crate) is_consumed: bool,
}

impl DescriptorCosts<'_> {
    /// Returns `true` if the descriptor states an unnamed or a named cost. The cost in `any` does not count, because it
    /// applies to all rules without a constant cost.
    pub(crate) fn has_own_costs(&self) -> bool {
        self.plain.is_some() || !self.named.is_empty()
    }

    pub(crate) fn get(&self, name: &str) -> Option<u64> {
        self.named.iter().find(|(own, _)| *own == name).map(|(_, units)| *units)
    }
}

impl<'a> Descriptor<'a> {
    /// Creates a descriptor with a cost of 1. If two attributes have the same name, the first is used.
    pub fn new(attributes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut descriptor = Self {
            attributes: AttributePairs::new(),
            bytes: Vec::new(),
            costs: DescriptorCosts::default(),
            is_refund: false,
            is_exact: false,
            limit: None,
            normalized: NormalizedTexts::default(),
        };
        // The list is extended in place: `collect` would return a new list, which is large and would be copied.
        descriptor.attributes.extend(attributes);
        descriptor
    }

    /// Adds attributes and named costs, and sets the unnamed cost. The third item of an attribute contains the bytes of
    /// a value that is not UTF-8. This is faster than methods that return a changed descriptor, because they copy it,
    /// and a descriptor is large.
    pub fn extend(
        &mut self,
        attributes: impl Iterator<Item = (&'a str, &'a str, Option<&'a [u8]>)>,
        plain_cost: u64,
        named_costs: &[(&'a str, u64)],
    ) {
        for (name, value, bytes) in attributes {
            self.attributes.push((name, value));
            if let Some(bytes) = bytes {
                self.bytes.push((name, bytes));
            }
        }
        self.costs.plain = Some(plain_cost);
        self.costs.named.extend_from_slice(named_costs);
    }

    /// Sets the bytes of an attribute whose value is not UTF-8. The value in [`new`](Self::new) must be the bytes with
    /// a replacement character for each invalid sequence. Conditions of the policy match that text; keys contain a
    /// digest of the bytes, so that different values with the same text have separate counts.
    ///
    /// ```
    /// use slidegate::Descriptor;
    ///
    /// let bytes = b"k\xff";
    /// let text = String::from_utf8_lossy(bytes);
    /// let descriptor = Descriptor::new([("header.x-api-key", &*text)]).with_bytes("header.x-api-key", bytes);
    /// ```
    pub fn with_bytes(mut self, name: &'a str, bytes: &'a [u8]) -> Self {
        self.bytes.push((name, bytes));
        self
    }

    /// Sets the cost for rules that do not [state a cost](crate::policy::RuleCost), 1 by default. A cost of 0 checks
    /// whether one unit would fit, and charges nothing.
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.costs.plain = Some(cost);
        self
    }

    /// Sets a named cost, for rules that charge it: `cost: tokens` in the policy. If two costs have the same name, the
    /// first is used. A gate logs a name that no rule charges once.
    ///
    /// ```
    /// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
    ///
    /// let policy = Policy::from_yaml("
    /// rules: [{ name: tokens, per: [user], limits: [1000/h], cost: tokens }]
    /// ")?;
    /// let gate = Gate::new(policy, MemoryStore::new());
    /// let descriptor = Descriptor::new([("user", "ann")]).with_cost("tokens", 700);
    /// let decision = gate.check(&Request::new("default", descriptor));
    /// assert_eq!(decision.remaining(), 300);
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    #[must_use]
    pub fn with_cost(mut self, name: &'a str, units: u64) -> Self {
        self.costs.named.push((name, units));
        self
    }

    /// Sets the cost of all rules except rules with a constant cost, like the `hits_addend` of an Envoy request.
    #[must_use]
    pub fn with_hits_addend(mut self, units: u64) -> Self {
        self.costs.any = Some(units);
        self
    }

    /// Marks the cost as consumed already, like the `hits_addend` of an Envoy descriptor: the cost is charged even if
    /// the request is denied. Rules with a constant cost are checked and not charged.
    #[must_use]
    pub fn consumed(mut self) -> Self {
        self.costs.is_consumed = true;
        self
    }

    /// Makes the descriptor a refund: its cost is subtracted from the counts, oldest units first. A refund denies
    /// nothing. It is applied even if the request is denied, because its units have not been consumed.
    pub fn as_refund(self) -> Self {
        Self { is_refund: true, ..self }
    }

    /// Restricts the descriptor to rules whose `when` and `per` name all of its attributes and no others. A descriptor
    /// from Envoy applies only to the rules that are written for it.
    pub fn exact(self) -> Self {
        Self { is_exact: true, ..self }
    }

    /// Sets a limit that replaces the limits of the rules that apply.
    pub fn with_limit(self, limit: Quota) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Returns the bytes of memory that the descriptor takes, with the names and values of its attributes and costs.
    pub(crate) fn memory_bytes(&self) -> usize {
        let attributes = self.attributes.iter().map(|(name, value)| name.len() + value.len());
        let bytes = self.bytes.iter().map(|(_, bytes)| bytes.len());
        let costs = self.costs.named.iter().map(|(name, _)| name.len());
        let pairs = size_of_val(&*self.attributes)
            + size_of_val(&*self.bytes)
            + size_of_val(&*self.costs.named);
        size_of::<Self>() + pairs + attributes.chain(bytes).chain(costs).sum::<usize>()
    }

    /// Returns the value of an attribute; `None` if the descriptor does not have the attribute.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.attributes.iter().find(|(attribute, _)| *attribute == name).map(|(_, value)| *value)
    }

    /// Returns the names and bytes of the attributes whose values are not UTF-8.
    pub(crate) fn non_utf8_attributes(&self) -> &[(&'a str, &'a [u8])] {
        &self.bytes
    }

    /// Returns the attributes in the order in which [`new`](Self::new) received them.
    pub(crate) fn attribute_pairs(&self) -> &[(&'a str, &'a str)] {
        &self.attributes
    }

    /// Returns the attributes with normalized values; `None` if all values are normalized already. `normalize` returns
    /// the normalized value of an attribute: a part of the value, or another text. The result is cached under `id`,
    /// which identifies the normalization.
    pub(crate) fn normalized_attributes(
        &self,
        id: u64,
        normalize: impl for<'v> Fn(&str, &'v str) -> Cow<'v, str>,
    ) -> Option<AttributePairs<'_>> {
        let is_normalized = |(name, value): (&str, &str)| match normalize(name, value) {
            Cow::Borrowed(part) => part.len() == value.len(),
            Cow::Owned(_) => false,
        };
        if self.iter().all(is_normalized) {
            return None;
        }
        let text_of = |(name, value)| match normalize(name, value) {
            Cow::Borrowed(_) => None,
            Cow::Owned(text) => Some(text.into()),
        };
        let texts = self.normalized.get_or_compute(id, || self.iter().map(text_of).collect());
        let pairs = self.iter().zip(texts).map(|((name, value), text)| match text {
            Some(text) => (name, &**text),
            None => match normalize(name, value) {
                Cow::Borrowed(part) => (name, part),
                Cow::Owned(_) => (name, value),
            },
        });
        Some(pairs.collect())
    }

    /// Returns the attributes in the order in which [`new`](Self::new) received them.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.attributes.iter().copied()
    }
}
