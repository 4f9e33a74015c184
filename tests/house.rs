//! The house rules, as tests over the source tree. Comments and strings do not count; test modules do.
//!
//! - The pure core (`src/assignment/`) knows no clock, no randomness, no I/O and no async.
//! - Imports point down the table in `src/lib.rs`, and the core and the client import even less.
//! - Every file of the repository that the README or a page below `docs/` links is there, and every Rust block in them stands in `examples/`.
//! - No file below `src/` is longer than 600 lines, and no test is ignored.
//! - What checks the histories of torture runs shares no line with the product.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// One file of the tree.
struct Source {
    /// Below the repository's root, e.g. `src/store/mod.rs`.
    path: String,
    text: String,
}

/// An identifier, a number, `::` or one other character, with the line that it stands in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    line: usize,
    text: String,
}

/// Where a rule is broken: `path:line: how`.
type Finding = String;

impl Source {
    fn new(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    /// Of the Rust files below a directory of the repository.
    fn all_below(directory: &str) -> Vec<Source> {
        let mut sources = Vec::new();
        let mut directories = vec![root().join(directory)];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).expect("the source tree is readable") {
                let path = entry.expect("the source tree is readable").path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = fs::read_to_string(&path).expect("sources are UTF-8");
                    let path = path.strip_prefix(root()).expect("it lies below the root");
                    sources.push(Source { path: path.to_string_lossy().into_owned(), text });
                }
            }
        }
        assert!(!sources.is_empty(), "there is something to look at below {directory}");
        sources
    }

    /// The module that this file is, from the crate's root: `["store"]`. Empty for the root itself and for what lies outside of `src/`.
    fn module(&self) -> Vec<&str> {
        let Some(path) = self.path.strip_prefix("src/").and_then(|path| path.strip_suffix(".rs")) else { return Vec::new() };
        let mut module: Vec<&str> = path.split('/').collect();
        if matches!(module.last(), Some(&"mod" | &"lib")) {
            module.pop();
        }
        module
    }

    fn finding(&self, line: usize, how: impl std::fmt::Display) -> Finding {
        format!("{}:{line}: {how}", self.path)
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let (mut index, mut line) = (0, 1);
    while index < chars.len() {
        let start = index;
        match at(index) {
            '/' if at(index + 1) == '/' => {
                while index < chars.len() && at(index) != '\n' {
                    index += 1;
                }
            }
            '/' if at(index + 1) == '*' => {
                let mut depth = 0;
                loop {
                    match (at(index), at(index + 1)) {
                        ('/', '*') => (depth, index) = (depth + 1, index + 2),
                        ('*', '/') => (depth, index) = (depth - 1, index + 2),
                        _ => index += 1,
                    }
                    if depth == 0 || index >= chars.len() {
                        break;
                    }
                }
            }
            '"' => index = end_of_string(&chars, index),
            // A character, or else a lifetime.
            '\'' if at(index + 1) == '\\' => {
                index += 3;
                while index < chars.len() && at(index) != '\'' {
                    index += 1;
                }
                index += 1;
            }
            '\'' if at(index + 2) == '\'' => index += 3,
            c if is_word(c) => {
                while is_word(at(index)) {
                    index += 1;
                }
                let word: String = chars[start..index].iter().collect();
                let hashes = chars[index..].iter().take_while(|c| **c == '#').count();
                if matches!(word.as_str(), "r" | "br" | "cr") && at(index + hashes) == '"' {
                    index = end_of_raw_string(&chars, index + hashes + 1, hashes);
                } else {
                    tokens.push(Token { line, text: word });
                }
            }
            ':' if at(index + 1) == ':' => {
                tokens.push(Token { line, text: "::".to_owned() });
                index += 2;
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push(Token { line, text: c.to_string() });
                }
                index += 1;
            }
        }
        index = index.min(chars.len());
        line += chars[start..index].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

/// Behind the string whose opening quote stands at `index`.
fn end_of_string(chars: &[char], mut index: usize) -> usize {
    index += 1;
    while index < chars.len() && chars[index] != '"' {
        index += if chars[index] == '\\' { 2 } else { 1 };
    }
    index + 1
}

/// Behind the raw string whose content starts at `index`.
fn end_of_raw_string(chars: &[char], mut index: usize, hashes: usize) -> usize {
    while index < chars.len() {
        if chars[index] == '"' && chars[index + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes {
            return index + 1 + hashes;
        }
        index += 1;
    }
    index
}

/// A path as it is written, groups written out.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Used {
    line: usize,
    path: Vec<String>,
    /// How many modules, inline ones counted, lie between the place of use and the crate's root.
    depth: usize,
}

impl Used {
    fn to_text(&self) -> String {
        self.path.join("::")
    }

    /// The top-level module of this crate that it leads to, if it does.
    fn top_level_module(&self) -> Option<&str> {
        let climbs = self.path.iter().take_while(|segment| *segment == "super").count();
        let module = match self.path[0].as_str() {
            "crate" | "shard_manager" => self.path.get(1),
            "super" if climbs >= self.depth => self.path.get(climbs),
            _ => None,
        };
        module.map(String::as_str)
    }
}

/// Every path of two or more segments in the file.
fn used(source: &Source) -> Vec<Used> {
    let tokens = tokens(&source.text);
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let depth_of_file = source.module().len();
    // How deep in braces each inline module around the current token began.
    let (mut braces, mut inline): (usize, Vec<usize>) = (0, Vec::new());
    let mut used = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match text(at) {
            "{" => {
                braces += 1;
                if at >= 2 && text(at - 2) == "mod" {
                    inline.push(braces);
                }
            }
            "}" => {
                if inline.last() == Some(&braces) {
                    inline.pop();
                }
                braces = braces.saturating_sub(1);
            }
            _ if text(at + 1) == "::" => {
                let depth = depth_of_file + inline.len();
                at = write_out(&tokens, at, &Used { line: 0, path: Vec::new(), depth }, &mut used);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    used
}

/// Takes in a path from `at`, or the rest of one that began as `prefix`, and returns where it ends.
fn write_out(tokens: &[Token], mut at: usize, prefix: &Used, used: &mut Vec<Used>) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let mut path = Used { line: tokens[at].line, ..prefix.clone() };
    loop {
        if text(at) == "{" && !path.path.is_empty() {
            at += 1;
            while at < tokens.len() && text(at) != "}" {
                at = if text(at) == "," { at + 1 } else { write_out(tokens, at, &path, used) };
            }
            return at + 1;
        }
        path.path.push(text(at).to_owned());
        at += 1;
        let goes_on = text(at) == "::" && !matches!(text(at + 1), "<" | "");
        if !goes_on {
            used.push(path);
            return if text(at) == "as" { at + 2 } else { at };
        }
        at += 1;
    }
}

/// Nothing of the outside world in the pure core.
fn impurities(source: &Source) -> Vec<Finding> {
    const WORDS: [&str; 12] = [
        "tokio",
        "tokio_util",
        "tonic",
        "tonic_health",
        "sqlx",
        "rand",
        "rustix",
        "Instant",
        "SystemTime",
        "async",
        "await",
        "async_trait",
    ];
    const PATHS: [&str; 8] =
        ["std::fs", "std::net", "std::thread", "std::io", "std::process", "std::env", "std::sync::mpsc", "crate::clock"];
    if source.module().first() != Some(&"assignment") {
        return Vec::new();
    }
    let words = tokens(&source.text).into_iter().filter(|token| WORDS.contains(&token.text.as_str()));
    let mut findings: Vec<Finding> =
        words.map(|token| source.finding(token.line, format!("`{}` in the pure core", token.text))).collect();
    for used in used(source) {
        let text = used.to_text() + "::";
        if PATHS.iter().any(|path| text.starts_with(&format!("{path}::"))) {
            findings.push(source.finding(used.line, format!("`{}` in the pure core", used.to_text())));
        }
    }
    findings
}

/// The modules of the table in `src/lib.rs`, each with its row, counted from above. Rows with several modules are one floor.
fn floors(lib: &str) -> BTreeMap<String, usize> {
    let cells = lib.lines().filter_map(|line| line.strip_prefix("//! | ")?.split('|').next());
    let modules = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = cells.map(modules).filter(|modules| !modules.is_empty()).enumerate();
    rows.flat_map(|(row, modules)| modules.into_iter().map(move |module| (module, row))).collect()
}

/// Imports point down only.
fn climbing_imports(source: &Source, floors: &BTreeMap<String, usize>) -> Vec<Finding> {
    const LESS: [(&str, &[&str]); 2] =
        [("assignment", &["assignment", "types", "holdings"]), ("client", &["client", "types", "holdings", "clock", "rpc"])];
    let module = source.module();
    let Some(from) = module.first().filter(|module| **module != "main") else { return Vec::new() };
    let Some(floor) = floors.get(*from) else {
        return vec![source.finding(1, format!("`{from}` is not in the table of src/lib.rs"))];
    };
    let less = LESS.iter().find(|(module, _)| module == from).map(|(_, less)| *less);
    let mut findings = Vec::new();
    for used in used(source) {
        let Some(to) = used.top_level_module().filter(|to| to != from) else { continue };
        // A name that is no module is re-exported by the root, where nothing says where it comes from.
        let allowed = match less {
            Some(less) => less.contains(&to),
            None => floors.get(to).is_some_and(|below| below >= floor),
        };
        if !allowed {
            findings.push(source.finding(used.line, format!("`{from}` must not import `{}`", used.to_text())));
        }
    }
    findings
}

/// A file that passes about 500 lines wants to be two things.
fn too_long(source: &Source) -> Vec<Finding> {
    let lines = source.text.lines().count();
    if lines > 600 { vec![source.finding(lines, format!("{lines} lines, more than 600"))] } else { Vec::new() }
}

/// A test that does not run proves nothing.
fn ignored_tests(source: &Source) -> Vec<Finding> {
    let tokens = tokens(&source.text);
    let ignored = tokens.windows(3).filter(|three| three[0].text == "#" && three[1].text == "[" && three[2].text == "ignore");
    ignored.map(|three| source.finding(three[0].line, "an ignored test")).collect()
}

/// A checker that used the product's own notions would not see where these are wrong.
fn shared_with_the_product(source: &Source) -> Vec<Finding> {
    if !source.path.starts_with("tests/torture/checker/") {
        return Vec::new();
    }
    let named = tokens(&source.text).into_iter().filter(|token| token.text == "shard_manager");
    named.map(|token| source.finding(token.line, "the checker of torture runs must not use the product")).collect()
}

/// Files that a Markdown page links, as `[text](path)` or `[text](path#part)`, and that are not there. Links to the web do not count.
fn missing_links(page: &str, is_there: impl Fn(&str) -> bool) -> Vec<Finding> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
    let files = targets.filter(|target| !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:"));
    files.filter(|file| !is_there(file)).map(|file| format!("{file} is linked, but is not there")).collect()
}

/// Rust blocks of a Markdown page that do not stand, line after line, in one of these sources. Indentation does not count.
fn invented_code(page: &str, sources: &[Source]) -> Vec<Finding> {
    let lines = |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let sources: Vec<Vec<String>> = sources.iter().map(|source| lines(&source.text)).collect();
    let blocks = page.split("\n```rust").skip(1).filter_map(|rest| rest.split_once('\n')?.1.split("\n```").next());
    let stands = |block: &[String]| sources.iter().any(|source| source.windows(block.len()).any(|window| window == block));
    let invented = blocks.map(lines).filter(|block| block.is_empty() || !stands(block));
    invented.map(|block| format!("no example has these lines:\n{}", block.join("\n"))).collect()
}

/// Every page that is kept: the README and what is below `docs/`, with its path from the root.
fn pages() -> Vec<(String, String)> {
    let (mut pages, mut directories) = (vec!["README.md".to_owned()], vec!["docs".to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).expect("the documents are readable") {
            let entry = entry.expect("the documents are readable");
            let path = format!("{directory}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                directories.push(path);
            } else if path.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    let read = |path: String| (path.clone(), fs::read_to_string(root().join(path)).expect("pages are UTF-8"));
    pages.into_iter().map(read).collect()
}

fn assert_none(findings: Vec<Finding>) {
    assert!(findings.is_empty(), "house rules are broken:\n{}", findings.join("\n"));
}

fn lib() -> String {
    fs::read_to_string(root().join("src/lib.rs")).expect("there is a library")
}

#[test]
fn the_core_is_pure() {
    assert_none(Source::all_below("src/assignment").iter().flat_map(impurities).collect());
}

#[test]
fn imports_point_down() {
    let floors = floors(&lib());
    assert_none(Source::all_below("src").iter().flat_map(|source| climbing_imports(source, &floors)).collect());
}

#[test]
fn every_module_has_its_floor() {
    let lib = lib();
    let tokens = tokens(&lib);
    let declared =
        tokens.windows(3).filter(|three| three[0].text == "mod" && three[2].text == ";").map(|three| three[1].text.clone());
    let mut declared: Vec<String> = declared.collect();
    declared.sort();
    assert_eq!(floors(&lib).into_keys().collect::<Vec<_>>(), declared);
}

#[test]
fn no_source_file_is_too_long() {
    assert_none(Source::all_below("src").iter().flat_map(too_long).collect());
}

#[test]
fn no_test_is_ignored() {
    let sources = ["src", "tests"].into_iter().flat_map(Source::all_below);
    assert_none(sources.flat_map(|source| ignored_tests(&source)).collect());
}

#[test]
fn the_checker_of_torture_runs_shares_nothing_with_the_product() {
    assert_none(Source::all_below("tests/torture/checker").iter().flat_map(shared_with_the_product).collect());
}

/// The rules themselves, on sources that break them.
mod scanner {
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
        let source =
            Source::new("src/a/b.rs", "use x::{y, z::{self, w as v}, *};\nfn f() { q::r::<T>(); mod m { super::s(); } }");
        let paths: Vec<_> = used(&source).iter().map(|used| (used.to_text(), used.line, used.depth)).collect();
        let expect =
            [("x::y", 1, 2), ("x::z::self", 1, 2), ("x::z::w", 1, 2), ("x::*", 1, 2), ("q::r", 2, 2), ("super::s", 2, 3)];
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
            for path in
                ["src/assignment/engine.rs", "src/assignment/mod.rs", "src/assignment/planner/tests.rs", "src/assignment.rs"]
            {
                assert_ne!(impurities(&Source::new(path, bad)).len(), 0, "{path}: {bad}");
            }
            assert_eq!(impurities(&Source::new("src/store/mod.rs", bad)).len(), 0, "elsewhere: {bad}");
        }
        let good = "use std::time::Duration; use crate::types::BootInstant; // tokio\nfn f() { \"async rand\"; std::iter::empty::<u8>(); }";
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
}

#[test]
fn pages_link_what_is_there() {
    let of = |(path, text): (String, String)| {
        let directory = root().join(&path).parent().expect("it lies below the root").to_owned();
        missing_links(&text, |file| directory.join(file).exists()).into_iter().map(move |finding| format!("{path}: {finding}"))
    };
    assert_none(pages().into_iter().flat_map(of).collect());
}

#[test]
fn rust_in_pages_is_taken_from_the_examples() {
    let examples = Source::all_below("examples");
    let of = |(path, text): (String, String)| invented_code(&text, &examples).into_iter().map(move |it| format!("{path}: {it}"));
    assert_none(pages().into_iter().flat_map(of).collect());
}
