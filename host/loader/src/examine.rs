//! Looking into one bundle: from its folder to a descriptor, or to the reason why there is none.
//!
//! State: none beyond the loader's. Callers: discovery. Not known here: who trusts the bundle, and which other one has
//! its id. The steps are 3 to 6 of `loader.rs`.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use crate::bundle::{Bundle, BundleStatus, Refusal, RefusalReason};
use crate::descriptor::Descriptor;
use crate::loader::Loader;
use crate::manifest::{self, Main, Manifest, Offer, Risk};
use crate::memory::ScanOutcome;
use crate::placement::{Facts, place};
use crate::scan::{self, Describer, Scan};
use crate::staging::Staged;
use crate::{note, program};

/// The version of the worker protocol that this host speaks: `synapse-wire` has the messages, and the daemon does not
/// build where the two numbers differ.
pub const WORKER_PROTOCOL: u32 = 3;

/// What became of a bundle that was not refused.
pub(crate) enum Examined {
    /// It was described.
    Sound(Sound),
    /// It crashed while it was described; these are the words.
    Quarantined(String),
}

/// What decides about the placement of a sound bundle, apart from the operator.
#[derive(Clone, Debug)]
pub(crate) enum Sound {
    /// A library.
    Library {
        /// The manifest's risk.
        risk: Risk,
        /// A panic ends its process.
        aborts_on_panic: bool,
    },
    /// A program.
    Program,
}

impl Sound {
    /// Whether a promotion would count.
    pub(crate) fn promotable(&self) -> bool {
        match self {
            Self::Program => false,
            Self::Library { risk, aborts_on_panic } => *risk == Risk::AbortSafe && !aborts_on_panic,
        }
    }

    /// Where the bundle may run, with what the operator and the bundles before it say.
    pub(crate) fn place(
        &self,
        id: &str,
        trusted: Result<bool, String>,
        shared_soname: Option<(String, String)>,
    ) -> BundleStatus {
        match *self {
            Self::Program => BundleStatus::NeedsWorker {
                reason: "it is an executable, which always runs in a process of its own".to_owned(),
            },
            Self::Library { risk, aborts_on_panic } => place(&Facts {
                id,
                risk,
                aborts_on_panic,
                trusted,
                shared_soname,
            }),
        }
    }
}

impl Loader {
    /// Steps 3 to 6. What becomes known on the way is in `bundle`, also when it is refused.
    pub(crate) fn examine(&self, name: &str, bundle: &mut Bundle) -> Result<Examined, Refusal> {
        // A folder without a manifest is not worth a copy.
        if bundle.dir.join(manifest::FILE_NAME).symlink_metadata().is_err() {
            let message = format!("the folder has no {}", manifest::FILE_NAME);
            return Err(Refusal::new(RefusalReason::ManifestMissing, message));
        }
        let staged = self.staging.stage(&bundle.dir)?;
        bundle.digest = Some(staged.digest);
        bundle.staged = Some(staged.dir.clone());
        let manifest = scan::read_manifest(&staged.dir)?;
        bundle.version = Some(manifest.version.clone());
        bundle.config.clone_from(&manifest.config);
        if manifest.id != name {
            let message = format!(
                "the folder is named {name:?} and the manifest's id is {:?}: rename one",
                manifest.id
            );
            return Err(Refusal::new(RefusalReason::IdMismatch, message));
        }
        check_version(&manifest.main)?;
        check_files(&manifest, &staged)?;
        bundle.records = records(&staged);
        let main = staged.dir.join(manifest.main_file());
        let (sound, describer) = match &manifest.main {
            Main::Library(library) => {
                bundle.library = Some(library.path.clone());
                let magic = note::read(&main)?;
                let (id, version) = (magic.id().unwrap_or_default(), magic.version().unwrap_or_default());
                check_same(&manifest, id, version, "the library's magic")?;
                for private in &library.private {
                    note::check_private(&staged.dir.join(private))?;
                }
                bundle.private_sonames = private_sonames(&staged, &library.path);
                let sound = Sound::Library {
                    risk: library.risk,
                    aborts_on_panic: magic.aborts_on_panic(),
                };
                (sound, Describer::Worker(&self.config.worker_binary))
            }
            Main::Program { path, .. } => {
                program::check(&staged, path)?;
                bundle.program = Some(path.clone());
                (Sound::Program, Describer::Own(&main))
            }
        };
        let descriptor = match self.describe(&staged, describer)? {
            Ok(descriptor) => descriptor,
            Err(message) => return Ok(Examined::Quarantined(message)),
        };
        let version = descriptor.package_version.to_string();
        check_same(&manifest, &descriptor.id, &version, "its descriptor")?;
        check_offers(&manifest, &descriptor)?;
        bundle.descriptor = Some(descriptor);
        Ok(Examined::Sound(sound))
    }

