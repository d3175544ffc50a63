//! Reports as a daemon would give them, for tests.

use synapse_client::wire::{
    CertificateKey, ErrorCode, Figure, GateOutcome, GateReport, LaneReport, LaneVerdict, MachineFact, MachineReport,
    ModelKind, PairReport, PerformanceFigures, PerformancePoint, PerformanceRow, ProbeFindings, ProbeReportResult,
    ProbedAt, ShapeReport, SizeClass, WorkloadAssignment,
};

const HASH: &str = "5d2c9a7e1f04b8836a1d90c2e7f35b4862d1a0c9b7e84f3d2a615c08e9f7b341";

/// A report of these lanes.
pub fn report(lanes: Vec<LaneReport>) -> ProbeReportResult {
    ProbeReportResult {
        machine: MachineReport {
            words: "Linux 6.1.0 on x86_64, 2 cores (avx2, fma), 16 GiB".to_owned(),
            hash: HASH.to_owned(),
            facts: vec![MachineFact {
                name: "os_build".to_owned(),
                value: "6.1.0".to_owned(),
            }],
        },
        knob: "balanced".to_owned(),
        threads: 1,
        lanes,
        pairs: Vec::new(),
        assignments: Vec::new(),
    }
}

/// A lane with this verdict.
pub fn lane(engine: &str, verdict: LaneVerdict) -> LaneReport {
    let certified = verdict == LaneVerdict::Certified;
    let stale = verdict == LaneVerdict::Stale;
    LaneReport {
        lane: format!("m@{engine}:f32"),
        model: "m".to_owned(),
        kind: ModelKind::Embed,
        verdict,
        level: certified.then(|| "reference".to_owned()),
        hot_path: certified.then_some(true),
        certification_stale: stale,
        performance_stale: stale,
        blocking_reason: (!certified).then_some(ErrorCode::ProbeRequired),
        reason: match verdict {
            LaneVerdict::Certified => None,
            LaneVerdict::Failed => Some("quality: max_abs 0.001 must be <= 0.0001".to_owned()),
            _ => Some("the bundle is another one than the one that was probed; run `synapse probe run`".to_owned()),
        },
        key: Some(CertificateKey {
            machine_profile_hash: HASH.to_owned(),
            numeric_profile_id: HASH.to_owned(),
            model_digest: HASH.to_owned(),
            bundle_digest: HASH.to_owned(),
            engine_version: "0.1.0".to_owned(),
            runtime_config_hash: HASH.to_owned(),
        }),
        probed: certified.then(|| ProbedAt {
            at_ms: 1_796_000_000_000,
            machine_profile_hash: HASH.to_owned(),
            os_build: "6.1.0".to_owned(),
            module_generation: 7,
        }),
        findings: (certified || verdict == LaneVerdict::Failed).then(|| findings(certified)),
        performance: if certified {
            vec![times("query"), times("batch")]
        } else {
            Vec::new()
        },
    }
}

fn findings(certified: bool) -> ProbeFindings {
    let figure = |name: &str, measured, at_least, at_most| Figure {
        name: name.to_owned(),
        measured: Some(measured),
        at_least,
        at_most,
    };
    let gate = |gate: &str, outcome, figures, note: &str| GateReport {
        gate: gate.to_owned(),
        outcome,
        required: gate != "query_batch",
        figures,
        note: note.to_owned(),
    };
    let quality = if certified {
        GateOutcome::Passed
    } else {
        GateOutcome::Failed
    };
    let max_abs = if certified { 4.1e-7 } else { 1e-3 };
    ProbeFindings {
        gates: vec![
            gate(
                "quality",
                quality,
                vec![
                    figure("mean_cosine", 1.0, Some(0.999), None),
                    figure("min_cosine", 0.999_999, Some(0.99), None),
                    figure("max_abs", max_abs, None, Some(1e-4)),
                ],
                "the worst is text 17 of 201",
            ),
            gate(
                "thread_invariance",
                GateOutcome::NotApplicable,
                Vec::new(),
                "the engine does not claim it",
            ),
        ],
        shapes: vec![ShapeReport {
            items: 8,
            longest: 128,
            tokens: 1024,
            composition: "even".to_owned(),
            max_abs: Some(2e-7),
            min_cosine: Some(1.0),
        }],
        classes: vec![SizeClass {
            name: None,
            from_items: 1,
            to_items: 64,
        }],
        batching: None,
        corpus: Some(HASH.to_owned()),
        references: Some(HASH.to_owned()),
        failure: None,
    }
}

fn times(workload: &str) -> PerformanceRow {
    let point = |name: &str, tokens: f64, p50_ms: f64| PerformancePoint {
        name: name.to_owned(),
        samples: 30,
        tokens_per_call: tokens,
        p50_ms,
        p95_ms: p50_ms * 1.5,
        tokens_per_second: tokens / p50_ms * 1e3,
    };
    let points = match workload {
        "query" => vec![point("query_8", 8.0, 2.0), point("query_32", 32.0, 6.25)],
        _ => vec![point("batch_8", 256.0, 50.0), point("batch_32", 1024.0, 200.0)],
    };
    PerformanceRow {
        workload: workload.to_owned(),
        knob: "balanced".to_owned(),
        threads: 1,
        tokens_per_second: 5120.0,
        measured_ms: 1_796_000_000_000,
        figures: PerformanceFigures {
            cold_load_ms: 180,
            rss_bytes: Some(310 << 20),
            points,
        },
    }
}

/// A report with every part: a certified pair, a lane of each other verdict.
pub fn whole() -> ProbeReportResult {
    let mut lanes = vec![
        lane("owned", LaneVerdict::Certified),
        lane("ort", LaneVerdict::Certified),
        lane("reference", LaneVerdict::Failed),
        lane("llama-cpp", LaneVerdict::Stale),
    ];
    lanes[1].hot_path = Some(false);
    let gate = lanes[0].findings.as_ref().map(|findings| findings.gates[0].clone());
    ProbeReportResult {
        pairs: gate
            .into_iter()
            .map(|gate| PairReport {
                lanes: ["m@owned:f32".to_owned(), "m@ort:f32".to_owned()],
                fingerprints: [HASH.to_owned(), HASH.to_owned()],
                dims: 384,
                normalized: true,
                holds: true,
                gate: GateReport {
                    gate: "alias".to_owned(),
                    note: String::new(),
                    ..gate
                },
            })
            .collect(),
        assignments: vec![WorkloadAssignment {
            model: "m".to_owned(),
            workload: "query".to_owned(),
            knob: "balanced".to_owned(),
            lane: "m@owned:f32".to_owned(),
        }],
        ..report(lanes)
    }
}
