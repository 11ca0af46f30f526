//! Runs the commands in the code blocks `sh` and `sh fails` of documents. The commands of `sh fails` must fail.
//!
//! The commands of a document run in its own folder, which contains `examples/`, `access.log.gz` and every `yaml` block
//! that begins with a file name, such as `# policy.yaml`. The only programs are `slidegate`, `curl`, `redis-cli`, and
//! `cargo run` for slidegate and the examples.
//!
//! `slidegate serve` runs in the background on a free port. Requests to its documented addresses (`localhost:8080`, and
//! `localhost:6070` for the admin listener) are redirected to that port until another server with the same address
//! starts. `redis-server --port 6379` is redirected in the same way, for `localhost:6379` and `redis-cli`; servers use
//! a long Redis timeout. Cluster nodes use a loopback address of their document instead of 127.0.0.1, and are connected
//! before the next command runs. `make` and `git` are not executed, but a target of `make` must exist in the Makefile.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::common::project_path;
use crate::common::{Server, slidegate_command};
use crate::docs::markdown::FencedBlock;
use crate::docs::nodes::NodeGroup;
use crate::docs::{example_programs, output, programs};
use crate::redis_server::Redis;

/// The default HTTP address of a server, as written in documents.
const DOCUMENTED_HTTP_ADDRESS: &str = "localhost:8080";
/// The default address of the admin listener, as written in documents.
const DOCUMENTED_ADMIN_ADDRESS: &str = "localhost:6070";
/// The default address of the gRPC listener, as written in documents.
const DOCUMENTED_GRPC_ADDRESS: &str = "localhost:8081";

/// The address of Redis in documents.
const DOCUMENTED_REDIS_ADDRESS: &str = "localhost:6379";

/// A runner for the commands of one document. Servers that the commands start run until the value is dropped.
pub struct Shell {
    folder: PathBuf,
    /// Running servers. The key is the HTTP address that the document uses. The array contains the admin address and
    /// the gRPC address that the document uses.
    servers: BTreeMap<String, (Server, [String; 2])>,
    redis: Option<Redis>,
    nodes: NodeGroup,
    /// Output of the last executed commands. `None` if the output has already been compared with a block.
    output: Option<String>,
}

