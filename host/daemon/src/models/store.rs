//! Blobs: files under the name of their SHA-256, and the folders beside them (CACHE-01).
//!
//! State: `models/blobs/sha256/<first two digits>/<digest>` (whole, read-only files), `models/partial/` (files on
//! their way), `models/records/`, `models/leases/`. Callers: `models` and its sources. Not known here: models,
//! catalogs, networks.
//!
//! A file appears under a digest name by one rename, after its length and digest were compared and its bytes were
//! synced. So whatever a crash leaves, a digest name holds that content.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use synapse_core::digest::{Sha256Digest, sha256};
use tokio_util::sync::CancellationToken;

use super::ModelsError;
use super::lease::{Lease, LeaseMode, try_lease};
use crate::text::json_guard::looks_like_html;

/// How much is read at once.
const CHUNK: usize = 1 << 18;

/// What a file must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// How messages call it, for example `model.safetensors`.
    pub name: String,
    /// Its SHA-256.
    pub sha256: Sha256Digest,
    /// Its length in bytes.
    pub size: u64,
}

impl Expected {
    /// The refusal of what was found instead.
    pub fn invalid(&self, reason: impl Into<String>) -> ModelsError {
        ModelsError::ArtifactInvalid {
            what: self.name.clone(),
            reason: reason.into(),
        }
    }
}

/// The folders of one model store.
#[derive(Clone, Debug)]
pub struct Blobs {
    root: PathBuf,
}

/// Names the path in a file error.
pub fn storage(path: &Path) -> impl FnOnce(io::Error) -> ModelsError + '_ {
    |source| ModelsError::Storage {
        path: path.to_owned(),
        source,
    }
}

