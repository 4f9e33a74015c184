//! Which shard a key belongs to. Every caller of a cluster must come to the same answer, in whatever language: docs/protocol.md says
//! how, with test vectors.

use crate::holdings::mix;
use crate::types::ShardId;

/// The shard of a key, by its bytes: FNV-1a of 64 bits, then the mixing function that digests use, then the upper 32 bits of that
/// scaled to `0 .. number_of_shards`. Spreads keys evenly; is no protection against somebody who chooses keys to hit one shard.
///
/// Of no shards at all (`number_of_shards` 0, which no cluster has) the answer is shard 0.
///
/// ```
/// use shard_manager::client::shard_for;
/// assert_eq!(shard_for(b"user-42", 1024).0, 906);
/// ```
pub fn shard_for(key: &[u8], number_of_shards: u32) -> ShardId {
    let upper = mix(fnv1a(key)) >> 32;
    // Below number_of_shards, since `upper` is below 2^32.
    ShardId(((upper * u64::from(number_of_shards)) >> 32) as u32)
}

fn fnv1a(key: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    key.iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::types::MAX_SHARDS;

    /// The rows of docs/protocol.md: key in hexadecimal, and its shard of 1, 1,000, 1,024 and 4,194,304.
    #[test]
    fn the_documented_vectors_hold() {
        let document = include_str!("../../docs/protocol.md");
        let section = document.split("### Which shard a key belongs to").nth(1).unwrap().split("\n#").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
        let mut seen = 0;
        for row in rows {
            let (key, shards) = row.split_once("` | ").unwrap();
            let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            let key: Vec<u8> = key.as_bytes().chunks(2).map(byte).collect();
            let [text, one, thousand, kibi, most] = shards.split(" | ").collect::<Vec<_>>()[..] else { panic!("{row}") };
            let expected: Vec<u32> = [one, thousand, kibi, most].iter().map(|shard| shard.parse().unwrap()).collect();
            let found: Vec<u32> = [1, 1000, 1024, MAX_SHARDS].iter().map(|number| shard_for(&key, *number).0).collect();
            assert_eq!(found, expected, "{text}");
            seen += 1;
        }
        assert!(seen >= 5, "{seen} rows were found");
    }

    #[test]
    fn fnv1a_is_the_published_one() {
        // From the reference of its authors.
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn keys_that_count_up_spread_evenly() {
        let mut counts = vec![0u32; 64];
        for number in 0..64_000 {
            counts[shard_for(format!("user-{number}").as_bytes(), 64).0 as usize] += 1;
        }
        // 1,000 each; the standard deviation of a fair throw is 31.
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
