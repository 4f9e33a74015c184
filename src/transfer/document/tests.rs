use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::types::ShardId;

fn taken() -> Taken {
    Taken::Sealed { unix_ms: 1_700_000_000_000, by: "process 1 on a".to_owned(), from: "etcd".to_owned() }
}

fn cluster(number: u128) -> ClusterId {
    ClusterId(uuid::Uuid::from_u128(number))
}

fn meta(number_of_shards: u32) -> Meta {
    Meta {
        cluster_id: cluster(7),
        number_of_shards,
        term: Term(MAX_NUMBER - 1),
        token: Token(1),
        attempt: 9,
        lease_ttl_ms: 30_000,
        inventory: Inventory::default(),
        seal: Seal::Open,
        pause: None,
    }
}

fn executor(at: u64) -> ExecutorRecord {
    ExecutorRecord {
        id: format!("executor-{at}").parse().unwrap(),
        incarnation: Incarnation(u64::MAX - at),
        endpoint: format!("http://10.0.0.{at}:9093"),
        weight: 1 + at as u32,
        wish: [Wish::None, Wish::Cordon, Wish::Drain, Wish::Remove][at as usize % 4],
        leaving: at.is_multiple_of(2),
        standing: [Standing::Present, Standing::Superseded, Standing::Gone][at as usize % 3],
    }
}

/// A state with something of everything, and holes between its slots.
pub(in crate::transfer) fn state(number_of_shards: u32) -> State {
    let mut state = State::new(meta(number_of_shards));
    for slot in [0, 3, 20] {
        state.set_executor(Slot(slot), Some(executor(u64::from(slot))));
    }
    let owners = [ShardState::Held(Slot(0)), ShardState::Releasing(Slot(20)), ShardState::Unassigned, ShardState::Held(Slot(3))];
    for shard in (0..number_of_shards).filter(|shard| shard % 1000 < 100) {
        let state_of = owners[shard as usize % 4];
        state.set_shard(ShardId(shard), ShardRecord { epoch: Epoch(MAX_NUMBER - 1 - u64::from(shard)), state: state_of });
    }
    for at in 0..40 {
        state.retire(&executor(at % 7).id, Incarnation(1 + at), if at % 2 == 0 { End::Over } else { End::Superseded });
    }
    state
}

pub(in crate::transfer) fn content() -> Content {
    Content::of(&state(64), taken())
}

fn bytes(document: &Document) -> Vec<u8> {
    let mut bytes = Vec::new();
    document.write(&mut bytes).unwrap();
    bytes
}

fn back(content: &Content) -> Content {
    let document = Document::new(content.clone());
    let read = Document::parse(&bytes(&document)).unwrap();
    assert_eq!(read, document);
    let state = read.content().state(Token(5)).unwrap();
    assert_eq!((state.meta.token, &state.meta.seal), (Token(5), &Seal::Open));
    Content::of(&state, content.taken.clone())
}

#[test]
fn a_state_comes_back_as_it_was() {
    let copy = Taken::Copy { unix_ms: 1, by: String::new(), from: "sqlite".to_owned(), of: cluster(8) };
    for taken in [taken(), copy] {
        for shards in [1, 64, 1024, 2500, 70_000] {
            let before = state(shards);
            let content = Content::of(&before, taken.clone());
            assert_eq!(back(&content), content, "{shards} shards");
            let after = content.state(Token(5)).unwrap();
            let owner = |state: &State, record: ShardRecord| record.owner().map(|slot| state.executor(slot).unwrap().clone());
            for ((shard, old), (_, new)) in before.shards().zip(after.shards()) {
                assert_eq!((old.epoch, owner(&before, old)), (new.epoch, owner(&after, new)), "{shard}");
            }
            assert!((0..40).all(|at| after.retirement(&executor(at % 7).id, Incarnation(1 + at)).is_some()));
            assert_eq!((after.meta.term, after.meta.lease_ttl_ms), (before.meta.term, before.meta.lease_ttl_ms));
        }
    }
}

/// What is in files stays readable: whoever changes these bytes raises [`VERSION`] and reads the old ones as well.
#[test]
fn golden_document() {
    let mut state = State::new(Meta { term: Term(5), ..meta(3) });
    state.set_executor(Slot(2), Some(executor(2)));
    state.set_shard(ShardId(1), ShardRecord { epoch: Epoch(7), state: ShardState::Releasing(Slot(2)) });
    state.retire(&executor(2).id, Incarnation(9), End::Over);
    let golden = concat!(
        r#"{"format":"shard-manager-export","version":1,"checksum":"dec4c619","content":{"#,
        r#""cluster_id":"00000000-0000-0000-0000-000000000007","number_of_shards":3,"term":"5","lease_ttl_ms":30000,"#,
        r#""taken":{"how":"sealed","unix_ms":1700000000000,"by":"process 1 on a","from":"etcd"},"#,
        r#""executors":[{"id":"executor-2","incarnation":"18446744073709551613","endpoint":"http://10.0.0.2:9093","weight":3,"#,
        r#""wish":"drain","leaving":true,"standing":"gone"}],"#,
        r#""shards":{"owners":[null,0,null],"epochs":["0","7","0"],"releasing":[1]},"#,
        r#""retired":[{"id_hash":"16488071457975841891","incarnation":"9","end":"over"}]}}"#,
        "\n"
    );
    let document = Document::new(Content::of(&state, taken()));
    assert_eq!(String::from_utf8(bytes(&document)).unwrap(), golden);
    // White space is no change.
    let pretty = serde_json::to_vec_pretty(&document).unwrap();
    assert_eq!(Document::parse(&pretty).unwrap(), document);
}