impl Blobs {
    /// Makes the folders where they are missing, for this user only.
    ///
    /// # Errors
    /// [`ModelsError::Storage`].
    pub fn open(root: &Path) -> Result<Self, ModelsError> {
        for folder in ["blobs/sha256", "partial", "records", "leases"] {
            let folder = root.join(folder);
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)
                .map_err(storage(&folder))?;
        }
        Ok(Self { root: root.to_owned() })
    }

    /// Where artifact records lie.
    #[must_use]
    pub fn records(&self) -> PathBuf {
        self.root.join("records")
    }

    /// Where files are on their way: the same file system as the blobs, so that a rename suffices.
    #[must_use]
    pub fn partials(&self) -> PathBuf {
        self.root.join("partial")
    }

    /// Where a blob lies, or would.
    #[must_use]
    pub fn path(&self, digest: Sha256Digest) -> PathBuf {
        let name = digest.to_string();
        self.root.join("blobs/sha256").join(&name[..2]).join(name)
    }

    /// Whether a blob is there with this length. Its content was right when it got its name; [`Self::measure`] tells
    /// whether it still is.
    #[must_use]
    pub fn has(&self, digest: Sha256Digest, size: u64) -> bool {
        fs::symlink_metadata(self.path(digest)).is_ok_and(|found| found.is_file() && found.len() == size)
    }

    /// Takes a lease on a blob; `None` when somebody holds it in a conflicting mode.
    ///
    /// # Errors
    /// [`ModelsError::Storage`].
    pub fn lease(&self, digest: Sha256Digest, mode: LeaseMode) -> Result<Option<Lease>, ModelsError> {
        let folder = self.root.join("leases");
        try_lease(&folder, digest, mode).map_err(storage(&folder))
    }

    /// Starts to receive a file. `resume` goes on after the bytes of an earlier try, which are read and hashed again;
    /// otherwise those are dropped.
    ///
    /// # Errors
    /// [`ModelsError::Storage`], [`ModelsError::Cancelled`].
    pub fn receive(
        &self,
        expected: &Expected,
        resume: bool,
        cancel: &CancellationToken,
    ) -> Result<Incoming, ModelsError> {
        let path = self.partials().join(format!("{}.part", expected.sha256));
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(!resume)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(storage(&path))?;
        let mut incoming = Incoming {
            expected: expected.clone(),
            hasher: Sha256::new(),
            received: 0,
            resumed: 0,
            head: Vec::new(),
            target: self.path(expected.sha256),
            file: file.try_clone().map_err(storage(&path))?,
            path,
        };
        if resume {
            let mut chunk = vec![0; CHUNK];
            loop {
                check(cancel)?;
                let count = file.read(&mut chunk).map_err(storage(&incoming.path))?;
                if count == 0 {
                    break;
                }
                incoming.note(&chunk[..count]);
            }
            incoming.resumed = incoming.received;
            if incoming.received > expected.size {
                return self.receive(expected, false, cancel);
            }
        }
        Ok(incoming)
    }

    /// Keeps bytes under their digest.
    ///
    /// # Errors
    /// [`ModelsError::Storage`].
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<Expected, ModelsError> {
        let expected = Expected {
            name: name.to_owned(),
            sha256: sha256(bytes),
            size: u64::try_from(bytes.len()).unwrap_or(u64::MAX),
        };
        if !self.has(expected.sha256, expected.size) {
            let mut incoming = self.receive(&expected, false, &CancellationToken::new())?;
            incoming.write(bytes)?;
            incoming.finish()?;
        }
        Ok(expected)
    }

    /// Reads a blob again and compares it with what it must be (CACHE-08). `done` hears how many bytes were read.
    ///
    /// # Errors
    /// [`ModelsError::ArtifactInvalid`], [`ModelsError::Storage`], [`ModelsError::Cancelled`].
    pub fn measure(
        &self,
        expected: &Expected,
        cancel: &CancellationToken,
        done: &mut dyn FnMut(u64),
    ) -> Result<(Sha256Digest, u64), ModelsError> {
        let measured = measure_file(&self.path(expected.sha256), expected.size, cancel, done)?;
        if measured != (expected.sha256, expected.size) {
            return Err(expected.invalid(format!(
                "expected {} bytes with SHA-256 {}, found {} bytes with {}; remove the model and pull it again",
                expected.size, expected.sha256, measured.1, measured.0
            )));
        }
        Ok(measured)
    }

    /// Reads a small blob whole, and compares it with what it must be.
    ///
    /// # Errors
    /// As [`Self::measure`].
    pub fn read(&self, expected: &Expected) -> Result<Vec<u8>, ModelsError> {
        let path = self.path(expected.sha256);
        let file = File::open(&path).map_err(storage(&path))?;
        let mut bytes = Vec::new();
        file.take(expected.size.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(storage(&path))?;
        if sha256(&bytes) != expected.sha256 {
            return Err(expected.invalid("its bytes changed on disk; remove the model and pull it again"));
        }
        Ok(bytes)
    }

    /// Deletes a blob; one that is not there is fine.
    ///
    /// # Errors
    /// [`ModelsError::Storage`].
    pub fn delete(&self, digest: Sha256Digest) -> Result<(), ModelsError> {
        let path = self.path(digest);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(storage(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Refuses when `needed` bytes, and some to spare, are not free.
    ///
    /// # Errors
    /// [`ModelsError::NoSpace`] says both figures.
    pub fn require_space(&self, needed: u64) -> Result<(), ModelsError> {
        /// What is left for everything else on the disk.
        const SPARE: u64 = 64 << 20;
        let found = rustix::fs::statvfs(&self.root).map_err(|error| storage(&self.root)(error.into()))?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        if needed > 0 && free < needed.saturating_add(SPARE) {
            return Err(ModelsError::NoSpace {
                needed: needed.saturating_add(SPARE),
                free,
                path: self.root.clone(),
            });
        }
        Ok(())
    }
}

/// A file on its way: hashed as it arrives, never longer than expected.
#[derive(Debug)]
pub struct Incoming {
    expected: Expected,
    file: File,
    path: PathBuf,
    target: PathBuf,
    hasher: Sha256,
    received: u64,
    resumed: u64,
    head: Vec<u8>,
}

impl Incoming {
    /// Bytes that are here.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// [`ModelsError::ArtifactInvalid`] when there are more than expected (the file is then deleted),
    /// [`ModelsError::Storage`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ModelsError> {
        let more = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if self.received.saturating_add(more) > self.expected.size {
            self.discard();
            return Err(self
                .expected
                .invalid(format!("longer than the expected {} bytes", self.expected.size)));
        }
        self.file.write_all(bytes).map_err(storage(&self.path))?;
        self.note(bytes);
        Ok(())
    }

    fn note(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.received += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let room = 64_usize.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..room]);
    }

    /// Compares, syncs, and gives the file its digest's name.
    ///
    /// # Errors
    /// [`ModelsError::ArtifactInvalid`] when length or digest differ: the file is then deleted. (A file that was
    /// resumed from an earlier try may be damaged by that try; [`Self::was_resumed`] tells, and one fresh try is due.)
    pub fn finish(self) -> Result<(), ModelsError> {
        let found = Sha256Digest(self.hasher.clone().finalize().into());
        if self.received != self.expected.size || found != self.expected.sha256 {
            self.discard();
            let html = if looks_like_html(&self.head) {
                "looks like HTML; "
            } else {
                ""
            };
            return Err(self.expected.invalid(format!(
                "{html}expected {} bytes with SHA-256 {}, received {} bytes with {found}",
                self.expected.size, self.expected.sha256, self.received
            )));
        }
        let folder = self.target.parent().unwrap_or(Path::new("."));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(storage(folder))?;
        self.file
            .set_permissions(fs::Permissions::from_mode(0o400))
            .map_err(storage(&self.path))?;
        self.file.sync_all().map_err(storage(&self.path))?;
        fs::rename(&self.path, &self.target).map_err(storage(&self.target))?;
        sync_folder(folder)
    }

    /// Whether some of the bytes came with an earlier try.
    #[must_use]
    pub const fn was_resumed(&self) -> bool {
        self.resumed > 0
    }

    /// Whether what has arrived so far is a web page.
    #[must_use]
    pub fn looks_like_html(&self) -> bool {
        looks_like_html(&self.head)
    }

    /// Deletes what has arrived.
    pub fn discard(&self) {
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(target: "synapse", path = %self.path.display(), "cannot delete a partial file: {error}");
        }
    }
}

