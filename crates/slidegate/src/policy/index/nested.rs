//! Rules by things of which two lie one in the other or apart: beginnings of texts, networks.
//!
//! In order, each thing stands behind those that it lies in. So all that lie around a value are the last that
//! stands at or before it, what that one lies in, and so on: one search finds them, however many there are
//! and of however many lengths.

use std::borrow::Borrow;

use ipnet::IpNet;

/// What lies in what.
pub(super) trait Nests: Ord {
    fn lies_in(&self, other: &Self) -> bool;
}

impl Nests for str {
    fn lies_in(&self, other: &Self) -> bool {
        self.starts_with(other)
    }
}

impl Nests for IpNet {
    fn lies_in(&self, other: &Self) -> bool {
        other.contains(self)
    }
}

/// Things in order, and the rules of each.
#[derive(Clone, Debug)]
pub(super) struct Nested<K>(Vec<Nest<K>>);

#[derive(Clone, Debug)]
struct Nest<K> {
    thing: K,
    /// The place of the smallest that it lies in.
    within: Option<usize>,
    rules: Vec<u32>,
}

impl<K> Default for Nested<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord> Nested<K> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a rule. It is found once all is settled.
    pub(super) fn add(&mut self, thing: K, rule: u32) {
        self.0.push(Nest { thing, within: None, rules: vec![rule] });
    }

    /// Brings all that was added into order.
    pub(super) fn settle<Q: Nests + ?Sized>(&mut self)
    where
        K: Borrow<Q>,
    {
        self.0.sort_by(|one, other| one.thing.cmp(&other.thing));
        self.0.dedup_by(|next, kept| {
            let same = next.thing == kept.thing;
            if same {
                kept.rules.append(&mut next.rules);
            }
            same
        });
        for nth in 1..self.0.len() {
            self.0[nth].within = self.innermost(nth - 1, self.0[nth].thing.borrow());
        }
    }

    /// Calls with the rules of each thing in which the value lies.
    #[inline]
    pub(super) fn around<Q: Nests + ?Sized>(&self, value: &Q, mut call: impl FnMut(&[u32]))
    where
        K: Borrow<Q>,
    {
        let behind = self.0.partition_point(|nest| nest.thing.borrow() <= value);
        let mut place = behind.checked_sub(1).and_then(|last| self.innermost(last, value));
        while let Some(nest) = place.and_then(|nth| self.0.get(nth)) {
            call(&nest.rules);
            place = nest.within;
        }
    }

    /// The smallest in which a value lies, of one that is at or before it and those around that.
    fn innermost<Q: Nests + ?Sized>(&self, last: usize, value: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        let mut place = Some(last);
        while let Some(nth) = place
            && !value.lies_in(self.0[nth].thing.borrow())
        {
            place = self.0[nth].within;
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn around<K: Borrow<Q> + Ord + Clone, Q: Nests + ?Sized>(things: &[K], value: &Q) -> Vec<u32> {
        let mut nested = Nested::default();
        (0..).zip(things).for_each(|(nth, thing)| nested.add(thing.clone(), nth));
        nested.settle::<Q>();
        let mut found = Vec::new();
        nested.around(value, |rules| found.extend_from_slice(rules));
        found.sort_unstable();
        found
    }

    proptest! {
        #[test]
        fn all_beginnings_of_a_text_are_found(
            things in proptest::collection::vec("[ab]{1,5}", 0..30),
            value in "[ab]{0,6}",
        ) {
            let expected = (0..).zip(&things).filter(|(_, thing)| value.starts_with(&**thing));
            let expected: Vec<u32> = expected.map(|(nth, _)| nth).collect();
            prop_assert_eq!(around(&things, value.as_str()), expected);
        }

        #[test]
        fn all_networks_of_an_address_are_found(
            things in proptest::collection::vec((any::<bool>(), 0..4u32, 0..=32u8), 0..30),
            value in (any::<bool>(), 0..4u32),
        ) {
            let network = |(v6, bits, length): (bool, u32, u8)| -> IpNet {
                let bits = bits << 30 | bits;
                let net = match v6 {
                    true => IpNet::new(std::net::Ipv6Addr::from_bits(u128::from(bits) << 96).into(), length),
                    false => IpNet::new(std::net::Ipv4Addr::from_bits(bits).into(), length),
                };
                net.unwrap().trunc()
            };
            let things: Vec<IpNet> = things.into_iter().map(network).collect();
            let value = IpNet::from(network((value.0, value.1, 32)).addr());
            let expected = (0..).zip(&things).filter(|(_, thing)| thing.contains(&value));
            let expected: Vec<u32> = expected.map(|(nth, _)| nth).collect();
            prop_assert_eq!(around(&things, &value), expected);
        }
    }
}
