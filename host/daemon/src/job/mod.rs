//! Slow work that clients poll: pulls, loads, probes, batches (API-02).
//!
//! State: the registry of jobs, in memory; it is empty after a restart, and jobs are then in the store alone. Callers:
//! operations start jobs and show their states; `serve` closes the registry at the end. Not known here: what a job does.
//! `synapse_core::job` decides which state follows which.

pub mod kept;
mod record;
mod registry;
mod table;

use std::fmt;

pub use record::owner;
pub use registry::Jobs;
pub use synapse_wire::client::{JobKind, JobResult, JobWait};
pub(crate) use table::{now_ms, state_on_the_wire};
use tokio_util::sync::CancellationToken;

/// A job's public name. It never repeats: it holds the daemon's start number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(String);

impl JobId {
    /// Names the `sequence`-th job of start number `generation`.
    fn new(generation: u64, sequence: u64) -> Self {
        Self(format!("job-{generation:x}-{sequence}"))
    }

    /// A name of its own for a test.
    #[cfg(test)]
    pub fn for_tests(number: u64) -> Self {
        Self::new(0, number)
    }

    /// The name as written on the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a running job holds: its name, its cancellation and its progress.
#[derive(Clone, Debug)]
pub struct JobHandle {
    id: JobId,
    kind: JobKind,
    model: String,
    created_ms: u64,
    cancel: CancellationToken,
    jobs: Jobs,
}

impl JobHandle {
    /// The job's public name.
    #[must_use]
    pub fn id(&self) -> &JobId {
        &self.id
    }

    /// Fires when the job is to stop. A job that stops for it ends with [`crate::service::ServiceError::cancelled`].
    #[must_use]
    pub fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Notes why the job does no work now; `None` once it works again. Any thread.
    pub fn waits_for(&self, why: Option<JobWait>) {
        self.jobs.waits(&self.id, why);
    }

    /// Notes about how many milliseconds the rest takes. Any thread.
    pub fn expects(&self, milliseconds: Option<u64>) {
        self.jobs.expects(&self.id, milliseconds);
    }

    /// Reports completed work: `done` of `total` `unit`s (`bytes`, `files`, `items`) of the named phase. Any thread.
    pub fn progress(&self, phase: &str, done: u64, total: Option<u64>, unit: &str) {
        self.jobs.report(&self.id, phase, done, total, unit);
    }
}
