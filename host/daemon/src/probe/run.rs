//! The work of a probe's job: lane after lane, from the load to the row in the store.
//!
//! State: none; what is shown of a running probe is in [`super::Probes`]. Caller: `mod.rs`. Not known here: what is asked
//! of an engine, and what it takes to pass (`synapse-certify`).
//!
//! A lane's probe, step by step: a quarantine set aside for its trial; the model loaded; the plan driven to its end; the
//! verdict written, with the vectors and the times, in one write. Until that write nothing has changed: a probe that is
//! cancelled, or whose daemon dies, leaves every row as it was. A lane that failed gets a row too, without a level, which
//! keeps it closed (CERT-11).

use std::sync::Arc;
use std::time::Duration;

use synapse_certify::{Depth, KeptVectors, Observation, Options, Plan, References, Subject, Verdict};
use synapse_core::engine::Preempt;
use synapse_core::route::Level;
use synapse_core::schedule::Policy;
use synapse_wire::client::{Class, ErrorCode, JobResult, ProbeFindings, ProbeOutcome, ProbeState};

use super::calls::{self, Outcome};
use super::findings;
use super::{assignment, memory, pairs};
use crate::job::JobHandle;
use crate::lane::loaded::Loaded;
use crate::lane::{Lane, Standing, load};
use crate::rpc::error::ServiceError;
use crate::state::Daemon;
use crate::store::{CertificateKey, CertificateRow, PerformanceRow, Stamp};

/// The fact by which an engine says of a loaded model that it computes the items of a batch one after the other, and why.
const ONE_AT_A_TIME: &str = "one_at_a_time";
/// How often a model that leaves memory in the middle of its probe is loaded again.
const RELOADS: u32 = 3;

/// Probes `lanes` in order.
///
/// # Errors
/// The probe was cancelled, the daemon stops, or a row could not be written. Lanes that were done by then have their
/// rows.
pub(super) async fn run(daemon: Arc<Daemon>, lanes: Vec<Arc<Lane>>, job: JobHandle) -> Result<JobResult, ServiceError> {
    for (position, lane) in lanes.iter().enumerate() {
        daemon.probes.moved(job.id(), position, ProbeState::Running, None, None);
        match probe(&daemon, lane, &job).await {
            Ok(Probed { level: Some(level), .. }) => {
                let level = Some(level.as_str().to_owned());
                daemon
                    .probes
                    .moved(job.id(), position, ProbeState::Certified, level, None);
            }
            Ok(Probed { level: None, reason }) => {
                daemon
                    .probes
                    .moved(job.id(), position, ProbeState::Failed, None, reason);
            }
            Err(error) => {
                daemon.probes.dropped(job.id());
                return Err(error);
            }
        }
    }
    pairs::measure(&daemon, &lanes).await?;
    assignment::choose(&daemon, &lanes).await?;
    Ok(JobResult::Probe(ProbeOutcome {
        probed: daemon.probes.lanes(job.id().as_str()),
    }))
}

/// How a lane's probe ended.
struct Probed {
    /// The level of its certificate, if it got one.
    level: Option<Level>,
    /// Why it got none.
    reason: Option<String>,
}

/// Probes one lane and leaves memory as it was.
async fn probe(daemon: &Arc<Daemon>, lane: &Arc<Lane>, job: &JobHandle) -> Result<Probed, ServiceError> {
    let was_loaded = matches!(lane.standing(), Standing::Ready(_));
    let trial = Trial::begin(daemon, lane).await?;
    let found = measure(daemon, lane, job).await;
    let found = match found {
        Ok(verdict) => Ok(Found::Verdict(verdict)),
        Err(error) if is_finding(&error) => Ok(Found::Refused(error)),
        Err(error) => Err(error),
    };
    let outcome = match found {
        Ok(found) => keep(daemon, lane, found).await,
        Err(error) => Err(error),
    };
    trial
        .end(outcome.as_ref().is_ok_and(|probed| probed.level.is_some()))
        .await?;
    if !was_loaded {
        load::unload(daemon, lane).await?;
    }
    outcome
}

/// Whether an error says something of the lane: its files, its bundle or its engine refuse for good. What it says of the
/// machine or of the daemon (no memory, no disk, a stop) is no finding.
fn is_finding(error: &ServiceError) -> bool {
    let of_the_lane = matches!(
        error.code(),
        ErrorCode::ArtifactInvalid
            | ErrorCode::EngineCrashed
            | ErrorCode::PluginRefused
            | ErrorCode::ProbeRequired
            | ErrorCode::Unsupported
    );
    of_the_lane && error.class() == Class::Permanent
}

