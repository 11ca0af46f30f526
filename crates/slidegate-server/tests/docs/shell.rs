//! Commands in documents: the blocks `sh`, and `sh fails`, whose commands have to fail.
//!
//! They run in a folder of the document's own, which has `examples/`, `access.log.gz` and every `yaml` block
//! that begins with its name, such as `# policy.yaml`. There are no programs but `slidegate`, `curl`, `redis-cli`, and
//! `cargo run` of the first and of examples. `slidegate serve` goes on in the background, on a free port
//! instead of its own; what is asked of its own (`localhost:8080`, and `localhost:6070` of operators) then goes there, until another server is
//! started on that. So does `redis-server --port 6379`, which `localhost:6379` and `redis-cli` mean; servers wait for
//! it as long as they must. Nodes of a cluster listen on a loopback address of the document's own instead of 127.0.0.1, and
//! know each other before anything else happens. `make` and `git` are not run, but what is made has to be in the Makefile.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::common::{Server, slidegate};
use crate::markdown::Block;
use crate::nodes::Nodes;
use crate::redis_server::Redis;
use crate::{output, root};

/// Where servers listen that do not say where, and where operators ask them.
const USUAL: &str = "localhost:8080";
const USUAL_ADMIN: &str = "localhost:6070";
const USUAL_GRPC: &str = "localhost:8081";

/// Where Redis listens, by the documents.
const REDIS: &str = "localhost:6379";

/// A document's commands, and what has come of them.
pub struct Shell {
    folder: PathBuf,
    /// By the addresses that they have in the document; and where operators ask them there.
    servers: BTreeMap<String, (Server, [String; 2])>,
    redis: Option<Redis>,
    nodes: Nodes,
    /// What the last commands have printed, until it is told.
    output: Option<String>,
}

