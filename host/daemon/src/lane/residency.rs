//! Which loaded models stay in memory: carries out what `synapse_core::residency` decides.
//!
//! State: none. Callers: a load, before the engine takes memory, and a background task that unloads what has been idle
//! for long. Not known here: the policy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use synapse_core::residency::{ResidencyPolicy, Resident};
use synapse_core::schedule::Tick;

use super::{Lane, load};
use crate::config::ResidencyConfig;
use crate::rpc::error::ServiceError;
use crate::state::Daemon;

/// How often idle models are looked for, at most.
const SWEEP: Duration = Duration::from_secs(30);

/// The operator's policy. A budget of 0 means half of the machine's memory.
#[must_use]
pub fn policy(config: &ResidencyConfig) -> ResidencyPolicy {
    let budget_bytes = match config.memory_budget_bytes {
        0 => physical_memory().map_or(u64::MAX, |bytes| bytes / 2),
        bytes => bytes,
    };
    let nanos = |seconds: u64| seconds.saturating_mul(1_000_000_000);
    ResidencyPolicy {
        budget_bytes,
        idle_ttl: (config.idle_ttl_secs > 0).then(|| nanos(config.idle_ttl_secs)),
        min_residency: nanos(config.min_residency_secs),
    }
}

/// Bytes of memory of this machine, where the system says.
fn physical_memory() -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        let info = rustix::system::sysinfo();
        #[expect(clippy::useless_conversion, reason = "the field's type differs between targets")]
        let total = u64::try_from(info.totalram).ok()?;
        Some(total.saturating_mul(u64::from(info.mem_unit)))
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// Unloads models until one of `bytes` has room. Called with the turn of loads. Blocks.
///
/// # Errors
/// `limit_exceeded`: everything that may be unloaded would not make room.
pub(super) fn make_room(daemon: &Daemon, newcomer: &Lane, bytes: u64) -> Result<(), ServiceError> {
    let (lanes, residents, now) = residents(daemon);
    let leaving = policy(&daemon.config.residency)
        .make_room(&residents, bytes, now)
        .map_err(|no_room| {
            ServiceError::limit_exceeded(format!("{}: {no_room}", newcomer.name)).detail(|detail| {
                detail.limit = Some("residency.memory_budget_bytes".to_owned());
                detail.maximum = Some(no_room.budget);
                detail.actual = Some(bytes);
                detail.model = Some(newcomer.record.id.clone());
            })
        })?;
    for key in leaving {
        tracing::info!(target: "synapse.maintenance", lane = lanes[&key].name, "unloading a model to make room");
        load::unload_now(&lanes[&key], |_| true);
    }
    Ok(())
}

/// Unloads idle models now and then, until the daemon stops.
pub fn watch(daemon: &Arc<Daemon>) {
    let ttl = match daemon.config.residency.idle_ttl_secs {
        0 => return,
        seconds => Duration::from_secs(seconds),
    };
    let weak = Arc::downgrade(daemon);
    let stop = daemon.tasks.stopping().clone();
    let sweep = daemon.tasks.spawn("residency", async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(SWEEP.min(ttl)) => {}
            }
            let Some(daemon) = weak.upgrade() else { return };
            let (lanes, residents, now) = residents(&daemon);
            for key in policy(&daemon.config.residency).idle(&residents, now) {
                tracing::info!(target: "synapse.maintenance", lane = lanes[&key].name, "unloading an idle model");
                // A failure is a stopping daemon.
                let _ = load::unload(&daemon, &lanes[&key]).await;
            }
        }
    });
    drop(sweep);
}

/// The loaded models as the policy sees them. Times count back from `now`.
fn residents(daemon: &Daemon) -> (BTreeMap<usize, Arc<Lane>>, Vec<Resident<usize>>, Tick) {
    let origin = daemon.started;
    let tick = |at: Instant| Tick(u64::try_from(at.saturating_duration_since(origin).as_nanos()).unwrap_or(u64::MAX));
    let now = Instant::now();
    let mut lanes = BTreeMap::new();
    let mut list = Vec::new();
    for (key, lane) in daemon.lanes.all().into_iter().enumerate() {
        let place = lane.place();
        let (loaded, since) = (place.loaded.clone(), place.since);
        drop(place);
        let Some(loaded) = loaded else { continue };
        let load = loaded.executor.load();
        list.push(Resident {
            key,
            bytes: loaded.model.memory_bytes,
            pinned: daemon
                .config
                .preload_models
                .iter()
                .any(|model| *model == lane.record.id || *model == lane.name),
            leased: load.running + load.interactive_waiting + load.bulk_waiting > 0,
            loaded: tick(since),
            last_used: tick(now.checked_sub(lane.unused()).unwrap_or(since)),
        });
        lanes.insert(key, lane);
    }
    (lanes, list, tick(now))
}
