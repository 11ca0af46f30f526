# What a fresh Debian machine with a Rust toolchain needs beyond it, these targets install themselves.

.PHONY: test test-shuttle differential fuzz-http fuzz lint doc instructions bench bench-peers bench-tower bench-accuracy bench-memory bench-policy bench-redis bench-server bench-cluster hot-keys flood retry-spike ci

# Every test: unit, integration and documentation tests, the explored thread schedules, and the
# server against its own description.
test:
	command -v curl >/dev/null || { apt-get update -q && apt-get install -y -q curl; }
	command -v redis-server >/dev/null || { apt-get update -q && apt-get install -y -q redis-server; }
	crates/slidegate-redis/tests/client_interop.sh
	crates/slidegate-server/tests/deploy.sh
	crates/slidegate-server/tests/proxies.sh
	cargo test --workspace --all-features
	$(MAKE) test-shuttle
	$(MAKE) fuzz-http

# The memory store and the breaker under many thread schedules. A build of its own, since locks and atomics are
# shuttle's; it is not optimised, since that would take longer than the tests.
test-shuttle:
	RUSTFLAGS='--cfg shuttle' cargo test --profile dev -p slidegate -p slidegate-redis --test shuttle --target-dir target/shuttle

# The server against a reference in Python: ten minutes, or as many seconds as SECONDS says. `make test` takes one minute.
differential: SECONDS = 600
differential:
	command -v redis-server >/dev/null || { apt-get update -q && apt-get install -y -q redis-server; }
	DIFFERENTIAL_SECONDS=$(SECONDS) cargo test --workspace --all-features --test differential -- --nocapture

# The server against its own OpenAPI document, by schemathesis (in a venv under target/).
fuzz-http:
	crates/slidegate-server/tests/schemathesis.sh

# Any text as a policy, and any bytes that reach a node of a cluster, by libFuzzer: ten minutes for each target, or as
# many seconds as SECONDS says. It begins with the repository's own policies, good and broken, and keeps what it learns
# in fuzz/corpus. What takes ten seconds is a finding: most take milliseconds, but the machine may have other work.
fuzz: SECONDS = 600
fuzz:
	rustup toolchain list | grep -q ^nightly || rustup toolchain install nightly --profile minimal
	command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
	mkdir -p fuzz/corpus/policy
	cp examples/*.yaml crates/slidegate-server/tests/validate/broken/*.yaml fuzz/corpus/policy
	cargo +nightly fuzz run policy -- -dict=fuzz/policy.dict -timeout=10 -max_total_time=$(SECONDS) $(ARGS)
	cargo +nightly fuzz run policy_of_parts -- -timeout=10 -max_total_time=$(SECONDS) $(ARGS)
	cargo +nightly fuzz run cluster_datagram -- -timeout=10 -max_total_time=$(SECONDS) $(ARGS)
	cargo +nightly fuzz run cluster_stream -- -timeout=10 -max_total_time=$(SECONDS) $(ARGS)
	cargo +nightly fuzz run cluster_message -- -timeout=10 -max_total_time=$(SECONDS) $(ARGS)

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-features --all-targets -- -D warnings

# Builds every published package from the files that it contains, and checks that each has the current licenses.
.PHONY: package
package:
	for folder in crates/*; do cmp LICENSE-MIT $$folder/LICENSE-MIT && cmp LICENSE-APACHE $$folder/LICENSE-APACHE || exit 1; done
	cargo package --locked --workspace --exclude lab --all-features

doc:
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --all-features --no-deps

# Instructions of the decision path, held against lab/instructions.txt.
# After a change that is meant to move them: make instructions ARGS=--update
instructions:
	command -v valgrind >/dev/null || { apt-get update -q && apt-get install -y -q valgrind; }
	cargo run --release -p lab --bin instructions -- $(ARGS)

# Everything beside its peers, in one report: docs/BENCHMARKS.md. Half an hour and 6 GB of memory once all is built, or
# less than five minutes with ARGS=--quick; ARGS='memory redis' measures those parts only. The last two write to
# target/bench instead. Each part runs alone, too, and prints what it finds: make bench-memory and so on, with
# ARGS=--quick or the names of its sections.
bench: bench-peers
	command -v redis-server >/dev/null || { apt-get update -q && apt-get install -y -q redis-server; }
	command -v valgrind >/dev/null || { apt-get update -q && apt-get install -y -q valgrind; }
	cargo build --release -p slidegate-server -p lab --bins --features lab/redis,lab/server,lab/tower,lab/cluster
	target/release/bench $(ARGS)

# Instructions that the tower layer adds to a request of axum, beside tower_governor's.
bench-tower:
	command -v valgrind >/dev/null || { apt-get update -q && apt-get install -y -q valgrind; }
	cargo run --release -p lab --features tower --bin bench_tower

# The memory store beside its peers: keys, batches, limits, footprint, log, hot-key.
bench-memory:
	cargo run --release -p lab --bin bench_memory -- $(ARGS)

# Each algorithm beside an exact log: arrivals, size, edge-burst. ARRIVALS=FILE takes another recording than
# lab/data/arrivals.txt, in the format that its head tells.
bench-accuracy:
	cargo run --release -p lab --bin bench_accuracy -- $(ARGS)

# Policies of a thousand rules: loading, decisions, applying.
bench-policy:
	cargo run --release -p lab --bin bench_policy -- $(ARGS)

# The Redis scripts beside plain ones, and what a store spares Redis: log, counter, buckets, depth, callers, denials,
# cluster.
bench-redis:
	command -v redis-server >/dev/null || { apt-get update -q && apt-get install -y -q redis-server; }
	cargo run --release -p lab --features redis --bin bench_redis -- $(ARGS)

# A cluster's store: decisions beside the memory store's, keys that are active, and what has slipped through three
# servers.
bench-cluster:
	cargo build --release
	cargo run --release -p lab --features cluster --bin bench_cluster -- $(ARGS)

# The server's HTTP and gRPC beside axum, tonic and throttlecrab, late answers at half load, and what it costs to be
# watched: http, grpc, latency, watched.
bench-server: bench-peers
	cargo build --release
	cargo run --release -p lab --features server --bin bench_server -- $(ARGS)

# What stands beside the server, and what asks it.
bench-peers: target/peers/bin/throttlecrab-server
	command -v h2load >/dev/null || { apt-get update -q && apt-get install -y -q nghttp2-client; }

# Built once, which takes minutes. Without protoc it does not build.
target/peers/bin/throttlecrab-server:
	command -v protoc >/dev/null || { apt-get update -q && apt-get install -y -q protobuf-compiler; }
	cargo install --locked --root target/peers --version 0.4.40 throttlecrab-server

# The tables of docs/REDIS.md: what splitting and sampling cost. `make test` holds them, too.
hot-keys:
	command -v redis-server >/dev/null || { apt-get update -q && apt-get install -y -q redis-server; }
	cargo test -p slidegate-redis --test hot_keys -- --nocapture --test-threads 1 fairness overload

# 50 million keys through room for one million.
flood:
	cargo run --release -p lab --bin flood

# The picture and the table of docs/CLIENT.md: a thousand clients that come back. `make test` holds them.
retry-spike:
	DRAW=1 cargo test -p slidegate-tower --features client --test client -- --nocapture docs_match_measured_retries

ci: test lint doc instructions
