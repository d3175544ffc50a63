//! Waiting for a job: polling `job.status` until nothing will change any more.
//!
//! It owns nothing beyond one wait. Polling starts quickly and slows down, so that short jobs end soon and long ones
//! cost little. Dropping the wait leaves the job running; `job.cancel` ends it.

use std::time::Duration;

use synapse_wire::client::JobView;

use crate::client::Client;
use crate::error::ClientError;

/// How often to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobWait {
    /// The first pause.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
}

impl Default for JobWait {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(20),
            longest: Duration::from_millis(500),
        }
    }
}

impl Client {
    /// Waits until a job has ended and returns its last view, whatever its end was: `state` says it, `error` why.
    /// `progress` is called with every view that differs from the one before, the last one included.
    ///
    /// # Errors
    /// As [`Client::call`]: an ended job is no error, a job that nobody knows (any more) is.
    pub async fn wait_job(
        &self,
        job_id: &str,
        wait: JobWait,
        mut progress: impl FnMut(&JobView),
    ) -> Result<JobView, ClientError> {
        let mut pause = wait.first;
        let mut last: Option<JobView> = None;
        loop {
            let view = self.job_status(job_id).await?.result;
            if last.as_ref() != Some(&view) {
                progress(&view);
            }
            if view.state.is_final() {
                return Ok(view);
            }
            last = Some(view);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(wait.longest);
        }
    }
}
