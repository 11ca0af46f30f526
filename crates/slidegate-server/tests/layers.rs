//! The layers of `docs/ARCHITECTURE.md`, read from the `use` lines of all crates: a module uses only modules of its own
//! layer and of the layers below, and no more than three files depend on each other in a circle.
//!
//! A line `pub use` is no dependency of its file: a `use` of the name depends on the file that has the item. Lines under
//! `#[cfg(test)]` do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Item, UseTree, Visibility};

use crate::common::project_path;

const CRATES: [&str; 6] = [
    "slidegate",
    "slidegate-cluster",
    "slidegate-redis",
    "slidegate-server",
    "slidegate-tools",
    "slidegate-tower",
];

/// The most files that may depend on each other in a circle: two sides, and a part that both share.
const MAX_FILES_IN_CIRCLE: usize = 3;

/// The modules of the server, from the lowest layer to the highest.
const SERVER_LAYERS: &[&[&str]] = &[
    &["background", "bounds", "client_text", "durations"],
    &["json", "reservations::metric", "permits::metric"],
    &["telemetry"],
    &["tls"],
    &["connections"],
    &["policy"],
    &["decide::error"],
    &["reservations::token", "permits::token"],
    &["reservations::open"],
    &["decide"],
    &["reservations", "permits", "explain"],
    &["render"],
    &["wire"],
    &["boot"],
    &["cli"],
    &[""],
];

/// The modules of the library, from the lowest layer to the highest.
const LIBRARY_LAYERS: &[&[&str]] = &[
    &[
        "calendar",
        "clock",
        "host",
        "jitter",
        "layout",
        "network",
        "on_store_error",
        "quota",
        "reason",
        "similar",
        "sync",
        "restart",
    ],
    &["outcome", "algorithm"],
    &["key", "limit", "redis_options", "cluster_options", "hit", "rule_limit", "call", "store_key"],
    &["store"],
    &["policy", "request", "idempotency_key", "decision", "permit", "reserved_call"],
    &["wait", "headers", "problem", "fallback"],
    &["gate", "limiter"],
    &["testkit", ""],
];

/// The modules of a crate that must not use each other, although their layers would allow it.
const SEPARATE: &[(&str, &str)] = &[("policy", "store"), ("gate", "limiter"), ("limiter", "gate")];

/// The path of a module in its crate, such as `decide::call`; empty for the root.
type Module = String;

/// The modules of a crate, each with the modules that it uses.
struct Crate {
    uses: BTreeMap<Module, BTreeSet<Module>>,
}

/// The `use` lines of one file.
#[derive(Default)]
struct UseLines {
    /// The full paths of private lines.
    uses: Vec<Vec<String>>,
    /// The full path of each name that the file exports again.
    exports: BTreeMap<String, Vec<String>>,
}

impl Crate {
    /// Reads a crate of the workspace.
    fn read(name: &str) -> Self {
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        let mut files = BTreeMap::new();
        for path in rust_files(&src) {
            let module = module_of(path.strip_prefix(&src).unwrap());
            files.insert(module, syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap());
        }
        let tests: Vec<Module> = files
            .iter()
            .flat_map(|(module, file)| {
                test_modules(&file.items).map(move |name| join(module, &name))
            })
            .collect();
        files.retain(|module, _| !tests.iter().any(|test| is_in(module, test)));
        let modules: BTreeSet<&Module> = files.keys().collect();
        let lines: BTreeMap<&Module, UseLines> = files
            .iter()
            .map(|(module, file)| (module, use_lines(module, &file.items, &modules)))
            .collect();
        let uses = lines.iter().map(|(module, own)| {
            let used = own.uses.iter().filter_map(|path| find_module(path, &lines, 0));
            ((*module).clone(), used.filter(|used| used != *module).collect())
        });
        Self { uses: uses.collect() }
    }

    /// Returns each dependency of a module on a module of a higher layer.
    fn upward_uses(&self, layers: &[&[&str]]) -> Vec<String> {
        let mut upward = Vec::new();
        for (module, used) in &self.uses {
            for used in used {
                let is_separate = SEPARATE
                    .iter()
                    .any(|(first, second)| is_in(module, first) && is_in(used, second));
                if layer_of(module, layers) < layer_of(used, layers) || is_separate {
                    upward.push(format!("{module} uses {used}"));
                }
            }
        }
        upward
    }

    /// Returns the modules that depend on each other in a circle with this module, including itself.
    fn circle_of(&self, module: &Module) -> BTreeSet<&Module> {
        let reached = self.reachable(module);
        let returns = |other: &&Module| self.reachable(other).contains(module);
        reached.into_iter().filter(returns).collect()
    }

    fn reachable(&self, module: &Module) -> BTreeSet<&Module> {
        let (mut reached, mut next) = (BTreeSet::new(), vec![module]);
        while let Some(module) = next.pop() {
            for used in &self.uses[module] {
                if reached.insert(used) {
                    next.push(used);
                }
            }
        }
        reached
    }
}

/// Returns the names of the modules under `#[cfg(test)]` that have files of their own.
fn test_modules(items: &[Item]) -> impl Iterator<Item = String> {
    items.iter().filter_map(|item| match item {
        Item::Mod(module) if module.content.is_none() => {
            module.attrs.iter().any(is_test_only).then(|| module.ident.to_string())
        }
        _ => None,
    })
}

