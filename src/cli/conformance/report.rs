//! What came of it, for people and for programs.

use std::process::ExitCode;

use serde::Serialize;

use super::play::{Trouble, Verdict};
use super::record::Registration;
use super::rules::RULES;
use crate::cli::output;

/// A required rule was not observed, and none is broken.
const NOT_OBSERVED: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    Kept,
    Broken,
    NotObserved,
}

/// One rule and what became of it.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    rule: &'static str,
    verdict: Word,
    /// Whether the exit code counts it where it is not observed.
    required: bool,
    demands: &'static str,
    provoked: &'static str,
    /// What was seen and what was expected, or why nothing was.
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
}

#[derive(Clone, Debug, Serialize)]
struct Executor {
    executor_id: String,
    endpoint: String,
}

/// All of them, ascending.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    executor: Option<Executor>,
    rules: Vec<Line>,
}

impl Report {
    /// `verdicts` belong to [`RULES`], in their order.
    pub fn new(executor: Option<&Registration>, verdicts: Vec<Verdict>) -> Report {
        let executor = executor.map(|r| Executor { executor_id: r.executor_id.clone(), endpoint: r.endpoint.clone() });
        let lines = RULES.iter().zip(verdicts).map(|(rule, verdict)| {
            let (verdict, detail) = match verdict {
                Ok(()) => (Word::Kept, String::new()),
                Err(Trouble::Broken(how)) => (Word::Broken, how),
                Err(Trouble::Unobserved(why)) => (Word::NotObserved, why),
            };
            let (rule, required, demands, provoked) = (rule.id, rule.is_required(), rule.demands, rule.provoked);
            Line { rule, verdict, required, demands, provoked, detail }
        });
        Report { executor, rules: lines.collect() }
    }

    fn count(&self, word: Word) -> usize {
        self.rules.iter().filter(|line| line.verdict == word).count()
    }

    /// 0 where every required rule is kept, 1 where one is broken, 3 where one was not observed.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    fn code(&self) -> u8 {
        let is_unobserved = |line: &Line| line.required && line.verdict == Word::NotObserved;
        match (self.count(Word::Broken), self.rules.iter().any(is_unobserved)) {
            (0, false) => 0,
            (0, true) => NOT_OBSERVED,
            _ => 1,
        }
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let mut table = output::table(["RULE", "VERDICT", "DEMANDS"]);
        for line in &self.rules {
            let verdict = match line.verdict {
                Word::Kept => "kept",
                Word::Broken => "broken",
                Word::NotObserved if line.required => "not observed",
                Word::NotObserved => "not observable here",
            };
            table.add_row([line.rule, verdict, line.demands]);
        }
        let details = self.rules.iter().filter(|line| !line.detail.is_empty());
        let details: Vec<String> = details.map(|line| format!("{}: {}", line.rule, line.detail)).collect();
        let executor = match &self.executor {
            Some(executor) => format!("executor {} at {}", executor.executor_id, executor.endpoint),
            None => "no executor".to_owned(),
        };
        format!(
            "{}\n\n{}{}{executor}: {} kept, {} broken, {} not observed",
            output::text(&table),
            details.join("\n"),
            if details.is_empty() { "" } else { "\n\n" },
            self.count(Word::Kept),
            self.count(Word::Broken),
            self.count(Word::NotObserved)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::play::{broken, unobserved};
    use super::*;

    fn report(change: impl Fn(&str) -> Verdict) -> Report {
        Report::new(None, RULES.iter().map(|rule| change(rule.id)).collect())
    }

    #[test]
    fn what_was_not_observed_never_counts_as_kept() {
        let hidden = |id: &str| if matches!(id, "E8" | "E19") { unobserved("hidden") } else { Ok(()) };
        assert_eq!(report(hidden).code(), 0);
        assert_eq!(report(|id| if id == "E5" { unobserved("gone") } else { Ok(()) }).code(), 3);
        let both = report(|id| match id {
            "E5" => unobserved("gone"),
            "E6" => broken("it took it"),
            _ => Ok(()),
        });
        assert_eq!(both.code(), 1);
        let text = both.to_text();
        assert!(text.contains("E5: gone\nE6: it took it\n") && text.ends_with("17 kept, 1 broken, 1 not observed"), "{text}");
    }
}
