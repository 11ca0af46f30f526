//! Many keys at once, beside one after the other.

use lab::keys::Keys;
use lab::measure::{Plan, interleaved};
use lab::peers::{Peer, Slidegate};
use lab::table::Table;

use crate::Scope;
use crate::decisions::DECISIONS;
use lab::targets::{Bound, Targets};

/// Measures a limiter that holds these keys.
pub fn run(scope: &Scope, keys: &Keys, slidegate: &Slidegate, targets: &mut Targets) {
    eprintln!("deciding in batches");
    let plan = Plan { rounds: scope.rounds, threads: 1, decisions: DECISIONS };
    let draw = |seed| keys.draw(seed, DECISIONS);
    let timings = interleaved(
        plan,
        &[
            &|seed| slidegate.decide(draw(seed)),
            &|seed| slidegate.decide_many(draw(seed), 16),
            &|seed| slidegate.decide_many(draw(seed), 64),
        ],
    );
    println!("## check_many, {} keys, 1 thread\n", keys.count());
    let mut table = Table::new(["", "ns per key", "times as fast as check", "denied"]);
    let names = ["check", "check_many of 16", "check_many of 64"];
    for (name, timing) in names.iter().zip(&timings) {
        table.row([
            name.to_string(),
            format!("{:.0}", timing.ns),
            format!("{:.2}", timings[0].ns / timing.ns),
            format!("{:.2}", timing.denied),
        ]);
    }
    println!("{table}");
    if Some(&keys.count()) == scope.key_counts.last() {
        for timing in &timings[1..] {
            let text = "check_many of 16 and of 64, most keys, times as fast as check";
            targets.hold(text, Bound::AtLeast(2.5), timings[0].ns / timing.ns);
        }
    }
}