    /// The descriptor of a staged bundle, from memory or from a child; `Ok(Err(…))` is a quarantine.
    fn describe(&self, staged: &Staged, describer: Describer<'_>) -> Result<Result<Descriptor, String>, Refusal> {
        let digest = staged.digest;
        let timed_out = || self.timed_out.lock().unwrap_or_else(PoisonError::into_inner);
        let (bound, what) = (self.config.scan_timeout, describer.what());
        let late = || {
            let message =
                format!("the {what} did not describe itself within {bound:?}; it is tried again at the next start");
            Refusal::new(RefusalReason::ScanTimeout, message)
        };
        match self.memory.recall(&digest) {
            Some(ScanOutcome::Quarantined(message)) => return Ok(Err(message)),
            Some(ScanOutcome::Described(json)) => {
                // Another version of this host may have written it: then it is described again.
                if let Ok(descriptor) = Descriptor::from_json(&json) {
                    return Ok(Ok(descriptor));
                }
            }
            Some(ScanOutcome::TimedOut) if timed_out().contains(&digest) => return Err(late()),
            Some(ScanOutcome::TimedOut) | None => {}
        }
        match scan::scan(describer, &staged.dir, bound) {
            Scan::Described(descriptor) => {
                let outcome = ScanOutcome::Described(descriptor.to_json());
                self.memory.remember(&digest, &outcome);
                Ok(Ok(descriptor))
            }
            Scan::Crashed(message) => {
                self.memory
                    .remember(&digest, &ScanOutcome::Quarantined(message.clone()));
                Ok(Err(message))
            }
            Scan::TimedOut => {
                self.memory.remember(&digest, &ScanOutcome::TimedOut);
                timed_out().insert(digest);
                Err(late())
            }
            Scan::Refused(refusal) => Err(refusal),
        }
    }
}

/// Whether this host has what the bundle was made for.
fn check_version(main: &Main) -> Result<(), Refusal> {
    let (field, reason, bundle, host) = match main {
        Main::Library(library) => (
            "abi",
            RefusalReason::AbiMajor,
            library.abi_major,
            synapse_plugin_api::ABI_MAJOR,
        ),
        Main::Program { protocol, .. } => ("protocol", RefusalReason::ProtocolVersion, *protocol, WORKER_PROTOCOL),
    };
    if bundle == host {
        return Ok(());
    }
    let message = format!(
        "{}: {field}: plugin {bundle}, host supports {host}",
        manifest::FILE_NAME
    );
    Err(Refusal::new(reason, message))
}

/// Compares the manifest's paths and digests with what was staged.
fn check_files(manifest: &Manifest, staged: &Staged) -> Result<(), Refusal> {
    let key = |path: &Path| path.to_string_lossy().into_owned();
    let (reason, private): (_, &[PathBuf]) = match &manifest.main {
        Main::Library(library) => (RefusalReason::LibraryMissing, &library.private),
        Main::Program { .. } => (RefusalReason::ProgramMissing, &[]),
    };
    for file in std::iter::once(manifest.main_file()).chain(private.iter().map(PathBuf::as_path)) {
        if !staged.files.contains_key(&key(file)) {
            let message = format!(
                "{} names {}, which is not in the bundle",
                manifest::FILE_NAME,
                file.display()
            );
            return Err(Refusal::new(reason, message));
        }
    }
    let Some(listed) = &manifest.files else { return Ok(()) };
    let mismatch = |message: String| Err(Refusal::new(RefusalReason::DigestMismatch, message));
    for (path, found) in &staged.files {
        match listed.get(path) {
            _ if path == manifest::FILE_NAME => {}
            Some(expected) if expected == found => {}
            Some(expected) => return mismatch(format!("{path}: expected SHA-256 {expected}, found {found}")),
            None => return mismatch(format!("{path}: the manifest's list of files does not have it")),
        }
    }
    match listed.keys().find(|path| !staged.files.contains_key(*path)) {
        Some(path) => mismatch(format!("{path}: the manifest lists it and it is not in the bundle")),
        None => Ok(()),
    }
}

fn check_same(manifest: &Manifest, id: &str, version: &str, whose: &str) -> Result<(), Refusal> {
    if id != manifest.id {
        let message = format!("the manifest's id is {:?} and that of {whose} is {id:?}", manifest.id);
        return Err(Refusal::new(RefusalReason::IdMismatch, message));
    }
    if version != manifest.version.to_string() {
        let message = format!(
            "the manifest's version is {} and that of {whose} is {version}",
            manifest.version
        );
        return Err(Refusal::new(RefusalReason::VersionMismatch, message));
    }
    Ok(())
}

fn check_offers(manifest: &Manifest, descriptor: &Descriptor) -> Result<(), Refusal> {
    use synapse_core::engine::EngineKind;
    let Some(offers) = &manifest.engines else { return Ok(()) };
    let kinds = descriptor.supports.iter().map(|support| match support.kind {
        EngineKind::Embed => Offer::Embed,
        EngineKind::Rerank => Offer::Rerank,
        EngineKind::Generate => Offer::Generate,
    });
    let mut described: Vec<Offer> = kinds.collect();
    described.sort_unstable();
    described.dedup();
    if described == *offers {
        return Ok(());
    }
    let message = format!("the manifest's engines are {offers:?} and it describes {described:?}");
    Err(Refusal::new(RefusalReason::DescriptorInvalid, message))
}

/// The bundle's own model records: `catalog/NAME.toml`, in the private copy.
fn records(staged: &Staged) -> Vec<PathBuf> {
    let is_record = |path: &&String| {
        path.strip_prefix("catalog/")
            .and_then(|name| name.strip_suffix(".toml"))
            .is_some_and(|name| !name.contains('/'))
    };
    staged
        .files
        .keys()
        .filter(is_record)
        .map(|path| staged.dir.join(path))
        .collect()
}

/// The SONAMEs of all libraries of the bundle except its main one, declared or not.
fn private_sonames(staged: &Staged, main: &Path) -> Vec<String> {
    let others = staged.files.keys().filter(|path| Path::new(path) != main);
    let mut names: Vec<String> = others.filter_map(|path| note::soname(&staged.dir.join(path))).collect();
    names.sort_unstable();
    names.dedup();
    names
}