/// A pause moves along; a document without one is what it always was.
#[test]
fn a_pause_moves_along() {
    let mut state = state(64);
    state.meta.pause = Some(Box::new(Pause::new(1_700_000_000_000, "me@host", "a game is on")));
    let document = Document::new(Content::of(&state, taken()));
    let text = String::from_utf8(bytes(&document)).unwrap();
    assert!(
        text.ends_with(",\"pause\":{\"until_unix_ms\":1700000000000,\"by\":\"me@host\",\"reason\":\"a game is on\"}}}\n"),
        "{text}"
    );
    let there = Document::parse(text.as_bytes()).unwrap().content().state(Token(5)).unwrap();
    assert_eq!(there.meta.pause, state.meta.pause);
    let pause = |reason: &str| {
        let pause = json!({ "until_unix_ms": 1, "by": "", "reason": reason });
        move |content: &mut Value| content["pause"] = pause
    };
    assert!(changed(pause("fine")).is_ok());
    refused(pause(&"x".repeat(257)), "a text of the pause has more than 256 bytes, or more than one line");
    refused(pause("two\nlines"), "or more than one line");
}

/// A document whose JSON was changed, under a checksum that fits again.
fn changed(change: impl FnOnce(&mut Value)) -> Result<State, Invalid> {
    let mut value = serde_json::to_value(Document::new(content())).unwrap();
    change(&mut value["content"]);
    let content: Content = serde_json::from_value(value["content"].take()).map_err(Invalid::Unreadable)?;
    content.state(Token(1))
}

fn refused(change: impl FnOnce(&mut Value), says: &str) {
    let error = changed(change).expect_err(says);
    let text = match &error {
        Invalid::Unreadable(source) => format!("{error}: {source}"),
        _ => error.to_string(),
    };
    assert!(text.contains(says), "{text}: {says}");
}

#[test]
fn what_breaks_a_rule_is_refused_by_value_and_rule() {
    let number = |at: &'static [&str], value: Value| {
        move |content: &mut Value| *at.iter().fold(content, |value, key| &mut value[*key]) = value
    };
    refused(number(&["number_of_shards"], json!(0)), "number_of_shards is 0, it takes 1 to 4194304");
    refused(number(&["number_of_shards"], json!(4_194_305)), "number_of_shards is 4194305");
    refused(number(&["number_of_shards"], json!(65)), "there are 64 owners where number_of_shards is 65");
    refused(
        number(&["term"], json!("4611686018427387904")),
        "term is 4611686018427387904, it takes less than 4611686018427387904",
    );
    refused(number(&["term"], json!("-1")), "\"-1\": invalid digit");
    refused(number(&["term"], json!(5)), "expected a string");
    refused(number(&["lease_ttl_ms"], json!(0)), "lease_ttl_ms is 0, it takes 1 to");
    refused(number(&["taken", "how"], json!("open")), "unknown variant `open`");
    refused(number(&["more"], json!(1)), "unknown field `more`");
    refused(
        number(&["taken"], json!({"how": "copy", "unix_ms": 1, "by": "", "from": "", "of": cluster(7).to_string()})),
        "that of its original",
    );
    refused(number(&["executors"], json!([])), "shard 0 is owned by executor 0, there are 0");
    refused(number(&["shards", "releasing"], json!([5, 1])), "shard 1 stands after shard 5 in releasing");
    refused(number(&["shards", "releasing"], json!([64])), "shard 64 is releasing, number_of_shards is 64");
    refused(number(&["shards", "releasing"], json!([2])), "shard 2 is releasing, but nobody owns it");

    let first = |list: &'static [&str], value: Value| {
        move |content: &mut Value| list.iter().fold(content, |value, key| &mut value[*key])[0] = value
    };
    refused(
        first(&["shards", "epochs"], json!("4611686018427387904")),
        "the epoch of shard 0 is 4611686018427387904, it takes less than",
    );
    refused(first(&["shards", "epochs"], json!("0")), "shard 0 is owned by executor executor-0");
    refused(first(&["shards", "owners"], json!(3)), "shard 0 is owned by executor 3, there are 3, counted from 0");
    let retired = |incarnation: &str| json!({"id_hash": "1", "incarnation": incarnation, "end": "over"});
    refused(first(&["retired"], retired("0")), "an incarnation in retired is 0");
    let many: Vec<Value> = (1..=4097).map(|at| retired(&at.to_string())).collect();
    refused(number(&["retired"], json!(many)), "bucket 1 of retired has more than 4096");

    let of_executor = |key: &'static str, value: Value| move |content: &mut Value| content["executors"][0][key] = value;
    refused(of_executor("id", json!("a b")), "executor id \"a b\" is refused");
    refused(of_executor("incarnation", json!("0")), "incarnation 0");
    refused(of_executor("weight", json!(0)), "weight 0");
    refused(of_executor("endpoint", json!("x".repeat(513))), "it has 513 bytes, and may have 512");
    // As somebody may give it, but not as it is kept: nobody would be reached at it.
    refused(of_executor("endpoint", json!("10.0.0.1:80")), r#"is "10.0.0.1:80", it is written "http://10.0.0.1:80""#);
    refused(
        of_executor("endpoint", json!("garbage nl\n\x1b[31m")),
        r#"the endpoint of executor executor-0: "garbage nl\n\u{1b}[31m" is refused"#,
    );
    refused(of_executor("standing", json!("here")), "unknown variant `here`");
    let owners = |content: &mut Value| {
        content["shards"]["owners"].as_array_mut().unwrap().pop();
    };
    refused(owners, "there are 63 owners");
    let without_seal = |content: &mut Value| {
        content.as_object_mut().unwrap().remove("taken");
    };
    refused(without_seal, "missing field `taken`");
    let twice = |content: &mut Value| {
        let first = content["executors"][0].clone();
        content["executors"].as_array_mut().unwrap().push(first);
    };
    refused(twice, "records in slots 0 and 3");
}

