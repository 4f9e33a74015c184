//! Documents of `export` and `import`: as they are, and contents that are past their checksum.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shard_manager::transfer::document::{Content, Document};
use shard_manager::types::Token;

fuzz_target!(|data: &[u8]| {
    let _ = Document::parse(data).map(|document| document.content().state(Token(1)));
    if let Ok(content) = serde_json::from_slice::<Content>(data) {
        let document = Document::new(content.clone());
        let mut text = Vec::new();
        document.write(&mut text).expect("memory can be written");
        assert_eq!(Document::parse(&text).expect("what was written is read").content(), &content);
        let _ = content.state(Token(1));
    }
});
