//! Probes: what decides whether a lane may serve on this machine (CERT-01..20, API-21).
//!
//! State: [`Probes`], what the probes of this run have come to, lane by lane, in memory. Callers: `probe.start`,
//! `probe.status`, `probe.report`. What a probe asks and what it takes to pass is `synapse-certify`'s; the rows are the
//! store's; what requests see of them is `lane/certification.rs`. Not known here: sockets, SQL, JSON.
//!
//! | question | file |
//! |---|---|
//! | which lanes are probed | `subjects.rs` |
//! | what happens from the load to the row | `run.rs` |
//! | how is one step run among the lane's other work | `calls.rs` |
//! | what is kept of a verdict | `findings.rs` |
//! | may two lanes' vectors stand side by side | `pairs.rs` |
//! | which lane gets which work | `assignment.rs` |
//! | what is shown of all that | `report.rs` |
//! | how much memory does a model take | `memory.rs` |

mod assignment;
mod calls;
mod findings;
mod memory;
mod pairs;
pub mod report;
mod run;
pub mod subjects;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use synapse_wire::client::{JobKind, ProbeState, ProbedLane};

use crate::job::JobId;
use crate::lane::Lane;
use crate::rpc::error::ServiceError;
use crate::state::Daemon;

/// Probes of this run that are remembered.
const REMEMBERED: usize = 32;

/// What the probes of this run have come to. Cheap to clone; every clone is the same.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    /// The oldest first.
    seen: Arc<Mutex<VecDeque<Seen>>>,
}

#[derive(Debug)]
struct Seen {
    job: String,
    lanes: Vec<ProbedLane>,
}

impl Probes {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest probe.
    #[must_use]
    pub fn newest(&self) -> Option<String> {
        self.lock().back().map(|seen| seen.job.clone())
    }

    /// The lanes of a probe, in its order; none where it is not remembered.
    #[must_use]
    pub fn lanes(&self, job: &str) -> Vec<ProbedLane> {
        let seen = self.lock();
        seen.iter()
            .find(|seen| seen.job == job)
            .map(|seen| seen.lanes.clone())
            .unwrap_or_default()
    }

    /// Remembers a probe that was accepted. A second request for one that is there changes nothing.
    fn accepted(&self, job: &JobId, lanes: &[Arc<Lane>]) {
        let mut seen = self.lock();
        if seen.iter().any(|known| known.job == job.as_str()) {
            return;
        }
        let waiting = |lane: &Arc<Lane>| ProbedLane {
            lane: lane.name.clone(),
            state: ProbeState::Waiting,
            level: None,
            reason: None,
        };
        seen.push_back(Seen {
            job: job.to_string(),
            lanes: lanes.iter().map(waiting).collect(),
        });
        while seen.len() > REMEMBERED {
            seen.pop_front();
        }
    }

    /// Notes where the `position`-th lane of a probe stands.
    fn moved(&self, job: &JobId, position: usize, state: ProbeState, level: Option<String>, reason: Option<String>) {
        let mut seen = self.lock();
        let found = seen.iter_mut().find(|seen| seen.job == job.as_str());
        if let Some(lane) = found.and_then(|seen| seen.lanes.get_mut(position)) {
            (lane.state, lane.level, lane.reason) = (state, level, reason);
        }
    }

    /// Notes that a probe has ended before its last lane.
    fn dropped(&self, job: &JobId) {
        let mut seen = self.lock();
        let Some(seen) = seen.iter_mut().find(|seen| seen.job == job.as_str()) else {
            return;
        };
        for lane in &mut seen.lanes {
            if matches!(lane.state, ProbeState::Waiting | ProbeState::Running) {
                lane.state = ProbeState::Dropped;
            }
        }
    }
}

/// Starts a probe of `lanes` as a job named by `what`, or returns the live job of the same.
///
/// # Errors
/// There are too many jobs, the job cannot be kept, or the daemon stops.
pub async fn start(daemon: &Arc<Daemon>, what: &str, lanes: Vec<Arc<Lane>>) -> Result<JobId, ServiceError> {
    let (work_daemon, work_lanes) = (Arc::clone(daemon), lanes.clone());
    let job = daemon
        .jobs
        .start(JobKind::Probe, what, move |job| {
            work_daemon.probes.accepted(job.id(), &work_lanes);
            run::run(work_daemon, work_lanes, job)
        })
        .await?;
    daemon.probes.accepted(&job, &lanes);
    Ok(job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_that_ends_early_leaves_what_was_done() {
        let probes = Probes::default();
        let lane = |name: &str, state| ProbedLane {
            lane: name.to_owned(),
            state,
            level: None,
            reason: None,
        };
        let job = JobId::for_tests(7);
        probes.lock().push_back(Seen {
            job: job.to_string(),
            lanes: vec![
                lane("a", ProbeState::Certified),
                lane("b", ProbeState::Running),
                lane("c", ProbeState::Waiting),
            ],
        });
        probes.moved(&job, 1, ProbeState::Failed, None, Some("words".to_owned()));
        probes.moved(&job, 9, ProbeState::Failed, None, None);
        probes.dropped(&job);
        let states: Vec<ProbeState> = probes.lanes(job.as_str()).iter().map(|lane| lane.state).collect();
        assert_eq!(states, [ProbeState::Certified, ProbeState::Failed, ProbeState::Dropped]);
        assert_eq!(probes.newest().as_deref(), Some(job.as_str()));
        assert!(probes.lanes("another").is_empty());
    }
}
