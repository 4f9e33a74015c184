//! The house rules, as tests over the source tree. Comments and strings do not count; test modules do.
//!
//! - The pure core (`src/assignment/`) knows no clock, no randomness, no I/O and no async.
//! - Imports point down the table in `src/lib.rs`, and the core and the client import even less.
//! - Every file of the repository that the README or a page below `docs/` links is there, and every Rust block in them stands in `examples/`.
//! - No file below `src/` is longer than 600 lines, and no test is ignored.
//! - What checks the histories of torture runs shares no line with the product.

mod source;
mod tests;

use std::collections::BTreeMap;
use std::fs;

use source::{Finding, Source, root, tokens, used};

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
