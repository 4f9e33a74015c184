//! Where a document goes: a file that was not there before, or standard output.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};

use super::Error;
use super::document::Document;

/// Where a document goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// A file. It is not there before, and whole when it is.
    File(PathBuf),
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Stdout => f.write_str("standard output"),
            Destination::File(path) => path.display().fmt(f),
        }
    }
}

/// A document on the disk that does not have its name yet. Locked: one process writes it at a time.
pub(super) struct Partial {
    path: PathBuf,
    becomes: PathBuf,
    _locked: File,
}

/// Refuses a file that is there.
pub(super) fn refuse_existing(path: &Path) -> Result<(), Error> {
    match path.symlink_metadata() {
        Ok(_) => Err(Error::FileExists(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(failed(path)(source)),
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let what = path.display().to_string();
    move |source| Error::Write { what, source }
}

/// Writes a document to standard output.
pub(super) fn print(document: &Document) -> Result<(), Error> {
    let mut out = BufWriter::new(io::stdout().lock());
    let written = document.write(&mut out).and_then(|()| out.flush());
    written.map_err(|source| Error::Write { what: Destination::Stdout.to_string(), source })
}

impl Partial {
    /// Writes a document beside `becomes`, and returns once the disk has it. What an export before left there is overwritten.
    pub(super) fn write(becomes: &Path, document: &Document) -> Result<Partial, Error> {
        let mut path = becomes.as_os_str().to_owned();
        path.push(".partial");
        let path = PathBuf::from(path);
        let write = || {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            file.set_len(0)?;
            let mut out = BufWriter::new(&file);
            document.write(&mut out)?;
            out.flush()?;
            drop(out);
            file.sync_all()?;
            Ok(file)
        };
        let locked = write().map_err(failed(&path))?;
        Ok(Partial { path, becomes: becomes.to_owned(), _locked: locked })
    }

    /// Gives it its name, which nothing else may have got meanwhile, and returns once the disk has that too.
    pub(super) fn publish(self) -> Result<(), Error> {
        match renameat_with(CWD, &self.path, CWD, &self.becomes, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => return Err(Error::FileExists(self.becomes)),
            Err(error) => return Err(failed(&self.becomes)(error.into())),
        }
        let directory = match self.becomes.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => directory,
            _ => Path::new("."),
        };
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed(&self.becomes))
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::content;
    use super::*;

    #[test]
    fn a_file_is_whole_or_not_there_and_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.json");
        let document = Document::new(content());
        refuse_existing(&path).unwrap();
        // What a run before left behind is no hindrance, even where it was longer.
        std::fs::write(directory.path().join("x.json.partial"), vec![b'x'; 1 << 20]).unwrap();
        let partial = Partial::write(&path, &document).unwrap();
        assert!(!path.exists());
        assert!(matches!(Partial::write(&path, &document), Err(Error::Write { .. })), "two write to one file");
        partial.publish().unwrap();
        assert_eq!(Document::parse(&std::fs::read(&path).unwrap()).unwrap(), document);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left");
        assert!(matches!(refuse_existing(&path), Err(Error::FileExists(_))));
        // It appeared after the first look.
        let partial = Partial::write(&path, &document).unwrap();
        assert!(matches!(partial.publish(), Err(Error::FileExists(_))));
        assert_eq!(Document::parse(&std::fs::read(&path).unwrap()).unwrap(), document);
    }
}
