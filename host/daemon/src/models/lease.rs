//! Leases on blobs: shared for readers, exclusive for deletion, across processes (CACHE-02, CACHE-03).
//!
//! State: one lock file for each digest under `leases/`, never deleted (deleting a lock file while another process
//! opens it would give two holders). Callers: `models::ModelStore`. Not known here: why a file is held.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

use synapse_core::digest::Sha256Digest;

/// How a blob is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseMode {
    /// With other readers: the file is being verified, mapped or read.
    Shared,
    /// Alone: the file is about to be deleted.
    Exclusive,
}

/// A held lease. Ends when dropped, and when its process ends however it ends.
#[derive(Debug)]
pub struct Lease {
    digest: Sha256Digest,
    _file: File,
}

impl Lease {
    /// The blob that is held.
    #[must_use]
    pub const fn digest(&self) -> Sha256Digest {
        self.digest
    }
}

/// Takes a lease if nobody holds the blob in a conflicting mode; `None` when somebody does. Never waits.
///
/// # Errors
/// The lock file cannot be opened, or the file system has no locks.
pub fn try_lease(folder: &Path, digest: Sha256Digest, mode: LeaseMode) -> io::Result<Option<Lease>> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(folder.join(format!("{digest}.lock")))?;
    let taken = match mode {
        LeaseMode::Shared => file.try_lock_shared(),
        LeaseMode::Exclusive => file.try_lock(),
    };
    match taken {
        Ok(()) => Ok(Some(Lease { digest, _file: file })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use synapse_core::digest::sha256;

    use super::*;

    /// Proves CACHE-02, CACHE-03. Two open files conflict as two processes do: the lock belongs to the open file.
    #[test]
    fn readers_share_and_a_deleter_is_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let digest = sha256(b"blob");
        let take = |mode| try_lease(folder.path(), digest, mode).expect("the file system has locks");
        let first = take(LeaseMode::Shared).expect("is free");
        let second = take(LeaseMode::Shared).expect("readers share");
        assert!(take(LeaseMode::Exclusive).is_none(), "two readers hold it");
        drop(first);
        assert!(take(LeaseMode::Exclusive).is_none(), "one reader holds it");
        drop(second);
        let alone = take(LeaseMode::Exclusive).expect("nobody holds it");
        assert!(take(LeaseMode::Shared).is_none(), "the deleter holds it");
        assert_eq!(alone.digest(), digest);
        drop(alone);
        assert!(take(LeaseMode::Shared).is_some());
    }
}
