//! `health`: how the daemon does, from memory only (HEALTH-01).
//!
//! State: none; the serving paths stamp what is shown here, and ages are computed when health is asked (HEALTH-03).
//! Callers: `rpc/dispatch.rs`. Not known here: engines, files, the database: nothing on this path calls one
//! (HEALTH-05).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use synapse_wire::client::{
    HealthParams, HealthResult, HealthStatus, JobCounts, JobKind, LaneHealth, ModelHealth, ModelState, PluginCounts,
    PluginStatus, WorkerHealth,
};

use super::model_view::certification;
use super::{RequestContext, ServiceError, plugins_list};
use crate::lane::LaneSnapshot;
use crate::lane::state::LaneState;
use crate::plugins::renewal::{NEEDS_RESTART, Waiting};
use crate::state::Daemon;

/// Everything that health is made of, read from memory.
struct Sample {
    uptime: Duration,
    lanes: Vec<LaneSnapshot>,
    /// Models whose load is queued or running.
    loading: Vec<String>,
    jobs: JobCounts,
    plugins: PluginCounts,
    /// Bundles that have a version for the next start, and others whose new files are not taken.
    waiting: (Vec<String>, Vec<String>),
    /// The search for bundles is over.
    scanned: bool,
    /// Why the database takes no writes any more.
    store_stopped: Option<String>,
}

/// Answers `health`.
///
/// # Errors
/// None.
pub async fn run(daemon: &Arc<Daemon>, _: &RequestContext, _: HealthParams) -> Result<HealthResult, ServiceError> {
    let mut health = assemble(Sample {
        uptime: daemon.started.elapsed(),
        lanes: daemon.lanes.snapshots(),
        loading: daemon.jobs.live_models(JobKind::ModelLoad),
        jobs: daemon.jobs.counts(),
        plugins: PluginCounts {
            pending: narrow(daemon.plugins.waiting().len()),
            ..count(daemon.plugins.bundles().iter().map(plugins_list::status))
        },
        waiting: waiting(&daemon.plugins.waiting()),
        scanned: daemon.plugins.is_scanned(),
        store_stopped: daemon.store.stopped().map(str::to_owned),
    });
    for row in &mut health.lanes {
        let lane = daemon.lanes.find(&row.lane);
        row.certification = lane.map(|lane| certification(daemon.certificates.certification_of(&lane)));
    }
    Ok(health)
}

/// The bundles whose new files wait for the next start, and those whose new files are not taken at all.
fn waiting(waiting: &BTreeMap<String, Waiting>) -> (Vec<String>, Vec<String>) {
    let ids = |restart: bool| {
        let some = waiting
            .iter()
            .filter(|(_, row)| (row.reason == NEEDS_RESTART) == restart);
        some.map(|(id, _)| id.clone()).collect()
    };
    (ids(true), ids(false))
}

/// Bundles by what became of them.
fn count(statuses: impl Iterator<Item = PluginStatus>) -> PluginCounts {
    let mut counts = PluginCounts::default();
    for status in statuses {
        let counted = match status {
            PluginStatus::Ready => &mut counts.ready,
            PluginStatus::NeedsWorker => &mut counts.needs_worker,
            PluginStatus::Refused => &mut counts.refused,
            PluginStatus::Quarantined => &mut counts.quarantined,
            PluginStatus::Shadowed => &mut counts.shadowed,
            PluginStatus::Disabled => &mut counts.disabled,
            // Only what another version said could be unknown.
            PluginStatus::Unknown => continue,
        };
        *counted += 1;
    }
    counts
}

/// The state of a model on a lane, in the client's words.
const fn model_state(state: LaneState) -> ModelState {
    match state {
        LaneState::Idle | LaneState::Unloading => ModelState::Installed,
        LaneState::Loading => ModelState::Loading,
        LaneState::Ready => ModelState::Loaded,
        LaneState::Failed => ModelState::Failed,
    }
}

/// How much a state says about a model that has several lanes: the best lane speaks for it.
const fn rank(state: ModelState) -> u8 {
    match state {
        ModelState::Loaded => 4,
        ModelState::Loading => 3,
        ModelState::Failed => 2,
        ModelState::Installed => 1,
        ModelState::NotInstalled | ModelState::Unknown => 0,
    }
}