/// What a lane's probe found.
enum Found {
    /// The plan ran.
    Verdict(Box<Measured>),
    /// The model could not be loaded.
    Refused(ServiceError),
}

/// A verdict with what the daemon saw itself.
struct Measured {
    verdict: Verdict,
    cold_load_ms: u64,
    rss_bytes: Option<u64>,
}

/// Loads the lane and drives its plan to the end.
async fn measure(daemon: &Arc<Daemon>, lane: &Arc<Lane>, job: &JobHandle) -> Result<Box<Measured>, ServiceError> {
    let mut loaded = loaded(daemon, lane, job).await?;
    let cold_load_ms = u64::try_from(loaded.load_time.as_millis()).unwrap_or(u64::MAX);
    let options = Options {
        threads: daemon.threads_per_call,
        most_threads: daemon.most_threads.max(daemon.threads_per_call),
        call_time: call_time(load::preempt(lane, &loaded.engine)),
        depth: Depth::Full,
    };
    let mut plan = Plan::new(subject(daemon, lane, &loaded).await?, options)
        .map_err(|error| ServiceError::artifact_invalid(format!("{} cannot be probed: {error}", lane.name)))?;
    let phase = format!("{}:{}", lane.row.engine, lane.row.variant);
    let mut reloads = 0;
    while let Some(step) = plan.next() {
        let answer = loop {
            match calls::run(daemon, &loaded, &step, job.cancel()).await? {
                Outcome::Answer(output) => break Ok(output),
                Outcome::Lost(output) => break Err(output),
                Outcome::Left if reloads < RELOADS => {
                    reloads += 1;
                    loaded = self::loaded(daemon, lane, job).await?;
                }
                Outcome::Left => {
                    let message = format!("{} was unloaded {RELOADS} times during its probe; try again", lane.name);
                    return Err(ServiceError::model_loading(message));
                }
            }
        };
        let lost = answer.is_err();
        plan.answer(step.id, answer.unwrap_or_else(|output| output))
            .map_err(|error| ServiceError::internal(error.to_string()))?;
        if lost {
            break;
        }
        let (done, total) = plan.progress();
        job.progress(&phase, u64::from(done), Some(u64::from(total)), "steps");
    }
    let rss_bytes = memory::resident(&loaded);
    // Everything that was measured is weighed off the runtime's threads: that is arithmetic over many vectors.
    let observation = Observation { placement_share: None };
    let weighed = daemon.tasks.blocking("probe-verdict", move || plan.finish(observation));
    Ok(Box::new(Measured {
        verdict: weighed.await?,
        cold_load_ms,
        rss_bytes,
    }))
}

/// The most time of a call on a lane that cannot give way in the middle of it: half a quantum, so that a query that comes
/// meanwhile waits for less than bulk work would cost it, on a machine that is busier than it was at first too.
fn call_time(preempt: Preempt) -> Option<Duration> {
    (preempt == Preempt::Quantum).then(|| Duration::from_nanos(Policy::default().quantum_nanos / 2))
}

/// The lane's model, in memory.
async fn loaded(daemon: &Arc<Daemon>, lane: &Arc<Lane>, job: &JobHandle) -> Result<Arc<Loaded>, ServiceError> {
    load::run(Arc::clone(daemon), Arc::clone(lane), job.clone()).await?;
    lane.loaded().ok_or_else(|| {
        let message = format!("{} was unloaded before its probe could begin; try again", lane.name);
        ServiceError::model_loading(message)
    })
}

/// What the plan is made for. The record's file of independent results is read and checked anew for each probe.
async fn subject(daemon: &Arc<Daemon>, lane: &Lane, loaded: &Loaded) -> Result<Subject, ServiceError> {
    let (catalog, model) = (daemon.catalog(), lane.record.id.clone());
    let references = daemon.tasks.blocking("probe-references", move || -> Result<_, String> {
        let bytes = catalog.references(&model)?;
        let parse = |bytes: std::borrow::Cow<'_, [u8]>| References::parse(&bytes).map_err(|error| error.to_string());
        bytes.map(parse).transpose()
    });
    let references = references.await?.map_err(ServiceError::artifact_invalid)?;
    let own_words = loaded.model.extra.iter().find(|(key, _)| key == ONE_AT_A_TIME);
    Ok(Subject {
        record: lane.record.clone(),
        row: lane.row.clone(),
        f32_exact: lane.support.f32_exact,
        thread_invariant: lane.support.thread_invariant,
        // No engine of this version compiles for a device, so none has a share to report.
        reports_placement: false,
        one_at_a_time: own_words.map(|(_, words)| words.clone()),
        references,
    })
}

