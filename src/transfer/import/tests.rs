use super::super::document::Taken;
use super::super::document::tests::state as sample;
use super::*;
use crate::store::Store;
use crate::store::memory::MemoryStore;

const DOCUMENT: u32 = 77;

fn taken() -> Taken {
    Taken::Sealed { unix_ms: 1, by: "a".to_owned(), from: "sqlite".to_owned() }
}

/// As an import has it.
fn state(token: Token) -> (Content, State) {
    let content = Content::of(&sample(9000), taken());
    let state = content.state(token).unwrap();
    (content, state)
}

/// After each piece the store can be read, is marked, and says so to whoever would import something else; after the last it is open and whole.
/// An import that goes on with other limits than the one before it finds its way.
#[tokio::test]
async fn a_store_is_readable_after_every_piece() {
    for pages in [1, 2, 3, 7, 1000] {
        let full = pieces(&state(Token(0)).1, Inventory::default(), pages, DOCUMENT).len();
        for interrupted_after in 0..full {
            let store = MemoryStore::new();
            let fence = store.lead();
            let (content, state) = state(fence.token());
            let mut revision = None;
            for piece in pieces(&state, Inventory::default(), pages, DOCUMENT).into_iter().take(interrupted_after) {
                assert!(piece.executors.len() + piece.shards.len() + piece.retirees.len() <= pages);
                revision = Some(store.commit(&fence, revision, &piece).await.unwrap());
                let there = store.load().await.unwrap();
                assert_eq!(there.as_ref().unwrap().state.meta.seal, Seal::Importing { document: DOCUMENT });
                assert!(matches!(room(there, &content, 78), Err(Error::OtherImport { found: DOCUMENT, document: 78 })));
            }
            let there = match room(store.load().await.unwrap(), &content, DOCUMENT).unwrap() {
                Room::Empty => Inventory::default(),
                Room::Part(_, there) => there,
                Room::Taken => panic!("it is not whole"),
            };
            for piece in pieces(&state, there, pages + 1, DOCUMENT) {
                revision = Some(store.commit(&fence, revision, &piece).await.unwrap());
                store.load().await.unwrap();
            }
            let loaded = store.load().await.unwrap().unwrap();
            assert_eq!(Content::of(&loaded.state, taken()), content);
            assert_eq!(loaded.state.meta.seal, Seal::Open);
            assert!(matches!(room(Some(loaded), &content, DOCUMENT).unwrap(), Room::Taken));
        }
    }
}

#[test]
fn a_store_with_anything_else_is_refused() {
    let (content, state) = state(Token(1));
    let with = |change: fn(&mut State)| {
        let mut state = state.clone();
        change(&mut state);
        room(Some(Loaded { revision: Revision(3), state }), &content, DOCUMENT)
    };
    assert!(matches!(with(|_| {}).unwrap(), Room::Taken));
    // Somebody led on it.
    assert!(matches!(with(|state| state.meta.term.0 -= 1), Err(Error::Occupied { .. })));
    let sealed = |state: &mut State| state.meta.seal = Seal::Sealed { unix_ms: 1, by: String::new(), note: String::new() };
    assert!(matches!(with(sealed), Err(Error::Occupied { .. })));
    assert!(matches!(
        with(|state| state.meta.seal = Seal::Importing { document: DOCUMENT }).unwrap(),
        Room::Part(Revision(3), _)
    ));
    assert!(matches!(with(|state| state.meta.seal = Seal::Importing { document: 1 }), Err(Error::OtherImport { .. })));
}
