//! Compiles `proto/` with protox, so that no protoc is needed for our own definitions, and keeps the descriptors for reflection.

use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(
        ["shardmanager/v1/manager.proto", "shardmanager/v1/admin.proto", "shardmanager/v1/executor.proto"],
        ["proto"],
    )?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(files)?;
    ready_made(out)
}

/// The manager's own service once more, for answers that are encoded before anybody asks (see `rpc::ready`).
fn ready_made(out: PathBuf) -> Result<(), Box<dyn std::error::Error>> {
    let out = out.join("ready");
    std::fs::create_dir_all(&out)?;
    let mut configuration =
        tonic_prost_build::configure().out_dir(out).build_client(false).extern_path(".shardmanager.v1", "crate::rpc");
    for message in ["RoutingTable", "WatchRoutingTableResponse"] {
        configuration = configuration.extern_path(format!(".shardmanager.v1.{message}"), "crate::rpc::ready::Message");
    }
    configuration.compile_fds(protox::compile(["shardmanager/v1/manager.proto"], ["proto"])?)?;
    Ok(())
}
