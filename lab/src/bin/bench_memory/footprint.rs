//! Bytes per key, each store in a fresh process.

use std::error::Error;
use std::hash::RandomState;

use lab::keys::{KEY_LEN, KeyWriter};
use lab::part::{Effort, Part};
use lab::peers::{Governor, KeyKind, Peer, Slidegate};
use lab::rss;
use lab::table::Table;
use lab::targets::{Aim, Bound};

/// The argument that makes this program a child which fills one store.
pub const CHILD: &str = "footprint-child";

const LONG_KEY_LEN: usize = 200;

const MANY: usize = 10_000_000;

const BYTES: Aim = Aim {
    text: "bytes per key of sliding_window, 10 million keys of 20 and of 200 bytes",
    bound: Bound::AtMost(40.0),
    limited_by: "",
};

/// Measures slidegate with short and with long keys, and governor.
pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    let keys = effort.pick(MANY, MANY / 10);
    let contenders =
        [("slidegate", KEY_LEN), ("slidegate", LONG_KEY_LEN), ("governor keyed, String", KEY_LEN)];
    part.progress.expect(contenders.len());
    let mut table = Table::new(["", "bytes of a key's text", "bytes per key"]);
    for (name, key_len) in contenders {
        part.progress.step(&format!("filling {name} with {keys} keys of {key_len} bytes"));
        let (count, len) = (keys.to_string(), key_len.to_string());
        let bytes = rss::ask_child(&[CHILD, name, &count, &len])? as f64 / keys as f64;
        table.row([name.to_owned(), len, format!("{bytes:.1}")]);
        // How full tables are depends on how many keys there are, and the aim is for this many.
        if name == "slidegate" && keys == MANY {
            part.hold(&BYTES, bytes);
        }
    }
    part.say(format!("### Memory, sliding_window, {keys} keys"));
    part.table(&table);
    Ok(())
}

/// Prints by how many bytes this process grows while a store is filled.
pub fn child(name: &str, keys: &str, key_len: &str) -> Result<(), Box<dyn Error>> {
    let keys = keys.parse()?;
    let mut writer = KeyWriter::new(key_len.parse()?);
    let grown = rss::growth(|| {
        let peer: Box<dyn Peer> = match name {
            "slidegate" => Box::new(Slidegate::new(KeyKind::Text)?),
            _ => Box::new(Governor::<String, RandomState>::new("governor")?),
        };
        for nth in 0..keys {
            assert!(peer.charge(nth, writer.write(nth), 1), "a new key has room");
        }
        Ok(peer)
    })?;
    println!("{grown}");
    Ok(())
}