fn narrow(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Puts the answer together.
fn assemble(sample: Sample) -> HealthResult {
    let mut models: BTreeMap<String, ModelState> = BTreeMap::new();
    let mut note = |model: &str, state: ModelState| {
        let known = models.entry(model.to_owned()).or_insert(state);
        if rank(state) > rank(*known) {
            *known = state;
        }
    };
    for lane in &sample.lanes {
        note(&lane.model, model_state(lane.state));
    }
    for model in &sample.loading {
        // A lane's name begins with its model's.
        note(model.split('@').next().unwrap_or(model), ModelState::Loading);
    }
    let (status, text) = verdict(&sample, &models);
    HealthResult {
        status,
        text,
        uptime_ms: u64::try_from(sample.uptime.as_millis()).unwrap_or(u64::MAX),
        lanes: sample.lanes.iter().map(lane_health).collect(),
        models: models
            .into_iter()
            .map(|(id, state)| ModelHealth { id, state })
            .collect(),
        plugins: sample.plugins,
        jobs: sample.jobs,
        store_ok: sample.store_stopped.is_none(),
        workers: sample.lanes.iter().filter_map(worker_health).collect(),
    }
}

fn lane_health(lane: &LaneSnapshot) -> LaneHealth {
    LaneHealth {
        lane: lane.name.clone(),
        state: model_state(lane.state),
        queued_interactive: narrow(lane.load.interactive_waiting),
        queued_bulk: narrow(lane.load.bulk_waiting),
        in_flight: narrow(lane.load.running),
        age_ms: u64::try_from(lane.age.as_millis()).unwrap_or(u64::MAX),
        certification: None,
    }
}

/// The worker of a lane, as its supervisor stamped it (HEALTH-07).
fn worker_health(lane: &LaneSnapshot) -> Option<WorkerHealth> {
    let worker = lane.worker.as_ref()?;
    Some(WorkerHealth {
        worker: lane.name.clone(),
        alive: worker.pid.is_some(),
        age_ms: u64::try_from(worker.stamped.elapsed().as_millis()).unwrap_or(u64::MAX),
    })
}

/// Lanes whose workers used up their crash budget.
fn degraded(sample: &Sample) -> Vec<&str> {
    let lanes = sample.lanes.iter();
    lanes
        .filter(|lane| lane.worker.as_ref().is_some_and(|worker| worker.degraded))
        .map(|lane| lane.name.as_str())
        .collect()
}

/// The summary and its words: the gravest matter first (HEALTH-04 for a load in progress).
fn verdict(sample: &Sample, models: &BTreeMap<String, ModelState>) -> (HealthStatus, String) {
    let in_state = |wanted: ModelState| -> Vec<&str> {
        models
            .iter()
            .filter(|(_, state)| **state == wanted)
            .map(|(model, _)| model.as_str())
            .collect()
    };
    let (failed, loading) = (in_state(ModelState::Failed), in_state(ModelState::Loading));
    let degraded = degraded(sample);
    let text = if let Some(reason) = &sample.store_stopped {
        format!("the database takes no writes: {reason}; start the daemon again")
    } else if !failed.is_empty() {
        format!("failed {}", failed.join(", "))
    } else if !degraded.is_empty() {
        format!("degraded {}: its workers keep dying", degraded.join(", "))
    } else if !loading.is_empty() {
        format!("loading {}", loading.join(", "))
    } else if !sample.scanned {
        String::from("looking for engine bundles")
    } else {
        return (HealthStatus::Ok, contented(&sample.waiting));
    };
    (HealthStatus::Degraded, text)
}

/// The words of a daemon that does well: new files that wait are no ailment, and not to be overlooked.
fn contented((restart, refused): &(Vec<String>, Vec<String>)) -> String {
    let mut words = String::from("ok");
    for (ids, what) in [
        (restart, "waits for a restart: a new version of"),
        (refused, "new files are not taken, the old ones serve:"),
    ] {
        if !ids.is_empty() {
            words.push_str(&format!("; {what} {}", ids.join(", ")));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use synapse_core::digest::sha256;

    use super::*;
    use std::time::Instant;

    use crate::schedule::ExecutorLoad;
    use crate::worker::supervisor::Status;

    fn sample() -> Sample {
        Sample {
            uptime: Duration::from_millis(1_500),
            lanes: Vec::new(),
            loading: Vec::new(),
            jobs: JobCounts::default(),
            plugins: PluginCounts::default(),
            waiting: Default::default(),
            scanned: true,
            store_stopped: None,
        }
    }

    fn lane(model: &str, engine: &str, state: LaneState) -> LaneSnapshot {
        LaneSnapshot {
            name: format!("{model}@{engine}:f32"),
            model: model.to_owned(),
            state,
            load: ExecutorLoad {
                interactive_waiting: 1,
                bulk_waiting: 2,
                running: 3,
                bytes: 4,
            },
            failure: None,
            age: Duration::from_millis(77),
            fingerprint: sha256(b"f"),
            worker: None,
        }
    }

    /// Proves HEALTH-07, WSUP-18.
    #[test]
    fn a_lane_whose_workers_keep_dying_is_degraded() {
        let with = |degraded| {
            let worker = Status {
                generation: 7,
                pid: None,
                deaths: 6,
                degraded,
                last_fault: None,
                rss_mb: None,
                stamped: Instant::now(),
            };
            let lane = LaneSnapshot {
                worker: Some(worker),
                ..lane("m", "owned", LaneState::Ready)
            };
            let lanes = vec![lane];
            assemble(Sample { lanes, ..sample() })
        };
        assert_eq!(with(false).status, HealthStatus::Ok);
        let health = with(true);
        assert_eq!(health.status, HealthStatus::Degraded);
        assert!(health.text.starts_with("degraded m@owned:f32"), "{}", health.text);
        let row = &health.workers[0];
        assert_eq!((row.worker.as_str(), row.alive), ("m@owned:f32", false));
    }

    #[test]
    fn nothing_wrong_is_ok() {
        let health = assemble(sample());
        assert_eq!(
            (health.status, health.text.as_str(), health.uptime_ms),
            (HealthStatus::Ok, "ok", 1_500)
        );
        assert!(health.store_ok);
    }

    /// Proves HEALTH-04.
    #[test]
    fn a_load_in_progress_is_degraded_and_named() {
        let by_job = assemble(Sample {
            loading: vec![String::from("m@owned:f32")],
            ..sample()
        });
        assert_eq!(
            (by_job.status, by_job.text.as_str()),
            (HealthStatus::Degraded, "loading m")
        );
        let by_lane = assemble(Sample {
            lanes: vec![lane("m", "owned", LaneState::Loading)],
            ..sample()
        });
        assert_eq!(by_lane.text, "loading m");
    }

    /// Proves HEALTH-02.
    #[test]
    fn lanes_and_models_are_shown_with_their_queues_and_ages() {
        let lanes = vec![
            lane("m", "owned", LaneState::Ready),
            lane("m", "ort", LaneState::Failed),
            lane("n", "owned", LaneState::Idle),
        ];
        let health = assemble(Sample { lanes, ..sample() });
        let row = &health.lanes[0];
        assert_eq!(
            (row.lane.as_str(), row.state, row.age_ms),
            ("m@owned:f32", ModelState::Loaded, 77)
        );
        assert_eq!((row.queued_interactive, row.queued_bulk, row.in_flight), (1, 2, 3));
        let states: Vec<_> = health
            .models
            .iter()
            .map(|model| (model.id.as_str(), model.state))
            .collect();
        assert_eq!(
            states,
            [("m", ModelState::Loaded), ("n", ModelState::Installed)],
            "the best lane speaks"
        );
        assert_eq!(health.status, HealthStatus::Ok);
    }

    #[test]
    fn the_gravest_matter_is_said_first() {
        let worse = |sample: Sample| assemble(sample).text;
        let failed = || vec![lane("m", "owned", LaneState::Failed)];
        assert_eq!(
            worse(Sample {
                scanned: false,
                ..sample()
            }),
            "looking for engine bundles"
        );
        assert_eq!(
            worse(Sample {
                lanes: failed(),
                loading: vec![String::from("n")],
                ..sample()
            }),
            "failed m"
        );
        let health = assemble(Sample {
            lanes: failed(),
            store_stopped: Some(String::from("disk full")),
            ..sample()
        });
        assert!(health.text.contains("disk full") && !health.store_ok);
    }

    #[test]
    fn bundles_are_counted_by_what_became_of_them() {
        let statuses = [
            PluginStatus::Ready,
            PluginStatus::NeedsWorker,
            PluginStatus::Ready,
            PluginStatus::Quarantined,
        ];
        let counts = count(statuses.into_iter());
        assert_eq!(
            (counts.ready, counts.needs_worker, counts.quarantined, counts.refused),
            (2, 1, 1, 0)
        );
    }
}
