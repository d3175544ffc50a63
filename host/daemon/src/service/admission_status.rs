//! `admission.status`: how busy the lanes are, for advice only (API-25, SCHED-01).
//!
//! State: none; each lane is one look at the scheduler. Callers: `rpc/dispatch.rs`. Not known here: engines, files, the
//! database: nothing on this path waits for one. No request is decided by what is shown here.

use std::sync::Arc;

use synapse_core::route::{Certification, Workload};
use synapse_core::schedule::{LaneStatus, QuantumTimes};
use synapse_wire::client::{
    self as wire, AdmissionStatusParams, AdmissionStatusResult, LaneAdmission, PermitStatus, QueueStatus,
};

use super::{RequestContext, ServiceError};
use crate::lane::Lane;
use crate::state::Daemon;

/// Answers `admission.status`.
///
/// # Errors
/// None.
pub async fn run(
    daemon: &Arc<Daemon>,
    _: &RequestContext,
    _: AdmissionStatusParams,
) -> Result<AdmissionStatusResult, ServiceError> {
    let lanes = daemon.lanes.all();
    let loaded = lanes.iter().filter_map(|lane| {
        let status = lane.loaded()?.executor.status()?;
        Some(LaneAdmission {
            certification_stale: is_stale(daemon.certificates.certification_of(lane)),
            performance_stale: performance_is_stale(daemon, lane),
            ..shown(&lane.name, &status)
        })
    });
    let permits = daemon.compute.permits();
    let narrow = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    Ok(AdmissionStatusResult {
        lanes: loaded.collect(),
        permits: PermitStatus {
            total: narrow(permits.pool),
            bulk: narrow(permits.bulk),
            others: narrow(permits.others),
        },
    })
}

/// Whether what a probe found is of another machine, bundle, model or configuration; `None` where there was no probe.
const fn is_stale(certification: Certification) -> Option<bool> {
    match certification {
        Certification::Stale => Some(true),
        Certification::Certified { .. } | Certification::Failed => Some(false),
        Certification::Unprobed => None,
    }
}

/// The same of what was measured. Figures are kept with the certificate, under the same key.
fn performance_is_stale(daemon: &Daemon, lane: &Lane) -> Option<bool> {
    let mut measured = Workload::ALL.into_iter();
    if measured.any(|workload| daemon.certificates.measured(lane, workload).is_some()) {
        return Some(false);
    }
    is_stale(daemon.certificates.certification_of(lane)).filter(|stale| *stale)
}

/// A lane as clients see it, without what its probe says.
fn shown(name: &str, status: &LaneStatus) -> LaneAdmission {
    let (load, limits) = (&status.load, &status.limits);
    LaneAdmission {
        lane: name.to_owned(),
        interactive: queue(
            load.interactive_waiting,
            limits.interactive_depth,
            load.interactive_running,
        ),
        bulk: queue(load.bulk_waiting, limits.bulk_depth, load.bulk_running),
        control: queue(load.control_waiting, limits.control_depth, load.control_running),
        bytes: load.bytes,
        byte_budget: limits.bytes,
        meeting_deadlines: status.meeting_deadlines,
        start_delay_p50_us: status.start_delay_nanos.map(micros),
        quantum_tokens: status.quantum_units,
        quantum_us: status.quantum_times.map(times),
        bulk_tokens_per_s: status.units_per_second,
        certification_stale: None,
        performance_stale: None,
    }
}

fn queue(waiting: usize, max_waiting: usize, running: usize) -> QueueStatus {
    QueueStatus {
        waiting: count(waiting),
        max_waiting: count(max_waiting),
        running: count(running),
    }
}

fn times(times: QuantumTimes) -> wire::QuantumTimes {
    wire::QuantumTimes {
        p50: micros(times.p50_nanos),
        p95: micros(times.p95_nanos),
        count: count(times.count),
    }
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

const fn micros(nanos: u64) -> u64 {
    nanos.div_ceil(1_000)
}
