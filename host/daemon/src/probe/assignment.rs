//! Which lane each kind of work of a model goes to, chosen from measured speeds and kept (CERT-13).
//!
//! State: none. Caller: `run.rs`, after the last lane of a probe. The order of preference is `core::route`'s. Not known
//! here: what one request demands of its lane.

use std::collections::BTreeSet;
use std::sync::Arc;

use synapse_core::route::{Knob, Measured, Workload, preference};

use crate::config;
use crate::lane::Lane;
use crate::rpc::error::ServiceError;
use crate::state::Daemon;
use crate::store::{AssignmentRow, Stamp};

/// Chooses for the models of the probed lanes, and keeps the choice.
///
/// # Errors
/// The store, or the daemon stops.
pub(super) async fn choose(daemon: &Arc<Daemon>, probed: &[Arc<Lane>]) -> Result<(), ServiceError> {
    let models: BTreeSet<&str> = probed.iter().map(|lane| lane.record.id.as_str()).collect();
    let mut rows = Vec::new();
    for model in models {
        let lanes = daemon.lanes_of(model);
        for workload in Workload::ALL {
            let measured: Vec<Option<Measured>> = lanes.iter().map(|lane| measured(daemon, lane, workload)).collect();
            let Some(lane) = first(knob(daemon.config.knob), &measured).and_then(|place| lanes.get(place)) else {
                continue;
            };
            rows.push(AssignmentRow {
                machine_profile_hash: daemon.certificates.key_of(lane).machine_profile_hash.clone(),
                model: model.to_owned(),
                workload: workload.as_str().to_owned(),
                knob: daemon.config.knob.as_str().to_owned(),
                lane: lane.name.clone(),
                stamp: Stamp::now(&daemon.certificates.machine().os_build, daemon.generation),
            });
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    let (store, certificates) = (daemon.store.clone(), daemon.certificates.clone());
    let kept = daemon.tasks.blocking("probe-assign", move || {
        store.put_assignments(rows)?;
        certificates.reload(&store)
    });
    Ok(kept.await??)
}

/// How fast a certified lane is at a kind of work that it may do: without the hot path it has no queries.
fn measured(daemon: &Daemon, lane: &Lane, workload: Workload) -> Option<Measured> {
    let certification = daemon.certificates.certification_of(lane);
    let may = match workload {
        Workload::Query => certification.hot_path(),
        _ => certification.is_certified(),
    };
    may.then(|| daemon.certificates.measured(lane, workload)).flatten()
}

/// The place of the preferred lane, where any was measured.
fn first(knob: Knob, lanes: &[Option<Measured>]) -> Option<usize> {
    let place = *preference(knob, lanes).first()?;
    lanes[place].map(|_| place)
}

const fn knob(knob: config::Knob) -> Knob {
    match knob {
        config::Knob::Performance => Knob::Performance,
        config::Knob::Balanced => Knob::Balanced,
        config::Knob::Quiet => Knob::Quiet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves CERT-13: what was not measured is given no work.
    #[test]
    fn work_goes_to_the_preferred_lane_that_was_measured() {
        let lane = |speed, threads| Some(Measured { speed, threads });
        for (lanes, place) in [
            (vec![None, lane(10.0, 1), lane(30.0, 1)], Some(2)),
            (vec![lane(10.0, 1), lane(11.0, 4)], Some(0)),
            (vec![None, None], None),
            (Vec::new(), None),
        ] {
            assert_eq!(first(Knob::Balanced, &lanes), place, "{lanes:?}");
        }
    }
}
