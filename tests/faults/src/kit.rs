//! The exhibits of the conformance kit: bundles and workers that each fail one check, and what they may fail with it.
//!
//! State: none. Callers: the tests of the kit. A mode of the stress library breaks one rule (`stress/src/kit`), a mode of
//! the go-between one of the protocol (`bad_worker.rs`), and the faults of files are those of [`crate::zoo`].

use crate::{BundleFiles, Stage};

/// One thing that is bad, and the check that finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhibit {
    /// The mode.
    pub mode: &'static str,
    /// The check that fails.
    pub fails: &'static str,
    /// Checks that may fail with it, since they meet the same fault on their way.
    pub relatives: &'static [&'static str],
}

const fn one(mode: &'static str, fails: &'static str) -> Exhibit {
    with(mode, fails, &[])
}

const fn with(mode: &'static str, fails: &'static str, relatives: &'static [&'static str]) -> Exhibit {
    Exhibit { mode, fails, relatives }
}

/// Modes of the stress library, without their `kit-`.
pub const LIBRARIES: &[Exhibit] = &[
    one("describe-wanders", "describe-stable"),
    one("other-identity", "describe-identity"),
    // The model of the kind that is not described cannot be looked at.
    with("extra-kind", "describe-kinds", &["load-model"]),
    one("any-format", "describe-unlisted"),
    one("one-at-a-time", "describe-preempt"),
    one("thread-sums", "describe-threads"),
    one("any-setting", "make-settings"),
    one("drop-abort", "make-drop"),
    one("thread-stays", "shutdown-threads"),
    one("exit-abort", "exit-clean"),
    one("load-refuses", "load-model"),
    one("wants-name", "load-roles"),
    one("folder-ok", "load-missing"),
    one("damage-abort", "load-damage"),
    one("any-extra", "load-settings"),
    one("failed-load-leaks", "load-fails-clean"),
    one("same-handle", "load-handles"),
    // Both load a second model and compare what the first gives.
    with("models-mix", "load-two", &["call-parallel", "host-refuses"]),
    one("any-handle", "load-unload"),
    one("memory-lies", "load-memory"),
    one("any-shape", "input-shapes"),
    one("negative-abort", "input-ids"),
    one("cuts-long", "input-long"),
    one("keeps-input", "input-borrowed"),
    // Other values are other values for the author's own tests too.
    with("segments-differ", "input-segments", &["own-tests"]),
    one("half-written", "output-written"),
    one("any-length", "output-length"),
    one("nan-thirteen", "output-finite"),
    with("normalizes", "output-raw", &["own-tests"]),
    with("place-counts", "output-alone", &["own-tests"]),
    one("wanders", "output-repeats"),
    one("sorts-scores", "rerank-order"),
    one("splits-utf8", "generate-text"),
    one("over-generates", "generate-limits"),
    one("reads-control", "generate-control"),
    one("any-option", "generate-options"),
    one("ignores-grammar", "generate-grammar"),
    one("races", "call-parallel"),
    // Calls at once come on other threads than the load.
    with("thread-bound", "call-any-thread", &["call-parallel"]),
    one("extra-threads", "call-threads"),
    one("keeps-deadline", "call-deadline"),
    // The watcher is a thread that lives on.
    with("late-watcher", "call-watchers", &["no-growth"]),
    one("helper-checkpoint", "call-checkpoint-thread"),
    one("backwards", "call-progress"),
    one("no-checkpoint", "call-checkpoints"),
    one("slow-blocks", "call-pace"),
    one("ignores-cancel", "call-cancel"),
    one("one-flow-only", "call-cancel"),
    // Both send settings that are no object.
    with("settings-panic", "error-contained", &["error-values"]),
    one("odd-code", "error-values"),
    one("gives-up", "error-state"),
    one("long-message", "error-message"),
    one("odd-metric", "host-services"),
    one("leaks-blocks", "host-memory"),
    one("null-abort", "host-refuses"),
    one("prints", "quiet"),
    one("writes-home", "files"),
    one("changes-directory", "process"),
    one("sets-environment", "process"),
    one("flushes-subnormals", "process"),
    one("opens-socket", "network"),
    one("leaks-files", "no-growth"),
    one("any-extension", "extension-unknown"),
    one("short-table", "extension-tables"),
    one("device-twice", "extension-environment"),
];

/// Modes of the bad worker.
pub const WORKERS: &[Exhibit] = &[
    one("describe-wanders", "worker-describe"),
    one("wrong-nonce", "worker-hello"),
    one("wrong-pid", "worker-hello"),
    one("wrong-version", "worker-hello"),
    // What comes too early is read instead of the first reply, by everybody.
    with("early", "worker-hello", &["*"]),
    one("wrong-bundle", "worker-identity"),
    one("exits-well", "worker-refused"),
    one("small-frames", "worker-offers-frames"),
    one("drops-settings", "worker-settings"),
    one("prints-frames", "worker-output"),
    one("litters", "worker-files"),
    one("trusts-digests", "worker-load"),
    one("any-format", "worker-unserved"),
    one("nan-values", "worker-values"),
    one("turns-rows", "worker-alone"),
    one("counts-more", "worker-text"),
    one("forgets-numbers", "worker-requests"),
    one("doubles", "worker-quiet"),
    one("odd-code", "worker-errors"),
    one("keeps-models", "worker-unload"),
    one("takes-long-frames", "worker-frame-bound"),
    one("guesses", "worker-malformed"),
    one("knows-no-unknown", "worker-unknown-type"),
    one("strict-fields", "worker-unknown-fields"),
    one("heartbeats", "worker-progress"),
    one("answers-cancel", "worker-cancel"),
    one("dies-late", "worker-deadline"),
    one("bad-exit", "worker-shutdown"),
    one("lives-on", "worker-orphan"),
];

/// The model of the exhibits, and one test of an author's own.
const SUBJECT: &str = include_str!("kit.toml");

impl Stage {
    /// Adds a bundle of the stress library that keeps the whole contract, or breaks one rule of it.
    ///
    /// # Panics
    /// As [`Stage::add`].
    pub fn add_kit(&self, id: &str, mode: &str) -> BundleFiles {
        let mode = if mode.is_empty() {
            "kit".to_owned()
        } else {
            format!("kit-{mode}")
        };
        let files = self.add(id, &mode);
        let weights: Vec<u8> = (0..4096u32)
            .map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3])
            .collect();
        std::fs::write(files.path("weights.bin"), weights).expect("a model");
        std::fs::write(files.path("conformance.toml"), SUBJECT).expect("a subject");
        files
    }
}
