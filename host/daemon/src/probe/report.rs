//! The report of everything that was measured on this machine (API-22).
//!
//! State: none; rows are read from the store, so a report survives a restart. Caller: `probe.report`. A lane shows the
//! row of exactly what it is now; where there is none, the newest row of the same name, marked stale (CERT-08, CERT-09).
//! Not known here: how rows are found by requests (`lane/certification.rs`), JSON's form.

use std::collections::BTreeMap;
use std::sync::Arc;

use synapse_catalog::Kind;
use synapse_core::alias::{AliasRow, Standing};
use synapse_wire::client::{
    CertificateKey as WireKey, ErrorCode, GateReport, LaneReport, LaneVerdict, MachineFact, MachineReport, ModelKind,
    PairReport, PerformanceFigures, PerformanceRow as WirePerformance, ProbeFindings, ProbeReportResult, ProbedAt,
    WorkloadAssignment,
};

use super::subjects::{self, Candidate};
use crate::lane::Lane;
use crate::rpc::error::ServiceError;
use crate::state::Daemon;
use crate::store::{AssignmentRow, CertificateKey, CertificateRow, PairMeasure, PerformanceRow, StoreError};

/// Every row that was ever written.
struct Rows {
    certificates: Vec<CertificateRow>,
    performance: Vec<PerformanceRow>,
    assignments: Vec<AssignmentRow>,
    pairs: Vec<PairMeasure>,
}

/// The report on these models and lanes; without names, on every model that is installed.
///
/// # Errors
/// A name is wrong, or the store cannot be read.
pub async fn report(daemon: &Arc<Daemon>, names: &[String]) -> Result<ProbeReportResult, ServiceError> {
    daemon.plugins.scanned().await;
    daemon.refresh_installed().await?;
    let (store, machine_hash) = (daemon.store.clone(), daemon.aliases.machine().to_owned());
    let read = daemon
        .tasks
        .blocking("probe-report", move || -> Result<Rows, StoreError> {
            Ok(Rows {
                certificates: store.certificates()?,
                performance: store.performance()?,
                assignments: store.assignments()?,
                pairs: store.alias_measures(machine_hash)?,
            })
        });
    let rows = read.await??;
    let mut candidates: Vec<Candidate> = Vec::new();
    for selector in subjects::selectors(daemon, names)? {
        for candidate in subjects::candidates(daemon, &selector) {
            if !candidates.iter().any(|known| known.row == candidate.row) {
                candidates.push(candidate);
            }
        }
    }
    let lanes: Vec<LaneReport> = candidates
        .iter()
        .map(|candidate| match &candidate.lane {
            Ok(lane) => lane_report(&rows, lane, &daemon.certificates.key_of(lane)),
            Err(obstacle) => unusable(candidate, obstacle),
        })
        .collect();
    let shown = |lane: &str| lanes.iter().any(|report| report.lane == lane);
    Ok(ProbeReportResult {
        machine: machine(daemon),
        knob: daemon.config.knob.as_str().to_owned(),
        threads: daemon.threads_per_call,
        pairs: daemon
            .aliases
            .table()
            .rows()
            .iter()
            .filter(|row| row.standing() != Standing::Retracted && row.lanes.iter().any(|lane| shown(lane)))
            .filter_map(|row| pair_report(&rows, row))
            .collect(),
        assignments: assignments(daemon, &rows, &lanes),
        lanes,
    })
}

