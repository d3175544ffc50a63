//! What time does to kept jobs: a restart ends those that it interrupted, and old ones are forgotten (JOB-04, JOB-05).
//!
//! State: none; one task looks at the store now and then. Caller: `state`. Not known here: what the jobs do.

use std::sync::Arc;
use std::time::Duration;

use synapse_wire::client::{ErrorCode, JobKind};

use super::now_ms;
use crate::rpc::error::ServiceError;
use crate::state::Daemon;
use crate::store::{Store, StoreError};

/// The longest time between two looks for jobs that are too old.
const EVERY: Duration = Duration::from_secs(300);

/// Ends the jobs that an earlier run of the daemon left queued or running. Blocks.
///
/// # Errors
/// [`StoreError`]; they are then as they were.
pub fn end_interrupted(store: &Store) -> Result<(), StoreError> {
    let error = |kind: &str| {
        let message = if JobKind::from_name(kind).has_texts() {
            "the daemon was started anew while the job was queued or running; what it had done is kept, and `job.seal` \
             or the same request_key goes on with the rest"
        } else {
            "the daemon was started anew while the job was queued or running; send the request again"
        };
        let error = ServiceError::new(ErrorCode::ModuleRestarted, message);
        error.failure().to_text()
    };
    let ended = store.end_interrupted_jobs(error, now_ms())?;
    if ended > 0 {
        tracing::warn!(target: "synapse", jobs = ended, "jobs that the last run left behind have failed for now");
    }
    Ok(())
}

/// Forgets ended jobs and abandoned inputs in time, until the daemon stops.
pub fn watch(daemon: &Arc<Daemon>) {
    let weak = Arc::downgrade(daemon);
    let stop = daemon.tasks.stopping().clone();
    let jobs = &daemon.config.jobs;
    let shortest = Duration::from_secs(jobs.ttl_secs.min(jobs.open_ttl_secs));
    let every = EVERY.min(shortest / 4);
    drop(daemon.tasks.spawn("jobs-expire", async move {
        loop {
            let Some(daemon) = weak.upgrade() else { return };
            let (store, jobs) = (daemon.store.clone(), daemon.config.jobs.clone());
            let forget = move || {
                let before = |seconds: u64| now_ms().saturating_sub(seconds.saturating_mul(1_000));
                let most = u64::try_from(jobs.max_finished).unwrap_or(u64::MAX);
                let old = store.expire_jobs(before(jobs.ttl_secs), before(jobs.open_ttl_secs))?;
                Ok::<_, StoreError>(old + store.forget_work(most)?)
            };
            match daemon.tasks.blocking("jobs-expire", forget).await {
                Ok(Ok(0)) | Err(_) => {}
                Ok(Ok(jobs)) => tracing::info!(target: "synapse", jobs, "forgot old jobs"),
                Ok(Err(error)) => tracing::warn!(target: "synapse", "old jobs could not be forgotten: {error}"),
            }
            drop(daemon);
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
        }
    }));
}
