//! Lays a bundle out: the built library, the manifest with every file's digest, and what the project brings along.
//!
//! State: the bundle's folder, which is replaced as a whole. Callers: the commands. The same sources give the same bytes:
//! files get fixed modes, the digests are sorted, and nothing of this machine or of the time goes in.
//!
//! | in the project | in the bundle |
//! |---|---|
//! | `plugin.toml` | the same with `[files]`: the SHA-256 of everything else |
//! | the built library | where `plugin.toml` says |
//! | private libraries, from `bundle/` or the build script's output | where `plugin.toml` says |
//! | `catalog/*.toml`, `model/`, `conformance.toml`, `README.md`, `LICENSE*` | the same, where they are there |

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use synapse_loader::Bundle;

use crate::args::Build;
use crate::error::Error;
use crate::json::Made;
use crate::project::{MANIFEST, Project};
use crate::{cargo, library, verdict};

/// A packed bundle that a host accepts.
#[derive(Debug)]
pub struct Packed {
    /// Its folder.
    pub folder: PathBuf,
    /// What the loader says about it.
    pub bundle: Bundle,
    /// The number of its files, and their bytes.
    pub size: (usize, u64),
}

/// Builds the project and lays its bundle out below `out`, or below target/bundles.
///
/// # Errors
/// [`Error`]: the project, the build, the host's verdict.
pub fn pack(build: &Build, out: Option<&Path>) -> Result<Packed, Error> {
    let project = Project::read(build)?;
    let out = out.map_or_else(|| project.target.join("bundles"), Path::to_owned);
    let made = cargo::build(&project.package.manifest_path, &project.package.id, build)?;
    fs::create_dir_all(&out).map_err(Error::io("cannot make", &out))?;
    let beside = tempfile::Builder::new().prefix(".packing-").tempdir_in(&out);
    let beside = beside.map_err(Error::io("cannot write in", &out))?;
    let folder = beside.path().join(&project.id);
    let size = lay_out(&project, &made, &folder)?;
    check_records(&folder)?;
    let bundle = verdict::of(beside.path(), &project.id)?;
    let folder = put(&folder, &out, &project.id)?;
    Ok(Packed { folder, bundle, size })
}

/// Looks at a bundle that somebody packed.
///
/// # Errors
/// [`Error::Usage`] for a folder without a name, else the host's verdict.
pub fn existing(folder: &Path) -> Result<Packed, Error> {
    let folder = folder.canonicalize().map_err(Error::io("cannot find", folder))?;
    let (Some(parent), Some(id)) = (folder.parent(), folder.file_name().and_then(|name| name.to_str())) else {
        return Err(Error::Usage(format!(
            "{}: expected a bundle's folder",
            folder.display()
        )));
    };
    let bundle = verdict::of(parent, id)?;
    let mut files = BTreeMap::new();
    walk(&folder, "", &mut files)?;
    let bytes = files
        .values()
        .map(|path| fs::metadata(path).map_or(0, |data| data.len()))
        .sum();
    let size = (files.len(), bytes);
    Ok(Packed { folder, bundle, size })
}

/// Puts a copy of a bundle into a plugin folder, in one step.
///
/// # Errors
/// [`Error::Io`].
pub fn install(packed: &Packed, plugin_dir: &Path) -> Result<PathBuf, Error> {
    fs::create_dir_all(plugin_dir).map_err(Error::io("cannot make", plugin_dir))?;
    // A name that begins with a dot is no bundle to a host that looks meanwhile.
    let beside = tempfile::Builder::new().prefix(".installing-").tempdir_in(plugin_dir);
    let beside = beside.map_err(Error::io("cannot write in", plugin_dir))?;
    let incoming = beside.path().join(&packed.bundle.id);
    let mut files = BTreeMap::new();
    walk(&packed.folder, "", &mut files)?;
    for (path, source) in &files {
        place(source, &incoming, path, is_executable(source))?;
    }
    put(&incoming, plugin_dir, &packed.bundle.id)
}

/// Copies everything and writes the manifest; gives the number of files and their bytes.
fn lay_out(project: &Project, made: &Made, folder: &Path) -> Result<(usize, u64), Error> {
    let built = built_library(made).ok_or_else(|| Error::Build("it made no dynamic library".to_owned()))?;
    library::check_exports(built)?;
    let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
    files.insert(project.library.clone(), built.to_owned());
    for path in &project.private_libraries {
        files.insert(path.clone(), private_library(project, made, path)?);
    }
    for name in ["catalog", "model"] {
        let from = project.folder.join(name);
        if from.is_dir() {
            walk(&from, &format!("{name}/"), &mut files)?;
        }
    }
    for entry in fs::read_dir(&project.folder)
        .map_err(Error::io("cannot list", &project.folder))?
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        if matches!(name.as_str(), "conformance.toml" | "README.md") || name.starts_with("LICENSE") {
            files.insert(name, entry.path());
        }
    }
    let mut digests = String::new();
    let mut bytes = 0;
    for (path, source) in &files {
        let content = place(source, folder, path, false)?;
        digests.push_str(&format!("{:?} = \"{}\"\n", path, hex(&content)));
        bytes += content.len() as u64;
    }
    let text = format!("{}\n[files]\n{digests}", project.text.trim_end().to_owned() + "\n");
    let manifest = folder.join(MANIFEST);
    fs::write(&manifest, &text).map_err(Error::io("cannot write", &manifest))?;
    mode(&manifest, 0o644)?;
    Ok((files.len() + 1, bytes + text.len() as u64))
}

