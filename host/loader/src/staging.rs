//! Copies a bundle into a private folder named by its digest, so that what is checked is what is loaded.
//!
//! State: the staging folder. Callers: discovery. Not known here: what the files mean.
//!
//! Every file is opened once, relative to its folder's descriptor and without following links; the bytes that are
//! hashed are the bytes that are copied, and only the copy is looked at afterwards. A swap in the source folder can
//! thus change what is staged, which changes the digest, and never what is loaded under a digest.
//!
//! A source that did not change since it was copied is not read again: its stamp then stands beside the copy. The copy
//! itself is measured at every start. Who makes an old stamp fit a changed source gets what was in it before.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use sha2::{Digest as _, Sha256};
use synapse_core::digest::Sha256Digest;

use crate::bundle::{BundleDigest, Refusal, RefusalReason};
use crate::error::LoaderError;
use crate::manifest::shown;
use crate::stamp::Stamp;

/// The most files of a bundle.
const MAX_FILES: usize = 1024;
/// The deepest folder of a bundle.
const MAX_DEPTH: usize = 8;
/// What unfinished copies are called.
const INCOMING: &str = ".incoming-";
/// What the engines' folders for temporary files are called.
const SCRATCH: &str = ".scratch-";
/// What the stamp of a copy's source is called, before the copy's digest.
const SOURCE: &str = ".source-";

/// A bundle in the staging folder.
#[derive(Clone, Debug)]
pub(crate) struct Staged {
    /// The digest of all files.
    pub digest: BundleDigest,
    /// The private copy.
    pub dir: PathBuf,
    /// SHA-256 by relative path, with `/` between the parts.
    pub files: BTreeMap<String, Sha256Digest>,
    /// The files whose owner may run them, in the bundle as it was found.
    pub executable: BTreeSet<String>,
}

/// The private folder that holds the copies.
#[derive(Debug)]
pub(crate) struct StagingFolder {
    path: PathBuf,
    max_bytes: u64,
}