#[test]
fn what_is_no_document_or_not_whole_is_refused() {
    let whole = bytes(&Document::new(content()));
    let error = |bytes: &[u8]| Document::parse(bytes).unwrap_err();
    for length in 0..whole.len() - 1 {
        assert!(matches!(error(&whole[..length]), Invalid::Unreadable(_)), "{length} bytes");
    }
    assert!(matches!(error(&[&whole[..], b"{}"].concat()), Invalid::Unreadable(_)));
    assert!(matches!(error(b"\xff\xfe"), Invalid::Unreadable(_)));
    assert!(matches!(error(br#"{"format":"x","version":1}"#), Invalid::Format { .. }));
    let newer = error(br#"{"format":"shard-manager-export","version":2,"more":[]}"#);
    assert!(matches!(newer, Invalid::Version { found: 2 }), "{newer}");
    assert!(newer.to_string().contains("a newer one wrote it"), "{newer}");
    assert!(matches!(error(br#"{"format":"shard-manager-export","version":0}"#), Invalid::Version { found: 0 }));

    let whole = String::from_utf8(whole).unwrap();
    let checksum = Document::new(content()).checksum().to_string();
    for other in [format!("+{}", &checksum[1..]), format!("0{checksum}"), checksum[1..].to_owned(), String::new()] {
        let edited = whole.replacen(&checksum, &other, 1);
        let refused = error(edited.as_bytes());
        assert!(matches!(refused, Invalid::Unreadable(_)), "{other}: {refused}");
    }
    let edited = whole.replacen("\"weight\":1,", "\"weight\":2,", 1);
    assert!(matches!(error(edited.as_bytes()), Invalid::Checksum { .. }));
}

fn any_state() -> impl Strategy<Value = State> {
    let slots = proptest::collection::btree_set(0u32..60, 1..20);
    let shard = (0..MAX_NUMBER, 0u8..3, any::<prop::sample::Index>());
    let retired = proptest::collection::vec((0u64..9, 1u64..50), 0..30);
    (slots, proptest::collection::vec(shard, 1..3000), retired).prop_map(|(slots, shards, retired)| {
        let mut state = State::new(meta(shards.len() as u32));
        for &slot in &slots {
            state.set_executor(Slot(slot), Some(executor(u64::from(slot))));
        }
        let slots: Vec<u32> = slots.into_iter().collect();
        for (shard, (epoch, kind, owner)) in (0..).zip(shards) {
            let slot = Slot(*owner.get(&slots));
            let record = match kind {
                0 => ShardRecord { epoch: Epoch(epoch), state: ShardState::Unassigned },
                1 => ShardRecord { epoch: Epoch(epoch.max(1)), state: ShardState::Held(slot) },
                _ => ShardRecord { epoch: Epoch(epoch.max(1)), state: ShardState::Releasing(slot) },
            };
            state.set_shard(ShardId(shard), record);
        }
        for (id, incarnation) in retired {
            state.retire(&executor(id).id, Incarnation(incarnation), End::Superseded);
        }
        state
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_state_comes_back(state in any_state()) {
        let content = Content::of(&state, taken());
        prop_assert_eq!(back(&content), content);
    }

    #[test]
    fn any_bytes_are_an_error_and_no_crash(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = bytes(&Document::new(content()));
        let at = at.index(bytes.len());
        let old = std::mem::replace(&mut bytes[at], byte);
        if let Ok(document) = Document::parse(&bytes) {
            prop_assert!(old == byte || old.is_ascii_whitespace(), "byte {} is {}", at, byte);
            prop_assert_eq!(document.content().clone(), content());
        }
    }
}
