//! Everything that was said between the played manager and the executor, in the order in which it came.

use std::fmt;

use crate::holdings::Holdings;
use crate::rpc;
use crate::types::{BootInstant, Version};

/// Shards that the played cluster has.
pub const NUMBER_OF_SHARDS: u32 = 64;
/// Longer texts from outside are cut to this many characters.
const LONGEST_TEXT: usize = 300;
/// More shards than this are not listed.
const LONGEST_LIST: usize = 6;

/// A set as the executor sent it; checked, else the rule that it breaks.
pub type Set = Result<Holdings, String>;

/// One call of the executor, or one command to it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// When it came; of a command, when its answer came.
    pub at: BootInstant,
    /// What was said.
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    Register(Registration),
    Renew(Renewal),
    Deregister(Farewell),
    /// A command in order that was accepted.
    Obeyed(Obeyed),
    /// From here on another process is expected: the one before ended for good.
    Restart,
}

#[derive(Clone, Debug)]
pub struct Registration {
    pub executor_id: String,
    pub incarnation: u64,
    pub endpoint: String,
    pub weight: u32,
    pub cluster_id: String,
    pub mark: Option<Version>,
    pub outcome: Outcome,
}

#[derive(Clone, Debug)]
pub struct Renewal {
    pub incarnation: u64,
    /// As it names it.
    pub cluster_id: String,
    /// Whether that is the manager's.
    pub is_at_home: bool,
    pub mark: Option<Version>,
    pub claim: Claim,
    pub leaving: bool,
    pub storage_epochs: Option<Set>,
    /// The newest version that the manager had by then.
    pub newest: Version,
    pub outcome: Outcome,
}

#[derive(Clone, Debug)]
pub struct Farewell {
    pub incarnation: u64,
    pub cluster_id: String,
}

#[derive(Clone, Debug)]
pub struct Obeyed {
    pub incarnation: u64,
    pub cluster_id: String,
    /// The command's.
    pub version: Version,
    /// As answered.
    pub mark: Option<Version>,
}

/// What an executor says that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    Full(Set),
    Digest(u64),
    Missing,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not answered yet, or the executor did not wait for the answer.
    Open,
    /// A lease was granted, at this version.
    Lease { at: BootInstant, version: Version },
    /// A lease was offered at a version below the mark: it counts for nothing.
    Below { at: BootInstant },
    /// A claim in full was asked for.
    ClaimWanted,
    /// The answer came from another cluster.
    Foreign,
    /// A refusal with this reason.
    Refused(&'static str),
    /// Never answered.
    Lost,
}

impl Outcome {
    pub fn is_lease(self) -> bool {
        matches!(self, Outcome::Lease { .. })
    }
}

impl Claim {
    pub fn of(claim: Option<rpc::renew_lease_request::Claim>) -> Claim {
        match claim {
            Some(rpc::renew_lease_request::Claim::Held(held)) => Claim::Full(set(&held)),
            Some(rpc::renew_lease_request::Claim::Digest(digest)) => Claim::Digest(digest),
            None => Claim::Missing,
        }
    }

    /// Whether it says the same as `holdings`.
    pub fn is(&self, holdings: &Holdings) -> bool {
        match self {
            Claim::Full(set) => set.as_ref() == Ok(holdings),
            Claim::Digest(digest) => *digest == holdings.digest(),
            Claim::Missing => false,
        }
    }

    /// Whether it says that nothing is held.
    pub fn is_nothing(&self) -> bool {
        self.is(&Holdings::default())
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Claim::Full(Ok(holdings)) => f.write_str(&listed(holdings)),
            Claim::Full(Err(invalid)) => write!(f, "a set that is none ({invalid})"),
            Claim::Digest(digest) => write!(f, "the digest {digest:#018x}"),
            Claim::Missing => f.write_str("neither a set nor a digest"),
        }
    }
}

/// A set from outside, checked.
pub fn set(holdings: &rpc::Holdings) -> Set {
    holdings.check(NUMBER_OF_SHARDS).map_err(|invalid| invalid.to_string())
}

/// A set for people: `1@7, 2@7`.
pub fn listed(holdings: &Holdings) -> String {
    if holdings.is_empty() {
        return "nothing".to_owned();
    }
    let mut names: Vec<String> = holdings.iter().take(LONGEST_LIST).map(|(shard, epoch)| format!("{shard}@{epoch}")).collect();
    if holdings.len() > LONGEST_LIST {
        names.push(format!("… ({} shards)", holdings.len()));
    }
    names.join(", ")
}

/// A version for people.
pub fn shown(version: Option<Version>) -> String {
    version.map_or_else(|| "none".to_owned(), |version| version.to_string())
}

/// Text from outside, cut.
pub fn cut(text: &str) -> String {
    text.chars().take(LONGEST_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Epoch, ShardId};

    #[test]
    fn what_comes_from_outside_is_checked_and_cut() {
        let claim = |shards: Vec<u32>, epochs: Vec<u64>| {
            Claim::of(Some(rpc::renew_lease_request::Claim::Held(rpc::Holdings { shards, epochs }))).to_string()
        };
        assert_eq!(claim(vec![1, 2], vec![7, 8]), "1@7, 2@8");
        assert_eq!(claim(vec![], vec![]), "nothing");
        assert!(claim(vec![64], vec![7]).contains("shard 64 does not exist: there are 64"));
        assert!(claim(vec![1], vec![u64::MAX]).contains("epoch 18446744073709551615 of shard 1 is refused"));
        assert!(claim(vec![1; 1_000_000], vec![7]).contains("1000000 shards but 1 epochs"));
        let many = Holdings::from_pairs((0..64).map(|shard| (ShardId(shard), Epoch(7))));
        assert_eq!(listed(&many), "0@7, 1@7, 2@7, 3@7, 4@7, 5@7, … (64 shards)");
        assert_eq!(cut(&"x".repeat(1000)).len(), 300);
    }

    #[test]
    fn claims_say_the_same_in_full_and_by_digest() {
        let held = Holdings::from_pairs([(ShardId(1), Epoch(7))]);
        assert!(Claim::Full(Ok(held.clone())).is(&held) && Claim::Digest(held.digest()).is(&held));
        assert!(!Claim::Missing.is(&held) && !Claim::Digest(0).is(&held));
        assert!(Claim::Digest(0).is_nothing() && !Claim::Missing.is_nothing());
    }
}
