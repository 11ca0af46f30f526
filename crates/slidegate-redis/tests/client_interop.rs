//! Tests that the example programs in `examples/redis` share their counters in Redis with a [`Gate`] of slidegate.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Once;
use std::time::Duration;

use slidegate::{Descriptor, Gate, Policy, Request};
use slidegate_redis::{RedisSettings, RedisStore, script_files};

use crate::server::Redis;

const MAX_REQUESTS_PER_HOUR: usize = 5;

/// Copies of the example programs and the script files, in a folder outside of the repository's sources, next to the
/// installed packages.
struct ExamplePrograms {
    home: PathBuf,
}

impl ExamplePrograms {
    fn install_copies() -> Self {
        // Once, because the tests run concurrently: Node would run a file that is being copied as an empty program.
        static INSTALL_COPIES: Once = Once::new();
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("client_interop");
        for needed in ["venv/bin/python", "node_modules/redis"] {
            let needed = home.join(needed);
            assert!(
                needed.exists(),
                "{} is missing: crates/slidegate-redis/tests/client_interop.sh installs it (`make test` runs that)",
                needed.display()
            );
        }
        INSTALL_COPIES.call_once(|| {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().parent().unwrap();
            for program in ["limit.py", "limit.mjs"] {
                fs::copy(root.join("examples/redis").join(program), home.join(program)).unwrap();
            }
            fs::create_dir_all(home.join("lua/packed")).unwrap();
            for file in script_files() {
                fs::write(home.join("lua").join(file.path), file.text).unwrap();
            }
        });
        Self { home }
    }

    /// Creates the command that runs the Python program.
    fn python_command(&self, run_args: &ProgramArgs<'_>) -> Command {
        self.program_command(&self.home.join("venv/bin/python"), "limit.py", run_args)
    }

    /// Creates the command that runs the Node program.
    fn node_command(&self, run_args: &ProgramArgs<'_>) -> Command {
        self.program_command(Path::new("node"), "limit.mjs", run_args)
    }

    fn program_command(
        &self,
        interpreter: &Path,
        program: &str,
        run_args: &ProgramArgs<'_>,
    ) -> Command {
        let mut command = Command::new(interpreter);
        command.current_dir(&self.home).args([program, "lua"]);
        command.args([run_args.address, run_args.algorithm, run_args.client]);
        command.arg(run_args.times.to_string());
        command
    }
}

type ProgramCommandBuilder = fn(&ExamplePrograms, &ProgramArgs<'_>) -> Command;

struct ProgramArgs<'a> {
    address: &'a str,
    algorithm: &'a str,
    client: &'a str,
    times: usize,
}

/// Returns the lines that a program printed.
fn output_lines(program: &str, output: Output) -> Vec<String> {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program}: {errors}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn run_program(mut command: Command) -> Vec<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output =
        command.output().unwrap_or_else(|error| panic!("{program}: {error}; is it installed?"));
    output_lines(&program, output)
}

fn new_gate(redis: &Redis, algorithm: &str) -> Gate<RedisStore> {
    let rule = format!(
        "rules: [{{ name: per-client, per: [client], limits: [{MAX_REQUESTS_PER_HOUR}/h], algorithm: {algorithm} }}]"
    );
    let settings = RedisSettings { timeout: Duration::from_secs(10), ..RedisSettings::default() };
    let store = RedisStore::open(&redis.address(), settings).unwrap();
    Gate::new(Policy::from_yaml(&rule).unwrap(), store)
}

/// Checks a request at the gate, and returns the line that the example programs would print.
async fn check_request_at_gate(gate: &Gate<RedisStore>, client: &str) -> String {
    let decision =
        gate.check_async(&Request::new("default", Descriptor::new([("client", client)]))).await;
    assert!(!decision.is_degraded(), "must be decided by Redis");
    if decision.is_allowed() {
        format!("allowed, {} left", decision.remaining())
    } else {
        format!("denied, try again in {:.3} s", decision.retry_after().unwrap().as_secs_f64())
    }
}

/// Pairs of an algorithm that the example programs support, and the name of a client. Some of the names must be escaped
/// in Redis keys.
const ALGORITHM_AND_CLIENT_NAME_PAIRS: [(&str, &str); 6] = [
    ("sliding_window", "alice"),
    ("sliding_window", "é=a*b!'(c)"),
    ("sliding_log", "203.0.113.7:443"),
    ("sliding_counter", "{x},%/@+~_.-"),
    // Counted by its network, and by the IPv4 address.
    ("sliding_window", "2001:DB8:0:7::0:1"),
    ("sliding_counter", "::ffff:192.0.2.7"),
];

