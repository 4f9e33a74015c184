//! How values stand in JSON: words for states, strings for what is no number of 53 bits.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::assignment::record::{End, Standing, Wish};

/// Of a document's content; 8 hexadecimal digits in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum(pub u32);

/// A number of 64 bits, as a decimal string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number(pub u64);

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Anything else than 8 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a checksum has exactly 8 hexadecimal digits")]
pub struct InvalidChecksum;

impl FromStr for Checksum {
    type Err = InvalidChecksum;

    fn from_str(text: &str) -> Result<Checksum, InvalidChecksum> {
        // Without the second look a sign would be taken for a digit.
        match u32::from_str_radix(text, 16) {
            Ok(number) if text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) => Ok(Checksum(number)),
            _ => Err(InvalidChecksum),
        }
    }
}

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        text::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Checksum, D::Error> {
        text::deserialize(deserializer)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Number {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Number, Self::Err> {
        text.parse().map(Number)
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        text::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        text::deserialize(deserializer)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Wish", rename_all = "snake_case")]
pub(super) enum WishName {
    None,
    Cordon,
    Drain,
    Remove,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Standing", rename_all = "snake_case")]
pub(super) enum StandingName {
    Present,
    Superseded,
    Gone,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "End", rename_all = "snake_case")]
pub(super) enum EndName {
    Over,
    Superseded,
}

/// Values that are strings in JSON, without a copy of each.
pub(super) mod text {
    use std::marker::PhantomData;

    use super::*;

    pub(in super::super) fn serialize<T: fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(in super::super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: fmt::Display>,
        D: Deserializer<'de>,
    {
        struct Text<T>(PhantomData<T>);
        impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
                text.parse().map_err(|error| E::custom(format!("{text:?}: {error}")))
            }
        }
        deserializer.deserialize_str(Text(PhantomData))
    }
}
