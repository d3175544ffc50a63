//! The engine on the SDK's own host: the same objects and checks as in a real one, without a daemon.

use std::path::Path;

use synapse_plugin_sdk::{
    prelude::*,
    testing::{Embedding, FakeCall, FakeHost, runtime_config},
};

/// The model of this project.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/model/table.txt");

fn loaded(model: &Path) -> Result<Embedding, Error> {
    let settings = runtime_config("table", "f32");
    Embedding::load(
        &super::plugin(),
        FakeHost::new(),
        &[("weights", model)],
        &settings,
    )
}

/// The bits of known vectors: when this fails, the identity's version must rise, or the change go.
/// Row 0 of the table begins with 70 20 -71, row 1 with -41 -107 -34.
#[test]
fn the_bits_are_those_of_version_1() {
    let model = loaded(Path::new(MODEL)).expect("loads");
    assert_eq!(model.model().dims, 16);
    let vectors = model
        .embed(&FakeCall::new(1), &[&[0], &[0, 1], &[128, -127]])
        .expect("embeds");
    assert_eq!(vectors[0][..3], [70.0 / 128.0, 20.0 / 128.0, -71.0 / 128.0]);
    assert_eq!(
        vectors[1][..3],
        [29.0 / 256.0, -87.0 / 256.0, -105.0 / 256.0]
    );
    // Ids beyond the table, and negative ones, wrap around.
    assert_eq!(vectors[2], vectors[1]);
}

/// An item's vector does not depend on its neighbours, nor on the method that computed it (PC-30).
#[test]
fn alone_in_a_batch_and_as_one_are_equal() {
    let model = loaded(Path::new(MODEL)).expect("loads");
    let items: [&[i32]; 3] = [&[2, 17, 3], &[5], &[2, 99, 98, 97, 3]];
    let together = model.embed(&FakeCall::new(2), &items).expect("embeds");
    for (item, vector) in items.iter().zip(&together) {
        assert_eq!(
            model.embed(&FakeCall::new(1), &[item]).expect("embeds")[0],
            *vector
        );
        assert_eq!(
            model.embed_one(&FakeCall::new(1), item).expect("embeds"),
            *vector
        );
    }
}

/// A call ends where the host asks it to, and reports its progress by the rules (PC-40 to PC-43).
#[test]
fn a_call_gives_way_and_ends_when_asked() {
    let model = loaded(Path::new(MODEL)).expect("loads");
    let call = FakeCall::new(1).cancel_at(1);
    let error = model.embed(&call, &[&[1, 2, 3]]).expect_err("is cancelled");
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
