//! What a later search makes of the bundles in use: which are added, replaced, removed, and which files have to wait.
//!
//! State: none; a pure function from two lists to a third. Callers: the registry. Not known here: folders, lanes.
//!
//! The rules, one for each bundle that is found:
//! 1. Another digest that may run takes the place of the old one; what is in flight ends on the old one.
//! 2. Files that are refused, or crash when they are described, take nothing: what serves goes on serving, and the bundle
//!    says what is wrong with its new files.
//! 3. A version that is to run inside the daemon, where another version of the bundle was loaded, waits for the next
//!    start: no library is ever unloaded. What serves goes on serving; where nothing does, a worker runs the new one.
//! 4. The same digest stays as it is, a demotion included: trust counts from the next start on.
//! 5. A bundle that is gone, or switched off, serves no more, wherever it ran.

use std::collections::BTreeMap;

use synapse_loader::{Bundle, BundleDigest, BundleStatus};

use super::runs_in_worker;

/// The reason of a version that only waits for the next start.
pub const NEEDS_RESTART: &str = "needs_restart";

/// New files of a bundle that are not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Their version, where the manifest was readable.
    pub version: Option<String>,
    /// Their digest, where they could be read.
    pub digest: Option<BundleDigest>,
    /// A stable word: [`NEEDS_RESTART`], a refusal's reason, or `quarantined`.
    pub reason: String,
    /// Why they wait, in words.
    pub message: String,
}

/// What became of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It is new.
    Added,
    /// Another digest, or another verdict, counts from now on.
    Replaced,
    /// It is gone.
    Removed,
    /// The operator switched it off.
    Disabled,
    /// Its new files are not taken.
    Waits,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The bundle.
    pub id: String,
    /// What became of it.
    pub what: What,
    /// The digest that counted before.
    pub from: Option<BundleDigest>,
    /// The digest that counts now.
    pub to: Option<BundleDigest>,
    /// In words: why it does not serve, or why its new files wait.
    pub message: Option<String>,
}

/// The bundles that count from now on.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// Every bundle, in the search order.
    pub bundles: Vec<Bundle>,
    /// The files that wait, by bundle.
    pub waiting: BTreeMap<String, Waiting>,
    /// What differs from before.
    pub changes: Vec<Change>,
}

fn serves(bundle: &Bundle) -> bool {
    bundle.status == BundleStatus::Ready || runs_in_worker(bundle)
}

const fn is_shadowed(bundle: &Bundle) -> bool {
    matches!(bundle.status, BundleStatus::Shadowed { .. })
}

/// Lays what was `found` over what counted `before`. `other_is_open` says whether another version of a bundle was loaded
/// into this process.
pub fn renew(
    before: &[Bundle],
    waited: &BTreeMap<String, Waiting>,
    found: Vec<Bundle>,
    other_is_open: impl Fn(&Bundle) -> bool,
) -> Renewal {
    let mut renewal = Renewal {
        bundles: Vec::new(),
        waiting: BTreeMap::new(),
        changes: Vec::new(),
    };
    for bundle in found {
        if is_shadowed(&bundle) {
            renewal.bundles.push(bundle);
            continue;
        }
        let old = before.iter().find(|old| old.id == bundle.id && !is_shadowed(old));
        let (bundle, what) = judge(old, bundle, waited, &other_is_open, &mut renewal.waiting);
        if let Some(what) = what {
            let waiting = renewal.waiting.get(&bundle.id).filter(|_| what == What::Waits);
            renewal.changes.push(Change {
                id: bundle.id.clone(),
                what,
                from: old.and_then(|old| old.digest),
                to: bundle.digest,
                message: match waiting {
                    Some(waiting) => Some(waiting.message.clone()),
                    None => bundle.status.message().filter(|_| !serves(&bundle)),
                },
            });
        }
        renewal.bundles.push(bundle);
    }
    let is_here = |old: &&Bundle| renewal.bundles.iter().any(|new| new.id == old.id && !is_shadowed(new));
    let gone: Vec<&Bundle> = before.iter().filter(|old| !is_shadowed(old) && !is_here(old)).collect();
    renewal.changes.extend(gone.into_iter().map(|old| Change {
        id: old.id.clone(),
        what: What::Removed,
        from: old.digest,
        to: None,
        message: None,
    }));
    renewal
}

