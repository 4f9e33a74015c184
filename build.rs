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
    Ok(())
}
