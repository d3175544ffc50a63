//! Slow work that clients poll: pulls and loads (API-02).
//!
//! State: the registry of jobs, in memory. Callers: operations start jobs and read their states. Not known here:
//! what a job does.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::rpc::error::ServiceError;
use crate::task::Tasks;

/// A job's public name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(String);

impl JobId {
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

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// Brings a model's files to this machine.
    Pull,
    /// Loads a model into an engine.
    Load,
}

/// What a running job holds: its name, its cancellation and its progress.
#[derive(Clone, Debug)]
pub struct JobHandle {
    id: JobId,
    cancel: CancellationToken,
}

impl JobHandle {
    /// The job's public name.
    #[must_use]
    pub fn id(&self) -> &JobId {
        &self.id
    }

    /// Fires when the job is to stop.
    #[must_use]
    pub fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Reports completed work: `done` of `total` `unit`s (for example `bytes`) of the named phase.
    pub fn progress(&self, phase: &'static str, done: u64, total: Option<u64>, unit: &'static str) {
        let _ = (phase, done, total, unit);
    }
}

/// The registry of jobs.
#[derive(Clone, Debug)]
pub struct Jobs {
    tasks: Tasks,
    _inner: Arc<()>,
}

impl Jobs {
    /// An empty registry.
    #[must_use]
    pub fn new(tasks: Tasks) -> Self {
        Self {
            tasks,
            _inner: Arc::new(()),
        }
    }

    /// Starts `work`, or returns the live job of the same kind and model when there is one.
    ///
    /// # Errors
    /// `queue_full` when too many jobs are open, `shutting_down` when the daemon stops.
    pub fn start<F, W>(&self, kind: JobKind, model: &str, work: W) -> Result<JobId, ServiceError>
    where
        W: FnOnce(JobHandle) -> F + Send + 'static,
        F: Future<Output = Result<(), ServiceError>> + Send + 'static,
    {
        let _ = (kind, model);
        let handle = JobHandle {
            id: JobId(String::from("j-0")),
            cancel: CancellationToken::new(),
        };
        let id = handle.id.clone();
        drop(self.tasks.spawn("job", work(handle)));
        Ok(id)
    }

    /// The live (queued or running) job of this kind and model.
    #[must_use]
    pub fn live(&self, kind: JobKind, model: &str) -> Option<JobId> {
        let _ = (kind, model);
        None
    }
}
