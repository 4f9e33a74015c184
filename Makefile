.PHONY: verify fix test check-deploy

# What CI runs. Read-only.
verify:
	tools/verify

# Tests alone.
test:
	cargo nextest run --locked

# What we ship for running it, against Kubernetes' schemas, promtool, docker-compose and systemd.
check-deploy:
	tools/check-deploy

# The only target that edits files.
fix:
	cargo fmt --all
	cargo clippy --all-targets --fix --allow-dirty --allow-staged
