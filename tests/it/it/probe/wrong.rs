//! Engines whose numbers are wrong: the gate that each fails at, through a whole daemon. The lane stays closed.

use serde_json::json;

use super::{closed, failed, lane, place_of_referenced_toy, probe, pull};

const TOY: &str = "toy@reference:f32";

/// One fault of numbers, and the gate that has to see it. Others may see it too.
const FAULTS: [(&str, &str); 11] = [
    ("mask_ignored", "shape_invariance"),
    ("padding_leaked", "shape_invariance"),
    ("order_dependent", "shape_invariance"),
    ("cls_for_mean", "quality"),
    ("last_off_by_one", "quality"),
    ("drift", "quality"),
    ("nan_shape", "finite"),
    ("nan", "finite"),
    ("infinite", "finite"),
    ("half_written", "finite"),
    ("thread_dependent", "thread_invariance"),
];

/// Proves CERT-01, CERT-02, CERT-11, FPR-04, TEST-40: each wrong engine fails at its gate and serves nothing; the same
/// engine without the fault is certified against references that are not ours.
#[test]
fn each_wrong_engine_fails_at_its_gate_and_stays_closed() {
    for (fault, expected) in [("none", "")].into_iter().chain(FAULTS) {
        let place = place_of_referenced_toy(&[("fault", fault)]);
        let daemon = place.start();
        let mut client = daemon.connect();
        pull(&mut client, &place, "toy");
        let view = probe(&mut client, &[TOY]);
        let report = lane(&mut client, TOY);
        if fault == "none" {
            assert_eq!(
                (&report["verdict"], &report["level"]),
                (&json!("certified"), &json!("reference")),
                "{report}"
            );
            assert_eq!(failed(&report), [""; 0]);
        } else {
            assert_eq!(view["result"]["probed"][0]["state"], "failed", "{fault}: {view}");
            assert!(failed(&report).contains(&expected), "{fault}: {:?}", failed(&report));
            let reason = report["reason"].as_str().expect("words");
            assert!(reason.contains(expected), "{fault}: {reason}");
            closed(&mut client, "toy", "probe_required");
        }
        assert!(daemon.stop().success());
    }
}
