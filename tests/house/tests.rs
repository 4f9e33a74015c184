//! The rules themselves, on sources that break them.

use super::*;

fn texts(text: &str) -> Vec<String> {
    tokens(text).into_iter().map(|token| token.text).collect()
}

#[test]
fn a_checker_that_uses_the_product_is_found() {
    let uses = "// shard_manager\nuse std::fmt;\nuse shard_manager::types::Epoch;";
    let at = |path| shared_with_the_product(&Source::new(path, uses));
    assert_eq!(at("tests/torture/checker/mod.rs").len(), 1);
    assert_eq!(at("tests/torture/main.rs").len(), 0);
}

#[test]
fn comments_and_strings_do_not_count() {
    assert_eq!(texts("a // b\n/// [`c`]\nd /* e /* f */ g */ h"), ["a", "d", "h"]);
    assert_eq!(texts(r#"a "b \" c" d "\\" e"#), ["a", "d", "e"]);
    assert_eq!(texts("a r\"b\\\" c r#\"d \" e\"# f br##\"g\"# h\"## b\"i\" j"), ["a", "c", "f", "b", "j"]);
    assert_eq!(texts(r"a '\'' b 'c' d '\u{41}' 'é' '/' e"), ["a", "b", "d", "e"]);
    assert_eq!(texts("fn a<'b>(c: &'b str)"), ["fn", "a", "<", "'", "b", ">", "(", "c", ":", "&", "'", "b", "str", ")"]);
    assert_eq!(texts("r#async \"not closed"), ["r", "#", "async"]);
    let lines: Vec<_> = tokens("a\n/* b\n */ \"c\n\" d\ne").into_iter().map(|token| (token.text, token.line)).collect();
    assert_eq!(lines, [("a".to_owned(), 1), ("d".to_owned(), 4), ("e".to_owned(), 5)]);
}

#[test]
fn paths_are_written_out() {
    let source = Source::new("src/a/b.rs", "use x::{y, z::{self, w as v}, *};\nfn f() { q::r::<T>(); mod m { super::s(); } }");
    let paths: Vec<_> = used(&source).iter().map(|used| (used.to_text(), used.line, used.depth)).collect();
    let expect = [("x::y", 1, 2), ("x::z::self", 1, 2), ("x::z::w", 1, 2), ("x::*", 1, 2), ("q::r", 2, 2), ("super::s", 2, 3)];
    assert_eq!(paths, expect.map(|(path, line, depth)| (path.to_owned(), line, depth)));
}

#[test]
fn the_outside_world_is_found_in_the_core() {
    for bad in [
        "use tokio::time::sleep;",
        "fn f() { let x = tonic::Status::ok(\"\"); }",
        "use sqlx::query;",
        "fn f() -> u64 { rand::random() }",
        "use std::time::Instant;",
        "use std::time::{Duration, SystemTime};",
        "fn f() { std::fs::read(\"x\"); }",
        "use std::{fmt, net::IpAddr};",
        "use std::thread;",
        "use std::io::{self, Read};",
        "async fn f() {}",
        "fn f() { g().await; }",
        "use crate::clock;",
        "use crate::{clock::now, types};",
        "#[cfg(test)] mod tests { use std::fs; }",
    ] {
        for path in ["src/assignment/engine.rs", "src/assignment/mod.rs", "src/assignment/planner/tests.rs", "src/assignment.rs"]
        {
            assert_ne!(impurities(&Source::new(path, bad)).len(), 0, "{path}: {bad}");
        }
        assert_eq!(impurities(&Source::new("src/store/mod.rs", bad)).len(), 0, "elsewhere: {bad}");
    }
    let good =
        "use std::time::Duration; use crate::types::BootInstant; // tokio\nfn f() { \"async rand\"; std::iter::empty::<u8>(); }";
    assert_eq!(impurities(&Source::new("src/assignment/engine.rs", good)), Vec::<Finding>::new());
}

const LIB: &str = "//! | module | what it is for |\n//! | --- | --- |\n//! | `api` | `x` |\n//! | [`store`] | y |\n\
    //! | `assignment` | z |\n//! | [`client`] | u |\n//! | `config`, [`rpc`], `clock`, `types` | w |\n//! | P1 | v |\n";

#[test]
fn the_table_is_read_row_by_row() {
    let floors = floors(LIB);
    let expect =
        [("api", 0), ("assignment", 2), ("client", 3), ("clock", 4), ("config", 4), ("rpc", 4), ("store", 1), ("types", 4)];
    assert_eq!(floors, expect.map(|(module, row)| (module.to_owned(), row)).into());
}

#[test]
fn imports_that_climb_are_found() {
    let floors = floors(LIB);
    let findings = |path, text| climbing_imports(&Source::new(path, text), &floors).len();
    for (path, bad) in [
        ("src/store/mod.rs", "use crate::api;"),
        ("src/store/sqlite.rs", "use crate::api::serve;"),
        ("src/store/sqlite.rs", "use crate::{types, api::{self, serve}};"),
        ("src/store/sqlite.rs", "fn f() { crate::api::serve(); }"),
        ("src/store/sqlite.rs", "use super::super::api::serve;"),
        ("src/store.rs", "use super::api;"),
        ("src/store.rs", "#[cfg(test)] mod tests { use super::super::api; }"),
        ("src/store/mod.rs", "use shard_manager::api;"),
        ("src/types.rs", "use crate::assignment::State;"),
        ("src/config.rs", "use crate::store::Store;"),
        ("src/assignment/engine.rs", "use crate::config::Config;"),
        ("src/assignment/engine.rs", "use crate::client;"),
        ("src/client/session.rs", "use crate::config::Config;"),
        ("src/client/session.rs", "use crate::assignment::State;"),
        ("src/store/mod.rs", "use crate::Store;"),
        ("src/unheard.rs", ""),
    ] {
        assert!(findings(path, bad) > 0, "{path}: {bad}");
    }
    for (path, good) in [
        ("src/store/mod.rs", "use crate::assignment::State; use crate::store::sqlite; use crate::config;"),
        ("src/store/sqlite.rs", "use super::Error; use std::api; // crate::api\nfn f() { \"crate::api\"; }"),
        ("src/store.rs", "#[cfg(test)] mod tests { use super::*; mod more { use super::super::api; } }"),
        ("src/store/mod.rs", "fn f() { mod g { use super::x; } } use self::api::y;"),
        ("src/types.rs", "use crate::rpc; #[cfg(test)] mod tests { use super::Term; }"),
        ("src/client/session.rs", "use crate::{clock, rpc, types}; use super::host;"),
        ("src/assignment/engine.rs", "use crate::types::Term; use crate::assignment::state; use super::lease;"),
        ("src/main.rs", "use shard_manager::api;"),
        ("src/lib.rs", "pub mod api; pub use crate::api::serve;"),
    ] {
        assert_eq!(findings(path, good), 0, "{path}: {good}");
    }
}

#[test]
fn long_files_are_found() {
    assert_eq!(too_long(&Source::new("src/a.rs", &"\n".repeat(600))).len(), 0);
    assert_eq!(too_long(&Source::new("src/a.rs", &"\n".repeat(601))), ["src/a.rs:601: 601 lines, more than 600"]);
}

#[test]
fn ignored_tests_are_found() {
    let ignored = "#[test]\n#[ignore = \"no server\"]\nfn a() {}\n#[ ignore ]\nfn b() {} // #[ignore]";
    assert_eq!(
        ignored_tests(&Source::new("tests/a.rs", ignored)),
        ["tests/a.rs:2: an ignored test", "tests/a.rs:4: an ignored test"]
    );
}

#[test]
fn code_that_stands_in_no_example_is_found() {
    let example = [Source::new("examples/a.rs", "fn f() {\n    g();\n    h();\n}\n")];
    let page = |code: &str| format!("Text.\n\n```rust,ignore\n{code}\n```\n\n```sh\nls\n```\n");
    assert!(invented_code(&page("  g();\n  h();"), &example).is_empty());
    assert_eq!(invented_code(&page("g();\ni();"), &example), ["no example has these lines:\ng();\ni();"]);
    assert_eq!(invented_code(&page("g();\n}"), &example).len(), 1);
}

#[test]
fn links_that_lead_nowhere_are_found() {
    let page = "[a](docs/a.md) and [b](docs/b.md#part), [c](https://x/docs/c.md), [d](#part), [e](docs/e.md \"title\").";
    assert_eq!(missing_links(page, |file| file == "docs/a.md").len(), 2);
    assert!(missing_links(page, |file| file.starts_with("docs/")).is_empty());
}