/// Length and digest of a file, reading at most one byte more than expected.
///
/// # Errors
/// [`ModelsError::Storage`], [`ModelsError::Cancelled`].
pub fn measure_file(
    path: &Path,
    expected: u64,
    cancel: &CancellationToken,
    done: &mut dyn FnMut(u64),
) -> Result<(Sha256Digest, u64), ModelsError> {
    let mut file = File::open(path)
        .map_err(storage(path))?
        .take(expected.saturating_add(1));
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    let mut length = 0_u64;
    loop {
        check(cancel)?;
        let count = file.read(&mut chunk).map_err(storage(path))?;
        if count == 0 {
            return Ok((Sha256Digest(hasher.finalize().into()), length));
        }
        hasher.update(&chunk[..count]);
        length += u64::try_from(count).unwrap_or(u64::MAX);
        done(length);
    }
}

/// Copies a reader into an incoming file.
///
/// # Errors
/// As [`Incoming::write`]; a failed read goes to `failed`.
pub fn copy(
    from: &mut dyn Read,
    into: &mut Incoming,
    cancel: &CancellationToken,
    failed: &dyn Fn(io::Error) -> ModelsError,
    done: &mut dyn FnMut(u64),
) -> Result<(), ModelsError> {
    let mut chunk = vec![0; CHUNK];
    loop {
        check(cancel)?;
        let count = match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        into.write(&chunk[..count])?;
        done(into.received());
    }
}