/// The bundle that counts, and what that changes.
fn judge(
    old: Option<&Bundle>,
    mut new: Bundle,
    waited: &BTreeMap<String, Waiting>,
    other_is_open: &impl Fn(&Bundle) -> bool,
    waiting: &mut BTreeMap<String, Waiting>,
) -> (Bundle, Option<What>) {
    let serving = old.filter(|old| serves(old));
    if new.status == BundleStatus::Disabled {
        let is_news = old.is_none_or(|old| old.status != BundleStatus::Disabled);
        return (new, is_news.then_some(What::Disabled));
    }
    if let Some(old) = serving.filter(|old| old.digest == new.digest) {
        // The folder may be another one; the verdict stays.
        new.status = old.status.clone();
        return (new, None);
    }
    let reason = match &new.status {
        BundleStatus::Ready if other_is_open(&new) => Some(NEEDS_RESTART.to_owned()),
        BundleStatus::Refused { reason, .. } => Some(reason.as_str().to_owned()),
        status if !serves(&new) => Some(status.name().to_owned()),
        _ => None,
    };
    match (serving, reason) {
        (Some(old), Some(reason)) => {
            let row = Waiting {
                version: new.version.as_ref().map(ToString::to_string),
                digest: new.digest,
                message: waiting_words(old, &new, &reason),
                reason,
            };
            let is_news = waited.get(&new.id) != Some(&row);
            waiting.insert(new.id.clone(), row);
            (old.clone(), is_news.then_some(What::Waits))
        }
        (None, Some(reason)) if reason == NEEDS_RESTART => {
            let reason =
                "another version of it was loaded inside the daemon; it runs there from the next start on".to_owned();
            new.status = BundleStatus::NeedsWorker { reason };
            (new, Some(what(old)))
        }
        _ => {
            let same = old.is_some_and(|old| old.digest == new.digest && old.status == new.status);
            let what = what(old);
            (new, (!same).then_some(what))
        }
    }
}

const fn what(old: Option<&Bundle>) -> What {
    match old {
        Some(_) => What::Replaced,
        None => What::Added,
    }
}

fn waiting_words(old: &Bundle, new: &Bundle, reason: &str) -> String {
    let version = |bundle: &Bundle| {
        bundle
            .version
            .as_ref()
            .map_or_else(|| "unknown".to_owned(), ToString::to_string)
    };
    let old = version(old);
    if reason == NEEDS_RESTART {
        let new = version(new);
        return format!(
            "version {new} is to run inside the daemon, where version {old} was loaded; it counts from the daemon's next \
             start on, and version {old} goes on serving"
        );
    }
    let why = new.status.message().unwrap_or_default();
    format!("the new files are not taken: {why}; version {old} goes on serving until the next start")
}

#[cfg(test)]
mod tests {
    use synapse_core::digest::sha256;
    use synapse_core::engine::EngineIdentity;
    use synapse_loader::{Descriptor, RefusalReason};

    use super::*;

    fn bundle(id: &str, files: &str, status: BundleStatus) -> Bundle {
        let version = semver::Version::new(1, 0, 0);
        let identity = EngineIdentity {
            engine: id.to_owned(),
            version: "1".to_owned(),
            build_flags: Vec::new(),
        };
        Bundle {
            id: id.to_owned(),
            dir: format!("/plugins/{id}").into(),
            version: Some(version.clone()),
            digest: Some(BundleDigest(sha256(files.as_bytes()))),
            status,
            descriptor: Some(Descriptor {
                id: id.to_owned(),
                package_version: version,
                identity,
                supports: Vec::new(),
            }),
            records: Vec::new(),
            staged: Some("/staged".into()),
            library: None,
            program: None,
            config: Vec::new(),
            private_sonames: Vec::new(),
            promotable: true,
        }
    }

    fn isolated(id: &str, files: &str) -> Bundle {
        let reason = "not trusted".to_owned();
        bundle(id, files, BundleStatus::NeedsWorker { reason })
    }

    fn bad(id: &str) -> Bundle {
        let status = BundleStatus::Refused {
            reason: RefusalReason::DigestMismatch,
            message: "worse".to_owned(),
        };
        bundle(id, "bad", status)
    }

