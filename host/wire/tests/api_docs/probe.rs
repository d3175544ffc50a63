//! The examples of the probe's operations.

use synapse_wire::client::*;

use crate::examples::{BUNDLE, FILES, FINGERPRINT, LANE, MODEL, PROFILE, accepted, job};
use crate::{Documented, document};

/// The machine of the examples.
const MACHINE: &str = "a41f0c9d7be35286f1d4073c9ab85e26d0c7f3b1482e95a60d7c3be1f8a29054";
/// The settings of the examples' engine.
const SETTINGS: &str = "37b0d95c1fe8a24607c3d19b5ea8f20463d1c7b95e0fa8246d3b71c05e9f8a42";

/// `probe.start`, `probe.status`, `probe.report`.
pub fn operations() -> Vec<Documented> {
    vec![
        document::<ProbeStart>(vec![(
            "Every lane of the default model",
            ProbeStartParams {
                models: vec![MODEL.to_owned()],
            },
            accepted(),
        )]),
        document::<ProbeStatus>(vec![(
            "While it runs",
            ProbeStatusParams::default(),
            ProbeStatusResult {
                job: Some(job(JobKind::Probe, JobState::Running)),
                lanes: vec![ProbedLane {
                    lane: LANE.to_owned(),
                    state: ProbeState::Running,
                    level: None,
                    reason: None,
                }],
            },
        )]),
        document::<ProbeReport>(vec![("After a probe", ProbeReportParams::default(), report())]),
    ]
}

fn report() -> ProbeReportResult {
    let fact = |name: &str, value: &str| MachineFact {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    ProbeReportResult {
        machine: MachineReport {
            words: "linux debian 12 6.1.0-28-amd64, avx2 fma, 16g of memory".to_owned(),
            hash: MACHINE.to_owned(),
            facts: vec![
                fact("os_build", "linux debian 12 6.1.0-28-amd64"),
                fact("cpu_features", "avx2 fma"),
                fact("ram_class", "16g"),
            ],
        },
        knob: "balanced".to_owned(),
        threads: 1,
        lanes: vec![lane()],
        pairs: Vec::new(),
        assignments: vec![WorkloadAssignment {
            model: MODEL.to_owned(),
            workload: "query".to_owned(),
            knob: "balanced".to_owned(),
            lane: LANE.to_owned(),
        }],
    }
}

fn lane() -> LaneReport {
    LaneReport {
        lane: LANE.to_owned(),
        model: MODEL.to_owned(),
        kind: ModelKind::Embed,
        verdict: LaneVerdict::Certified,
        level: Some("reference".to_owned()),
        hot_path: Some(true),
        certification_stale: false,
        performance_stale: false,
        blocking_reason: None,
        reason: None,
        key: Some(CertificateKey {
            machine_profile_hash: MACHINE.to_owned(),
            numeric_profile_id: PROFILE.to_owned(),
            model_digest: FILES.to_owned(),
            bundle_digest: BUNDLE.to_owned(),
            engine_version: "0.1.0".to_owned(),
            runtime_config_hash: SETTINGS.to_owned(),
        }),
        probed: Some(ProbedAt {
            at_ms: 1_764_423_060_000,
            machine_profile_hash: MACHINE.to_owned(),
            os_build: "linux debian 12 6.1.0-28-amd64".to_owned(),
            module_generation: 1_764_423_000,
        }),
        findings: Some(ProbeFindings {
            gates: vec![GateReport {
                gate: "quality".to_owned(),
                outcome: GateOutcome::Passed,
                required: true,
                figures: vec![Figure {
                    name: "min_cosine".to_owned(),
                    measured: Some(0.999_999_8),
                    at_least: Some(0.99),
                    at_most: None,
                }],
                note: String::new(),
            }],
            shapes: vec![ShapeReport {
                items: 8,
                longest: 128,
                tokens: 1024,
                composition: "even".to_owned(),
                max_abs: Some(2.5e-7),
                min_cosine: Some(1.0),
            }],
            classes: vec![SizeClass {
                name: None,
                from_items: 1,
                to_items: 64,
            }],
            batching: None,
            corpus: Some(FINGERPRINT.to_owned()),
            references: Some(FILES.to_owned()),
            failure: None,
        }),
        performance: vec![PerformanceRow {
            workload: "query".to_owned(),
            knob: "balanced".to_owned(),
            threads: 1,
            tokens_per_second: 5_120.0,
            measured_ms: 1_764_423_060_000,
            figures: PerformanceFigures {
                cold_load_ms: 180,
                rss_bytes: Some(325_058_560),
                points: vec![PerformancePoint {
                    name: "query_32".to_owned(),
                    samples: 30,
                    tokens_per_call: 32.0,
                    p50_ms: 6.25,
                    p95_ms: 7.5,
                    tokens_per_second: 5_120.0,
                }],
            },
        }],
    }
}
