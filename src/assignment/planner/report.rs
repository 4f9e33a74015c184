//! What a plan does, and why it does not do more.

use std::fmt;

use super::share::Share;
use super::{Input, Plan, Role, Tally};

/// What a plan does, and why it does not do more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Shards without a home that get one.
    pub placed: u32,
    /// Shards that change their home, those that leave a [`Role::Leaves`] member included.
    pub moved: u32,
    /// Of [`moved`](Self::moved): shards that leave a [`Role::Leaves`] member.
    pub evacuated: u32,
    /// Shards that stay without a home.
    pub unplaced: u32,
    /// Why there is not more to do; each kind at most once, in the order of [`Reason`].
    pub reasons: Vec<Reason>,
}

/// Why a plan does not do more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No executor can take shards: there is none, or all are cordoned, suspect, leaving, or not heard yet.
    NobodyTakes,
    /// Shards stay on leaving executors, since nobody can take them.
    Staying {
        /// How many shards.
        shards: u32,
        /// On how many executors.
        executors: u32,
    },
    /// Shards stay on executors that are cordoned, suspect, or not heard by this leader yet, and are not shared out.
    Kept {
        /// How many shards.
        shards: u32,
        /// On how many executors.
        executors: u32,
    },
    /// Everyone is close enough to its fair share, though not all as close as can be.
    WithinThreshold {
        /// How many moves would make it even.
        moves: u32,
    },
    /// Shards go to an executor that did not start them before, since nobody else can take them.
    NobodyElse {
        /// How many shards.
        shards: u32,
    },
    /// Executors are outside their bounds, since running shards stay where they are for now.
    Still {
        /// How many executors.
        executors: u32,
    },
    /// Executors rest outside their bounds, since shards must not go back to who did not start them.
    BoundsYielded {
        /// How many executors.
        executors: u32,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Reason::NobodyTakes => f.write_str("no executor can take shards"),
            Reason::Staying { shards, executors } => {
                write!(f, "{} on {} because nobody can take them", stay(shards), leaving(executors))
            }
            Reason::Kept { shards, executors } => {
                write!(
                    f,
                    "{} on {} that take no others: cordoned, suspect, or not heard yet",
                    stay(shards),
                    count(executors, "executor")
                )
            }
            Reason::WithinThreshold { moves } => {
                write!(f, "every executor is within the threshold; {} more would make the shares even", count(moves, "move"))
            }
            Reason::NobodyElse { shards } => {
                write!(f, "nobody but an executor that did not start it before can take {}", count(shards, "shard"))
            }
            Reason::Still { executors } => {
                write!(
                    f,
                    "outside of the bounds: {}, since running shards stay where they are for now",
                    count(executors, "executor")
                )
            }
            Reason::BoundsYielded { executors } => {
                write!(
                    f,
                    "outside of the bounds: {}, since shards do not go back to who did not start them",
                    count(executors, "executor")
                )
            }
        }
    }
}

fn stay(shards: u32) -> String {
    format!("{} {}", count(shards, "shard"), if shards == 1 { "stays" } else { "stay" })
}

fn leaving(executors: u32) -> String {
    count(executors, "leaving executor")
}

fn count(number: u32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

impl Report {
    /// For people, a line for each thing worth knowing; empty where every shard is at home and all shares are even.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.placed > 0 {
            lines.push(format!("{} without an owner: placed", count(self.placed, "shard")));
        }
        if self.moved > 0 {
            lines.push(format!("{} to move, {} of them off leaving executors", count(self.moved, "shard"), self.evacuated));
        }
        if self.unplaced > 0 {
            lines.push(format!("{} without an owner: not placed", count(self.unplaced, "shard")));
        }
        lines.extend(self.reasons.iter().map(ToString::to_string));
        lines
    }
}

/// Of a plan, with the shares and the tally that it leads to.
pub(super) fn report(input: &Input, plan: &Plan, shares: &[Share], tally: &Tally) -> Report {
    let members = input.members;
    let role = |home: u32| members.get(home as usize).map(|member| member.role);
    let mut report = Report { unplaced: tally.nowhere(), ..Report::default() };
    let mut unwelcome = 0;
    for step in &plan.moves {
        match role(input.homes[step.shard.0 as usize]) {
            None => report.placed += 1,
            Some(from) => {
                report.moved += 1;
                report.evacuated += u32::from(from == Role::Leaves);
            }
        }
        unwelcome += u32::from(input.avoid.get(&step.shard) == Some(&members[step.to as usize].slot));
    }

    let holders = |role| {
        let holders = members.iter().zip(&tally.shards).filter(|&(member, &shards)| member.role == role && shards > 0);
        (tally.at(members, role), holders.count() as u32)
    };
    if shares.is_empty() && tally.free(members) > 0 {
        report.reasons.push(Reason::NobodyTakes);
    }
    if let (shards @ 1.., executors) = holders(Role::Leaves) {
        report.reasons.push(Reason::Staying { shards, executors });
    }
    if let (shards @ 1.., executors) = holders(Role::Keeps) {
        report.reasons.push(Reason::Kept { shards, executors });
    }
    let outside = shares.iter().filter(|share| share.has < share.lower || share.has > share.upper).count() as u32;
    let over: u32 = shares.iter().map(|share| share.has.saturating_sub(share.ceil)).sum();
    let under: u32 = shares.iter().map(|share| share.floor.saturating_sub(share.has)).sum();
    if outside == 0 && over.max(under) > 0 {
        report.reasons.push(Reason::WithinThreshold { moves: over.max(under) });
    }
    if unwelcome > 0 {
        report.reasons.push(Reason::NobodyElse { shards: unwelcome });
    }
    if outside > 0 && input.still {
        report.reasons.push(Reason::Still { executors: outside });
    } else if outside > 0 {
        report.reasons.push(Reason::BoundsYielded { executors: outside });
    }
    report
}
