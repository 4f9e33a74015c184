//! A set of shards with their epochs: an assignment, or what an executor claims to hold. And its digest.

use crate::types::{Epoch, ShardId};

/// Shards with their epochs, ascending by shard, no shard twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings(Vec<(ShardId, Epoch)>);

/// Parallel arrays that do not make holdings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The arrays differ in length.
    #[error("{shards} shards but {epochs} epochs: the two lists must be equally long")]
    Lengths {
        /// Entries in the list of shards.
        shards: usize,
        /// Entries in the list of epochs.
        epochs: usize,
    },
    /// Not ascending, or a shard twice.
    #[error("shard {shard} follows shard {previous}: shards must ascend, each once")]
    Order {
        /// The shard before.
        previous: u32,
        /// The shard out of order.
        shard: u32,
    },
    /// A shard that the cluster does not have.
    #[error("shard {shard} does not exist: there are {number_of_shards}, counted from 0")]
    Range {
        /// The shard named.
        shard: u32,
        /// How many there are.
        number_of_shards: u32,
    },
    /// An epoch outside 1 ..= [`crate::types::MAX_NUMBER`].
    #[error("epoch {epoch} of shard {shard} is refused: it must be 1 to {}", crate::types::MAX_NUMBER)]
    Epoch {
        /// The shard named.
        shard: u32,
        /// The epoch named.
        epoch: u64,
    },
}

impl Holdings {
    /// From pairs that may come in any order; of a shard that comes twice, the last stands.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (ShardId, Epoch)>) -> Holdings {
        Holdings(pairs.into_iter().collect::<std::collections::BTreeMap<_, _>>().into_iter().collect())
    }

    /// From the wire's parallel arrays, checked against all rules.
    pub fn from_columns(shards: &[u32], epochs: &[u64], number_of_shards: u32) -> Result<Holdings, Invalid> {
        if shards.len() != epochs.len() {
            return Err(Invalid::Lengths { shards: shards.len(), epochs: epochs.len() });
        }
        let mut pairs: Vec<(ShardId, Epoch)> = Vec::with_capacity(shards.len());
        for (&shard, &epoch) in shards.iter().zip(epochs) {
            if shard >= number_of_shards {
                return Err(Invalid::Range { shard, number_of_shards });
            }
            if epoch == 0 || epoch > crate::types::MAX_NUMBER {
                return Err(Invalid::Epoch { shard, epoch });
            }
            if let Some(&(previous, _)) = pairs.last()
                && previous.0 >= shard
            {
                return Err(Invalid::Order { previous: previous.0, shard });
            }
            pairs.push((ShardId(shard), Epoch(epoch)));
        }
        Ok(Holdings(pairs))
    }

    /// As the wire's parallel arrays.
    pub fn to_columns(&self) -> (Vec<u32>, Vec<u64>) {
        self.0.iter().map(|&(shard, epoch)| (shard.0, epoch.0)).unzip()
    }

    /// The epoch at which `shard` is held, if it is.
    pub fn epoch(&self, shard: ShardId) -> Option<Epoch> {
        let at = self.0.binary_search_by_key(&shard, |&(shard, _)| shard).ok()?;
        Some(self.0[at].1)
    }

    /// Ascending by shard.
    pub fn iter(&self) -> impl Iterator<Item = (ShardId, Epoch)> + '_ {
        self.0.iter().copied()
    }

    /// How many shards.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// No shard at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The digest of the whole set; see [`digest_of`].
    pub fn digest(&self) -> u64 {
        self.iter().fold(0, |sum, (shard, epoch)| sum.wrapping_add(digest_of(shard, epoch)))
    }
}

/// What one (shard, epoch) adds to the digest of a set: the digest is the sum of these modulo 2^64, 0 for the empty set, so it can
/// be kept up to date as shards come and go. The mixing is the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), once
/// over the shard and once over that and the epoch. docs/protocol.md has test vectors.
pub fn digest_of(shard: ShardId, epoch: Epoch) -> u64 {
    mix(mix(u64::from(shard.0).wrapping_add(1)) ^ epoch.0)
}

pub(crate) fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(u32, u64)]) -> Holdings {
        Holdings::from_pairs(pairs.iter().map(|&(s, e)| (ShardId(s), Epoch(e))))
    }

    #[test]
    fn columns_are_checked_by_every_rule() {
        assert_eq!(Holdings::from_columns(&[1, 3], &[7, 9], 4), Ok(pairs(&[(1, 7), (3, 9)])));
        assert_eq!(Holdings::from_columns(&[1], &[], 4), Err(Invalid::Lengths { shards: 1, epochs: 0 }));
        assert_eq!(Holdings::from_columns(&[3, 1], &[7, 9], 4), Err(Invalid::Order { previous: 3, shard: 1 }));
        assert_eq!(Holdings::from_columns(&[1, 1], &[7, 9], 4), Err(Invalid::Order { previous: 1, shard: 1 }));
        assert_eq!(Holdings::from_columns(&[4], &[7], 4), Err(Invalid::Range { shard: 4, number_of_shards: 4 }));
        assert_eq!(Holdings::from_columns(&[0], &[0], 4), Err(Invalid::Epoch { shard: 0, epoch: 0 }));
        assert_eq!(Holdings::from_columns(&[0], &[u64::MAX], 4), Err(Invalid::Epoch { shard: 0, epoch: u64::MAX }));
    }

    #[test]
    fn the_digest_tells_sets_apart_and_knows_no_order() {
        assert_eq!(Holdings::default().digest(), 0);
        assert_eq!(pairs(&[(1, 7), (2, 9)]).digest(), pairs(&[(2, 9), (1, 7)]).digest());
        assert_ne!(pairs(&[(1, 7), (2, 9)]).digest(), pairs(&[(1, 9), (2, 7)]).digest());
        assert_ne!(pairs(&[(0, 1)]).digest(), 0);
    }
}
