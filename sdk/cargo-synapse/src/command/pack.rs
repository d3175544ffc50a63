//! `cargo synapse pack`: builds, lays out, lets the loader judge.
//!
//! No state. What it prints is shared with `install`.

use std::process::ExitCode;

use serde::Serialize;

use crate::args::Pack;
use crate::bundle::{self, Packed};
use crate::error::Error;
use crate::output::Output;

/// What is told about a bundle.
#[derive(Serialize)]
pub struct Told {
    /// The id.
    id: String,
    /// The package version.
    version: String,
    /// The bundle's digest, 64 hexadecimal digits.
    digest: String,
    /// Its folder.
    folder: String,
    /// How many files it has.
    files: usize,
    /// Their bytes.
    bytes: u64,
    /// `ready` or `needs_worker`.
    status: &'static str,
    /// Whether `synapse plugin trust` can let it run inside the daemon.
    promotable: bool,
    /// Kind, format and arithmetic of what it serves.
    serves: Vec<String>,
}

impl Told {
    /// About a bundle in this folder.
    pub fn of(packed: &Packed) -> Self {
        let bundle = &packed.bundle;
        let supports = bundle.descriptor.iter().flat_map(|descriptor| &descriptor.supports);
        Self {
            id: bundle.id.clone(),
            version: bundle.version.as_ref().map(ToString::to_string).unwrap_or_default(),
            digest: bundle.digest.map(|digest| digest.to_string()).unwrap_or_default(),
            folder: packed.folder.display().to_string(),
            files: packed.size.0,
            bytes: packed.size.1,
            status: bundle.status.name(),
            promotable: bundle.promotable,
            serves: supports
                .map(|support| format!("{:?} {} {}", support.kind, support.format, support.dtype).to_lowercase())
                .collect(),
        }
    }

    /// The lines for people.
    pub fn text(&self) -> String {
        format!(
            "{} {}: {} files, {} bytes\nfolder  {}\ndigest  {}\nserves  {}",
            self.id,
            self.version,
            self.files,
            self.bytes,
            self.folder,
            self.digest,
            self.serves.join(", ")
        )
    }
}

/// Packs the project.
///
/// # Errors
/// As [`bundle::pack`].
pub fn run(pack: &Pack, output: &Output) -> Result<ExitCode, Error> {
    let packed = bundle::pack(&pack.build, pack.out.as_deref())?;
    let told = Told::of(&packed);
    output.result(&told.text(), &told);
    Ok(ExitCode::SUCCESS)
}