impl Shell {
    pub fn new(document: &str) -> Self {
        let name = format!("docs-{}-{}", document.replace('/', "-"), std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let programs = folder.join("bin");
        fs::create_dir_all(&programs).unwrap();
        symlink(project_path("examples"), folder.join("examples")).unwrap();
        fs::write(folder.join("access.log.gz"), gzip_compress(&generate_access_log())).unwrap();
        symlink(env!("CARGO_BIN_EXE_slidegate"), programs.join("slidegate")).unwrap();
        let curl = find_program("curl").expect("`make` installs curl, which the documents use");
        // curl shows its progress if its output is not a terminal.
        write_executable_script(
            &programs.join("curl"),
            &format!("exec '{curl}' --no-progress-meter \"$@\""),
        );
        write_executable_script(&programs.join("cargo"), &cargo_replacement_script());
        let nodes = NodeGroup::default();
        Self { folder, servers: BTreeMap::new(), redis: None, nodes, output: None }
    }

    /// Saves a code block as a file if the first line is a comment with a file name, such as `# policy.yaml`.
    pub fn save_file(&mut self, block: &FencedBlock) -> Result<(), String> {
        self.output = None;
        let first = block.text.lines().next().and_then(|line| line.strip_prefix("# "));
        let plain = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
        let is_name = |name: &&str| {
            (name.ends_with(".yaml") || name.ends_with(".conf")) && name.chars().all(plain)
        };
        if let Some(name) = first.filter(is_name) {
            fs::write(self.folder.join(name), &block.text).unwrap();
        }
        Ok(())
    }

    /// Runs the commands of a code block, and stores their output for the comparison with a later block.
    pub fn run_commands(&mut self, block: &FencedBlock) -> Result<(), String> {
        self.output = None;
        let must_fail = match block.modifier() {
            "" => false,
            "fails" => true,
            other => return Err(format!("unknown block `sh {other}`")),
        };
        let text = block.text.replace("\\\n", " ");
        let mut script = String::new();
        for line in text.lines() {
            let words: Vec<&str> =
                line.split_whitespace().take_while(|word| *word != "#").collect();
            match &words[..] {
                ["make", target, ..] => check_make_target_exists(target)?,
                ["make", ..] | [] => {}
                ["git" | "cd", ..] => {}
                ["cargo", "run", "-p", ..] => {
                    example_programs::check_command(line)?;
                    script = format!("{script}{line}\n");
                }
                ["redis-server", "--port", "6379"] => self.start_redis(),
                ["slidegate", "serve", flags @ ..]
                | ["cargo", "run", "--release", "--", "serve", flags @ ..] => {
                    self.start_server(flags)?
                }
                _ => script = format!("{script}{line}\n"),
            }
        }
        if !script.is_empty() {
            self.output = Some(self.run_script(&script, must_fail)?);
        }
        Ok(())
    }

    /// Runs the program of a `python run` or `javascript run` block, and stores its output for the comparison with a
    /// later block.
    pub fn run_program(&mut self, block: &FencedBlock) -> Result<(), String> {
        self.output = None;
        let text = self.replace_documented_addresses(&block.text);
        self.output = Some(programs::run(block.language(), &text)?);
        Ok(())
    }

    fn start_server(&mut self, flags: &[&str]) -> Result<(), String> {
        if flags.iter().any(|flag| flag.contains(['\'', '"', '$', '|', '>'])) {
            return Err(format!("serve {}: shell syntax is not supported", flags.join(" ")));
        }
        let mut flags: Vec<String> =
            flags.iter().map(|flag| self.replace_documented_addresses(flag)).collect();
        self.nodes.use_own_address(&mut flags);
        let mut take_address = |name: &str, default: &str| {
            let Some(index) = flags.iter().position(|flag| flag == name) else {
                return default.to_owned();
            };
            flags.remove(index);
            flags.remove(index).replace("127.0.0.1", "localhost")
        };
        let http = take_address("--http", DOCUMENTED_HTTP_ADDRESS);
        let admin = take_address("--admin", DOCUMENTED_ADMIN_ADDRESS);
        let grpc = take_address("--grpc", DOCUMENTED_GRPC_ADDRESS);
        let mut command = slidegate_command();
        command.current_dir(&self.folder).arg("serve").args(flags);
        command.args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        if command.get_args().any(|argument| argument.to_string_lossy().starts_with("redis")) {
            command.env("SLIDEGATE_REDIS_TIMEOUT", "30s");
        }
        self.servers.remove(&http);
        if self.servers.values().any(|(_, others)| others[0] == admin || others[1] == grpc) {
            return Err(format!("two servers cannot both listen on {admin}, or on {grpc}"));
        }
        let server = Server::spawn(&mut command);
        self.nodes.wait_until_connected(&server);
        self.servers.insert(http, (server, [admin, grpc]));
        Ok(())
    }

    fn start_redis(&mut self) {
        let redis = Redis::start();
        let cli =
            find_program("redis-cli").expect("`make` installs redis, which the documents use");
        let cli = format!("exec '{cli}' -p {} \"$@\"", redis.port());
        write_executable_script(&self.folder.join("bin/redis-cli"), &cli);
        self.redis = Some(redis);
    }

    /// Replaces the addresses that the document uses with the actual addresses of the running servers and of Redis.
    fn replace_documented_addresses(&self, text: &str) -> String {
        let redis = self
            .redis
            .iter()
            .map(|redis| (DOCUMENTED_REDIS_ADDRESS, format!("localhost:{}", redis.port())));
        let servers = self.servers.iter().flat_map(|(http, (server, [admin, _]))| {
            [(&**http, server.address()), (&**admin, server.admin_address())]
        });
        let servers = servers.map(|(documented, actual)| (documented, actual.to_string()));
        redis
            .chain(servers)
            .fold(text.to_owned(), |text, (documented, actual)| text.replace(documented, &actual))
    }

    fn run_script(&self, script: &str, must_fail: bool) -> Result<String, String> {
        if self.servers.is_empty() && script.contains(DOCUMENTED_HTTP_ADDRESS) {
            return Err("no server was started".to_owned());
        }
        let script = self.replace_documented_addresses(script);
        let completed = Command::new("/bin/sh")
            .args(["-e", "-c", &format!("exec 2>&1\n{script}")])
            .current_dir(&self.folder)
            .env_clear()
            // Without these variables rustup may choose, or even install, another toolchain.
            .envs(env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RUSTUP_")))
            .env("PATH", self.folder.join("bin"))
            .output()
            .unwrap();
        let output = String::from_utf8(completed.stdout).unwrap();
        // A documented failure exits with 1. 127 means an unknown program, 2 a usage error.
        let as_expected =
            if must_fail { completed.status.code() == Some(1) } else { completed.status.success() };
        if as_expected {
            Ok(output)
        } else {
            Err(format!("{script}ended with {}:\n{output}", completed.status))
        }
    }

    /// Returns `true` if commands have run and no code block has been compared with their output yet.
    pub fn has_output(&self) -> bool {
        self.output.is_some()
    }

    /// Compares the text of a code block with the output of the last executed commands.
    pub fn check_output(&mut self, block: &FencedBlock) -> Result<(), String> {
        let output = self.output.take().ok_or("no command above this output")?;
        output::compare_output(&block.text, &output)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns a shell script that replaces `cargo` in documents and supports only `cargo run`, of the server and of example
/// programs without arguments.
fn cargo_replacement_script() -> String {
    format!(
        "case \"$1 $2\" in\n\
         'run --release') shift 3; exec slidegate \"$@\";;\n\
         'run -p') for last; do :; done; exec '{examples}'/\"$last\";;\n\
         esac\n\
         echo \"cargo $*: not supported in documents\"; exit 2",
        examples = example_programs::built_examples().display(),
    )
}

/// Generates an access log of three clients over 30 minutes.
///
/// One client sends a request every 10 seconds, one every 7 seconds. The third sends 10 requests in 10 seconds, and
/// again 35 seconds later, every 127 seconds. A sliding window of one minute is least accurate for this pattern.
fn generate_access_log() -> String {
    let mut log = String::new();
    for second in 0..1_800 {
        for (ip, is_active) in [
            ("192.0.2.1", second % 10 == 0),
            ("192.0.2.2", second % 7 == 0),
            ("192.0.2.3", second % 127 < 10 || (45..55).contains(&(second % 127))),
        ] {
            if is_active {
                let (minute, second) = (second / 60, second % 60);
                let time = format!("17/May/2026:10:{minute:02}:{second:02} +0000");
                log += &format!("{ip} - - [{time}] \"GET /items HTTP/1.1\" 200 512\n");
            }
        }
    }
    log
}

fn gzip_compress(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn write_executable_script(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn find_program(name: &str) -> Option<String> {
    let path = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&path).map(|folder| folder.join(name));
    found.find(|path| path.is_file())?.to_str().map(str::to_owned)
}

fn check_make_target_exists(target: &str) -> Result<(), String> {
    let makefile = fs::read_to_string(project_path("Makefile")).unwrap();
    let rule = format!("{target}:");
    let has_target = makefile.lines().any(|line| line.starts_with(&rule));
    if has_target { Ok(()) } else { Err(format!("the Makefile has no target `{target}`")) }
}

#[test]
fn unknown_or_failing_commands_are_errors() {
    let mut shell = Shell::new("failing-commands");
    for (block, is_ok) in [
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
        let block = crate::docs::markdown::parse_blocks(&format!("```{block}\n```\n")).remove(0);
        let result = shell.run_commands(&block);
        assert_eq!(result.is_ok(), is_ok, "{block:?}: {result:?}");
    }
}