impl StagingFolder {
    /// Makes the folder with mode 0700, or takes an existing one of this user and closes it to others. Removes what
    /// interrupted copies left.
    ///
    /// # Errors
    /// [`LoaderError::Io`], [`LoaderError::NoExec`].
    pub fn open(path: &Path, max_bytes: u64) -> Result<Self, LoaderError> {
        let io = |what| {
            move |source| LoaderError::Io {
                what,
                path: path.to_owned(),
                source,
            }
        };
        let create = "cannot create the staging folder";
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(io(create))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| io(create)(error.into()))?;
        let stat = rustix::fs::fstat(&folder).map_err(|error| io(create)(error.into()))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            let source = io::Error::other("the folder belongs to another user: choose another data folder");
            return Err(io(create)(source));
        }
        rustix::fs::fchmod(&folder, Mode::RWXU).map_err(|error| io(create)(error.into()))?;
        check_exec(path, is_noexec(&folder).map_err(io(create))?)?;
        let this = Self {
            path: path.canonicalize().map_err(io(create))?,
            max_bytes,
        };
        this.remove_if(|name| name.starts_with(INCOMING));
        Ok(this)
    }

    /// Copies the bundle in `source`, or finds that an intact copy of the same digest is there.
    ///
    /// # Errors
    /// A [`Refusal`] with the reason that concerns the bundle: links, special files, owners, sizes, reading.
    pub fn stage(&self, source: &Path) -> Result<Staged, Refusal> {
        self.stage_at(source, SystemTime::now())
    }

    fn stage_at(&self, source: &Path, now: SystemTime) -> Result<Staged, Refusal> {
        // Before anything is read: a change meanwhile is another stamp.
        let stamp = Stamp::of_settled(source, now);
        if let Some(staged) = stamp.and_then(|stamp| self.copied_before(stamp)) {
            return Ok(staged);
        }
        let staged = self.stage_anew(source)?;
        if let Some(stamp) = stamp {
            self.remember(stamp, staged.digest);
        }
        Ok(staged)
    }

    /// The copy that was made of the source with this stamp, if it is there and intact.
    fn copied_before(&self, stamp: Stamp) -> Option<Staged> {
        let entries = std::fs::read_dir(&self.path).ok()?;
        let digest: BundleDigest = entries.flatten().find_map(|entry| {
            let digest = entry.file_name().to_str()?.strip_prefix(SOURCE)?.parse().ok()?;
            let known = std::fs::read(entry.path()).ok()?;
            (known == stamp.to_string().as_bytes()).then_some(digest)
        })?;
        let dir = self.path.join(digest.to_string());
        let measured = measured(&dir, self.max_bytes).ok()?;
        (bundle_digest(&measured.files) == digest).then_some(Staged {
            digest,
            dir,
            files: measured.files,
            executable: measured.executable,
        })
    }

    /// Notes what a copy was made of. Without the note the source is read again.
    fn remember(&self, stamp: Stamp, digest: BundleDigest) {
        let write = || {
            let incoming = self.path.join(format!("{INCOMING}{}-source", std::process::id()));
            std::fs::write(&incoming, stamp.to_string())?;
            std::fs::rename(&incoming, self.path.join(format!("{SOURCE}{digest}")))
        };
        if let Err(error) = write() {
            let path = self.path.display();
            tracing::warn!(target: "synapse.maintenance", %path, %error, "the bundle will be copied again at the next start");
        }
    }

    fn stage_anew(&self, source: &Path) -> Result<Staged, Refusal> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let incoming = self.path.join(format!("{INCOMING}{}-{number}", std::process::id()));
        let result = self.stage_through(source, &incoming);
        // After a success the folder was renamed or was not needed; after a failure it is of no use.
        let _ = std::fs::remove_dir_all(&incoming);
        result
    }

    fn stage_through(&self, source: &Path, incoming: &Path) -> Result<Staged, Refusal> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open(source, flags, Mode::empty()).map_err(|error| match error {
            rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => symlink(&source.display().to_string()),
            error => unreadable(&source.display().to_string(), error.into()),
        })?;
        let mut walk = Walk {
            files: BTreeMap::new(),
            executable: BTreeSet::new(),
            left: self.max_bytes,
            max_bytes: self.max_bytes,
        };
        walk.folder(&root, "", incoming, 0)?;
        let digest = bundle_digest(&walk.files);
        let dir = self.path.join(digest.to_string());
        if !is_intact(&dir, &walk.files, self.max_bytes) {
            let ours = |error| unreadable(&dir.display().to_string(), error);
            remove_tree(&dir).map_err(ours)?;
            std::fs::rename(incoming, &dir).map_err(ours)?;
        }
        Ok(Staged {
            digest,
            dir,
            files: walk.files,
            executable: walk.executable,
        })
    }

    /// Removes copies whose digest is not in `keep`, with their sources' stamps.
    pub fn collect(&self, keep: &HashSet<BundleDigest>) {
        self.remove_if(|name| {
            let digest = name.strip_prefix(SOURCE).unwrap_or(name);
            digest.parse().is_ok_and(|digest: BundleDigest| !keep.contains(&digest))
        });
    }

    /// An empty private folder for the temporary files of the bundle `id`.
    ///
    /// # Errors
    /// [`LoaderError::Io`].
    pub fn scratch(&self, id: &str) -> Result<PathBuf, LoaderError> {
        let path = self.path.join(format!("{SCRATCH}{id}"));
        let make = || {
            remove_tree(&path)?;
            std::fs::DirBuilder::new().mode(0o700).create(&path)
        };
        make().map_err(|source| LoaderError::Io {
            what: "cannot make the engine's scratch folder",
            path: path.clone(),
            source,
        })?;
        Ok(path)
    }

    fn remove_if(&self, unwanted: impl Fn(&str) -> bool) {
        let Ok(entries) = std::fs::read_dir(&self.path) else {
            return;
        };
        for entry in entries.flatten() {
            if entry.file_name().to_str().is_some_and(&unwanted)
                && let Err(error) = remove_tree(&entry.path())
            {
                let path = entry.path();
                tracing::warn!(target: "synapse.maintenance", path = %path.display(), %error, "an old copy stays");
            }
        }
    }
}

fn check_exec(path: &Path, noexec: bool) -> Result<(), LoaderError> {
    if noexec {
        return Err(LoaderError::NoExec { path: path.to_owned() });
    }
    Ok(())
}

/// Whether the folder's file system forbids running code from it.
#[cfg(target_os = "linux")]
fn is_noexec(folder: &OwnedFd) -> io::Result<bool> {
    let mount = rustix::fs::fstatvfs(folder)?;
    Ok(mount.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC))
}

