.PHONY: verify fix test sim model fuzz torture torture-guards bench check-deploy

# What CI runs. Read-only.
verify:
	tools/verify

# Tests alone.
test:
	cargo nextest run --locked

# Whole clusters from seeds 0 .. SEEDS; see tests/sim/.
SEEDS = 10000
sim:
	SIM_SEEDS=$(SEEDS) cargo test --locked --test sim promises -- --nocapture

# Every run of the lease protocol within bounds, the large ones too: some minutes; see docs/testing.md.
model:
	MODEL_DEEP=1 cargo test --locked --test model promises -- --nocapture

# Bytes of every kind into everything that reads bytes: each target for so many seconds, one after the other; see docs/testing.md.
SECONDS = 60
fuzz:
	tools/fuzz $(SECONDS)

# A whole cluster, broken in every way for so many minutes; STORE is etcd, postgres or sqlite. See docs/testing.md.
MINUTES = 60
SEED = 1
STORE = sqlite
torture:
	TORTURE_MINUTES=$(MINUTES) TORTURE_SEED=$(SEED) TORTURE_STORE=$(STORE) TORTURE_DIRECTORY=target/torture/runs \
		cargo test --locked --test torture run -- --exact --nocapture

# Takes what the promises rest on out of a copy of the sources, one by one; torture runs must turn red. Hours; see docs/testing.md.
GUARDS = all
torture-guards:
	TORTURE_GUARDS=$(GUARDS) cargo test --locked --test torture_guards without_a_guard -- --nocapture

# What we ship for running it, against Kubernetes' schemas, promtool, docker-compose and systemd.
check-deploy:
	tools/check-deploy

# Measures the release build on this machine; writes bench.json, docs/performance.md and the figures of
# docs/choosing-a-store.md and docs/guarantees.md. See BENCH_RUNS and BENCH_ONLY there.
bench:
	cargo bench --locked --bench manager

# The only target that edits sources.
fix:
	cargo fmt --all
	cargo clippy --all-targets --fix --allow-dirty --allow-staged
