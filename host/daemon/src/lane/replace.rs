//! A lane's next generation: another digest of its bundle takes over, without a gap, or nothing does.
//!
//! State: none; a task for each lane that follows its bundle. Callers: `pickup`. Not known here: why the bundle changed.
//!
//! 1. The new generation is a lane of the same name on the new digest. It is loaded beside the old one, which serves
//!    meanwhile. Where memory does not hold both, the old one leaves first, and requests are told `model_loading`.
//! 2. It takes the old one's place in one step. From here on requests meet the new digest.
//! 3. The old one ends what it has begun, for a bounded time, and is unloaded; its worker ends.
//!
//! A new generation that cannot be loaded takes nothing: the old one serves until it leaves memory. A bundle that is gone
//! has no next generation; then step 3 is all there is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use synapse_wire::client::ErrorCode;
use tokio::sync::oneshot;

use super::select::{self, Choice};
use super::state::LaneState;
use super::{Lane, Lanes, load, lock};
use crate::job::JobKind;
use crate::rpc::error::ServiceError;
use crate::state::Daemon;

/// How long an old generation may take to end what it has begun; then what waits is told to come again.
const DRAIN: Duration = Duration::from_secs(120);
/// How often an old generation is asked whether it has.
const POLL: Duration = Duration::from_millis(20);

/// Lets every lane of a bundle follow it, each in a task of its own.
pub fn follow(daemon: &Arc<Daemon>, bundle: &str) {
    for lane in daemon.lanes.all().into_iter().filter(|lane| lane.bundle.id == bundle) {
        let task = Arc::clone(daemon);
        drop(
            daemon
                .tasks
                .spawn("lane-replace", async move { replace(&task, lane).await }),
        );
    }
}

async fn replace(daemon: &Arc<Daemon>, old: Arc<Lane>) {
    // A load is not cut short: what asked for it is told how it ended.
    old.no_longer(LaneState::Loading).await;
    let Some(new) = successor(daemon, &old) else {
        if daemon.lanes.take(&old) {
            tracing::info!(target: "synapse", lane = old.name, "the lane's bundle is gone; the lane ends");
        }
        return drain(daemon, &old).await;
    };
    if new.bundle.digest == old.bundle.digest {
        return;
    }
    if old.place().state != LaneState::Ready {
        // The next request makes a lane of what counts now.
        daemon.lanes.take(&old);
        return drain(daemon, &old).await;
    }
    match load_beside(daemon, &new).await {
        Ok(()) if successor(daemon, &old).is_some_and(|now| now.bundle.digest == new.bundle.digest) => {
            let before = daemon.lanes.put(&new);
            tracing::info!(target: "synapse", lane = new.name, "the new version of the lane's bundle serves");
            if let Some(before) = before.filter(|before| !Arc::ptr_eq(before, &new)) {
                drain(daemon, &before).await;
            }
        }
        // The bundle changed again meanwhile: another task of this kind brings what counts now.
        Ok(()) => drain(daemon, &new).await,
        Err(failure) if *failure.code() == ErrorCode::LimitExceeded => {
            tracing::info!(target: "synapse", lane = old.name, "memory does not hold two versions; the old one leaves first");
            daemon.lanes.take(&old);
            retire(daemon, &new).await;
            drain(daemon, &old).await;
        }
        Err(failure) => {
            tracing::error!(
                target: "synapse", lane = old.name, %failure,
                "the new version of the lane's bundle cannot load the model; the old one serves until it is unloaded",
            );
            retire(daemon, &new).await;
        }
    }
}

/// The lane of the same name on the bundle that counts now, if there is one.
fn successor(daemon: &Daemon, old: &Lane) -> Option<Arc<Lane>> {
    let (catalog, bundles, installed) = (daemon.catalog(), daemon.plugins.bundles(), daemon.installed());
    let row = catalog.rows().iter().find(|row| row.lane_name() == old.name)?;
    let record = catalog.record(&row.model)?;
    let (bundle, descriptor, support) = select::usable(row, select::engine_kind(record.kind), &bundles).ok()?;
    let choice = Choice {
        record,
        row,
        bundle,
        descriptor,
        support,
        installed: select::installed_form(row, &installed)?,
    };
    Some(Arc::new(Lane::new(old.name.clone(), &choice, daemon.threads_per_call)))
}

/// Loads a lane that no request can meet yet, as a job like any load.
async fn load_beside(daemon: &Arc<Daemon>, new: &Arc<Lane>) -> Result<(), ServiceError> {
    loop {
        let (tell, told) = oneshot::channel();
        let (work_daemon, lane) = (Arc::clone(daemon), Arc::clone(new));
        daemon
            .jobs
            .start_implied(JobKind::ModelLoad, &new.name, move |job| async move {
                let outcome = load::run(work_daemon, lane, job).await;
                // The task that asked may have been ended with the daemon.
                let _ = tell.send(outcome.as_ref().map(drop).map_err(Clone::clone));
                outcome
            })
            .await?;
        match told.await {
            Ok(outcome) => return outcome,
            Err(_) if daemon.tasks.stopping().is_cancelled() => return Err(ServiceError::shutting_down()),
            // A job of this name was at it already, for the old version, or was cancelled before its turn.
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}

/// Lets a lane end what it has begun, unloads it, and ends its worker.
async fn drain(daemon: &Arc<Daemon>, lane: &Arc<Lane>) {
    let bound = Instant::now() + DRAIN;
    loop {
        let Some(loaded) = lane.place().loaded.clone() else {
            break;
        };
        let load = loaded.executor.load();
        let idle = load.running + load.interactive_waiting + load.bulk_waiting == 0;
        // The lane's and this one: no request holds the model any more.
        let held = Arc::strong_count(&loaded) > 2;
        drop(loaded);
        if (idle && !held) || Instant::now() >= bound {
            break;
        }
        tokio::time::sleep(POLL).await;
    }
    // A failure is a stopping daemon, which ends every worker itself.
    let _ = load::unload(daemon, lane).await;
    retire(daemon, lane).await;
}

/// Ends the worker of a lane that holds no model, also one whose only load failed.
async fn retire(daemon: &Arc<Daemon>, lane: &Arc<Lane>) {
    let (plugins, lane) = (daemon.plugins.clone(), Arc::clone(lane));
    let retired = daemon
        .tasks
        .blocking("worker-retire", move || plugins.retire(&lane.bundle, &lane.name));
    // As above.
    let _ = retired.await;
}

impl Lanes {
    /// Puts a lane in the place of the one of its name, and gives that one.
    fn put(&self, lane: &Arc<Lane>) -> Option<Arc<Lane>> {
        lock(&self.inner.lanes).insert(lane.name.clone(), Arc::clone(lane))
    }

    /// Takes a lane out; false when another one has its place already.
    fn take(&self, lane: &Arc<Lane>) -> bool {
        let mut lanes = lock(&self.inner.lanes);
        let is_it = lanes.get(&lane.name).is_some_and(|known| Arc::ptr_eq(known, lane));
        if is_it {
            lanes.remove(&lane.name);
        }
        is_it
    }
}

impl Lane {
    /// Waits until the lane is in another state.
    async fn no_longer(&self, state: LaneState) {
        loop {
            // Made before the look, so that no move is missed.
            let moved = self.moved.notified();
            if self.place().state != state {
                return;
            }
            moved.await;
        }
    }
}
