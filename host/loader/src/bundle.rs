//! What discovery says about one bundle: its files, its status, and the reason for that status.
//!
//! State: none. Callers: the loader makes these values, the daemon shows them (`plugins.list`, `synapse doctor`).
//! Not known here: how the facts were found.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use synapse_core::digest::{NotADigest, Sha256Digest};

use crate::descriptor::Descriptor;

/// The digest of a whole bundle: SHA-256 over the sorted list of its files' relative paths and SHA-256 digests.
///
/// Two bundles with the same digest have the same files with the same names; owner, mode and time do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BundleDigest(pub Sha256Digest);

impl fmt::Display for BundleDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for BundleDigest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        text.parse().map(Self)
    }
}

/// One bundle as discovery found it, accepted or not.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// The manifest's id; the folder's name where the manifest could not be read.
    pub id: String,
    /// The bundle's folder in the search path.
    pub dir: PathBuf,
    /// The package version from the manifest.
    pub version: Option<semver::Version>,
    /// The digest of the bundle's files; `None` when they could not all be read.
    pub digest: Option<BundleDigest>,
    /// Whether and where the bundle may run.
    pub status: BundleStatus,
    /// What the library says about itself; known once a scan succeeded.
    pub descriptor: Option<Descriptor>,
    /// The bundle's own model records (`catalog/*.toml`), in the private copy, sorted by name.
    pub records: Vec<PathBuf>,
    /// The private copy that is scanned and loaded.
    pub staged: Option<PathBuf>,
    /// The main library, relative to the bundle's folder; `None` for an executable.
    pub library: Option<PathBuf>,
    /// The program of an executable, relative to the bundle's folder; `None` for a library.
    pub program: Option<PathBuf>,
    /// The manifest's `[engine.config]`: settings handed to every engine of this bundle, sorted by key.
    pub config: Vec<(String, String)>,
    /// The SONAMEs of the libraries that the bundle brings along: one process can hold each name once.
    pub private_sonames: Vec<String>,
    /// The operator may promote it: neither its risk nor its panic strategy forbids this process.
    pub promotable: bool,
}

impl Bundle {
    /// The program that runs the bundle in a process of its own, for [`crate::start`]: an executable's own, in the
    /// private copy, and `worker` for a library.
    #[must_use]
    pub fn worker_program(&self, worker: &Path) -> PathBuf {
        match (&self.staged, &self.program) {
            (Some(staged), Some(program)) => staged.join(program),
            _ => worker.to_owned(),
        }
    }
}

/// Whether and where a bundle may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleStatus {
    /// [`crate::Loader::open`] may load it into this process.
    Ready,
    /// The bundle is sound, and may only run in a worker process.
    NeedsWorker {
        /// Why not in this process, and what would change that.
        reason: String,
    },
    /// The bundle is not usable.
    Refused {
        /// The closed reason.
        reason: RefusalReason,
        /// What was wrong, what was expected, what to do.
        message: String,
    },
    /// The library crashed while it was being described; this digest is not tried again.
    Quarantined {
        /// How it crashed.
        message: String,
    },
    /// The operator switched it off; its files are not looked into.
    Disabled,
    /// An earlier folder of the search path holds a bundle of the same id.
    Shadowed {
        /// The folder that won.
        by: PathBuf,
    },
}

impl BundleStatus {
    /// The status as one word: `ready`, `needs_worker`, `refused`, `quarantined`, `disabled`,
    /// `shadowed`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NeedsWorker { .. } => "needs_worker",
            Self::Refused { .. } => "refused",
            Self::Quarantined { .. } => "quarantined",
            Self::Disabled => "disabled",
            Self::Shadowed { .. } => "shadowed",
        }
    }

    /// Why the status is not `ready`, in words for the operator.
    #[must_use]
    pub fn message(&self) -> Option<String> {
        match self {
            Self::Ready => None,
            Self::NeedsWorker { reason } => Some(reason.clone()),
            Self::Refused { message, .. } | Self::Quarantined { message } => Some(message.clone()),
            Self::Disabled => Some("it is switched off; to let it serve again: synapse plugin enable".to_owned()),
            Self::Shadowed { by } => Some(format!("the bundle of the same id in {} comes first", by.display())),
        }
    }
}

