//! The trust file: which bundles, by digest, the operator promoted to run inside the daemon, and which are switched off.
//!
//! State: the file. Callers: discovery, `synapse plugin trust` and `disable`, `make plugins`. Not known here: manifests
//! and risk.
//!
//! ```toml
//! schema = 1
//! disabled = ["other"]
//! [[bundle]]
//! id = "owned"
//! digest = "64 hex digits"
//! ```
//!
//! A row promotes one digest: a changed bundle is not trusted until the operator says so again. `disabled` names ids:
//! no version of such a bundle is looked into. The file decides
//! what code runs inside the daemon, so it is believed only when nobody but its owner (this user or root) can have
//! written it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::bundle::BundleDigest;
use crate::error::LoaderError;

/// The schema number of this host.
const SCHEMA: u32 = 1;
/// The most bytes of a trust file.
const MAX_BYTES: u64 = 1 << 20;

/// One promotion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustRow {
    /// The bundle's id.
    pub id: String,
    /// The digest that was promoted; another digest of the same id is not trusted.
    pub digest: BundleDigest,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    schema: u32,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    disabled: BTreeSet<String>,
    #[serde(default, rename = "bundle")]
    bundles: Vec<RowForm>,
}

/// What the file says.
#[derive(Default)]
struct Contents {
    rows: Vec<TrustRow>,
    disabled: BTreeSet<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RowForm {
    id: String,
    digest: String,
}

/// The rows of the trust file; none when it does not exist.
///
/// # Errors
/// [`LoaderError::Trust`] when the file or its folder is not ours, is writable by others, is a link, or does not
/// parse.
pub fn read(file: &Path) -> Result<Vec<TrustRow>, LoaderError> {
    contents(file).map(|contents| contents.rows)
}

/// The ids that are switched off; none when the file does not exist.
///
/// # Errors
/// As [`read`].
pub fn disabled(file: &Path) -> Result<BTreeSet<String>, LoaderError> {
    contents(file).map(|contents| contents.disabled)
}

fn contents(file: &Path) -> Result<Contents, LoaderError> {
    let problem = |problem: String| LoaderError::Trust {
        path: file.to_owned(),
        problem,
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = match rustix::fs::open(file, flags, Mode::empty()) {
        Ok(open) => open,
        Err(rustix::io::Errno::NOENT) => return Ok(Contents::default()),
        Err(rustix::io::Errno::LOOP) => return Err(problem("is a symbolic link; put a plain file there".to_owned())),
        Err(error) => return Err(problem(format!("cannot be opened: {error}"))),
    };
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let folder = File::open(folder).map_err(|error| problem(format!("its folder cannot be opened: {error}")))?;
        check_owner(&folder, FileType::Directory).map_err(|what| problem(format!("its folder {what}")))?;
    }
    check_owner(&open, FileType::RegularFile).map_err(&problem)?;
    let mut text = String::new();
    File::from(open)
        .take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| problem(format!("cannot be read as text: {error}")))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(problem(format!("is longer than {MAX_BYTES} bytes")));
    }
    let form: Form = toml::from_str(&text).map_err(|error| problem(error.message().replace('\n', " ")))?;
    if form.schema != SCHEMA {
        return Err(problem(format!("schema: expected {SCHEMA}, found {}", form.schema)));
    }
    let row = |row: RowForm| {
        let digest = row
            .digest
            .parse()
            .map_err(|error| problem(format!("{}: {error}", row.id)))?;
        Ok(TrustRow { id: row.id, digest })
    };
    Ok(Contents {
        rows: form.bundles.into_iter().map(row).collect::<Result<_, _>>()?,
        disabled: form.disabled,
    })
}

/// Promotes `digest` of `id`, replacing the row of another digest.
///
/// # Errors
/// As [`read`], and [`LoaderError::Io`] when the file cannot be written.
pub fn trust(file: &Path, id: &str, digest: &BundleDigest) -> Result<(), LoaderError> {
    let mut contents = contents(file)?;
    contents.rows.retain(|row| row.id != id);
    contents.rows.push(TrustRow {
        id: id.to_owned(),
        digest: *digest,
    });
    contents.rows.sort_by(|a, b| a.id.cmp(&b.id));
    write(file, contents)
}

/// Removes the rows of `id`; whether there was one.
///
/// # Errors
/// As [`trust`].
pub fn untrust(file: &Path, id: &str) -> Result<bool, LoaderError> {
    let mut contents = contents(file)?;
    let before = contents.rows.len();
    contents.rows.retain(|row| row.id != id);
    if contents.rows.len() == before {
        return Ok(false);
    }
    write(file, contents).map(|()| true)
}

/// Switches a bundle off, or on again; whether that changed anything.
///
/// # Errors
/// As [`trust`].
pub fn set_disabled(file: &Path, id: &str, off: bool) -> Result<bool, LoaderError> {
    let mut contents = contents(file)?;
    let changed = if off {
        contents.disabled.insert(id.to_owned())
    } else {
        contents.disabled.remove(id)
    };
    if changed {
        write(file, contents)?;
    }
    Ok(changed)
}

