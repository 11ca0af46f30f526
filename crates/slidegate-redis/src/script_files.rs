//! The Lua scripts as files, for programs in other languages that call them without slidegate.

use slidegate::Algorithm;

use crate::script::{AlgorithmSet, Scripts};

/// The beginning of the scripts that take a JSON argument.
const JSON_LIMITS_LUA: &str = include_str!("../lua/json/limits.lua");

/// A Lua script as a file, of [`script_files`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptFile {
    /// The path of the file, relative to the folder of all script files, such as `check.lua`.
    pub path: String,
    /// The source text of the script.
    pub text: String,
}

/// Returns the Lua scripts that share their counters with a [`RedisStore`](crate::RedisStore), for programs in other
/// languages. `slidegate lua` writes them to a folder.
///
/// The scripts `check.lua`, `revert.lua`, `refund.lua` and `reset.lua` take one JSON argument. The scripts in `packed/`
/// take a binary argument, and need less CPU. `docs/reference/redis-wire-format.md` documents both.
///
/// ```
/// let files = slidegate_redis::script_files();
/// let check = files.iter().find(|file| file.path == "check.lua").unwrap();
/// assert!(check.text.contains("cjson.decode"));
/// ```
pub fn script_files() -> Vec<ScriptFile> {
    let scripts = Scripts::new();
    let all = Algorithm::ALL.iter().fold(AlgorithmSet::default(), AlgorithmSet::with);
    let (decide, revert, refund, reset) = (
        &scripts.decide_batch(all).text,
        &scripts.revert(all).text,
        &scripts.refund(all).text,
        &scripts.reset().text,
    );
    let mut files = vec![
        json_script_file("check", decide, include_str!("../lua/json/check.lua")),
        json_script_file("revert", revert, include_str!("../lua/json/revert.lua")),
        json_script_file("refund", refund, include_str!("../lua/json/refund.lua")),
        json_script_file("reset", reset, include_str!("../lua/json/reset.lua")),
        packed_script_file("batch", decide),
        packed_script_file("revert", revert),
        packed_script_file("refund", refund),
        packed_script_file("reset", reset),
    ];
    for algorithm in &Algorithm::ALL {
        files.push(packed_script_file(
            &format!("check_{}", algorithm),
            &scripts.decide_single_hit(algorithm).text,
        ));
    }
    files
}

/// Creates the file of a script that takes a JSON argument. `packed` is the script that takes the same argument in
/// binary form. In the file, `packed` is a function, which `driver` calls with the keys and the binary argument.
fn json_script_file(name: &str, packed: &str, driver: &str) -> ScriptFile {
    let version = env!("CARGO_PKG_VERSION");
    ScriptFile {
        path: format!("{name}.lua"),
        text: format!(
            "-- Script `{name}` of slidegate {version}, with a JSON argument.\n{JSON_LIMITS_LUA}\nlocal function run(KEYS, ARGV)\n{packed}\nend\n\n{driver}"
        ),
    }
}

/// Creates the file of a script that takes a binary argument.
fn packed_script_file(name: &str, text: &str) -> ScriptFile {
    ScriptFile { path: format!("packed/{name}.lua"), text: text.to_owned() }
}