impl Shell {
    pub fn in_a_folder_of(document: &str) -> Self {
        let name = format!("docs-{}-{}", document.replace('/', "-"), std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let programs = folder.join("bin");
        fs::create_dir_all(&programs).unwrap();
        symlink(root().join("examples"), folder.join("examples")).unwrap();
        fs::write(folder.join("access.log.gz"), gzip(&access_log())).unwrap();
        symlink(env!("CARGO_BIN_EXE_slidegate"), programs.join("slidegate")).unwrap();
        let curl = which("curl").expect("`make` installs curl, which the documents use");
        // It shows its progress wherever it writes to no terminal.
        program(&programs.join("curl"), &format!("exec '{curl}' --no-progress-meter \"$@\""));
        program(&programs.join("cargo"), &cargo());
        let nodes = Nodes::default();
        Self { folder, servers: BTreeMap::new(), redis: None, nodes, output: None }
    }

    /// Writes a block that begins with the name of a file.
    pub fn keep_file(&mut self, block: &Block) -> Result<(), String> {
        self.output = None;
        let first = block.text.lines().next().and_then(|line| line.strip_prefix("# "));
        let plain = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
        if let Some(name) = first.filter(|name| name.ends_with(".yaml") && name.chars().all(plain))
        {
            fs::write(self.folder.join(name), &block.text).unwrap();
        }
        Ok(())
    }

    /// Runs the commands of a block.
    pub fn run(&mut self, block: &Block) -> Result<(), String> {
        self.output = None;
        let fails = match block.mark() {
            "" => false,
            "fails" => true,
            other => return Err(format!("`sh {other}` is not known")),
        };
        let text = block.text.replace("\\\n", " ");
        let mut script = String::new();
        for line in text.lines() {
            let words: Vec<&str> =
                line.split_whitespace().take_while(|word| *word != "#").collect();
            match &words[..] {
                ["make", target, ..] => is_made(target)?,
                ["make", ..] | [] => {}
                ["git" | "cd", ..] => {}
                ["redis-server", "--port", "6379"] => self.start_redis(),
                ["slidegate", "serve", flags @ ..]
                | ["cargo", "run", "--release", "--", "serve", flags @ ..] => self.serve(flags)?,
                _ => script = format!("{script}{line}\n"),
            }
        }
        if !script.is_empty() {
            self.output = Some(self.script(&script, fails)?);
        }
        Ok(())
    }

    fn serve(&mut self, flags: &[&str]) -> Result<(), String> {
        if flags.iter().any(|flag| flag.contains(['\'', '"', '$', '|', '>'])) {
            return Err(format!("serve {}: too much of a shell's language", flags.join(" ")));
        }
        let mut flags: Vec<String> = flags.iter().map(|flag| self.at_real_ports(flag)).collect();
        self.nodes.at_own_address(&mut flags);
        let mut documented = |name: &str, usual: &str| {
            let Some(at) = flags.iter().position(|flag| flag == name) else {
                return usual.to_owned();
            };
            flags.remove(at);
            flags.remove(at).replace("127.0.0.1", "localhost")
        };
        let http = documented("--http", USUAL);
        let admin = documented("--admin", USUAL_ADMIN);
        let grpc = documented("--grpc", USUAL_GRPC);
        let mut command = slidegate();
        command.current_dir(&self.folder).arg("serve").args(flags);
        command.args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.env("SLIDEGATE_REDIS_TIMEOUT", "30s");
        self.servers.remove(&http);
        if self.servers.values().any(|(_, others)| others[0] == admin || others[1] == grpc) {
            return Err(format!("two servers cannot both listen on {admin}, or on {grpc}"));
        }
        let server = Server::spawn(&mut command);
        self.nodes.wait_for_others(&server);
        self.servers.insert(http, (server, [admin, grpc]));
        Ok(())
    }

    fn start_redis(&mut self) {
        let redis = Redis::start();
        let cli = which("redis-cli").expect("`make` installs redis, which the documents use");
        let cli = format!("exec '{cli}' -p {} \"$@\"", redis.port());
        program(&self.folder.join("bin/redis-cli"), &cli);
        self.redis = Some(redis);
    }

    /// With the ports at which servers listen here instead of those of the document.
    fn at_real_ports(&self, text: &str) -> String {
        let redis = self.redis.iter().map(|redis| (REDIS, format!("localhost:{}", redis.port())));
        let servers = self.servers.iter().flat_map(|(http, (server, [admin, _]))| {
            [(&**http, server.address()), (&**admin, server.admin())]
        });
        let servers = servers.map(|(at, real)| (at, real.to_string()));
        redis.chain(servers).fold(text.to_owned(), |text, (at, real)| text.replace(at, &real))
    }

    fn script(&self, script: &str, fails: bool) -> Result<String, String> {
        if self.servers.is_empty() && script.contains(USUAL) {
            return Err("no server was started".to_owned());
        }
        let script = self.at_real_ports(script);
        let ran = Command::new("/bin/sh")
            .args(["-e", "-c", &format!("exec 2>&1\n{script}")])
            .current_dir(&self.folder)
            .env_clear()
            // Without them rustup may choose, or even install, another toolchain.
            .envs(env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RUSTUP_")))
            .env("PATH", self.folder.join("bin"))
            .output()
            .unwrap();
        let output = String::from_utf8(ran.stdout).unwrap();
        // 127: no such program; 2: a usage that is no usage.
        let as_expected = if fails { ran.status.code() == Some(1) } else { ran.status.success() };
        match as_expected {
            true => Ok(output),
            false => Err(format!("{script}ended with {}:\n{output}", ran.status)),
        }
    }

    /// Whether commands have printed something that no block has told yet.
    pub fn has_output(&self) -> bool {
        self.output.is_some()
    }

    /// Whether a block shows what the last commands have printed.
    pub fn printed(&mut self, block: &Block) -> Result<(), String> {
        let found = self.output.take().ok_or("no command stands above what this block shows")?;
        output::compare(&block.text, &found)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// `cargo`, as far as documents use it. Examples are built as tests are, since most of that stands there.
fn cargo() -> String {
    let home = std::env::var("HOME").unwrap_or_default();
    let path = std::env::var("PATH").unwrap();
    format!(
        "case \"$1 $2 $3\" in\n\
         'run --release --') shift 3; exec slidegate \"$@\";;\n\
         'run -p slidegate') shift; cd '{root}'; HOME='{home}' PATH='{path}' exec '{cargo}' run -q --profile test \"$@\";;\n\
         esac\n\
         echo \"cargo $*: no document should say that\"; exit 2",
        root = root().display(),
        cargo = env!("CARGO"),
    )
}

/// Half an hour of three clients: one asks every 10 seconds, one every 7, one 10 times within 10
/// seconds and again 35 seconds later, where windows of a minute that are weighted err most.
fn access_log() -> String {
    let mut log = String::new();
    for second in 0..1_800 {
        for (ip, asks) in [
            ("192.0.2.1", second % 10 == 0),
            ("192.0.2.2", second % 7 == 0),
            ("192.0.2.3", second % 127 < 10 || (45..55).contains(&(second % 127))),
        ] {
            if asks {
                let (minute, second) = (second / 60, second % 60);
                let time = format!("17/May/2026:10:{minute:02}:{second:02} +0000");
                log += &format!("{ip} - - [{time}] \"GET /items HTTP/1.1\" 200 512\n");
            }
        }
    }
    log
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn which(program: &str) -> Option<String> {
    let path = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&path).map(|folder| folder.join(program));
    found.find(|path| path.is_file())?.to_str().map(str::to_owned)
}

fn is_made(target: &str) -> Result<(), String> {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let rule = format!("{target}:");
    let made = makefile.lines().any(|line| line.starts_with(&rule));
    if made { Ok(()) } else { Err(format!("the Makefile has no `{target}`")) }
}

#[test]
fn unknown_or_failing_commands_are_errors() {
    let mut shell = Shell::in_a_folder_of("what-fails");
    for (block, right) in [
        ("sh\nslidegate --version", true),
        ("sh\ncargo run --release -- --version", true),
        ("sh\nmake test", true),
        ("sh\nmake coffee", false),
        ("sh\nwget localhost", false),
        ("sh\ncargo publish", false),
        ("sh\nslidegate --verson", false),
        ("sh\nslidegate replay --policy nowhere.yaml nothing.log", false),
        ("sh fails\nslidegate replay --policy nowhere.yaml nothing.log", true),
        ("sh fails\nslidegate --version", false),
        ("sh fails\nwget localhost", false),
        ("sh\ncurl localhost:8080/healthz", false),
        ("sh slowly\nslidegate --version", false),
    ] {
        let block = crate::markdown::blocks(&format!("```{block}\n```\n")).remove(0);
        let ran = shell.run(&block);
        assert_eq!(ran.is_ok(), right, "{block:?}: {ran:?}");
    }
}
