//! Bytes per key, each store in a fresh process.

use std::error::Error;
use std::hash::RandomState;

use lab::keys::{KEY_LEN, KeyWriter};
use lab::peers::{Governor, Peer, Slidegate};
use lab::rss;
use lab::table::Table;

use crate::Scope;
use lab::targets::{Bound, Targets};

/// The argument that makes this program a child which fills one store.
pub const CHILD: &str = "footprint-child";

const LONG_KEY_LEN: usize = 200;

/// Measures slidegate with short and with long keys, and governor.
pub fn run(scope: &Scope, targets: &mut Targets) -> Result<(), Box<dyn Error>> {
    let keys = scope.key_counts.last().copied().unwrap_or_default();
    println!("## Memory, sliding_window, {keys} keys\n");
    let mut table = Table::new(["", "bytes of a key's text", "bytes per key"]);
    for (name, key_len) in
        [("slidegate", KEY_LEN), ("slidegate", LONG_KEY_LEN), ("governor keyed, String", KEY_LEN)]
    {
        eprintln!("filling {name} with {keys} keys of {key_len} bytes in a child");
        let (count, len) = (keys.to_string(), key_len.to_string());
        let bytes = rss::ask_child(&[CHILD, name, &count, &len])? as f64 / keys as f64;
        table.row([name.to_owned(), len, format!("{bytes:.1}")]);
        if name == "slidegate" {
            let text = "bytes per key of sliding_window, keys of 20 and of 200 bytes";
            targets.hold(text, Bound::AtMost(40.0), bytes);
        }
    }
    println!("{table}");
    Ok(())
}

/// Prints by how many bytes this process grows while a store is filled.
pub fn child(name: &str, keys: &str, key_len: &str) -> Result<(), Box<dyn Error>> {
    let keys = keys.parse()?;
    let mut writer = KeyWriter::new(key_len.parse()?);
    let grown = rss::growth(|| {
        let peer: Box<dyn Peer> = match name {
            "slidegate" => Box::new(Slidegate::new()?),
            _ => Box::new(Governor::<RandomState>::new("governor")?),
        };
        for nth in 0..keys {
            assert!(peer.charge(nth, writer.write(nth), 1), "a new key has room");
        }
        Ok(peer)
    })?;
    println!("{grown}");
    Ok(())
}