/// Writes what was found and lets everybody see it.
async fn keep(daemon: &Arc<Daemon>, lane: &Arc<Lane>, found: Found) -> Result<Probed, ServiceError> {
    let key = CertificateKey::clone(&daemon.certificates.key_of(lane));
    let stamp = Stamp::now(&daemon.certificates.machine().os_build, daemon.generation);
    let row = |level, hot_path, findings: &ProbeFindings| CertificateRow {
        key: key.clone(),
        lane: lane.name.clone(),
        model: lane.record.id.clone(),
        level,
        hot_path,
        verdict: findings.to_text(),
        stamp: stamp.clone(),
    };
    let (row, kept, times, probed) = match found {
        Found::Verdict(measured) => {
            let Measured { verdict, .. } = &*measured;
            let certified = verdict.is_certified();
            let level = certified.then_some(verdict.level);
            let kept = verdict.kept.as_ref().filter(|_| certified).map(KeptVectors::to_bytes);
            let times = if certified {
                times(daemon, lane, &key, &stamp, &measured)
            } else {
                Vec::new()
            };
            let findings = findings::of_verdict(verdict);
            let reason = (!certified).then(|| findings::why_failed(&findings));
            let row = row(level, verdict.hot_path(), &findings);
            (row, kept, times, Probed { level, reason })
        }
        Found::Refused(error) => {
            let reason = Some(error.message().to_owned());
            let row = row(None, false, &findings::of_failure(error.message()));
            (row, None, Vec::new(), Probed { level: None, reason })
        }
    };
    match &probed.reason {
        None => tracing::info!(target: "synapse", lane = lane.name, level = ?probed.level, "certified"),
        Some(reason) => tracing::warn!(target: "synapse", lane = lane.name, "not certified: {reason}"),
    }
    let (store, certificates) = (daemon.store.clone(), daemon.certificates.clone());
    let kept = daemon.tasks.blocking("probe-keep", move || {
        store.put_certificate(row, kept, times)?;
        certificates.reload(&store)
    });
    kept.await??;
    Ok(probed)
}

/// The rows of the times, one for each kind of work.
fn times(
    daemon: &Daemon,
    lane: &Lane,
    key: &CertificateKey,
    stamp: &Stamp,
    measured: &Measured,
) -> Vec<PerformanceRow> {
    findings::speeds(&measured.verdict.perf)
        .into_iter()
        .map(|speed| PerformanceRow {
            key: key.clone(),
            workload: speed.workload.as_str().to_owned(),
            knob: daemon.config.knob.as_str().to_owned(),
            lane: lane.name.clone(),
            model: lane.record.id.clone(),
            speed: speed.tokens_per_second,
            threads: daemon.threads_per_call,
            figures: findings::figures(&speed, measured.cold_load_ms, measured.rss_bytes).to_text(),
            stamp: stamp.clone(),
        })
        .collect()
}

/// A quarantine that is set aside while its lane is probed. Requests are refused meanwhile, as before; a kill of the
/// daemon leaves the quarantine in the store.
struct Trial {
    daemon: Arc<Daemon>,
    lane: Arc<Lane>,
    quarantined: bool,
}

impl Trial {
    /// Sets the lane's quarantine aside, if it has one.
    async fn begin(daemon: &Arc<Daemon>, lane: &Arc<Lane>) -> Result<Self, ServiceError> {
        let begun = daemon.tasks.blocking("probe-trial", {
            let (daemon, lane) = (Arc::clone(daemon), Arc::clone(lane));
            move || daemon.plugins.begin_trial(&lane.bundle, &lane.name)
        });
        let trial = Self {
            daemon: Arc::clone(daemon),
            lane: Arc::clone(lane),
            quarantined: begun.await??,
        };
        if trial.quarantined {
            lane.set_on_trial(true);
            // What the lane still holds was given up with the quarantine: the load is a real one.
            load::unload(daemon, lane).await?;
        }
        Ok(trial)
    }

    /// Lifts the quarantine for good where the lane has `passed`, or puts it back.
    async fn end(mut self, passed: bool) -> Result<(), ServiceError> {
        if !std::mem::take(&mut self.quarantined) {
            return Ok(());
        }
        self.lane.set_on_trial(false);
        let ended = self.daemon.tasks.blocking("probe-trial", {
            let (daemon, lane) = (Arc::clone(&self.daemon), Arc::clone(&self.lane));
            move || daemon.plugins.end_trial(&lane.bundle, &lane.name, passed)
        });
        Ok(ended.await??)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // A probe that ended without a verdict has acquitted nobody.
        if self.quarantined {
            self.lane.set_on_trial(false);
            // That the store cannot be asked leaves the quarantine as it is there.
            let _ = self.daemon.plugins.end_trial(&self.lane.bundle, &self.lane.name, false);
        }
    }
}
