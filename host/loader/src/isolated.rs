//! Loads one bundle into a process that exists for it alone.
//!
//! State: none beyond the plugin. Callers: `synapse-worker`, which may die of it. Not known here: trust and placement:
//! whoever started the process decided that, and staged the folder.

use std::path::Path;

use synapse_core::digest::sha256;

use crate::bundle::{BundleDigest, Refusal, RefusalReason};
use crate::error::LoaderError;
use crate::plugin::Plugin;
use crate::{note, open, scan, v1};

/// Loads the bundle in the staged folder `dir`. `scratch` is an existing private folder for the engine's temporary
/// files.
///
/// # Errors
/// [`LoaderError::Load`] with the reason.
pub fn open_isolated(dir: &Path, scratch: &Path) -> Result<Plugin, LoaderError> {
    let id = dir.display().to_string();
    let fail = |refusal| scan::load_error(&id, refusal);
    let manifest = scan::read_manifest(dir).map_err(fail)?;
    let library = dir.join(&manifest.library().map_err(fail)?.path);
    let magic = note::read(&library).map_err(fail)?;
    let module = open::open(&library, &magic).map_err(fail)?;
    let descriptor = v1::descriptor(&module.describe()())
        .map_err(|error| fail(Refusal::new(RefusalReason::DescriptorInvalid, error.to_string())))?;
    // A staged folder is named by its digest; a folder of an author's own gets one of its path.
    let named = dir.file_name().and_then(|name| name.to_str()?.parse().ok());
    let digest = named.unwrap_or_else(|| BundleDigest(sha256(id.as_bytes())));
    Ok(Plugin::new(descriptor, digest, module, dir, scratch, &manifest.config))
}