/// Other systems do not say; there the library's loading fails with the system's words.
#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "the signature of the system that can say")]
fn is_noexec(_folder: &OwnedFd) -> io::Result<bool> {
    Ok(false)
}

/// The digest of a bundle: SHA-256 over one line `SHA256  PATH` per file, sorted by path.
fn bundle_digest(files: &BTreeMap<String, Sha256Digest>) -> BundleDigest {
    let mut hash = Sha256::new();
    hash.update(b"synapse bundle 1\n");
    for (path, digest) in files {
        // Paths hold no control characters, so a line is one file.
        hash.update(format!("{digest}  {path}\n"));
    }
    BundleDigest(Sha256Digest(hash.finalize().into()))
}

/// One pass over a bundle: every entry checked, every file hashed while it is copied.
struct Walk {
    files: BTreeMap<String, Sha256Digest>,
    executable: BTreeSet<String>,
    left: u64,
    max_bytes: u64,
}

impl Walk {
    fn folder(&mut self, folder: &OwnedFd, prefix: &str, target: &Path, depth: usize) -> Result<(), Refusal> {
        let place = if prefix.is_empty() {
            "the bundle's folder"
        } else {
            prefix
        };
        let stat = rustix::fs::fstat(folder).map_err(|error| unreadable(place, error.into()))?;
        check_writers(&stat, place)?;
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(target)
            .map_err(|error| unreadable(&target.display().to_string(), error))?;
        for name in names(folder).map_err(|error| unreadable(place, error))? {
            let name = name.map_err(|name| {
                let message = format!(
                    "{place}: expected file names of printable UTF-8, found {}",
                    shown(&name)
                );
                Refusal::new(RefusalReason::SpecialFile, message)
            })?;
            let path = if prefix.is_empty() {
                name.clone()
            } else {
                format!("{prefix}/{name}")
            };
            if path.len() > 1024 || depth > MAX_DEPTH {
                let message = format!("{}: expected folders of at most {MAX_DEPTH} levels", shown(&path));
                return Err(Refusal::new(RefusalReason::TooLarge, message));
            }
            self.entry(folder, &name, &path, &target.join(&name), depth)?;
        }
        Ok(())
    }

    fn entry(&mut self, folder: &OwnedFd, name: &str, path: &str, target: &Path, depth: usize) -> Result<(), Refusal> {
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| unreadable(path, error.into()))?;
        let common = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |extra: OFlags| {
            rustix::fs::openat(folder, name, common | extra, Mode::empty()).map_err(|error| match error {
                rustix::io::Errno::LOOP => symlink(path),
                error => unreadable(path, error.into()),
            })
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => Err(symlink(path)),
            FileType::Directory => self.folder(&open(OFlags::DIRECTORY)?, path, target, depth + 1),
            // What was a plain file a moment ago may be a pipe by now, which must not block us.
            FileType::RegularFile => self.file(open(OFlags::NONBLOCK)?, path, target),
            _ => Err(special(path)),
        }
    }

    fn file(&mut self, source: OwnedFd, path: &str, target: &Path) -> Result<(), Refusal> {
        let stat = rustix::fs::fstat(&source).map_err(|error| unreadable(path, error.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(special(path));
        }
        check_writers(&stat, path)?;
        if self.files.len() >= MAX_FILES {
            let message = format!("expected at most {MAX_FILES} files");
            return Err(Refusal::new(RefusalReason::TooLarge, message));
        }
        if u64::try_from(stat.st_size).unwrap_or(u64::MAX) > self.left {
            return Err(self.too_large(path));
        }
        let executable = Mode::from_raw_mode(stat.st_mode).contains(Mode::XUSR);
        let mut out = File::options()
            .write(true)
            .create_new(true)
            .mode(if executable { 0o500 } else { 0o400 })
            .open(target)
            .map_err(|error| unreadable(&target.display().to_string(), error))?;
        // One byte more than is left shows a file that grew while it was read.
        let mut input = File::from(source).take(self.left + 1);
        let (digest, bytes) = copy_hashed(&mut input, &mut out).map_err(|error| unreadable(path, error))?;
        self.left = self.left.checked_sub(bytes).ok_or_else(|| self.too_large(path))?;
        self.files.insert(path.to_owned(), digest);
        if executable {
            self.executable.insert(path.to_owned());
        }
        Ok(())
    }

    fn too_large(&self, path: &str) -> Refusal {
        let message = format!("{path}: the bundle has more than {} bytes", self.max_bytes);
        Refusal::new(RefusalReason::TooLarge, message)
    }
}

