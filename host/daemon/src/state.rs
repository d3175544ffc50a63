//! What the running daemon holds, shared by every operation.

use std::sync::Arc;

use crate::config::Config;
use crate::job::Jobs;
use crate::task::Tasks;

/// The running daemon.
#[derive(Debug)]
pub struct Daemon {
    /// The settings, sampled once at start (CONF-12).
    pub config: Arc<Config>,
    /// This start's number; rides on every reply (API-13).
    pub generation: u64,
    /// Slow work that clients poll.
    pub jobs: Jobs,
    /// The only spawner of tasks and threads.
    pub tasks: Tasks,
}
