//! What the promises rest on, taken out of a copy of the sources one by one: a torture run that stays green then would not have seen a
//! mistake there either. The list is tests/torture/guards.toml.
//!
//! Every time: each text stands exactly once in its file, so that the list keeps up with the sources. `make torture-guards`: the rest, for
//! hours. It copies the tree to `target/torture/guards/tree`, and for each guard edits the copy, builds it and runs its torture program
//! with seeds until a run is red and names the promise.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde::Deserialize;

#[derive(Deserialize)]
struct List {
    guard: Vec<Guard>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Guard {
    name: String,
    /// What it holds up, for people.
    holds: String,
    /// Any of these is named by a run that misses it.
    promise: Vec<String>,
    /// On which stores it is tried.
    shows: Vec<String>,
    /// The kinds of faults that make a run miss it; nothing else is done in it.
    #[serde(default)]
    kinds: Vec<String>,
    /// Why no run can miss it, where that is so; and the test that does, as `file: name`.
    hidden: Option<String>,
    test: Option<String>,
    edits: Vec<Edit>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Edit {
    file: String,
    text: String,
    instead: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn guards() -> Vec<Guard> {
    let text = fs::read_to_string(root().join("tests/torture/guards.toml")).unwrap();
    toml::from_str::<List>(&text).unwrap().guard
}

/// A test to which a row points is there.
fn is_a_test(place: &str) -> bool {
    let Some((file, name)) = place.split_once(": ") else { return false };
    fs::read_to_string(root().join(file)).is_ok_and(|text| text.contains(&format!("fn {name}(")))
}

#[test]
fn each_guard_stands_exactly_once_where_the_list_says() {
    let guards = guards();
    let names: BTreeSet<&str> = guards.iter().map(|guard| guard.name.as_str()).collect();
    assert_eq!(names.len(), guards.len(), "names are unique");
    for Guard { name, holds, promise, shows, kinds, hidden, test, edits } in &guards {
        for Edit { file, text, instead } in edits {
            let source = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{name}: {file}: {error}"));
            assert_eq!(source.matches(text.as_str()).count(), 1, "{name}: in {file} stands not exactly once:\n{text}");
            assert_ne!(text, instead, "{name}");
            assert!(file.starts_with("src/"), "{name}: guards are the product's: {file}");
        }
        assert!(!holds.is_empty() && !edits.is_empty(), "{name}");
        let stores = ["etcd", "postgres", "sqlite"];
        assert!(shows.iter().all(|store| stores.contains(&store.as_str())), "{name}: {shows:?}");
        // Either a run misses it, or a test does.
        let is_tried = !shows.is_empty() && !promise.is_empty() && !kinds.is_empty();
        let is_hidden = hidden.is_some() && shows.is_empty() && promise.is_empty() && test.as_deref().is_some_and(is_a_test);
        assert!(is_tried != is_hidden, "{name}: says where it shows, or why it does not and which test misses it");
    }
}

/// The sources and what they are built with.
fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (name, path) = (entry.file_name(), entry.path());
        if name == "target" || name == ".git" {
            continue;
        }
        if path.is_dir() {
            copy_tree(&path, &to.join(name));
        } else {
            put(&to.join(name), &fs::read(&path).unwrap());
        }
    }
}

/// Only where it is another: what did not change is not built again.
fn put(path: &Path, content: &[u8]) {
    if fs::read(path).ok().as_deref() != Some(content) {
        fs::write(path, content).unwrap();
    }
}

/// What one run of the edited copy came to.
enum Outcome {
    Red(String),
    Green,
    /// It could not be built, or another promise broke.
    Other(String),
}

struct Copy {
    tree: PathBuf,
    logs: PathBuf,
}

impl Copy {
    fn make() -> Copy {
        let below = root().join("target/torture/guards");
        let copy = Copy { tree: below.join("tree"), logs: below.join("logs") };
        fs::create_dir_all(&copy.logs).unwrap();
        copy_tree(root(), &copy.tree);
        copy
    }

