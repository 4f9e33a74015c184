//! Where a document goes: a file that was not there before, or standard output.

use std::fmt;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, OFlags, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use super::Error;
use super::document::Document;

/// Whoever reads a document learns where every executor serves, so it is its owner's alone.
const MODE: u32 = 0o600;
/// How often a file is opened again that another export finished or gave up in that moment.
const ATTEMPTS: u32 = 100;

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

/// A destination that can be written: what can be found out before anybody is asked for anything has been.
pub(super) enum Target {
    /// Standard output.
    Stdout,
    /// A file.
    File(Partial),
}

/// A document on the disk, or an empty file, that does not have its name yet. Locked: one process writes it at a time. It is removed
/// where it is dropped without having got its name.
pub(super) struct Partial {
    path: PathBuf,
    becomes: PathBuf,
    file: File,
    is_published: bool,
}

/// Refuses a file that is there.
fn refuse_existing(path: &Path) -> Result<(), Error> {
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

impl Target {
    /// Opens a destination.
    ///
    /// # Errors
    /// Where a file is there already, or none can be made.
    pub(super) fn open(to: &Destination) -> Result<Target, Error> {
        match to {
            Destination::Stdout => Ok(Target::Stdout),
            Destination::File(path) => Partial::open(path).map(Target::File),
        }
    }
}

/// Writes a document to standard output.
pub(super) fn print(document: &Document) -> Result<(), Error> {
    let mut out = BufWriter::new(io::stdout().lock());
    let written = document.write(&mut out).and_then(|()| out.flush());
    written.map_err(|source| Error::Write { what: Destination::Stdout.to_string(), source })
}

impl Partial {
    /// Makes an empty file beside `becomes`, which is not there. What an export before left there is overwritten.
    pub(super) fn open(becomes: &Path) -> Result<Partial, Error> {
        refuse_existing(becomes)?;
        let mut path = becomes.as_os_str().to_owned();
        path.push(".partial");
        let path = PathBuf::from(path);
        let file = locked(&path).map_err(failed(&path))?;
        Ok(Partial { path, becomes: becomes.to_owned(), file, is_published: false })
    }

    /// Writes a document, and returns once the disk has it.
    pub(super) fn write(self, document: &Document) -> Result<Partial, Error> {
        let write = || {
            let mut out = BufWriter::new(&self.file);
            document.write(&mut out)?;
            out.flush()?;
            drop(out);
            self.file.sync_all()
        };
        write().map_err(failed(&self.path))?;
        Ok(self)
    }

    /// Gives it its name, which nothing else may have got meanwhile, and returns once the disk has that too.
    pub(super) fn publish(mut self) -> Result<(), Error> {
        let renamed = match renameat_with(CWD, &self.path, CWD, &self.becomes, RenameFlags::NOREPLACE) {
            // Not every file system can do that.
            Err(Errno::INVAL | Errno::NOSYS) => link_and_unlink(&self.path, &self.becomes),
            renamed => renamed.map_err(io::Error::from),
        };
        match renamed {
            Ok(()) => self.is_published = true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(Error::FileExists(self.becomes.clone())),
            Err(error) => return Err(failed(&self.becomes)(error)),
        }
        let directory = match self.becomes.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => directory,
            _ => Path::new("."),
        };
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed(&self.becomes))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // While it is locked: nobody else uses what has this name.
        if !self.is_published {
            std::fs::remove_file(&self.path).ok();
        }
    }
}

/// Opens the file at `path`, made if it is missing, empties it, and locks it. Neither a link nor anything else leads this to another file.
fn locked(path: &Path) -> io::Result<File> {
    let refused = |what: &str| Err(io::Error::other(format!("it is {what}; it must be a regular file with this name only")));
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(MODE).custom_flags(flags.bits() as i32);
    for _ in 0..ATTEMPTS {
        let file = match options.open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => return refused("a symbolic link"),
            opened => opened?,
        };
        if !file.metadata()?.is_file() {
            return refused("no regular file");
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(io::Error::other("another export is writing it")),
            locked => locked?,
        }
        // Another export may have published or removed it since it was opened: then this is not the file that has this name.
        let (own, named) = (file.metadata()?, path.symlink_metadata());
        if !named.is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino())) {
            continue;
        }
        if own.nlink() > 1 {
            return refused("known by another name too");
        }
        file.set_permissions(Permissions::from_mode(MODE))?;
        file.set_len(0)?;
        return Ok(file);
    }
    Err(io::Error::other(format!("it was replaced each of the {ATTEMPTS} times that it was opened")))
}

