//! A gate that follows a policy file: a change of the file replaces the policy, and the counts stay.
//!
//! ```sh
//! cargo run -p slidegate --example gate_reload
//! ```

use std::error::Error;
use std::fs;
use std::sync::mpsc;

use slidegate::{Descriptor, Gate, MemoryStore, Request};

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::temp_dir().join(format!("slidegate-policy-{}.yaml", std::process::id()));
    fs::write(&file, "rules: [{ name: per-user, per: [user], limits: [2/h] }]")?;

    // A service would log the reloads; this program waits for them.
    let (sender, reloads) = mpsc::channel();
    let gate = Gate::follow_policy_file(&file, MemoryStore::new(), move |reload| {
        let text = match reload {
            Ok(policy) => format!("new policy with {} rule", policy.rules().len()),
            Err(_) => "the change is invalid, the policy stays".to_owned(),
        };
        let _ = sender.send(text);
    })?;
    let request = Request::new("default", Descriptor::new([("user", "ann")]));
    println!("{} left", gate.check(&request).remaining());

    fs::write(&file, "rules: [{ name: per-user, per: [user], limits: [10/h] }]")?;
    println!("{}", reloads.recv()?);
    println!("{} left", gate.check(&request).remaining());

    fs::write(&file, "rules: [{ name: per-user, per: [user], limits: [ten] }]")?;
    println!("{}", reloads.recv()?);
    println!("{} left", gate.check(&request).remaining());

    fs::remove_file(&file)?;
    Ok(())
}

// It prints:
//
// 1 left
// new policy with 1 rule
// 8 left
// the change is invalid, the policy stays
// 7 left