    /// The bundles that count as `id files status`, the changes, and what waits.
    fn check(
        before: &[Bundle],
        found: Vec<Bundle>,
        open: &[&str],
        expected: &[(&str, &str)],
        changes: &[(&str, What)],
    ) {
        let renewal = renew(before, &BTreeMap::new(), found.clone(), |bundle| {
            open.contains(&bundle.id.as_str())
        });
        let names = ["v1", "v2", "bad"].map(|files| (BundleDigest(sha256(files.as_bytes())), files));
        let name = |digest: Option<BundleDigest>| {
            names
                .iter()
                .find(|(known, _)| Some(*known) == digest)
                .map_or("-", |it| it.1)
        };
        let row = |bundle: &Bundle| {
            (
                bundle.id.clone(),
                format!("{} {}", name(bundle.digest), bundle.status.name()),
            )
        };
        let counts: Vec<_> = renewal.bundles.iter().map(row).collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(id, what)| ((*id).to_owned(), (*what).to_owned()))
            .collect();
        assert_eq!(counts, expected);
        let made: Vec<_> = renewal
            .changes
            .iter()
            .map(|change| (change.id.as_str(), change.what))
            .collect();
        assert_eq!(made, changes);
        // Said once: the same search again changes nothing.
        let again = renew(&renewal.bundles, &renewal.waiting, found, |bundle| {
            open.contains(&bundle.id.as_str())
        });
        assert_eq!(again.changes, [], "said twice");
        assert_eq!(again.waiting, renewal.waiting);
    }

    #[test]
    fn bundles_come_are_replaced_and_go() {
        check(
            &[],
            vec![isolated("a", "v1")],
            &[],
            &[("a", "v1 needs_worker")],
            &[("a", What::Added)],
        );
        check(
            &[isolated("a", "v1")],
            vec![isolated("a", "v2"), isolated("b", "v1")],
            &[],
            &[("a", "v2 needs_worker"), ("b", "v1 needs_worker")],
            &[("a", What::Replaced), ("b", What::Added)],
        );
        check(&[isolated("a", "v1")], vec![], &[], &[], &[("a", What::Removed)]);
        check(
            &[isolated("a", "v1")],
            vec![isolated("a", "v1")],
            &[],
            &[("a", "v1 needs_worker")],
            &[],
        );
    }

    #[test]
    fn a_bad_replacement_takes_nothing() {
        let expected = [("a", "v1 needs_worker")];
        check(
            &[isolated("a", "v1")],
            vec![bad("a")],
            &[],
            &expected,
            &[("a", What::Waits)],
        );
        let quarantined = bundle(
            "a",
            "v2",
            BundleStatus::Quarantined {
                message: "it crashed".to_owned(),
            },
        );
        check(
            &[isolated("a", "v1")],
            vec![quarantined],
            &[],
            &expected,
            &[("a", What::Waits)],
        );
        let renewal = renew(&[isolated("a", "v1")], &BTreeMap::new(), vec![bad("a")], |_| false);
        let waiting = &renewal.waiting["a"];
        assert_eq!(waiting.reason, "digest_mismatch");
        assert!(
            waiting.message.contains("worse") && waiting.message.contains("goes on serving"),
            "{}",
            waiting.message
        );
        // A bundle that never served is shown as it is, and its repair is taken.
        check(&[], vec![bad("a")], &[], &[("a", "bad refused")], &[("a", What::Added)]);
        check(
            &[bad("a")],
            vec![isolated("a", "v2")],
            &[],
            &[("a", "v2 needs_worker")],
            &[("a", What::Replaced)],
        );
    }

    #[test]
    fn a_version_for_the_daemon_itself_waits_where_another_was_loaded() {
        let (old, new) = (
            || bundle("a", "v1", BundleStatus::Ready),
            || bundle("a", "v2", BundleStatus::Ready),
        );
        check(
            &[old()],
            vec![new()],
            &["a"],
            &[("a", "v1 ready")],
            &[("a", What::Waits)],
        );
        check(
            &[old()],
            vec![new()],
            &[],
            &[("a", "v2 ready")],
            &[("a", What::Replaced)],
        );
        // One that is not trusted is isolated, so it need not wait.
        check(
            &[old()],
            vec![isolated("a", "v2")],
            &["a"],
            &[("a", "v2 needs_worker")],
            &[("a", What::Replaced)],
        );
        // Nothing serves that could go on: a worker runs it.
        check(
            &[bad("a")],
            vec![new()],
            &["a"],
            &[("a", "v2 needs_worker")],
            &[("a", What::Replaced)],
        );
        let renewal = renew(&[old()], &BTreeMap::new(), vec![new()], |_| true);
        assert_eq!(renewal.waiting["a"].reason, NEEDS_RESTART);
    }

    #[test]
    fn verdicts_of_this_run_stay_with_their_digest() {
        // Trusted meanwhile, and demoted meanwhile: both count from the next start on.
        check(
            &[isolated("a", "v1")],
            vec![bundle("a", "v1", BundleStatus::Ready)],
            &[],
            &[("a", "v1 needs_worker")],
            &[],
        );
    }

    #[test]
    fn switched_off_and_on() {
        let off = || Bundle {
            digest: None,
            ..bundle("a", "v1", BundleStatus::Disabled)
        };
        check(
            &[isolated("a", "v1")],
            vec![off()],
            &[],
            &[("a", "- disabled")],
            &[("a", What::Disabled)],
        );
        check(
            &[off()],
            vec![isolated("a", "v1")],
            &[],
            &[("a", "v1 needs_worker")],
            &[("a", What::Replaced)],
        );
    }
}
