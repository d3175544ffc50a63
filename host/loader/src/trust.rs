//! The trust file: which bundles, by digest, the operator promoted to run inside the daemon.
//!
//! State: the file. Callers: placement, `synapse plugin trust`, `make plugins`. Not known here: manifests and risk.

use std::path::Path;

use crate::bundle::BundleDigest;
use crate::error::LoaderError;

/// One promotion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustRow {
    /// The bundle's id.
    pub id: String,
    /// The digest that was promoted; another digest of the same id is not trusted.
    pub digest: BundleDigest,
}

/// The rows of the trust file; none when it does not exist.
///
/// # Errors
/// [`LoaderError::Trust`] when the file is not ours, is writable by others, is a link, or does not parse.
pub fn read(file: &Path) -> Result<Vec<TrustRow>, LoaderError> {
    let _ = file;
    Ok(Vec::new())
}

/// Promotes `digest` of `id`, replacing the row of another digest.
///
/// # Errors
/// As [`read`], and [`LoaderError::Io`] when the file cannot be written.
pub fn trust(file: &Path, id: &str, digest: &BundleDigest) -> Result<(), LoaderError> {
    let _ = (file, id, digest);
    Ok(())
}

/// Removes the row of `id`; whether there was one.
///
/// # Errors
/// As [`trust`].
pub fn untrust(file: &Path, id: &str) -> Result<bool, LoaderError> {
    let _ = (file, id);
    Ok(false)
}
