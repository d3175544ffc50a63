//! What a host thinks of a bundle: the loader looks at it as the daemon would.
//!
//! State: a temporary folder for the private copy, gone afterwards. Callers: packing and installing. This program is
//! the child that describes the bundle.

use std::path::Path;
use std::sync::Arc;

use synapse_loader::{Bundle, BundleStatus, Loader, LoaderConfig, MemoryOnly};

use crate::error::Error;

/// The loader's verdict on the bundle `id` in `folder`.
///
/// # Errors
/// [`Error::Refused`] with the loader's words.
pub fn of(folder: &Path, id: &str) -> Result<Bundle, Error> {
    let place = tempfile::tempdir().map_err(Error::io("cannot make", std::env::temp_dir()))?;
    // Other bundles of the folder are not this command's business: the loader sees a folder with this one alone.
    let alone = place.path().join("plugins");
    let path = folder.join(id);
    copy(&path, &alone.join(id))?;
    let config = LoaderConfig {
        plugin_dirs: vec![alone],
        staging_dir: place.path().join("staging"),
        worker_binary: std::env::current_exe().map_err(Error::io("cannot find", "this program"))?,
        trust_file: place.path().join("trust.toml"),
        scan_timeout: LoaderConfig::SCAN_TIMEOUT,
        max_bundle_bytes: LoaderConfig::MAX_BUNDLE_BYTES,
    };
    let loader = Loader::new(config, Arc::new(MemoryOnly::default()))?;
    let refused = |reason: &str, message: &str| Error::Refused {
        path: path.clone(),
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let found = loader.discover().into_iter().find(|bundle| bundle.id == id);
    let bundle = found.ok_or_else(|| refused("manifest_missing", "the folder holds no bundle"))?;
    match &bundle.status {
        BundleStatus::Refused { reason, message } => Err(refused(reason.as_str(), message)),
        BundleStatus::Quarantined { message } => Err(refused("quarantined", message)),
        _ => Ok(bundle),
    }
}

/// Copies a bundle as it stands; links and special files stay what the loader would refuse.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(to).map_err(Error::io("cannot make", to))?;
    for entry in std::fs::read_dir(from).map_err(Error::io("cannot list", from))? {
        let entry = entry.map_err(Error::io("cannot list", from))?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().map_err(Error::io("cannot look at", &path))?;
        if kind.is_dir() {
            copy(&path, &target)?;
        } else if kind.is_file() {
            std::fs::copy(&path, &target).map_err(Error::io("cannot copy", &path))?;
        } else {
            return Err(Error::Project(format!(
                "{}: a bundle holds plain files and folders only",
                path.display()
            )));
        }
    }
    Ok(())
}
