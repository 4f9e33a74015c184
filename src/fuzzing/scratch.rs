//! Files for targets that read files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A name that nobody else has, gone with its file when dropped. In memory where there is such a place: a file is written for every input.
pub struct Scratch(PathBuf);

impl Scratch {
    /// With this content.
    pub fn new(content: &[u8]) -> Scratch {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let scratch = Scratch(directory.join(format!("shard-manager-fuzz-{}-{number}", std::process::id())));
        std::fs::write(&scratch.0, content).expect("the place takes files");
        scratch
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}