    fn edit(&self, guard: &Guard) {
        let files: BTreeSet<&str> = guard.edits.iter().map(|edit| edit.file.as_str()).collect();
        for file in files {
            let edits = guard.edits.iter().filter(|edit| edit.file == file);
            let source = fs::read_to_string(root().join(file)).unwrap();
            let edited = edits.fold(source, |source, edit| source.replacen(&edit.text, &edit.instead, 1));
            put(&self.tree.join(file), edited.as_bytes());
        }
    }

    fn put_back(&self, guard: &Guard) {
        for edit in &guard.edits {
            put(&self.tree.join(&edit.file), &fs::read(root().join(&edit.file)).unwrap());
        }
    }

    fn run(&self, guard: &Guard, store: &str, seed: &str, minutes: &str) -> Outcome {
        let output = Command::new(env!("CARGO"))
            .args(["test", "--locked", "--test", "torture", "run", "--", "--exact", "--nocapture"])
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", self.tree.with_file_name("target"))
            .envs([("TORTURE_STORE", store), ("TORTURE_SEED", seed), ("TORTURE_MINUTES", minutes)])
            .env("TORTURE_KINDS", guard.kinds.join(","))
            .env_remove("TORTURE_DIRECTORY")
            .output()
            .unwrap();
        let text = [&output.stdout[..], &output.stderr].concat();
        let log = self.logs.join(format!("{}-{store}-{seed}.log", guard.name));
        fs::write(&log, &text).unwrap();
        let text = String::from_utf8_lossy(&text);
        let broken: BTreeSet<&str> =
            text.lines().filter_map(|line| line.trim_start().strip_prefix("VIOLATION of ")?.split([' ', ':']).next()).collect();
        let is_named = broken.iter().any(|promise| guard.promise.iter().any(|it| it == promise));
        match (output.status.success(), is_named) {
            (false, true) => Outcome::Red(broken.into_iter().collect::<Vec<_>>().join(", ")),
            (_, false) if text.contains("verdict: ") && broken.is_empty() => Outcome::Green,
            _ => Outcome::Other(format!("{broken:?}, see {}", log.display())),
        }
    }
}

/// Without one of `TORTURE_GUARDS` (`all`, or names separated by commas) there is nothing to do: it takes long.
#[test]
fn without_a_guard_a_run_is_red() {
    let Some(wanted) = std::env::var("TORTURE_GUARDS").ok().filter(|wanted| !wanted.is_empty()) else { return };
    let variable = |name: &str, default: &str| std::env::var(name).ok().filter(|it| !it.is_empty()).unwrap_or(default.to_owned());
    let (minutes, seeds) = (variable("TORTURE_MINUTES", "2"), variable("TORTURE_SEEDS", "1,2,3"));
    let only = variable("TORTURE_STORES", "etcd,postgres,sqlite");
    let is_wanted = |guard: &Guard| wanted == "all" || wanted.split(',').any(|name| name == guard.name);
    let copy = Copy::make();
    let mut missed = Vec::new();
    for guard in guards().iter().filter(|guard| is_wanted(guard)) {
        copy.edit(guard);
        for store in guard.shows.iter().filter(|store| only.split(',').any(|it| it == **store)) {
            let begun = Instant::now();
            let red = seeds.split(',').any(|seed| {
                let said = match copy.run(guard, store, seed, &minutes) {
                    Outcome::Red(promises) => format!("red: {promises}"),
                    Outcome::Green => "GREEN".to_owned(),
                    Outcome::Other(how) => format!("NEITHER: {how}"),
                };
                println!("{} on {store}, seed {seed}, {:.0?}: {said}", guard.name, begun.elapsed());
                said.starts_with("red")
            });
            if !red {
                missed.push(format!("{} on {store} ({})", guard.name, guard.holds));
            }
        }
        copy.put_back(guard);
    }
    assert!(missed.is_empty(), "nothing shows that these guards hold anything:\n{}", missed.join("\n"));
}
