//! Every committed input, through what the fuzz targets do with it; without cargo-fuzz.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{TARGETS, Target, seeds};

/// All seeds together, in bytes: they are committed.
const MOST_BYTES: usize = 100_000;

fn directory(kind: &str, target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(kind).join(target.name)
}

/// The files of a directory, by name; none where it is not there.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(directory) else { return BTreeMap::new() };
    let read = |entry: std::fs::DirEntry| {
        let bytes = std::fs::read(entry.path()).expect("an input is readable");
        (entry.file_name().to_string_lossy().into_owned(), bytes)
    };
    entries.map(|entry| read(entry.expect("the directory is readable"))).collect()
}

/// Says which input it was, also where it does not return.
fn run(target: &Target, name: &str, bytes: &[u8]) {
    println!("{} {name}", target.name);
    (target.run)(bytes);
}

/// `FUZZ_SEEDS=write cargo nextest run --lib fuzzing::` writes them.
#[test]
fn the_committed_seeds_are_those_that_our_encoders_make() {
    let mut bytes = 0;
    for target in &TARGETS {
        let (made, directory) = (seeds::of(target), directory("seeds", target));
        assert!(!made.is_empty(), "{} begins with nothing", target.name);
        if std::env::var("FUZZ_SEEDS").is_ok_and(|what| what == "write") {
            std::fs::remove_dir_all(&directory).ok();
            std::fs::create_dir_all(&directory).unwrap();
            made.iter().for_each(|(name, bytes)| std::fs::write(directory.join(name), bytes).unwrap());
        }
        let committed = files(&directory);
        let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&committed), names(&made), "FUZZ_SEEDS=write makes them anew");
        for (name, content) in &made {
            assert!(committed[name] == *content, "{} {name} is another one now: FUZZ_SEEDS=write makes them anew", target.name);
        }
        bytes += made.values().map(Vec::len).sum::<usize>();
    }
    assert!(bytes < MOST_BYTES, "{bytes} bytes of seeds");
}

#[test]
fn nothing_breaks_on_a_seed_or_on_its_neighbours() {
    for target in &TARGETS {
        for (name, bytes) in seeds::of(target) {
            run(target, &name, &bytes);
            // What is cut off, and what has a bit flipped, at a few places of each.
            for at in (0..bytes.len()).step_by(bytes.len() / 16 + 1) {
                run(target, &format!("{name} cut to {at}"), &bytes[..at]);
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                run(target, &format!("{name} flipped at {at}"), &flipped);
            }
        }
        run(target, "nothing", &[]);
    }
}

#[test]
fn what_broke_once_does_not_break_again() {
    for target in &TARGETS {
        for (name, bytes) in files(&directory("regressions", target)) {
            run(target, &name, &bytes);
        }
    }
}

/// A directory of a target that is none is never read.
#[test]
fn every_directory_of_inputs_belongs_to_a_target() {
    for kind in ["seeds", "regressions"] {
        let Ok(entries) = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(kind)) else { continue };
        for entry in entries {
            let name = entry.unwrap().file_name().to_string_lossy().into_owned();
            assert!(TARGETS.iter().any(|target| target.name == name), "fuzz/{kind}/{name}");
        }
    }
}

/// The page says what each target covers, and cargo-fuzz has a binary for it.
#[test]
fn every_target_is_on_the_page_and_has_its_binary() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/testing.md")).unwrap();
    let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
    for Target { name, .. } in TARGETS {
        assert!(page.contains(&format!("| `{name}` |")), "docs/testing.md has no row for {name}");
        assert!(manifest.contains(&format!("name = \"{name}\"\n")), "fuzz/Cargo.toml has no binary {name}");
        let body = std::fs::read_to_string(root.join(format!("fuzz/fuzz_targets/{name}.rs"))).unwrap();
        assert!(body.contains(&format!("fuzzing::{}", name.to_uppercase())), "the binary {name} runs something else");
    }
}

/// A target that lets a call out covers less than its page says.
#[test]
fn every_method_of_the_services_is_called() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = std::fs::read_to_string(root.join("src/fuzzing/manager.rs")).unwrap();
    for file in ["manager", "admin"] {
        let proto = std::fs::read_to_string(root.join(format!("proto/shardmanager/v1/{file}.proto"))).unwrap();
        for rpc in proto.lines().filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next()) {
            let snake: String = rpc.chars().enumerate().fold(String::new(), |mut snake, (at, c)| {
                if c.is_uppercase() && at > 0 {
                    snake.push('_');
                }
                snake.push(c.to_ascii_lowercase());
                snake
            });
            assert!(target.contains(&format!(", {snake}, ")), "nothing calls {rpc}");
        }
    }
}
