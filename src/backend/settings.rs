//! What is wrong with settings, and those that more than one kind of server takes.

use std::path::PathBuf;

use crate::config::Secret;

/// Settings that cannot work, whatever the server does.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// There is nobody to ask.
    #[error("the list of etcd endpoints is empty, it takes at least one")]
    NoEndpoint,
    /// An endpoint that is none.
    #[error("etcd endpoint {endpoint:?} is refused: {reason}")]
    Endpoint {
        /// As it was given.
        endpoint: String,
        /// The rule.
        reason: String,
    },
    /// A URL that is none, or says something that is not understood.
    #[error("persistence.postgres.url = {url} is refused: {reason}")]
    Url {
        /// As it was given; it does not show its password.
        url: Secret,
        /// The rule.
        reason: String,
    },
    /// Something that is needed and has no default.
    #[error("{key} is missing")]
    Missing {
        /// The key that is not there.
        key: &'static str,
    },
    /// Two settings of which each needs the other.
    #[error("{given} is given without {missing}, and means nothing alone")]
    Half {
        /// The key that is there.
        given: &'static str,
        /// The key that is not.
        missing: &'static str,
    },
    /// A file that cannot be read.
    #[error("{key} = {} cannot be read", path.display())]
    File {
        /// Which key names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A value out of its range.
    #[error("{name} = {value} is refused: it takes {rule}")]
    Value {
        /// What it is.
        name: &'static str,
        /// As it was given.
        value: String,
        /// The rule.
        rule: String,
    },
}

/// A setting and the key that it comes from.
pub(super) type Keyed<'a, T> = (&'static str, &'a Option<T>);

/// The password in force, and the key that gave it. One that stands by itself goes before one in a file, of which the last line break
/// is no part.
///
/// # Errors
/// Where the file is unreadable.
pub(super) fn password(given: Keyed<Secret>, file: Keyed<PathBuf>) -> Result<Option<(&'static str, Secret)>, Invalid> {
    match (given, file) {
        ((key, Some(password)), _) => Ok(Some((key, password.clone()))),
        (_, (key, Some(path))) => {
            let text = std::fs::read_to_string(path).map_err(|source| Invalid::File { key, path: path.clone(), source })?;
            let line = text.strip_suffix('\n').map_or(&*text, |text| text.strip_suffix('\r').unwrap_or(text));
            Ok(Some((key, Secret::new(line))))
        }
        _ => Ok(None),
    }
}

/// Two files of which neither means anything alone.
///
/// # Errors
/// Where one of them is missing.
pub(super) fn pair(one: Keyed<PathBuf>, other: Keyed<PathBuf>) -> Result<Option<(PathBuf, PathBuf)>, Invalid> {
    match (one, other) {
        ((_, Some(one)), (_, Some(other))) => Ok(Some((one.clone(), other.clone()))),
        ((_, None), (_, None)) => Ok(None),
        ((given, Some(_)), (missing, None)) | ((missing, None), (given, Some(_))) => Err(Invalid::Half { given, missing }),
    }
}

/// # Errors
/// Where no request could ever be answered in time.
pub(super) fn check_request_timeout(timeout: std::time::Duration) -> Result<(), Invalid> {
    if timeout.is_zero() {
        return Err(Invalid::Value { name: "request_timeout", value: "0s".to_owned(), rule: "more than 0s".to_owned() });
    }
    Ok(())
}
