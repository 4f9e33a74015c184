//! The document of `export` and `import`: text from anywhere, content under a checksum that holds, and content that is put together
//! from numbers. What is taken can be stored, comes back as it was, and can be led on.
//!
//! The first byte says which: 0 text of a document, 1 text of a content, 2 numbers.

use std::time::Duration;

use super::input::Input;
use super::settings;
use crate::api;
use crate::assignment::check::{check, check_step};
use crate::assignment::command::Command;
use crate::assignment::event::{Settings, Takeover};
use crate::assignment::record::{End, Standing, Wish};
use crate::assignment::state::RETIREE_PAGES;
use crate::assignment::{Engine, Event, State};
use crate::store::codec;
use crate::transfer::document::{Content, Document, Executor, Invalid, Number, Paused, Retired, Shards, Taken};
use crate::types::{BootInstant, ClusterId, Incarnation, Revision, Token};

const MOST_SAID: usize = 8192;

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 3 {
        0 => match Document::parse(input.rest()) {
            Ok(document) => held_to_its_word(&document),
            Err(invalid) => assert!(!matches!(invalid, Invalid::Rule(_)) && invalid.to_string().len() < MOST_SAID),
        },
        1 => {
            if let Ok(content) = serde_json::from_slice::<Content>(input.rest()) {
                held_to_its_word(&Document::new(content));
            }
        }
        _ => {
            if let Some(content) = put_together(input) {
                held_to_its_word(&Document::new(content));
            }
        }
    }
}

fn held_to_its_word(document: &Document) {
    let mut bytes = Vec::new();
    document.write(&mut bytes).expect("memory takes it");
    let read = Document::parse(&bytes).expect("what was written is read");
    assert_eq!(read, *document);
    let content = document.content();
    let state = match content.state(Token(5)) {
        Ok(state) => state,
        Err(Invalid::Rule(rule)) => return assert!(!rule.is_empty() && rule.len() < MOST_SAID, "{} bytes", rule.len()),
        Err(other) => panic!("only a rule can be broken by what was read: {other}"),
    };
    assert_eq!(check(&state), []);
    let records = codec::encode(&state.changes_since(None)).expect("what is taken can be stored");
    assert_eq!(codec::decode(records).expect("and read back"), Some(state.clone()));
    for executor in &content.executors {
        assert_eq!(api::endpoint(&executor.endpoint).as_ref(), Ok(&executor.endpoint), "it is where the manager will go");
    }
    let again = Content::of(&state, content.taken.clone());
    assert_eq!(in_buckets(again), in_buckets(content.clone()), "nothing is lost or changed on the way");
    led_on(state);
}

/// Retired incarnations have an order within their bucket alone.
fn in_buckets(mut content: Content) -> Content {
    content.retired.sort_by_key(|retired| retired.id_hash.0 % RETIREE_PAGES as u64);
    content
}

/// A leader takes the state over, lets its executors' leases run out, and frees what was theirs.
fn led_on(state: State) {
    let settings = Settings { calm_time: Duration::ZERO, max_pages_per_commit: 16, ..settings() };
    let number_of_shards = state.meta.number_of_shards;
    let takeover = Takeover { token: Token(6), unix_ms: 1, new_cluster: state.meta.cluster_id, number_of_shards };
    let mut now = BootInstant(Duration::from_secs(1000));
    let (mut revision, mut before) = (1, state.clone());
    let mut engine = Engine::new(settings, takeover, Some((Revision(revision), state)), now);
    let mut step = |engine: &mut Engine, now, event| {
        let mut in_flight = false;
        for command in engine.step(now, event) {
            match command {
                Command::Commit { changes, .. } => {
                    codec::encode(&changes).expect("a draft can be stored");
                    in_flight = true;
                }
                Command::Publish(snapshot) => {
                    assert_eq!(check(&snapshot.state), []);
                    assert_eq!(check_step(&before, &snapshot.state), []);
                    before = State::clone(&snapshot.state);
                }
                _ => {}
            }
        }
        in_flight
    };
    for turn in 0..12 {
        if step(&mut engine, now, Event::Turn) {
            revision += 1;
            assert!(!step(&mut engine, now, Event::Committed { revision: Revision(revision) }));
        }
        if turn == 0 {
            step(&mut engine, now, Event::PortOpened);
        }
        now = now.max(engine.next_turn());
    }
}

fn put_together(mut input: Input<'_>) -> Option<Content> {
    let uuid = |number: u8| ClusterId(uuid::Uuid::from_u128(u128::from(number)));
    let cluster_id = uuid(input.byte());
    let taken = match input.byte() {
        how @ 0..128 => Taken::Sealed { unix_ms: u64::from(how), by: String::new(), from: "etcd".to_owned() },
        how => Taken::Copy { unix_ms: 1, by: String::new(), from: "etcd".to_owned(), of: uuid(how - 128) },
    };
    let number_of_shards = u32::from(input.short());
    let (term, lease_ttl_ms) = (Number(input.long()), input.long());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let pause = match input.byte() {
        0 => None,
        until => Some(Paused { until_unix_ms: u64::from(until), by: text(input.chunk()), reason: text(input.chunk()) }),
    };
    let mut executors = Vec::new();
    for _ in 0..input.byte() % 40 {
        executors.push(Executor {
            id: format!("e{}", input.byte() % 40).parse().ok()?,
            incarnation: Number(input.long()),
            endpoint: text(input.chunk()),
            weight: u32::from(input.short()),
            wish: [Wish::None, Wish::Cordon, Wish::Drain, Wish::Remove][usize::from(input.byte() % 4)],
            leaving: input.byte() % 2 == 1,
            standing: [Standing::Present, Standing::Superseded, Standing::Gone][usize::from(input.byte() % 3)],
        });
    }
    let mut retired = Vec::new();
    for _ in 0..input.byte() {
        let end = if input.byte().is_multiple_of(2) { End::Over } else { End::Superseded };
        retired.push(Retired { id_hash: Number(input.long()), incarnation: Number(Incarnation(input.long()).0), end });
    }
    // What is left is read over and over, until every shard has something.
    let (tail, mut shards) = (input.rest(), Shards::default());
    for shard in 0..number_of_shards {
        let at = |at: usize| tail.get((shard as usize * 3 + at) % tail.len().max(1)).copied().unwrap_or_default();
        let owner = at(0);
        shards.owners.push((owner & 1 == 1).then(|| u32::from(owner >> 2)));
        shards.epochs.push(Number(u64::from(at(1)) << (at(2) % 60)));
        if owner & 3 == 3 {
            shards.releasing.push(shard);
        }
    }
    Some(Content { cluster_id, number_of_shards, term, lease_ttl_ms, taken, executors, shards, retired, pause })
}
