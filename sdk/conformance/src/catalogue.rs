//! What a check is, and the list of all of them.
//!
//! State: none. Callers: the run, the reports, and the tests that compare the list with the contract's rules. The checks
//! themselves stand beside the code that they run: `package.rs`, `check/`, `protocol/`.

use std::fmt;
use std::str::FromStr;

use synapse_loader::RefusalReason;

use crate::bench::Bench;
use crate::protocol::Desk;
use crate::{check, package, protocol};

/// How far a run goes: each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every build should pass, in under a minute.
    Core,
    /// All rules of the contract and of the worker protocol.
    Full,
    /// Damaged files, refused memory, broken frames.
    Fault,
    /// Figures that the contract bounds.
    Perf,
}

impl Level {
    /// Every level, from the narrowest.
    pub const ALL: [Self; 4] = [Self::Core, Self::Full, Self::Fault, Self::Perf];

    /// The level's name on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Full => "full",
            Self::Fault => "fault",
            Self::Perf => "perf",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|level| level.name() == text);
        found.ok_or_else(|| format!("level {text:?}, expected core, full, fault or perf"))
    }
}

/// What a check looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The bundle's files, as the loader judges them before any engine is called.
    Package,
    /// The library's functions, called in a process of the kit.
    Library,
    /// The worker protocol: `synapse-worker` with the bundle, or the bundle's own program.
    Protocol,
}

impl Group {
    /// The group's name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Package => "package",
            Self::Library => "library",
            Self::Protocol => "protocol",
        }
    }
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The rule is kept.
    Pass,
    /// The check does not apply, or lacks what it needs: the message says which.
    Skip,
    /// The rule is kept, but not by much: the message has the figures.
    Warn,
    /// The rule is broken.
    Fail,
    /// The process ended before the check did.
    Crash,
    /// The check did not end within its time and was ended.
    Hang,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 6] = [Self::Pass, Self::Skip, Self::Warn, Self::Fail, Self::Crash, Self::Hang];

    /// The outcome's name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Skip => "skip",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Crash => "crash",
            Self::Hang => "hang",
        }
    }

    /// Whether a report with this outcome in it does not pass.
    #[must_use]
    pub const fn is_bad(self) -> bool {
        matches!(self, Self::Fail | Self::Crash | Self::Hang)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a check stopped before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) outcome: Outcome,
    pub(crate) message: String,
}

/// What a check's body gives.
pub(crate) type Verdict = Result<(), Stop>;

/// The rule is broken: what was found, what the rule asks for.
pub(crate) fn fail<T>(message: impl Into<String>) -> Result<T, Stop> {
    stop(Outcome::Fail, message)
}

/// The check does not apply.
pub(crate) fn skip<T>(message: impl Into<String>) -> Result<T, Stop> {
    stop(Outcome::Skip, message)
}

/// The rule is kept by a narrow margin.
pub(crate) fn warn<T>(message: impl Into<String>) -> Result<T, Stop> {
    stop(Outcome::Warn, message)
}

fn stop<T>(outcome: Outcome, message: impl Into<String>) -> Result<T, Stop> {
    let message = message.into();
    Err(Stop { outcome, message })
}

/// What a check runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Run {
    /// Fails when discovery refuses the bundle for one of these reasons.
    Package(&'static [RefusalReason]),
    /// Calls the library, in a process of its own.
    Library(fn(&Bench) -> Verdict),
    /// As `Library`, and nothing may have been printed.
    Silent(fn(&Bench) -> Verdict),
    /// As `Library`, and the process must end in order afterwards.
    ToTheEnd(fn(&Bench) -> Verdict),
    /// Plays the daemon for a worker, in a process of its own.
    Protocol(fn(&Desk) -> Verdict),
}

/// One check of the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// The name, `[a-z-]`; it never changes its meaning.
    pub id: &'static str,
    /// From which level on it runs.
    pub level: Level,
    /// The rules that it covers: `PC-…` of the plugin contract, `WP-…` of the worker protocol.
    pub rules: &'static [&'static str],
    /// What is true of a plugin that passes.
    pub says: &'static str,
    /// Why it matters.
    pub why: &'static str,
    /// What to do when it fails.
    pub fix: &'static str,
    pub(crate) run: Run,
}

impl Check {
    /// What the check looks at.
    #[must_use]
    pub const fn group(&self) -> Group {
        match self.run {
            Run::Package(_) => Group::Package,
            Run::Library(_) | Run::Silent(_) | Run::ToTheEnd(_) => Group::Library,
            Run::Protocol(_) => Group::Protocol,
        }
    }
}

/// Every check, in the order in which they are reported.
pub fn catalogue() -> impl Iterator<Item = &'static Check> {
    let library = [
        check::describe::CHECKS,
        check::load::CHECKS,
        check::compute::CHECKS,
        check::generate::CHECKS,
        check::call::CHECKS,
        check::error::CHECKS,
        check::manners::CHECKS,
        check::extension::CHECKS,
        check::own::CHECKS,
    ];
    let protocol = [
        protocol::start::CHECKS,
        protocol::exchange::CHECKS,
        protocol::end::CHECKS,
    ];
    std::iter::once(package::CHECKS)
        .chain(library)
        .chain(protocol)
        .flatten()
}

/// The check of this id.
#[must_use]
pub fn find(id: &str) -> Option<&'static Check> {
    catalogue().find(|check| check.id == id)
}

/// What a check says, why it matters, how to keep it, and the rules behind it: a few lines of text.
#[must_use]
pub fn explain(id: &str) -> Option<String> {
    let check = find(id)?;
    let (group, rules) = (check.group().name(), check.rules.join(", "));
    Some(format!(
        "{} ({group}, level {})\n  {}\n  Why: {}\n  Fix: {}\n  Rules: {rules}\n",
        check.id, check.level, check.says, check.why, check.fix
    ))
}
