//! Keys of a limiter over a store outside of this process: values with a text that is the same in every process.

use std::borrow::Cow;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;

/// A key with a text, by which a store outside of this process counts. Implemented for strings, integers, IP addresses,
/// and pairs of keys.
///
/// Different keys of one type have different texts. Keys of several types can have one text: over a shared store, `1`
/// and `"1"` have one counter. For the address of a client, see [`client_network`].
///
/// ```
/// use slidegate::limiter::StoreKey;
///
/// assert_eq!("acme".text(), "acme");
/// assert_eq!(17_u64.text(), "17");
/// assert_eq!(("acme", std::net::Ipv4Addr::LOCALHOST).text(), "acme,127.0.0.1");
/// assert_ne!(("a", "b,c").text(), ("a,b", "c").text());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key over a store outside of this process",
    note = "use a string, an integer, an IP address, or a pair of them; or implement `StoreKey`"
)]
pub trait StoreKey: Hash {
    /// Returns the text of the key.
    fn text(&self) -> Cow<'_, str>;
}

/// Returns the address by which a limiter should count a client: of an IPv6 address the first address of its /64
/// network, because a client usually has the whole network, and of an IPv4-mapped address the IPv4 address. A limiter
/// by the complete IPv6 address allows each of the 2^64 addresses of a client its own units.
///
/// ```
/// use slidegate::{Limiter, limiter::client_network};
///
/// let limiter = Limiter::new(["1/s"])?;
/// assert!(limiter.check(&client_network("2001:db8::1".parse()?)).is_allowed());
/// assert!(!limiter.check(&client_network("2001:db8::2".parse()?)).is_allowed());
/// assert_eq!(client_network("::ffff:192.0.2.7".parse()?).to_string(), "192.0.2.7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        ipv4 => ipv4,
    }
}

/// Implements [`StoreKey`] for types that contain a string.
macro_rules! impl_for_strings {
    ($($string:ty),+) => {
        $(impl StoreKey for $string {
            fn text(&self) -> Cow<'_, str> {
                Cow::Borrowed(self)
            }
        })+
    };
}

/// Implements [`StoreKey`] for types whose `Display` text is the key.
macro_rules! impl_by_display {
    ($($displayed:ty),+ $(,)?) => {
        $(impl StoreKey for $displayed {
            fn text(&self) -> Cow<'_, str> {
                Cow::Owned(self.to_string())
            }
        })+
    };
}

impl_for_strings!(str, String, Box<str>, Rc<str>, Arc<str>, Cow<'_, str>);

impl_by_display!(
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, IpAddr, Ipv4Addr, Ipv6Addr,
);

impl<K: StoreKey + ?Sized> StoreKey for &K {
    fn text(&self) -> Cow<'_, str> {
        (**self).text()
    }
}

/// The text of a pair is the texts of both keys, with a comma between them. Commas and percent signs in the texts are
/// percent-encoded.
impl<A: StoreKey, B: StoreKey> StoreKey for (A, B) {
    fn text(&self) -> Cow<'_, str> {
        let mut text = String::new();
        push_encoded(&mut text, &self.0.text());
        text.push(',');
        push_encoded(&mut text, &self.1.text());
        Cow::Owned(text)
    }
}

fn push_encoded(text: &mut String, part: &str) {
    for character in part.chars() {
        match character {
            '%' => text.push_str("%25"),
            ',' => text.push_str("%2C"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn different_pairs_have_different_texts(
            first in ("[a,%2C5]{0,4}", "[a,%2C5]{0,4}"),
            second in ("[a,%2C5]{0,4}", "[a,%2C5]{0,4}"),
        ) {
            prop_assert_eq!(first == second, first.text() == second.text());
        }
    }
}
