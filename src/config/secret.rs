//! Text that is used but never shown.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// A URL with a password in it. Every way to show it, serialization included, hides the password; [`Secret::reveal`] does not.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

/// What stands in the place of a secret.
const HIDDEN: &str = "***";

impl Secret {
    /// A secret out of its text.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text, to connect with and for nothing else.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Secret {
    /// Hides the password and every query parameter, in doubt more than that.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((scheme, rest)) = self.0.split_once("://") else {
            return f.write_str(HIDDEN);
        };
        // Up to the last `@`: an unescaped one may be part of the password, and so may `/` and `?`.
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => {
                (user.split_once(':').map_or_else(|| user.to_owned(), |(name, _)| format!("{name}:{HIDDEN}")) + "@", rest)
            }
            None => (String::new(), rest),
        };
        match rest.split_once('?') {
            Some((place, _)) => write!(f, "{scheme}://{user}{place}?{HIDDEN}"),
            None => write!(f, "{scheme}://{user}{rest}"),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({self})")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_ever_shown() {
        let shown = |text: &str| format!("{} {:?}", Secret::new(text), Secret::new(text));
        assert_eq!(Secret::new("postgres://me:pw@db:5432/shards").to_string(), "postgres://me:***@db:5432/shards");
        assert_eq!(Secret::new("postgres://me@db/shards").to_string(), "postgres://me@db/shards");
        assert_eq!(Secret::new("postgres://db/shards").to_string(), "postgres://db/shards");
        for text in [
            "postgres://me:hunter2@db/x",
            "postgres://me:p@hunter2@db/x",
            "postgres://me:p/hunter2?x@db/x",
            "postgres://db/x?user=me&password=hunter2",
            "host=db password=hunter2",
            "hunter2",
        ] {
            assert!(!shown(text).contains("hunter2"), "{}", shown(text));
        }
    }
}
