//! Tests of the client programs in `examples/http`, with a server that decides, and one that has stopped.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::common::Server;

const POLICY: &str = "rules: [{ name: two, per: [client], limits: [2/h] }]";

/// The budget of a check in milliseconds: long enough for a busy machine.
const BUDGET_MS: &str = "3000";

/// Programs that check a request for each line of standard input, and print the decision as JSON. The arguments are the
/// address of the server, the budget in milliseconds, and whether requests are allowed on failure.
const NODE: &str = "
import { createInterface } from 'node:readline'
import { limiter } from './slidegate.mjs'
const [address, budgetMs, allow] = process.argv.slice(2)
const options = { url: `http://${address}`, budgetMs: Number(budgetMs), allowOnFailure: allow === 'true' }
const check = limiter(options)
for await (const client of createInterface({ input: process.stdin })) {
  const { allowed, status, reason, headers } = await check({ client, user: undefined })
  console.log(JSON.stringify({ allowed, status, reason, headers: Object.keys(headers) }))
}
process.exit()
";

const PYTHON: &str = "
import json, sys
from slidegate import Limiter
address, budget_ms, allow = sys.argv[1:]
limiter = Limiter(address, budget_s=int(budget_ms) / 1000, allow_on_failure=allow == 'true')
for line in sys.stdin:
    decision = limiter.check({'client': line.strip(), 'user': None})
    shown = {name: decision[name] for name in ('allowed', 'status', 'reason')}
    print(json.dumps({**shown, 'headers': [name.lower() for name in decision['headers']]}), flush=True)
";

const GO: &str = r#"
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"time"

	"example/slidegate"
)

func main() {
	budget, _ := strconv.Atoi(os.Args[2])
	limiter := slidegate.Limiter{
		URL:            "http://" + os.Args[1],
		Budget:         time.Duration(budget) * time.Millisecond,
		AllowOnFailure: os.Args[3] == "true",
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		decision := limiter.Check(context.Background(), map[string]any{"client": lines.Text()})
		headers := []string{}
		for name := range decision.Header {
			headers = append(headers, strings.ToLower(name))
		}
		shown := map[string]any{
			"allowed": decision.Allowed, "status": decision.Status, "reason": decision.Reason, "headers": headers,
		}
		json.NewEncoder(os.Stdout).Encode(shown)
	}
}
"#;

/// A directory with a client program and its driver. It is removed when the value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("client-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("slidegate")).unwrap();
        for (path, content) in files {
            fs::write(folder.join(path), content).unwrap();
        }
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/http");
    fs::read_to_string(folder.join(name)).unwrap()
}

/// A running client program.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(folder: &Folder, command: &[&str], server: &Server, allow_on_failure: bool) -> Self {
        let mut child = Command::new(command[0])
            .args(&command[1..])
            .args([&server.address().to_string(), BUDGET_MS, &allow_on_failure.to_string()])
            .current_dir(&folder.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{}: {error}; `make test-tools` installs it", command[0])
            });
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    fn check(&mut self, client: &str) -> Value {
        writeln!(self.input, "{client}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn has_header(decision: &Value, name: &str) -> bool {
    decision["headers"].as_array().unwrap().contains(&json!(name))
}

/// Runs a client program against a server that decides, stops, and continues.
fn check_program(folder: &Folder, command: &[&str]) {
    let server = Server::start(POLICY);
    let mut open = Program::start(folder, command, &server, true);
    let mut closed = Program::start(folder, command, &server, false);
    let first = open.check("ann");
    assert_eq!((&first["allowed"], &first["status"]), (&json!(true), &json!(200)), "{first}");
    assert!(has_header(&first, "ratelimit") && !has_header(&first, "date"), "{first}");
    assert_eq!(closed.check("ann")["allowed"], true);
    let denied = closed.check("ann");
    assert_eq!((&denied["allowed"], &denied["status"]), (&json!(false), &json!(429)), "{denied}");
    assert!(has_header(&denied, "retry-after"), "{denied}");
    server.pause();
    for (program, is_allowed, status) in [(&mut open, true, 200), (&mut closed, false, 503)] {
        let reasons = [(); 4].map(|()| {
            let decision = program.check("bob");
            let expected = (&json!(is_allowed), &json!(status), &json!([]));
            assert_eq!(
                (&decision["allowed"], &decision["status"], &decision["headers"]),
                expected,
                "{decision}"
            );
            decision["reason"].as_str().unwrap().to_owned()
        });
        let failed = "slidegate_failed";
        assert_eq!(reasons, [failed, failed, failed, "breaker_open"]);
    }
    server.resume();
    for program in [&mut open, &mut closed] {
        // The breaker stays open for the rest of its second, in which checks return at once.
        let decided = std::iter::from_fn(|| Some(program.check("eve")));
        let decided = decided.take(1_000_000).find(|decision| decision["reason"] != "breaker_open");
        assert!(has_header(&decided.unwrap(), "ratelimit"));
    }
}

#[test]
fn node_client_survives_stopped_server() {
    let client = example("slidegate.mjs");
    let folder = Folder::new("node", &[("slidegate.mjs", &client), ("main.mjs", NODE)]);
    check_program(&folder, &["node", "main.mjs"]);
}

#[test]
fn python_client_survives_stopped_server() {
    let client = example("slidegate.py");
    let folder = Folder::new("python", &[("slidegate.py", &client), ("main.py", PYTHON)]);
    check_program(&folder, &["python3", "main.py"]);
}

#[test]
fn go_client_survives_stopped_server() {
    let client = example("slidegate.go");
    let files = [
        ("slidegate/slidegate.go", &*client),
        ("main.go", GO),
        ("go.mod", "module example\n\ngo 1.19\n"),
    ];
    let folder = Folder::new("go", &files);
    let built =
        Command::new("go").args(["build", "-o", "main", "."]).current_dir(&folder.0).output();
    let built = built.unwrap_or_else(|error| panic!("go: {error}; `make test-tools` installs it"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    check_program(&folder, &["./main"]);
}