/// The machine in one line, and fact by fact.
fn machine(daemon: &Daemon) -> MachineReport {
    let facts = daemon.certificates.machine();
    let fact = |name: &str, value: String| MachineFact {
        name: name.to_owned(),
        value,
    };
    let none = |texts: &[String]| match texts {
        [] => "none".to_owned(),
        texts => texts.join(" "),
    };
    let memory = facts
        .memory_bytes
        .map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string());
    let mut listed = vec![
        fact("os_build", facts.os_build.clone()),
        fact("cpu_features", none(&facts.cpu_features)),
        fact("gpus", none(&facts.gpus)),
        fact("memory_bytes", memory),
    ];
    let drivers = daemon.certificates.drivers();
    listed.extend(drivers.iter().map(|(name, version)| fact(name, version.clone())));
    listed.extend(facts.chip.clone().map(|chip| fact("chip", chip)));
    let gib = facts.memory_bytes.map_or(0, |bytes| bytes.div_ceil(1 << 30));
    let devices = match facts.gpus.as_slice() {
        [] => "no GPU".to_owned(),
        gpus => gpus.join(", "),
    };
    MachineReport {
        words: format!(
            "{}, {}, {gib} GiB, {devices}",
            facts.os_build,
            none(&facts.cpu_features)
        ),
        hash: daemon.aliases.machine().to_owned(),
        facts: listed,
    }
}

/// A lane that cannot serve here, whatever was measured.
fn unusable(candidate: &Candidate, obstacle: &str) -> LaneReport {
    LaneReport {
        lane: candidate.row.lane_name(),
        model: candidate.record.id.clone(),
        kind: kind(candidate.record.kind),
        verdict: LaneVerdict::Unusable,
        level: None,
        hot_path: None,
        certification_stale: false,
        performance_stale: false,
        blocking_reason: None,
        reason: Some(obstacle.to_owned()),
        key: None,
        probed: None,
        findings: None,
        performance: Vec::new(),
    }
}

const fn kind(kind: Kind) -> ModelKind {
    match kind {
        Kind::Embed => ModelKind::Embed,
        Kind::Rerank => ModelKind::Rerank,
        Kind::Generate => ModelKind::Generate,
    }
}

fn lane_report(rows: &Rows, lane: &Lane, key: &CertificateKey) -> LaneReport {
    let mine = || rows.certificates.iter().filter(|row| row.lane == lane.name);
    let current = mine().find(|row| row.key == *key);
    let earlier = mine().rfind(|row| row.level.is_some());
    let times = |of: &CertificateKey| -> Vec<WirePerformance> {
        rows.performance
            .iter()
            .filter(|row| row.key == *of)
            .map(performance)
            .collect()
    };
    let (verdict, shown, reason) = match (current, earlier) {
        (Some(row), _) if row.level.is_some() => (LaneVerdict::Certified, Some(row), None),
        (Some(row), _) => (LaneVerdict::Failed, Some(row), Some(why_failed(row))),
        (None, Some(row)) => (LaneVerdict::Stale, Some(row), Some(why_stale(&row.key, key))),
        (None, None) => {
            let words = format!("it was never probed as it is; `synapse probe run {}`", lane.name);
            (LaneVerdict::Unprobed, None, Some(words))
        }
    };
    let performance = shown.map_or_else(Vec::new, |row| times(&row.key));
    let stale = verdict == LaneVerdict::Stale;
    LaneReport {
        lane: lane.name.clone(),
        model: lane.record.id.clone(),
        kind: kind(lane.record.kind),
        level: shown
            .filter(|_| !stale)
            .and_then(|row| row.level)
            .map(|level| level.as_str().to_owned()),
        hot_path: current.filter(|row| row.level.is_some()).map(|row| row.hot_path),
        certification_stale: stale,
        performance_stale: stale && !performance.is_empty(),
        blocking_reason: (verdict != LaneVerdict::Certified).then_some(ErrorCode::ProbeRequired),
        reason,
        key: Some(wire_key(lane, key)),
        probed: shown.map(|row| ProbedAt {
            at_ms: row.stamp.created_ms,
            machine_profile_hash: row.key.machine_profile_hash.clone(),
            os_build: row.stamp.os_build.clone(),
            module_generation: row.stamp.module_generation,
        }),
        findings: shown.map(findings),
        performance,
        verdict,
    }
}

fn wire_key(lane: &Lane, key: &CertificateKey) -> WireKey {
    WireKey {
        machine_profile_hash: key.machine_profile_hash.clone(),
        numeric_profile_id: key.numeric_profile_id.clone(),
        model_digest: lane.profile.model_digest.to_string(),
        bundle_digest: key.bundle_digest.clone(),
        engine_version: key.engine_version.clone(),
        runtime_config_hash: key.runtime_config_hash.clone(),
    }
}

