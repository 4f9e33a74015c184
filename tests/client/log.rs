//! What a session writes to the log.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::subscriber::DefaultGuard;

/// The lines at INFO and above of this thread, while it lives.
pub struct Log {
    bytes: Arc<Mutex<Vec<u8>>>,
    _guard: DefaultGuard,
}

struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    pub fn start() -> Log {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter("info")
            .with_ansi(false)
            .without_time()
            .with_writer(move || Sink(Arc::clone(&sink)))
            .finish();
        Log { bytes, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// The lines that have all of these words.
    pub fn lines(&self, words: &[&str]) -> Vec<String> {
        let text = String::from_utf8(self.bytes.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned).collect()
    }
}
