//! Which project is packed: its package, its manifest for the host, and the files that go into the bundle.
//!
//! State: a [`Project`], read once. Callers: `bundle.rs`. What `plugin.toml` may say is the loader's to judge; here only
//! what packing needs is read.

use std::path::{Path, PathBuf};

use crate::args::Build;
use crate::cargo;
use crate::error::Error;
use crate::json::Package;

/// The manifest's name.
pub const MANIFEST: &str = "plugin.toml";

/// A plugin's project.
#[derive(Debug)]
pub struct Project {
    /// Its folder.
    pub folder: PathBuf,
    /// The package.
    pub package: Package,
    /// Where builds go.
    pub target: PathBuf,
    /// The text of `plugin.toml`.
    pub text: String,
    /// The plugin's id.
    pub id: String,
    /// Where the library goes in the bundle.
    pub library: String,
    /// Where the private libraries go.
    pub private_libraries: Vec<String>,
}

impl Project {
    /// Reads the project that the arguments name, or that the current folder is in.
    ///
    /// # Errors
    /// [`Error::Project`] saying what is not there or does not fit together.
    pub fn read(build: &Build) -> Result<Self, Error> {
        let metadata = cargo::metadata(build)?;
        let package = choose(&metadata.packages, build)?;
        let folder = package.manifest_path.parent().unwrap_or(Path::new(".")).to_owned();
        let manifest = folder.join(MANIFEST);
        let text = std::fs::read_to_string(&manifest).map_err(|error| {
            Error::Project(format!(
                "{}: {error}; a plugin's project has this file beside Cargo.toml (docs: `cargo synapse new`)",
                manifest.display()
            ))
        })?;
        let wrong = |what: &str| Error::Project(format!("{}: {what}", manifest.display()));
        let table: toml::Table = toml::from_str(&text).map_err(|error| wrong(error.message()))?;
        let word = |key: &str| {
            let value = table.get(key).and_then(toml::Value::as_str);
            value
                .map(str::to_owned)
                .ok_or_else(|| wrong(&format!("{key}: expected a text")))
        };
        if table.contains_key("files") {
            return Err(wrong("[files]: packing writes the digests; remove the table"));
        }
        if word("kind")? != "library" {
            return Err(wrong(
                "kind: only a library is built and packed; give the folder of another bundle with --bundle",
            ));
        }
        let (id, version, library) = (word("id")?, word("version")?, word("library")?);
        if version != package.version {
            let other = &package.version;
            return Err(wrong(&format!(
                "version: is {version:?}, Cargo.toml says {other:?}; a bundle has one version, make both equal"
            )));
        }
        let private = table.get("private_libraries").and_then(toml::Value::as_array);
        let private_libraries = private
            .into_iter()
            .flatten()
            .filter_map(toml::Value::as_str)
            .map(str::to_owned);
        Ok(Self {
            target: metadata.target_directory,
            private_libraries: private_libraries.collect(),
            folder,
            package,
            text,
            id,
            library,
        })
    }
}

/// The package that is meant: the one whose Cargo.toml is named, the one of the current folder, or the only plugin.
fn choose(packages: &[Package], build: &Build) -> Result<Package, Error> {
    let named = match &build.manifest_path {
        Some(path) => path.canonicalize().map_err(Error::io("cannot find", path))?,
        None => std::env::current_dir()
            .map_err(Error::io("cannot find", "."))?
            .ancestors()
            .map(|folder| folder.join("Cargo.toml"))
            .find(|path| path.exists())
            .unwrap_or_default(),
    };
    let is_plugin = |package: &&Package| {
        let mut kinds = package.targets.iter().flat_map(|target| &target.crate_types);
        kinds.any(|kind| kind == "cdylib")
    };
    if let Some(package) = packages.iter().find(|package| package.manifest_path == named) {
        return Some(package).filter(is_plugin).cloned().ok_or_else(|| {
            Error::Project(format!(
                "{}: builds no library that a host can load; add\n\n    [lib]\n    crate-type = [\"cdylib\"]\n",
                package.manifest_path.display()
            ))
        });
    }
    let mut plugins = packages.iter().filter(is_plugin);
    match (plugins.next(), plugins.next()) {
        (Some(only), None) => Ok(only.clone()),
        (None, _) => Err(Error::Project(
            "no package of this workspace has crate-type = [\"cdylib\"]; go to the plugin's folder".to_owned(),
        )),
        (Some(_), Some(_)) => Err(Error::Project(
            "this workspace has several plugins; go to one's folder or name its Cargo.toml with --manifest-path"
                .to_owned(),
        )),
    }
}
