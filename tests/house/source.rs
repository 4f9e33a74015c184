//! The source tree as tokens and paths: comments and strings do not count.

use std::fs;
use std::path::Path;

/// One file of the tree.
pub struct Source {
    /// Below the repository's root, e.g. `src/store/mod.rs`.
    pub path: String,
    pub text: String,
}

/// An identifier, a number, `::` or one other character, with the line that it stands in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub line: usize,
    pub text: String,
}

/// Where a rule is broken: `path:line: how`.
pub type Finding = String;

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    /// Of the Rust files below a directory of the repository.
    pub fn all_below(directory: &str) -> Vec<Source> {
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
    pub fn module(&self) -> Vec<&str> {
        let Some(path) = self.path.strip_prefix("src/").and_then(|path| path.strip_suffix(".rs")) else { return Vec::new() };
        let mut module: Vec<&str> = path.split('/').collect();
        if matches!(module.last(), Some(&"mod" | &"lib")) {
            module.pop();
        }
        module
    }

    pub fn finding(&self, line: usize, how: impl std::fmt::Display) -> Finding {
        format!("{}:{line}: {how}", self.path)
    }
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn tokens(text: &str) -> Vec<Token> {
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
pub struct Used {
    pub line: usize,
    pub path: Vec<String>,
    /// How many modules, inline ones counted, lie between the place of use and the crate's root.
    pub depth: usize,
}

impl Used {
    pub fn to_text(&self) -> String {
        self.path.join("::")
    }

    /// The top-level module of this crate that it leads to, if it does.
    pub fn top_level_module(&self) -> Option<&str> {
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
pub fn used(source: &Source) -> Vec<Used> {
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