/// What was kept; a text that cannot be read says so itself.
fn findings(row: &CertificateRow) -> ProbeFindings {
    ProbeFindings::from_text(&row.verdict).unwrap_or_else(|error| ProbeFindings {
        failure: Some(error.to_string()),
        ..ProbeFindings::default()
    })
}

fn why_failed(row: &CertificateRow) -> String {
    super::findings::why_failed(&findings(row))
}

/// Which parts of the key are other ones than were probed.
fn why_stale(probed: &CertificateKey, now: &CertificateKey) -> String {
    let parts = [
        ("the machine", probed.machine_profile_hash != now.machine_profile_hash),
        (
            "the model or its arithmetic",
            probed.numeric_profile_id != now.numeric_profile_id,
        ),
        ("the engine's version", probed.engine_version != now.engine_version),
        ("the bundle", probed.bundle_digest != now.bundle_digest),
        (
            "the engine's settings",
            probed.runtime_config_hash != now.runtime_config_hash,
        ),
    ];
    let changed: Vec<&str> = parts
        .iter()
        .filter(|(_, changed)| *changed)
        .map(|(name, _)| *name)
        .collect();
    format!("since its probe {} changed; probe it again", changed.join(", "))
}

fn performance(row: &PerformanceRow) -> WirePerformance {
    WirePerformance {
        workload: row.workload.clone(),
        knob: row.knob.clone(),
        threads: row.threads,
        tokens_per_second: row.speed,
        measured_ms: row.stamp.created_ms,
        figures: PerformanceFigures::from_text(&row.figures).unwrap_or_default(),
    }
}

/// The comparison of a pair on this machine; none where it was never made.
fn pair_report(rows: &Rows, row: &AliasRow) -> Option<PairReport> {
    let measure = rows.pairs.iter().find(|measure| measure.pair == row.pair)?;
    Some(PairReport {
        lanes: row.lanes.clone(),
        fingerprints: [row.pair.first().to_string(), row.pair.second().to_string()],
        dims: row.shape.dims,
        normalized: row.shape.normalized,
        holds: row.standing() == Standing::Certified,
        gate: GateReport::from_text(&measure.figures).ok()?,
    })
}

/// The last choice for each kind of work that was made on this machine under this knob for the lanes shown, where the lane
/// still serves. A choice is written under its lane's profile, so one for another engine does not overwrite it.
fn assignments(daemon: &Daemon, rows: &Rows, lanes: &[LaneReport]) -> Vec<WorkloadAssignment> {
    let knob = daemon.config.knob.as_str();
    let holds = |row: &&AssignmentRow| {
        row.knob == knob
            && lanes.iter().any(|lane| {
                let here = lane.key.as_ref().map(|key| &key.machine_profile_hash) == Some(&row.machine_profile_hash);
                here && lane.lane == row.lane && lane.verdict == LaneVerdict::Certified
            })
    };
    let mut last: BTreeMap<(&str, &str), &AssignmentRow> = BTreeMap::new();
    for row in rows.assignments.iter().filter(holds) {
        let chosen = last.entry((&row.model, &row.workload)).or_insert(row);
        if row.stamp.created_ms > chosen.stamp.created_ms {
            *chosen = row;
        }
    }
    last.into_values()
        .map(|row| WorkloadAssignment {
            model: row.model.clone(),
            workload: row.workload.clone(),
            knob: row.knob.clone(),
            lane: row.lane.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_named() {
        let probed = CertificateKey {
            machine_profile_hash: "m".to_owned(),
            numeric_profile_id: "n".to_owned(),
            bundle_digest: "b".to_owned(),
            engine_version: "1.0.0".to_owned(),
            runtime_config_hash: "c".to_owned(),
        };
        let now = CertificateKey {
            bundle_digest: "other".to_owned(),
            engine_version: "1.0.1".to_owned(),
            ..probed.clone()
        };
        let words = "since its probe the engine's version, the bundle changed; probe it again";
        assert_eq!(why_stale(&probed, &now), words);
    }
}
