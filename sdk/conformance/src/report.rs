//! What a run found: one line a check, bound to the bundle's digest.
//!
//! State: none. Callers: the run makes it, the runner prints it. The other forms are `json.rs` and `junit.rs`.

use std::fmt;

use crate::catalogue::{Level, Outcome};

/// How one check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The check's id.
    pub id: String,
    /// How it ended.
    pub outcome: Outcome,
    /// What was found, and what the rule asks for; empty for a pass.
    pub message: String,
    /// Milliseconds that it took.
    pub ms: u64,
}

/// What a run found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The bundle's id.
    pub bundle: String,
    /// The bundle's package version; empty when its manifest could not be read.
    pub version: String,
    /// The digest of the bundle's files, by which an operator promotes it; empty when they could not all be read.
    pub digest: String,
    /// How far the run went.
    pub level: Level,
    /// The seed of everything that was drawn.
    pub seed: u64,
    /// One line a check that was chosen, in the catalogue's order.
    pub lines: Vec<Line>,
}

impl Report {
    /// Whether nothing failed, crashed or hung.
    #[must_use]
    pub fn passed(&self) -> bool {
        !self.lines.iter().any(|line| line.outcome.is_bad())
    }

    /// How many checks ended so.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        self.lines.iter().filter(|line| line.outcome == outcome).count()
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<5} {}", self.outcome.name(), self.id)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = if self.digest.is_empty() { "-" } else { &self.digest };
        writeln!(f, "{} {} {digest}", self.bundle, self.version)?;
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        let counts = Outcome::ALL.map(|outcome| format!("{} {outcome}", self.count(outcome)));
        write!(f, "{}", counts.join(", "))
    }
}