macro_rules! refusal_reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// Why a bundle was refused. The strings are stable: clients and tests may compare them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum RefusalReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl RefusalReason {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The stable string.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }

        impl FromStr for RefusalReason {
            type Err = UnknownReason;

            fn from_str(text: &str) -> Result<Self, UnknownReason> {
                match text {
                    $($text => Ok(Self::$name),)+
                    _ => Err(UnknownReason),
                }
            }
        }
    };
}

refusal_reasons! {
    /// `plugin.toml` is not there.
    ManifestMissing = "manifest_missing",
    /// `plugin.toml` does not parse, has an unknown key, or a value out of range.
    ManifestInvalid = "manifest_invalid",
    /// `plugin.toml` has a schema number that this host does not know.
    ManifestSchema = "manifest_schema",
    /// The folder's name, the manifest's id, the magic's id and the descriptor's id are not all equal.
    IdMismatch = "id_mismatch",
    /// The versions in the manifest, the magic and the descriptor are not all equal.
    VersionMismatch = "version_mismatch",
    /// A path in the manifest leaves the bundle.
    PathEscape = "path_escape",
    /// A file or folder of the bundle is a symbolic link.
    Symlink = "symlink",
    /// A file of the bundle is neither a regular file nor a folder.
    SpecialFile = "special_file",
    /// A library lies loose in a plugin folder: a bundle is a folder.
    NotABundle = "not_a_bundle",
    /// Anyone may write the bundle, a file of it, or the folder that holds it.
    WorldWritable = "world_writable",
    /// The bundle belongs to another user.
    WrongOwner = "wrong_owner",
    /// The bundle has too many files, too deep folders or too many bytes.
    TooLarge = "too_large",
    /// A file could not be read or copied.
    Unreadable = "unreadable",
    /// The manifest names a library that is not there.
    LibraryMissing = "library_missing",
    /// A file's SHA-256 is not the one in the manifest.
    DigestMismatch = "digest_mismatch",
    /// The library is not a whole dynamic library of a known object format.
    NotALibrary = "not_a_library",
    /// The library was built for another processor, word size, byte order or system.
    TargetMismatch = "target_mismatch",
    /// The library has no magic note: it was not built with plugin-sdk.
    MagicMissing = "magic_missing",
    /// The magic note is damaged.
    MagicInvalid = "magic_invalid",
    /// The manifest names a program that is not there.
    ProgramMissing = "program_missing",
    /// The program's file has no executable bit.
    NotExecutable = "not_executable",
    /// The program is neither an executable of this system nor a script that names its interpreter.
    NotAProgram = "not_a_program",
    /// The interpreter that a script names is not on this machine.
    InterpreterMissing = "interpreter_missing",
    /// The program speaks a version of the worker protocol that this host does not have.
    ProtocolVersion = "protocol_version",
    /// The library was built for an ABI major that this host does not have.
    AbiMajor = "abi_major",
    /// The library was built for a fork of the ABI.
    AbiVendor = "abi_vendor",
    /// The system loader refused the library: a missing symbol or a missing private library.
    LinkFailed = "link_failed",
    /// The library's types differ from the host's.
    AbiLayout = "abi_layout",
    /// What the library says about itself breaks the contract.
    DescriptorInvalid = "descriptor_invalid",
    /// The library could not be described, for a reason outside it.
    ScanFailed = "scan_failed",
    /// The library did not describe itself in time; it is tried again at the next start.
    ScanTimeout = "scan_timeout",
}

/// A string that is no [`RefusalReason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a known refusal reason")]
pub struct UnknownReason;

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A refusal on its way to becoming a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub reason: RefusalReason,
    pub message: String,
}

impl Refusal {
    pub fn new(reason: RefusalReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

impl From<Refusal> for BundleStatus {
    fn from(refusal: Refusal) -> Self {
        Self::Refused {
            reason: refusal.reason,
            message: refusal.message,
        }
    }
}