fn built_library(made: &Made) -> Option<&PathBuf> {
    let suffix = std::env::consts::DLL_EXTENSION;
    made.files
        .iter()
        .find(|path| path.extension().is_some_and(|extension| extension == suffix))
}

/// A private library: laid into the project's folder `bundle`, or made by its build script.
fn private_library(project: &Project, made: &Made, path: &str) -> Result<PathBuf, Error> {
    let kept = project.folder.join("bundle").join(path);
    let name = Path::new(path).file_name().unwrap_or_default();
    let built = made.out_dir.as_ref().map(|folder| folder.join(name));
    let found = std::iter::once(kept.clone())
        .chain(built.clone())
        .find(|path| path.is_file());
    found.ok_or_else(|| {
        let built = built.map_or_else(
            || "this package has no build script".to_owned(),
            |path| format!("the build script did not write {}", path.display()),
        );
        Error::Project(format!(
            "plugin.toml: private_libraries: {path}: there is no {}, and {built}",
            kept.display()
        ))
    })
}

/// Copies one file to its place; gives its content.
fn place(source: &Path, folder: &Path, path: &str, executable: bool) -> Result<Vec<u8>, Error> {
    let target = folder.join(path);
    let parent = target.parent().unwrap_or(folder);
    fs::create_dir_all(parent).map_err(Error::io("cannot make", parent))?;
    // The modes of a bundle's folders do not depend on who packs it.
    for made in parent.ancestors().take_while(|made| made.starts_with(folder)) {
        mode(made, 0o755)?;
    }
    let content = fs::read(source).map_err(Error::io("cannot read", source))?;
    fs::write(&target, &content).map_err(Error::io("cannot write", &target))?;
    mode(&target, if executable { 0o755 } else { 0o644 })?;
    Ok(content)
}

fn mode(path: &Path, mode: u32) -> Result<(), Error> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(Error::io("cannot set the mode of", path))
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|data| data.permissions().mode() & 0o100 != 0)
}

/// Every file below a folder, by its path in the bundle.
fn walk(folder: &Path, prefix: &str, files: &mut BTreeMap<String, PathBuf>) -> Result<(), Error> {
    for entry in fs::read_dir(folder).map_err(Error::io("cannot list", folder))? {
        let entry = entry.map_err(Error::io("cannot list", folder))?;
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            walk(&entry.path(), &format!("{path}/"), files)?;
        } else {
            files.insert(path, entry.path());
        }
    }
    Ok(())
}

/// Moves a whole bundle to its place; an older one of the same id is gone afterwards. A reader sees the one or the other.
fn put(folder: &Path, into: &Path, id: &str) -> Result<PathBuf, Error> {
    let target = into.join(id);
    let failed = Error::io("cannot replace", target.clone());
    if !target.exists() {
        fs::rename(folder, &target).map_err(failed)?;
        return Ok(target);
    }
    // What was there takes the new one's place, and goes with the temporary folder that it lies in.
    #[cfg(target_os = "linux")]
    {
        let here = rustix::fs::CWD;
        let exchanged = rustix::fs::renameat_with(here, folder, here, &target, rustix::fs::RenameFlags::EXCHANGE);
        if exchanged.is_ok() {
            return Ok(target);
        }
    }
    // A file system that cannot exchange: for a moment there is none.
    let old = folder.with_file_name("old");
    fs::rename(&target, &old)
        .and_then(|()| fs::rename(folder, &target))
        .map_err(failed)?;
    Ok(target)
}

/// Compares the digests in the bundle's model records with the files that it brings.
fn check_records(folder: &Path) -> Result<(), Error> {
    let mut records = BTreeMap::new();
    if folder.join("catalog").is_dir() {
        walk(&folder.join("catalog"), "catalog/", &mut records)?;
    }
    for (name, path) in records.iter().filter(|(name, _)| name.ends_with(".toml")) {
        let text = fs::read_to_string(path).map_err(Error::io("cannot read", path))?;
        let table: toml::Value =
            toml::from_str(&text).map_err(|error| Error::Project(format!("{name}: {}", error.message())))?;
        check_files(folder, name, &table)?;
    }
    Ok(())
}

/// Wherever a table has a path of the bundle and a digest, both must be of the same file.
fn check_files(folder: &Path, record: &str, value: &toml::Value) -> Result<(), Error> {
    match value {
        toml::Value::Array(list) => list.iter().try_for_each(|value| check_files(folder, record, value)),
        toml::Value::Table(table) => {
            let word = |key: &str| table.get(key).and_then(toml::Value::as_str);
            if let (Some(path), Some(digest)) = (word("path"), word("sha256"))
                && let Ok(content) = fs::read(folder.join(path))
            {
                let (found, bytes) = (hex(&content), content.len());
                let size = table.get("size").and_then(toml::Value::as_integer);
                if digest != found || size != i64::try_from(bytes).ok() {
                    return Err(Error::Project(format!(
                        "{record}: {path} is another file than the record says; if that is meant, write\n\n    sha256 = \
                         \"{found}\"\n    size = {bytes}\n"
                    )));
                }
            }
            table.values().try_for_each(|value| check_files(folder, record, value))
        }
        _ => Ok(()),
    }
}

/// SHA-256 in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
