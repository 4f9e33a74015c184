//! The file of a cell: how it is made, and what is none.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

/// The length of a cell's file.
pub const FILE_BYTES: u64 = 4096;
/// What the file begins with.
pub(super) const MAGIC: u64 = u64::from_ne_bytes(*b"shardldr");
/// Of the layout. Processes with different ones must not share a cell.
pub(super) const VERSION: u64 = 1;
/// How often a file is opened again that was replaced in the meantime.
pub(super) const ATTEMPTS: u32 = 100;

/// Why a file cannot be used as a cell.
#[derive(Debug, thiserror::Error)]
#[error("the leader cell {path} cannot be used")]
pub struct Error {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    #[source]
    pub why: Reason,
}

/// See [`Error`].
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// It belongs to another user, and does not let this one read and write it.
    #[error("every process that may lead must be able to read and write it")]
    Permission(#[source] io::Error),
    /// The operating system refused otherwise: no space, no such directory, ...
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A directory, a symbolic link, a device: the cell must be a file of its own.
    #[error("it is {0}; it must be a regular file")]
    Kind(&'static str),
    /// It was cut short, or is none of ours.
    #[error("its length is {0} bytes; a leader cell has exactly {FILE_BYTES}. If no manager runs here, remove it")]
    Length(u64),
    /// It has the right length, and begins with something else.
    #[error("it begins with {0:#018x}; a leader cell begins with {MAGIC:#018x}. If no manager runs here, remove it")]
    Foreign(u64),
    /// It was made by another version of this program, one of which may lead by it.
    #[error("its version is {0}; this program knows {VERSION}. If no manager of the other version runs here, remove it")]
    Version(u64),
    /// It is being replaced over and over.
    #[error("it was replaced each of the {ATTEMPTS} times that it was opened")]
    Unstable,
}

pub(super) fn open(path: &Path, make: bool) -> Result<File, Reason> {
    // Not through a symbolic link, and without waiting for whoever may be at the other end of a pipe.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened =
        OpenOptions::new().read(true).write(true).create(make).truncate(false).custom_flags(flags.bits() as i32).open(path);
    opened.map_err(|error| match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::LOOP) => Reason::Kind("a symbolic link"),
        Some(rustix::io::Errno::ISDIR) => Reason::Kind("a directory"),
        Some(rustix::io::Errno::ACCESS) => Reason::Permission(error),
        _ => Reason::Io(error),
    })
}

/// Makes a cell of a file that is empty, or in which another process began to make one and died.
///
/// The magic comes last, and all of it happens under a lock: of any number of processes one makes the cell, and the others find it.
/// The zeros are written and not left as a hole, so that no access to the mapping can ever need space that the disk does not have.
pub(super) fn form(file: &File) -> Result<(), Reason> {
    let is_unformed = || -> io::Result<bool> {
        let length = file.metadata()?.len();
        Ok(length == 0 || (length <= FILE_BYTES && prefix(file)?.0 == 0 && is_zero(file)?))
    };
    if !is_unformed()? {
        return Ok(());
    }
    flock(file, FlockOperation::LockExclusive).map_err(io::Error::from)?;
    let formed = || -> io::Result<()> {
        if is_unformed()? {
            file.write_all_at(&[0; FILE_BYTES as usize], 0)?;
            file.write_all_at(&VERSION.to_ne_bytes(), 8)?;
            file.write_all_at(&MAGIC.to_ne_bytes(), 0)?;
        }
        Ok(())
    };
    let formed = formed();
    flock(file, FlockOperation::Unlock).map_err(io::Error::from)?;
    Ok(formed?)
}

/// Magic and version, zero where the file is too short.
fn prefix(file: &File) -> io::Result<(u64, u64)> {
    let word = |at| {
        let mut bytes = [0; 8];
        match file.read_exact_at(&mut bytes, at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            read => read.map(|()| u64::from_ne_bytes(bytes)),
        }
    };
    Ok((word(0)?, word(8)?))
}

/// Whether there is nothing in it but what [`form`] may have left: zeros, and the version.
fn is_zero(file: &File) -> io::Result<bool> {
    let mut bytes = [0; FILE_BYTES as usize];
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    Ok(bytes.iter().enumerate().all(|(at, byte)| *byte == 0 || (8..16).contains(&at)))
}

pub(super) fn check(file: &File) -> Result<(), Reason> {
    let length = file.metadata()?.len();
    if length != FILE_BYTES {
        return Err(Reason::Length(length));
    }
    match prefix(file)? {
        (MAGIC, VERSION) => Ok(()),
        (MAGIC, version) => Err(Reason::Version(version)),
        (foreign, _) => Err(Reason::Foreign(foreign)),
    }
}
