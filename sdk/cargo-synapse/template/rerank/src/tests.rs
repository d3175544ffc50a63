//! The engine on the SDK's own host: the same objects and checks as in a real one, without a daemon.

use std::path::Path;

use synapse_plugin_sdk::{
    prelude::*,
    testing::{FakeCall, FakeHost, Reranking, runtime_config},
};

/// The model of this project.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/model/table.txt");

fn loaded(model: &Path) -> Result<Reranking, Error> {
    let settings = runtime_config("table", "f32");
    Reranking::load(
        &super::plugin(),
        FakeHost::new(),
        &[("weights", model)],
        &settings,
    )
}

/// The bits of known scores: when this fails, the identity's version must rise, or the change go. The sums of squares
/// of row 0 and of the products of rows 0 and 1, over 128 squared, are exact in f32.
#[test]
fn the_bits_are_those_of_version_1() {
    let model = loaded(Path::new(MODEL)).expect("loads");
    let scores = model
        .score(
            &FakeCall::new(1),
            &[(&[0], &[0]), (&[0], &[1]), (&[], &[1])],
        )
        .expect("scores");
    assert_eq!(scores, [61941.0 / 16384.0, -13433.0 / 16384.0, 0.0]);
}

/// A pair's score does not depend on its neighbours, and comes in the order of the input (PC-30, PC-31).
#[test]
fn alone_and_in_a_batch_are_equal() {
    let model = loaded(Path::new(MODEL)).expect("loads");
    let pairs: [(&[i32], &[i32]); 3] = [
        (&[2, 17], &[3, 4]),
        (&[5], &[6, 7, 8]),
        (&[2, 99, 98], &[3]),
    ];
    let together = model.score(&FakeCall::new(2), &pairs).expect("scores");
    for (pair, score) in pairs.iter().zip(together) {
        assert_eq!(
            model.score(&FakeCall::new(1), &[*pair]).expect("scores"),
            [score]
        );
    }
}

/// A call ends where the host asks it to, and reports its progress by the rules (PC-40 to PC-43).
#[test]
fn a_call_gives_way_and_ends_when_asked() {
    let model = loaded(Path::new(MODEL)).expect("loads");
    let call = FakeCall::new(1).cancel_at(1);
    let error = model
        .score(&call, &[(&[1, 2], &[3])])
        .expect_err("is cancelled");
    assert_eq!(error.code, ErrorCode::CANCELLED);
    assert_eq!(call.violations(), Vec::<String>::new());
}

/// What is no table is refused, and nothing stays behind.
#[test]
fn another_file_is_refused() {
    let manifest = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    let error = loaded(manifest).map(|_| ()).expect_err("is no table");
    assert_eq!(error.code, ErrorCode::ARTIFACT_INVALID);
}