fn join(module: &str, child: &str) -> Module {
    if module.is_empty() { child.to_owned() } else { format!("{module}::{child}") }
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

fn module_of(path: &Path) -> Module {
    let path = path.with_extension("").to_str().unwrap().replace('/', "::");
    if ["lib", "main"].contains(&&*path) { Module::new() } else { path }
}

fn use_lines(module: &str, items: &[Item], modules: &BTreeSet<&Module>) -> UseLines {
    let mut lines = UseLines::default();
    for item in items {
        let Item::Use(line) = item else { continue };
        if line.attrs.iter().any(is_test_only) {
            continue;
        }
        let mut paths = Vec::new();
        collect_paths(&line.tree, Vec::new(), &mut paths);
        for (name, path) in paths {
            let Some(path) = full_path(module, path, modules) else { continue };
            if matches!(line.vis, Visibility::Inherited) {
                lines.uses.push(path);
            } else {
                lines.exports.insert(name, path);
            }
        }
    }
    lines
}

fn is_test_only(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
}

/// Collects the paths of a `use` tree, each with the name that it brings into scope.
fn collect_paths(tree: &UseTree, mut path: Vec<String>, paths: &mut Vec<(String, Vec<String>)>) {
    match tree {
        UseTree::Path(part) => {
            path.push(part.ident.to_string());
            collect_paths(&part.tree, path, paths);
        }
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| collect_paths(tree, path.clone(), paths));
        }
        UseTree::Name(name) if name.ident == "self" => {
            paths.push((path.last().cloned().unwrap_or_default(), path));
        }
        UseTree::Name(name) => {
            path.push(name.ident.to_string());
            paths.push((name.ident.to_string(), path));
        }
        UseTree::Rename(name) => {
            path.push(name.ident.to_string());
            paths.push((name.rename.to_string(), path));
        }
        UseTree::Glob(_) => paths.push((String::new(), path)),
    }
}

/// Returns the path from the root of the crate; `None` for a path in another crate.
fn full_path(module: &str, path: Vec<String>, modules: &BTreeSet<&Module>) -> Option<Vec<String>> {
    let mut base: Vec<String> =
        module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let child = base.iter().chain(path.first()).map(String::as_str).collect::<Vec<_>>().join("::");
    let mut rest = path.into_iter().peekable();
    match rest.peek()?.as_str() {
        "crate" => {
            rest.next();
            base.clear();
        }
        "self" => drop(rest.next()),
        "super" => {
            while rest.next_if(|part| part == "super").is_some() {
                base.pop();
            }
        }
        _ if modules.contains(&child) => {}
        _ => return None,
    }
    base.extend(rest);
    Some(base)
}

/// Returns the module that has the item with this path. Follows names that modules export again.
fn find_module(
    path: &[String],
    lines: &BTreeMap<&Module, UseLines>,
    depth: usize,
) -> Option<Module> {
    assert!(depth < 20, "{path:?} is exported in a circle");
    (0..=path.len()).rev().find_map(|length| {
        let module = path[..length].join("::");
        let own = lines.get(&module)?;
        let exported = path.get(length).and_then(|name| own.exports.get(name));
        let found = exported.and_then(|exported| {
            let exported = [exported, &path[length + 1..]].concat();
            find_module(&exported, lines, depth + 1)
        });
        Some(found.unwrap_or(module))
    })
}

/// Returns the index of the layer of a module, which the longest entry that contains the module determines.
fn layer_of(module: &str, layers: &[&[&str]]) -> usize {
    let entries = layers.iter().enumerate().flat_map(|(layer, entries)| {
        entries.iter().filter(|entry| is_in(module, entry)).map(move |entry| (entry.len(), layer))
    });
    let found = entries.max().unwrap_or_else(|| panic!("`{module}` has no layer"));
    found.1
}

/// Returns `true` if a module is `entry` or one of its children.
fn is_in(module: &str, entry: &str) -> bool {
    module.strip_prefix(entry).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[test]
fn modules_use_only_layers_below() {
    for (name, layers) in [("slidegate-server", SERVER_LAYERS), ("slidegate", LIBRARY_LAYERS)] {
        let upward = Crate::read(name).upward_uses(layers);
        assert!(upward.is_empty(), "{name}: {upward:#?}");
    }
}

#[test]
fn circles_have_at_most_three_files() {
    for name in CRATES {
        let all = Crate::read(name);
        for module in all.uses.keys() {
            let circle = all.circle_of(module);
            assert!(circle.len() <= MAX_FILES_IN_CIRCLE, "{name}: {circle:?}");
        }
    }
}

/// A file of tests that `main.rs` does not name is not compiled. `shuttle.rs` is a program of its own.
#[test]
fn test_files_are_modules() {
    for name in CRATES.iter().filter(|name| **name != "slidegate-tools") {
        let folder = project_path("crates").join(name).join("tests");
        let main = fs::read_to_string(folder.join("main.rs")).unwrap();
        for file in fs::read_dir(&folder).unwrap() {
            let file = file.unwrap().file_name().into_string().unwrap();
            let Some(module) = file.strip_suffix(".rs") else { continue };
            let is_module = main.contains(&format!("\nmod {module};\n"));
            assert!(is_module || ["main", "shuttle"].contains(&module), "{name}: tests/{file}");
        }
    }
}