/// Whether a file or folder can have been changed by its owner only, the owner being this user or root.
fn check_owner(open: impl AsFd, kind: FileType) -> Result<(), String> {
    let stat = rustix::fs::fstat(open).map_err(|error| format!("cannot be looked at: {error}"))?;
    if FileType::from_raw_mode(stat.st_mode) != kind {
        return Err("is not a plain file".to_owned());
    }
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user && stat.st_uid != 0 {
        return Err(format!("belongs to user {}, expected {user} or root", stat.st_uid));
    }
    // A folder with the sticky bit, such as /tmp, protects the files of one user from another.
    let writers = Mode::from_raw_mode(stat.st_mode) & (Mode::WGRP | Mode::WOTH);
    let sticky = kind == FileType::Directory && Mode::from_raw_mode(stat.st_mode).contains(Mode::SVTX);
    if !writers.is_empty() && !sticky {
        return Err("may be written by others: run chmod go-w on it".to_owned());
    }
    Ok(())
}

/// Replaces the file in one step: a reader sees the old rows or the new ones.
fn write(file: &Path, contents: Contents) -> Result<(), LoaderError> {
    let form = Form {
        schema: SCHEMA,
        disabled: contents.disabled,
        bundles: contents
            .rows
            .into_iter()
            .map(|row| RowForm {
                id: row.id,
                digest: row.digest.to_string(),
            })
            .collect(),
    };
    let text = toml::to_string(&form).map_err(|error| LoaderError::Trust {
        path: file.to_owned(),
        problem: format!("cannot be written as TOML: {error}"),
    })?;
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let beside = file.with_file_name(name);
    let result = replace(file, &beside, text.as_bytes());
    if result.is_err() {
        // What is half written is of no use; that it may not exist is no failure.
        let _ = std::fs::remove_file(&beside);
    }
    result.map_err(|source| LoaderError::Io {
        what: "cannot write the trust file",
        path: file.to_owned(),
        source,
    })
}

fn replace(file: &Path, beside: &Path, text: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)?;
    }
    let mut out = File::options().write(true).create_new(true).mode(0o600).open(beside)?;
    out.write_all(text)?;
    out.sync_all()?;
    std::fs::rename(beside, file)?;
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use synapse_core::digest::sha256;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn digest(text: &str) -> BundleDigest {
        BundleDigest(sha256(text.as_bytes()))
    }

    #[test]
    fn rows_come_and_go() {
        let dir = folder();
        let file = dir.path().join("sub/trust.toml");
        assert_eq!(read(&file).unwrap(), []);
        trust(&file, "b", &digest("b1")).unwrap();
        trust(&file, "a", &digest("a1")).unwrap();
        trust(&file, "b", &digest("b2")).unwrap();
        let row = |id: &str, text: &str| TrustRow {
            id: id.to_owned(),
            digest: digest(text),
        };
        assert_eq!(read(&file).unwrap(), [row("a", "a1"), row("b", "b2")]);
        assert!(untrust(&file, "a").unwrap());
        assert!(!untrust(&file, "a").unwrap());
        assert_eq!(read(&file).unwrap(), [row("b", "b2")]);
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_bundle_is_switched_off_and_on_beside_the_rows() {
        let dir = folder();
        let file = dir.path().join("trust.toml");
        assert!(!set_disabled(&file, "a", false).unwrap(), "it was on");
        assert!(!file.exists(), "nothing changed, so nothing is written");
        trust(&file, "a", &digest("a1")).unwrap();
        assert!(set_disabled(&file, "a", true).unwrap());
        assert!(!set_disabled(&file, "a", true).unwrap());
        assert!(set_disabled(&file, "b", true).unwrap());
        trust(&file, "c", &digest("c1")).unwrap();
        let off: Vec<_> = disabled(&file).unwrap().into_iter().collect();
        assert_eq!(off, ["a", "b"]);
        assert_eq!(read(&file).unwrap().len(), 2, "promotions stay");
        assert!(set_disabled(&file, "a", false).unwrap());
        let off: Vec<_> = disabled(&file).unwrap().into_iter().collect();
        assert_eq!(off, ["b"]);
    }

    #[test]
    fn a_file_that_others_may_have_written_is_not_believed() {
        let refuse = |prepare: &dyn Fn(&Path), words: &str| {
            let dir = folder();
            let file = dir.path().join("trust.toml");
            trust(&file, "a", &digest("a")).unwrap();
            prepare(&file);
            let message = read(&file).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
            assert!(trust(&file, "b", &digest("b")).is_err());
        };
        let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        refuse(&|file| mode(file, 0o666), "may be written by others");
        refuse(&|file| mode(file, 0o620), "may be written by others");
        refuse(
            &|file| mode(file.parent().unwrap(), 0o777),
            "its folder may be written by others",
        );
        refuse(
            &|file| {
                let real = file.with_file_name("real");
                std::fs::rename(file, &real).unwrap();
                symlink(real, file).unwrap();
            },
            "symbolic link",
        );
        let text = |text: &'static str| move |file: &Path| std::fs::write(file, text).unwrap();
        refuse(&text("schema = 2"), "schema: expected 1, found 2");
        refuse(&text("schema = 1\nrow = 1"), "unknown field `row`");
        refuse(
            &text("schema = 1\n[[bundle]]\nid = \"a\"\ndigest = \"00\""),
            "64 lower-case hex digits",
        );
    }
}
