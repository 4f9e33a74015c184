//! What managers answer the commands that ask them, printed as they print it. The first byte says which answer it is, the next eight when
//! it is printed, in milliseconds since 1970.

use super::input::Input;
use crate::cli::answers::{Answer, Refused, printed};

/// The longest refusal, in bytes: it has numbers in it, and nothing of the answer's own text.
const MOST_SAID: usize = 200;

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let answer = Answer::ALL[usize::from(input.byte()) % Answer::ALL.len()];
    let unix_ms = input.long();
    match printed(answer, input.rest(), unix_ms) {
        Ok(printed) => {
            let json = serde_json::from_str::<serde_json::Value>(&printed.json).expect("programs get JSON");
            assert!(json.is_object() || json.is_array(), "{json}");
            if let Some(shards) = json["shards"].as_array() {
                assert_eq!(json["number_of_shards"], shards.len(), "a line for each shard");
            }
            assert!(printed.texts.iter().all(|text| !text.is_empty()));
        }
        Err(Refused::Nonsense(said)) => assert!(said.len() < MOST_SAID, "{} bytes: {said}", said.len()),
        Err(Refused::Undecodable) => {}
    }
}
