# syntax=docker/dockerfile:1

# ---- build ----------------------------------------------------------------------------------------------------------------------
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# The caches keep the registry and everything compiled between builds: a change of ours compiles our crate alone. tools/protoc
# installs what etcd-client wants below target/, so it is kept there too.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target,sharing=locked \
    cargo build --release --locked --bin shard-manager \
    && install -D target/release/shard-manager /image/usr/local/bin/shard-manager \
    && install -d /image/var/lib/shard-manager

# ---- run ------------------------------------------------------------------------------------------------------------------------
# C library, certificates of public authorities, and nothing else: no shell, no package manager.
FROM gcr.io/distroless/cc-debian12:nonroot
LABEL org.opencontainers.image.title="shard-manager" \
      org.opencontainers.image.description="Decides which executor process owns which shard of a sharded stateful system" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /image/usr/local/bin/shard-manager /usr/local/bin/shard-manager
COPY --from=build --chown=65532:65532 /image/var/lib/shard-manager /var/lib/shard-manager
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
# Only the default store writes here. With PostgreSQL or etcd the image runs on a read-only root file system.
WORKDIR /var/lib/shard-manager
# The defaults listen on 127.0.0.1, where nobody outside the container could come: a container is reached through its network, so
# here every address is meant. Variables override the configuration file. [::]:9092 serves IPv6 too, where the host has it.
ENV SHARD_MANAGER__GRPC__LISTEN=0.0.0.0:9092 \
    SHARD_MANAGER__HTTP__LISTEN=0.0.0.0:8081
# gRPC, open on the leader only; HTTP, open on every replica.
EXPOSE 9092 8081
# Whether the process answers, leader or standby alike: a standby that waits is well. The command gives up after 5 s by itself.
HEALTHCHECK --interval=10s --timeout=6s --start-period=10s --retries=3 \
    CMD ["/usr/local/bin/shard-manager", "status", "--http", "127.0.0.1:8081"]
# In exec form: the process is number 1 of the container and gets SIGTERM itself.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/shard-manager"]
CMD ["serve"]