/// A rename that replaces nothing, in two steps: a crash between them leaves the file under both names.
fn link_and_unlink(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::hard_link(from, to)?;
    std::fs::remove_file(from)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::document::tests::content;
    use super::*;

    fn document() -> Document {
        Document::new(content())
    }

    fn read(path: &Path) -> Document {
        Document::parse(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn a_file_is_whole_or_not_there_and_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.json");
        // What a run before left behind is no hindrance, even where it was longer.
        std::fs::write(directory.path().join("x.json.partial"), vec![b'x'; 1 << 20]).unwrap();
        let partial = Partial::open(&path).unwrap().write(&document()).unwrap();
        assert!(!path.exists());
        assert!(matches!(Partial::open(&path), Err(Error::Write { .. })), "two write to one file");
        partial.publish().unwrap();
        assert_eq!(read(&path), document());
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert!(matches!(Partial::open(&path), Err(Error::FileExists(_))));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left");
        // It appeared after the first look.
        let other = directory.path().join("y.json");
        let partial = Partial::open(&other).unwrap().write(&document()).unwrap();
        std::fs::write(&other, "mine").unwrap();
        assert!(matches!(partial.publish(), Err(Error::FileExists(_))));
        assert_eq!(std::fs::read(&other).unwrap(), b"mine");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "nor when it fails");
    }

    /// The second one had the file open when the first gave it its name.
    #[test]
    fn a_published_document_is_not_overwritten_by_an_export_that_came_just_before() {
        let directory = tempfile::tempdir().unwrap();
        for round in 0..50 {
            let path = directory.path().join(format!("{round}.json"));
            let done = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while !done.load(std::sync::atomic::Ordering::SeqCst) {
                            // What comes too late, or while another one writes, is refused.
                            drop(Partial::open(&path));
                        }
                    });
                }
                let mut partial = Partial::open(&path);
                while partial.is_err() {
                    partial = Partial::open(&path);
                }
                partial.unwrap().write(&document()).unwrap().publish().unwrap();
                done.store(true, std::sync::atomic::Ordering::SeqCst);
            });
            assert_eq!(read(&path), document(), "round {round}");
        }
    }

    #[test]
    fn what_lies_at_the_place_of_a_partial_document_is_not_written_through() {
        let directory = tempfile::tempdir().unwrap();
        let (path, partial) = (directory.path().join("x.json"), directory.path().join("x.json.partial"));
        let precious = directory.path().join("precious");
        std::fs::write(&precious, "mine").unwrap();
        let refused = |says: &str| {
            let Err(Error::Write { source, .. }) = Partial::open(&path) else { panic!("it is taken") };
            assert!(source.to_string().contains(says), "{source}");
            assert_eq!(std::fs::read(&precious).unwrap(), b"mine");
            std::fs::remove_file(&partial).unwrap();
        };
        symlink(&precious, &partial).unwrap();
        refused("a symbolic link");
        std::fs::hard_link(&precious, &partial).unwrap();
        refused("another name");
        let pipe = rustix::fs::mknodat(CWD, &partial, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0);
        pipe.unwrap();
        let reader = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&partial).unwrap();
        refused("no regular file");
        drop(reader);
    }

    #[test]
    fn where_a_rename_cannot_spare_what_is_there_a_link_does() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        std::fs::write(&from, "new").unwrap();
        link_and_unlink(&from, &to).unwrap();
        assert!(!from.exists());
        std::fs::write(&from, "newer").unwrap();
        assert_eq!(link_and_unlink(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&to).unwrap(), b"new");
    }
}
