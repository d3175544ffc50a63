//! A plugin folder full of faults, with one good bundle among them: what an operator's worst day looks like.
//!
//! State: none. Callers: the tests that want all faults at once, of the loader and of the whole daemon.

use std::os::unix::fs::{PermissionsExt, symlink};

use synapse_loader::RefusalReason;

use crate::{BundleFiles, LIBRARY, Stage};

/// One bundle of the folder, and what the host must say about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exhibit {
    /// The bundle's id.
    pub id: &'static str,
    /// The status's name.
    pub status: &'static str,
    /// The reason of a refusal.
    pub reason: Option<RefusalReason>,
}

type Worsen = fn(&Stage, &BundleFiles);

/// The faults that are refusals: id, mode, what is done to the files, reason. Each has a reason of its own.
const REFUSED: &[(&str, &str, Worsen, RefusalReason)] = &[
    (
        "changed-library",
        "good",
        list_another_digest,
        RefusalReason::DigestMismatch,
    ),
    (
        "cut-library",
        "good",
        |_, files| files.edit_library(|bytes| bytes.truncate(4000)),
        RefusalReason::NotALibrary,
    ),
    (
        "escaping",
        "good",
        |_, files| files.edit_manifest(LIBRARY, "../x.so"),
        RefusalReason::PathEscape,
    ),
    (
        "forked",
        "good",
        |_, files| files.patch_magic(24, b"fork", false),
        RefusalReason::AbiVendor,
    ),
    ("liar", "describe-nothing", |_, _| {}, RefusalReason::DescriptorInvalid),
    ("linked", "good", link_library, RefusalReason::Symlink),
    (
        "misnamed",
        "good",
        |_, files| files.edit_manifest("\"misnamed\"", "\"other\""),
        RefusalReason::IdMismatch,
    ),
    (
        "misspelt",
        "good",
        |_, files| files.edit_manifest("risk", "rsik"),
        RefusalReason::ManifestInvalid,
    ),
    (
        "narrow",
        "good",
        |_, files| files.patch_magic(8, &[32], false),
        RefusalReason::TargetMismatch,
    ),
    (
        "newer-abi",
        "good",
        |_, files| files.patch_magic(16, &[2], false),
        RefusalReason::AbiMajor,
    ),
    (
        "newer-manifest",
        "good",
        |_, files| files.edit_manifest("schema = 1", "schema = 2"),
        RefusalReason::ManifestSchema,
    ),
    (
        "no-library",
        "good",
        |_, files| remove(files, LIBRARY),
        RefusalReason::LibraryMissing,
    ),
    (
        "no-magic",
        "good",
        |_, files| files.patch(b"\0.note.synapse\0", b"\0.note.hidden1\0"),
        RefusalReason::MagicMissing,
    ),
    (
        "no-manifest",
        "good",
        |_, files| remove(files, "plugin.toml"),
        RefusalReason::ManifestMissing,
    ),
    ("open-to-all", "good", open_to_all, RefusalReason::WorldWritable),
    ("special", "good", add_socket, RefusalReason::SpecialFile),
    (
        "two-magics",
        "good",
        |_, files| files.patch_magic(20, &[7], true),
        RefusalReason::MagicInvalid,
    ),
    (
        "two-versions",
        "good",
        |_, files| files.edit_manifest("0.1.0", "0.2.0"),
        RefusalReason::VersionMismatch,
    ),
    ("unlinkable", "good", need_a_missing_library, RefusalReason::LinkFailed),
    ("without-module", "good", hide_the_module, RefusalReason::AbiLayout),
];

/// Libraries that end the process that loads them.
const CRASHING: &[(&str, &str)] = &[
    ("aborts", "describe-abort"),
    ("aborts-at-load", "load-abort"),
    ("exits", "load-exit-0"),
    ("segfaults", "load-segfault"),
];

/// Fills the plugin folder. In the order of the listing: `good` is sound and waits for the operator's trust, `slow`
/// hangs, every other bundle is bad at once.
///
/// # Panics
/// When files cannot be written.
#[must_use]
pub fn lay_out(stage: &Stage) -> Vec<Exhibit> {
    let mut exhibits = Vec::new();
    for (id, mode, worsen, reason) in REFUSED {
        worsen(stage, &stage.add(id, mode));
        exhibits.push(Exhibit {
            id,
            status: "refused",
            reason: Some(*reason),
        });
    }
    for (id, mode) in CRASHING {
        stage.add(id, mode);
        exhibits.push(Exhibit {
            id,
            status: "quarantined",
            reason: None,
        });
    }
    std::fs::write(stage.path("plugins/loose.so"), "a text under a library's name").expect("a file");
    let refused = [
        ("slow", RefusalReason::ScanTimeout),
        ("loose.so", RefusalReason::NotABundle),
    ];
    stage.add("slow", "load-hang");
    exhibits.extend(refused.map(|(id, reason)| Exhibit {
        id,
        status: "refused",
        reason: Some(reason),
    }));
    stage.add("good", "good");
    exhibits.push(Exhibit {
        id: "good",
        status: "needs_worker",
        reason: None,
    });
    exhibits.sort_by_key(|exhibit| exhibit.id);
    exhibits
}

/// The ids of the bundles whose files are refused, each with its reason.
pub fn refused() -> impl Iterator<Item = (&'static str, RefusalReason)> {
    REFUSED.iter().map(|(id, _, _, reason)| (*id, *reason))
}

/// Adds one of the bundles of [`refused`], alone.
///
/// # Panics
/// When files cannot be written, or there is no such bundle.
pub fn add_refused(stage: &Stage, id: &str) {
    let found = REFUSED.iter().find(|(known, ..)| *known == id);
    let (id, mode, worsen, _) = found.expect("a bundle of the zoo");
    worsen(stage, &stage.add(id, mode));
}

fn remove(files: &BundleFiles, name: &str) {
    std::fs::remove_file(files.path(name)).expect("a file to remove");
}

fn list_another_digest(_: &Stage, files: &BundleFiles) {
    let digest = "00".repeat(32);
    files.edit_manifest(
        "abi = \"1.0\"\n",
        &format!("abi = \"1.0\"\n[files]\n\"{LIBRARY}\" = \"{digest}\"\n"),
    );
}

fn link_library(stage: &Stage, files: &BundleFiles) {
    let real = stage.path("real.so");
    std::fs::rename(files.path(LIBRARY), &real).expect("a library");
    symlink(real, files.path(LIBRARY)).expect("a link");
}

fn open_to_all(_: &Stage, files: &BundleFiles) {
    let mode = PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(files.path(""), mode).expect("a mode");
}

fn add_socket(_: &Stage, files: &BundleFiles) {
    drop(std::os::unix::net::UnixListener::bind(files.path("socket")).expect("a socket"));
}

fn need_a_missing_library(_: &Stage, files: &BundleFiles) {
    files.patch(b"\0libgcc_s.so.1\0", b"\0libgcc_x.so.1\0");
}

fn hide_the_module(_: &Stage, files: &BundleFiles) {
    let name: &[u8] = b"_1as_0lib_1header_0root_bmodule_bloader";
    let mut hidden = name.to_vec();
    hidden[0] = b'x';
    files.patch(name, &hidden);
}
