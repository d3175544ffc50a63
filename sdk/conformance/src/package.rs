//! The checks of a bundle's files: each owns some of the loader's reasons for a refusal.
//!
//! State: none. Discovery judged the bundle once; a refusal fails the check that owns its reason, and skips those that
//! would have looked further. The order is that of discovery's steps.

use synapse_loader::{Bundle, BundleStatus, RefusalReason};

use crate::catalogue::{Check, Level, Outcome, Run, Verdict, fail, skip};

/// The check that owns a crash, a hang, or a wrong answer of the describing process.
pub(crate) const DESCRIBE: &str = "package-describe";

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "package-manifest",
        level: Level::Core,
        rules: &["PC-01"],
        says: "plugin.toml is there, has schema 1, and every key and value is one that the schema knows.",
        why: "A misspelt key must not silently mean its default.",
        fix: "The message names the key; docs/schemas/plugin.schema.json lists all of them.",
        run: Run::Package(&[
            RefusalReason::ManifestMissing,
            RefusalReason::ManifestInvalid,
            RefusalReason::ManifestSchema,
        ]),
    },
    Check {
        id: "package-files",
        level: Level::Core,
        rules: &["PC-01"],
        says: "The bundle is a folder of regular files that only its owner can write, and none of its paths leaves it.",
        why: "What was checked must be what is loaded, and nobody else may change it between the two.",
        fix: "Copy files instead of linking them, `chmod go-w` what others can write, keep paths inside the folder.",
        run: Run::Package(&[
            RefusalReason::NotABundle,
            RefusalReason::Symlink,
            RefusalReason::SpecialFile,
            RefusalReason::WorldWritable,
            RefusalReason::WrongOwner,
            RefusalReason::TooLarge,
            RefusalReason::Unreadable,
            RefusalReason::PathEscape,
            RefusalReason::LibraryMissing,
            RefusalReason::ProgramMissing,
            RefusalReason::NotExecutable,
        ]),
    },
    Check {
        id: "package-digests",
        level: Level::Core,
        rules: &["PC-01"],
        says: "Every digest that plugin.toml lists is that of the file.",
        why: "A list that is wrong once is believed never.",
        fix: "Pack the bundle again (`cargo synapse pack`), or leave the list out.",
        run: Run::Package(&[RefusalReason::DigestMismatch]),
    },
    Check {
        id: "package-names",
        level: Level::Core,
        rules: &["PC-04"],
        says: "Folder, manifest, magic and descriptor agree on the id and on the package version.",
        why: "One thing has one name, in the operator's list as in the fingerprint.",
        fix: "The message says which two differ: rename one of them, and build again.",
        run: Run::Package(&[RefusalReason::IdMismatch, RefusalReason::VersionMismatch]),
    },
    Check {
        id: "package-library",
        level: Level::Core,
        rules: &["PC-02"],
        says: "The library is a whole dynamic library for this system and processor; a program is one, or a script.",
        why: "A host must be able to say what does not fit without running foreign code.",
        fix: "Build for this target with crate-type = [\"cdylib\"]; copy the file again if it was cut.",
        run: Run::Package(&[
            RefusalReason::NotALibrary,
            RefusalReason::TargetMismatch,
            RefusalReason::NotAProgram,
            RefusalReason::InterpreterMissing,
        ]),
    },
    Check {
        id: "package-magic",
        level: Level::Core,
        rules: &["PC-02", "PC-03", "PC-09"],
        says: "The library exports synapse_plugin_magic, and its file holds the same bytes as one well-formed note.",
        why: "The host reads the note before it opens the library, and the symbol after.",
        fix: "Use export_plugin!, and do not strip the section .note.synapse.",
        run: Run::Package(&[RefusalReason::MagicMissing, RefusalReason::MagicInvalid]),
    },
    Check {
        id: "package-abi",
        level: Level::Core,
        rules: &["PC-05", "WP-74"],
        says: "The library was built for this host's ABI major and vendor tag; a program speaks this host's protocol.",
        why: "The types of another major or of a fork have another layout.",
        fix: "Build against synapse-plugin-api 1 as it is published.",
        run: Run::Package(&[
            RefusalReason::AbiMajor,
            RefusalReason::AbiVendor,
            RefusalReason::ProtocolVersion,
        ]),
    },
    Check {
        id: "package-link",
        level: Level::Core,
        rules: &["PC-01", "PC-08"],
        says: "The system finds every symbol and every private library when it loads the library.",
        why: "A symbol that is missing until its first call ends the process in the middle of a request.",
        fix: "Put the private library into the bundle, list it in private_libraries, and link with RPATH $ORIGIN.",
        run: Run::Package(&[RefusalReason::LinkFailed]),
    },
    Check {
        id: "package-layout",
        level: Level::Core,
        rules: &["PC-06", "PC-07"],
        says: "The library's root module is there and has the frozen layout of every type.",
        why: "Anything else would be undefined behaviour at the first call.",
        fix: "Build against an unchanged synapse-plugin-api, and let export_plugin! make the root module.",
        run: Run::Package(&[RefusalReason::AbiLayout]),
    },
    Check {
        id: DESCRIBE,
        level: Level::Core,
        rules: &["PC-10", "PC-12", "WP-02", "WP-03"],
        says: "The bundle describes itself within five seconds, in order, and says what the contract allows.",
        why: "Lanes are made from the descriptor, and it is kept by the bundle's digest.",
        fix: "describe must not touch devices, models or the network; sort build flags; list each combination once.",
        run: Run::Package(&[
            RefusalReason::DescriptorInvalid,
            RefusalReason::ScanFailed,
            RefusalReason::ScanTimeout,
        ]),
    },
];

/// The check that a status fails, with how and why; `None` for a sound bundle.
pub(crate) fn failed(bundle: &Bundle) -> Option<(&'static str, Outcome, String)> {
    match &bundle.status {
        BundleStatus::Quarantined { message } => Some((DESCRIBE, Outcome::Crash, message.clone())),
        BundleStatus::Shadowed { by } => {
            let message = format!("the bundle of the same id in {} comes first", by.display());
            Some(("package-names", Outcome::Fail, message))
        }
        BundleStatus::Refused { reason, message } => {
            let owner = CHECKS.iter().find(|check| match check.run {
                Run::Package(reasons) => reasons.contains(reason),
                _ => false,
            });
            let outcome = if *reason == RefusalReason::ScanTimeout {
                Outcome::Hang
            } else {
                Outcome::Fail
            };
            let message = format!("{reason}: {message}");
            Some((owner.map_or(DESCRIBE, |check| check.id), outcome, message))
        }
        // Sound; where it may run is the operator's to say.
        _ => None,
    }
}

/// How one check of this file ends, given what discovery said.
pub(crate) fn judge(id: &str, bundle: &Bundle) -> Verdict {
    let place = |id: &str| CHECKS.iter().position(|check| check.id == id);
    match failed(bundle) {
        None => Ok(()),
        Some((failed, Outcome::Fail, message)) if failed == id => fail(message),
        Some((failed, outcome, message)) if failed == id => Err(crate::catalogue::Stop { outcome, message }),
        // What comes before the refusal was passed; what comes after was not looked at.
        Some((failed, ..)) if place(id) < place(failed) && failed != "package-names" => Ok(()),
        Some((failed, ..)) => skip(format!("{failed} comes first")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_of_a_refusal_belongs_to_one_check() {
        for reason in RefusalReason::ALL {
            let owners = CHECKS.iter().filter(|check| match check.run {
                Run::Package(reasons) => reasons.contains(reason),
                _ => false,
            });
            assert_eq!(owners.count(), 1, "{reason}");
        }
    }
}
