//! Whether a sound bundle may run in this process: the strictest of four facts (DECISIONS, trust; OQ-37).
//!
//! State: none. Callers: discovery. A pure function, so that the order of the reasons is one table. Not known here:
//! the bundle's record; the daemon lays it over, from its store.

use crate::bundle::BundleStatus;
use crate::manifest::Risk;

/// What decides about placement.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    /// The bundle's id, for the words.
    pub id: &'a str,
    /// The manifest's risk.
    pub risk: Risk,
    /// The library was built so that a panic ends the process.
    pub aborts_on_panic: bool,
    /// The operator promoted this digest, or why the trust file cannot say.
    pub trusted: Result<bool, String>,
    /// A private library's name that a bundle before it has too, and that bundle.
    pub shared_soname: Option<(String, String)>,
}

/// `Ready` when nothing speaks against it, else `NeedsWorker` with the first reason.
pub(crate) fn place(facts: &Facts<'_>) -> BundleStatus {
    let reason = if facts.risk == Risk::AbortCapable {
        "its manifest does not say risk = \"abort-safe\", so a failed assertion may end the process; such an engine runs \
         in a worker only and cannot be promoted"
            .to_owned()
    } else if facts.aborts_on_panic {
        "it was built with panic = \"abort\", so a panic would end the process; build it with panic = \"unwind\""
            .to_owned()
    } else if let Err(problem) = &facts.trusted {
        problem.clone()
    } else if facts.trusted == Ok(false) {
        format!(
            "its digest is not in the trust file; to let it run inside the daemon: synapse plugin trust {}",
            facts.id
        )
    } else if let Some((soname, other)) = &facts.shared_soname {
        format!("its private library {soname} has the name of one of {other}; one process can hold only one of them")
    } else {
        return BundleStatus::Ready;
    };
    BundleStatus::NeedsWorker { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves ENG-06, ENG-10: an abort-capable bundle needs a worker also when it is trusted.
    #[test]
    fn the_strictest_fact_decides() {
        let best = || Facts {
            id: "toy",
            risk: Risk::AbortSafe,
            aborts_on_panic: false,
            trusted: Ok(true),
            shared_soname: None,
        };
        assert_eq!(place(&best()), BundleStatus::Ready);
        let check = |facts: Facts<'_>, words: &str| match place(&facts) {
            BundleStatus::NeedsWorker { reason } => assert!(reason.contains(words), "{reason}"),
            other => panic!("{words}: {other:?}"),
        };
        let facts = best();
        let capable = Facts {
            risk: Risk::AbortCapable,
            ..facts.clone()
        };
        let aborting = Facts {
            aborts_on_panic: true,
            ..facts.clone()
        };
        check(capable, "cannot be promoted");
        check(aborting, "panic = \"abort\"");
        check(
            Facts {
                trusted: Ok(false),
                ..facts.clone()
            },
            "synapse plugin trust toy",
        );
        check(
            Facts {
                trusted: Err("the trust file x: no".to_owned()),
                ..facts.clone()
            },
            "the trust file x",
        );
        let shared_soname = Some(("libx.so.1".to_owned(), "other".to_owned()));
        check(Facts { shared_soname, ..facts }, "libx.so.1");
    }
}