/// Writes a small file by rename, synced.
///
/// # Errors
/// [`ModelsError::Storage`].
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), ModelsError> {
    let next = path.with_extension("next");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&next)
        .map_err(storage(&next))?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(storage(&next))?;
    fs::rename(&next, path).map_err(storage(path))?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Makes a rename or a deletion in a folder last.
///
/// # Errors
/// [`ModelsError::Storage`].
pub fn sync_folder(folder: &Path) -> Result<(), ModelsError> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(storage(folder))
}

/// Ends the work when its caller asked to stop.
///
/// # Errors
/// [`ModelsError::Cancelled`].
pub fn check(cancel: &CancellationToken) -> Result<(), ModelsError> {
    if cancel.is_cancelled() {
        return Err(ModelsError::Cancelled);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Blobs) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let blobs = Blobs::open(folder.path()).expect("opens");
        (folder, blobs)
    }

    fn expected(bytes: &[u8]) -> Expected {
        Expected {
            name: String::from("file"),
            sha256: sha256(bytes),
            size: u64::try_from(bytes.len()).expect("fits"),
        }
    }

    /// Proves CACHE-01.
    #[test]
    fn only_whole_files_get_a_digest_name() {
        let (_folder, blobs) = store();
        let cancel = CancellationToken::new();
        let file = expected(b"hello world");
        let mut part = blobs.receive(&file, false, &cancel).expect("starts");
        part.write(b"hello ").expect("writes");
        drop(part);
        assert!(!blobs.has(file.sha256, file.size));

        let mut part = blobs.receive(&file, true, &cancel).expect("resumes");
        assert_eq!((part.received(), part.was_resumed()), (6, true));
        part.write(b"world").expect("writes");
        part.finish().expect("is whole");
        assert!(blobs.has(file.sha256, file.size));
        assert_eq!(blobs.read(&file).expect("reads"), b"hello world");
        assert_eq!(fs::read_dir(blobs.partials()).expect("lists").count(), 0);
    }

    #[test]
    fn wrong_bytes_are_deleted() {
        let (_folder, blobs) = store();
        let cancel = CancellationToken::new();
        let file = expected(b"hello world");
        for wrong in [&b"hello worle"[..], b"hello worl", b"<html>\n<bo>"] {
            let mut part = blobs.receive(&file, false, &cancel).expect("starts");
            part.write(wrong).expect("writes");
            let error = part.finish().expect_err("is not the file").to_string();
            assert_eq!(error.contains("looks like HTML"), wrong.starts_with(b"<"), "{error}");
        }
        let mut part = blobs.receive(&file, false, &cancel).expect("starts");
        assert!(matches!(
            part.write(b"hello world!"),
            Err(ModelsError::ArtifactInvalid { .. })
        ));
        assert!(!blobs.has(file.sha256, file.size));
        assert_eq!(fs::read_dir(blobs.partials()).expect("lists").count(), 0);
    }

    /// Proves CACHE-08.
    #[test]
    fn a_flipped_byte_on_disk_is_seen() {
        let (_folder, blobs) = store();
        let cancel = CancellationToken::new();
        let file = blobs.put("file", b"hello world").expect("is kept");
        blobs.measure(&file, &cancel, &mut |_| {}).expect("is right");
        let path = blobs.path(file.sha256);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("is ours");
        fs::write(&path, b"hello worle").expect("writes");
        let error = blobs.measure(&file, &cancel, &mut |_| {}).expect_err("is wrong");
        assert!(matches!(error, ModelsError::ArtifactInvalid { .. }), "{error}");
        assert!(blobs.read(&file).is_err());
    }

    #[test]
    fn space_is_asked_for_first() {
        let (_folder, blobs) = store();
        blobs.require_space(1).expect("a byte is free");
        assert!(matches!(
            blobs.require_space(u64::MAX),
            Err(ModelsError::NoSpace { .. })
        ));
    }
}