/// The names in a folder, sorted; a name that is no printable UTF-8 comes as `Err` in readable form.
fn names(folder: &OwnedFd) -> io::Result<Vec<Result<String, String>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder.as_fd())? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        names.push(match name.to_str() {
            Ok(name) if !name.contains(char::is_control) => Ok(name.to_owned()),
            _ => Err(name.to_string_lossy().into_owned()),
        });
        // One more than the cap is enough to be refused.
        if names.len() > MAX_FILES {
            break;
        }
    }
    names.sort();
    Ok(names)
}

fn copy_hashed(input: &mut impl Read, out: &mut impl Write) -> io::Result<(Sha256Digest, u64)> {
    let mut hash = Sha256::new();
    let mut chunk = vec![0u8; 256 * 1024];
    let mut bytes = 0u64;
    loop {
        let count = match input.read(&mut chunk) {
            Ok(0) => return Ok((Sha256Digest(hash.finalize().into()), bytes)),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hash.update(&chunk[..count]);
        out.write_all(&chunk[..count])?;
        bytes += count as u64;
    }
}

/// Whether a staged copy still has exactly these files.
fn is_intact(dir: &Path, files: &BTreeMap<String, Sha256Digest>, max_bytes: u64) -> bool {
    measured(dir, max_bytes).is_ok_and(|measured| measured.files == *files)
}

/// What a staged copy holds. It is measured at every start: a private folder is a promise, not a proof.
#[derive(Default)]
struct Measured {
    files: BTreeMap<String, Sha256Digest>,
    executable: BTreeSet<String>,
}

fn measured(dir: &Path, max_bytes: u64) -> io::Result<Measured> {
    fn folder(dir: &Path, prefix: &str, left: &mut u64, found: &mut Measured) -> io::Result<()> {
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().ok_or(io::ErrorKind::InvalidData)?;
            let path = if prefix.is_empty() {
                name.to_owned()
            } else {
                format!("{prefix}/{name}")
            };
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folder(&entry.path(), &path, left, found)?;
            } else if kind.is_file() && found.files.len() < MAX_FILES {
                let file = File::open(entry.path())?;
                if file.metadata()?.permissions().mode() & 0o100 != 0 {
                    found.executable.insert(path.clone());
                }
                let (digest, bytes) = copy_hashed(&mut file.take(*left + 1), &mut io::sink())?;
                *left = left.checked_sub(bytes).ok_or(io::ErrorKind::FileTooLarge)?;
                found.files.insert(path, digest);
            } else {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(())
    }
    let (mut left, mut found) = (max_bytes, Measured::default());
    folder(dir, "", &mut left, &mut found)?;
    Ok(found)
}

/// Removes a tree, also one whose folders lost their write permission.
fn remove_tree(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(data) if data.is_dir() => {
            std::fs::set_permissions(path, Permissions::from_mode(0o700))?;
            std::fs::remove_dir_all(path)
        }
        Ok(_) => std::fs::remove_file(path),
    }
}

/// Refuses what anyone else may have written: it would be their code that runs.
pub(crate) fn check_writers(stat: &Stat, place: &str) -> Result<(), Refusal> {
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user && stat.st_uid != 0 {
        let message = format!("{place} belongs to user {}, expected {user} or root", stat.st_uid);
        return Err(Refusal::new(RefusalReason::WrongOwner, message));
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    let sticky = FileType::from_raw_mode(stat.st_mode) == FileType::Directory && mode.contains(Mode::SVTX);
    if mode.contains(Mode::WOTH) && !sticky {
        let message = format!("{place} may be written by anyone: run chmod o-w on it");
        return Err(Refusal::new(RefusalReason::WorldWritable, message));
    }
    Ok(())
}

fn symlink(path: &str) -> Refusal {
    let message = format!("{path} is a symbolic link; a bundle holds plain files and folders only");
    Refusal::new(RefusalReason::Symlink, message)
}

fn special(path: &str) -> Refusal {
    let message = format!("{path} is neither a plain file nor a folder");
    Refusal::new(RefusalReason::SpecialFile, message)
}

fn unreadable(path: &str, error: io::Error) -> Refusal {
    Refusal::new(RefusalReason::Unreadable, format!("{path}: {error}"))
}

#[cfg(test)]
mod tests;