#[tokio::test]
async fn example_programs_share_counters_with_gate() {
    let (redis, programs) = (Redis::start(), ExamplePrograms::install_copies());
    let address = redis.address();
    for (algorithm, client) in ALGORITHM_AND_CLIENT_NAME_PAIRS {
        let gate = new_gate(&redis, algorithm);
        let run_args = ProgramArgs { address: &address, algorithm, client, times: 1 };
        let mut lines = run_program(programs.python_command(&run_args));
        lines.push(check_request_at_gate(&gate, client).await);
        lines.extend(run_program(programs.node_command(&run_args)));
        lines.extend(run_program(programs.python_command(&run_args)));
        lines.push(check_request_at_gate(&gate, client).await);
        let expected = (0..MAX_REQUESTS_PER_HOUR).rev().map(|left| format!("allowed, {left} left"));
        assert_eq!(lines, expected.collect::<Vec<_>>(), "{algorithm} {client}");

        // The waits of successive denials end at the same time.
        let denied = [
            run_program(programs.node_command(&run_args)).remove(0),
            check_request_at_gate(&gate, client).await,
            run_program(programs.python_command(&run_args)).remove(0),
        ];
        let waits = denied.map(|lines| {
            let wait = lines
                .strip_prefix("denied, try again in ")
                .and_then(|wait| wait.strip_suffix(" s"));
            wait.unwrap_or_else(|| panic!("{lines}")).parse::<f64>().unwrap()
        });
        assert!(
            waits[0] >= waits[1] && waits[1] >= waits[2] && waits[2] > waits[0] - 60.0,
            "{waits:?}"
        );
        assert!(waits[0] > 0.0 && waits[0] < 2.0 * 3600.0, "{waits:?}");
    }
}

/// Tests sequential requests until the limit is exhausted. The reply to the charge of the last unit has another form,
/// which includes the wait for the next unit.
#[tokio::test]
async fn sequential_programs_get_exactly_limit_maximum() {
    let (redis, programs) = (Redis::start(), ExamplePrograms::install_copies());
    let address = redis.address();
    for (algorithm, client) in ALGORITHM_AND_CLIENT_NAME_PAIRS {
        for (program, run_as) in [
            ("python", ExamplePrograms::python_command as ProgramCommandBuilder),
            ("node", ExamplePrograms::node_command),
        ] {
            let client = format!("{client}-{program}");
            let run_args = ProgramArgs {
                address: &address,
                algorithm,
                client: &client,
                times: MAX_REQUESTS_PER_HOUR + 1,
            };
            let lines = run_program(run_as(&programs, &run_args));
            let expected =
                (0..MAX_REQUESTS_PER_HOUR).rev().map(|left| format!("allowed, {left} left"));
            assert_eq!(
                lines[..MAX_REQUESTS_PER_HOUR],
                expected.collect::<Vec<_>>(),
                "{program} {algorithm} {client}"
            );
            assert!(
                lines[MAX_REQUESTS_PER_HOUR].starts_with("denied"),
                "{program} {algorithm} {client}: {lines:?}"
            );
        }
    }
}

#[tokio::test]
async fn concurrent_programs_get_exactly_limit_maximum() {
    let (redis, programs) = (Redis::start(), ExamplePrograms::install_copies());
    let address = redis.address();
    for (algorithm, client) in ALGORITHM_AND_CLIENT_NAME_PAIRS {
        let gate = new_gate(&redis, algorithm);
        let mut lines = vec![
            check_request_at_gate(&gate, client).await,
            check_request_at_gate(&gate, client).await,
        ];
        let run_args =
            ProgramArgs { address: &address, algorithm, client, times: MAX_REQUESTS_PER_HOUR };
        let programs = [
            programs.python_command(&run_args),
            programs.node_command(&run_args),
            programs.python_command(&run_args),
            programs.node_command(&run_args),
        ];
        let running = programs.map(|program| std::thread::spawn(move || run_program(program)));
        for program in running {
            lines.extend(program.join().unwrap());
            lines.push(check_request_at_gate(&gate, client).await);
        }
        assert_eq!(lines.len(), 2 + 4 * (MAX_REQUESTS_PER_HOUR + 1));
        let allowed = lines.iter().filter(|lines| lines.starts_with("allowed")).count();
        assert_eq!(allowed, MAX_REQUESTS_PER_HOUR, "{algorithm} {client}: {lines:?}");
    }
}
