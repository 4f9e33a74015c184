.PHONY: verify fix test

# What CI runs. Read-only.
verify:
	tools/verify

# Tests alone.
test:
	cargo nextest run --locked

# The only target that edits files.
fix:
	cargo fmt --all
	cargo clippy --all-targets --fix --allow-dirty --allow-staged
