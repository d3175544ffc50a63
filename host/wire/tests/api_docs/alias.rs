//! The examples of the operations on aliases, and of `models.explain`.

use synapse_wire::client::*;

use crate::examples::{FINGERPRINT, LANE, MODEL};
use crate::{Documented, document};

/// Another lane of the default model, and its space.
const OTHER_LANE: &str = "all-minilm-l6-v2@llama-cpp:f16";
const OTHER: &str = "c84a1f6e20d7395b8e4c0a71d9f35b2867e1d0c4b9a58f3e2d716c0a5b9f8e31";

fn alias(state: AliasState) -> AliasEntry {
    AliasEntry {
        fingerprints: [FINGERPRINT.to_owned(), OTHER.to_owned()],
        lanes: ["all-minilm-l6-v2@ort:f32".to_owned(), OTHER_LANE.to_owned()],
        model: MODEL.to_owned(),
        dims: 384,
        normalized: true,
        origin: AliasOrigin::Builtin,
        state,
        declared: 1,
        valid_from: (state != AliasState::Declared).then_some(2),
        valid_to: (state == AliasState::Retracted).then_some(3),
        end_reason: (state == AliasState::Retracted).then(|| "drift in the new version".to_owned()),
    }
}

fn table(table_epoch: u64, state: AliasState) -> AliasesResult {
    AliasesResult {
        table_epoch,
        aliases: vec![alias(state)],
    }
}

/// `models.explain` and `aliases.*`.
pub fn operations() -> Vec<Documented> {
    let lane = |name: &str, bar: Option<&str>, reason: &str| ExplainedLane {
        lane: name.to_owned(),
        serves: bar.is_none(),
        bar: bar.map(str::to_owned),
        reason: reason.to_owned(),
        fingerprint: Some(if bar.is_none() { FINGERPRINT } else { OTHER }.to_owned()),
        level: bar.is_none().then(|| "reference".to_owned()),
        tokens_per_second: bar.is_none().then_some(11_050.0),
    };
    vec![
        document::<ModelsExplain>(vec![(
            "Which lane would serve a query",
            ModelsExplainParams::new(MODEL),
            ModelsExplainResult {
                model: MODEL.to_owned(),
                workload: Workload::Query,
                knob: "balanced".to_owned(),
                table_epoch: 2,
                serves: Some(LANE.to_owned()),
                refusal: None,
                lanes: vec![
                    lane(LANE, None, "it serves"),
                    lane(
                        OTHER_LANE,
                        Some("unprobed"),
                        "all-minilm-l6-v2@llama-cpp:f16 has no certificate on this machine; `synapse probe run \
                         all-minilm-l6-v2@llama-cpp:f16` makes one",
                    ),
                ],
            },
        )]),
        document::<AliasesList>(vec![(
            "The pair of day one",
            AliasesListParams::default(),
            table(2, AliasState::Certified),
        )]),
        document::<AliasesDeclare>(vec![(
            "Two lanes of one model",
            AliasesDeclareParams {
                lanes: ["all-minilm-l6-v2@ort:f32".to_owned(), OTHER_LANE.to_owned()],
            },
            table(1, AliasState::Declared),
        )]),
        document::<AliasesRetract>(vec![(
            "They have drifted apart",
            AliasesRetractParams {
                pair: [FINGERPRINT.to_owned(), OTHER.to_owned()],
                reason: Some("drift in the new version".to_owned()),
            },
            table(3, AliasState::Retracted),
        )]),
        document::<AliasesCheckIndex>(vec![
            (
                "An index of one space",
                AliasesCheckIndexParams {
                    index_fingerprint: FINGERPRINT.to_owned(),
                    provenance_set: vec![FINGERPRINT.to_owned()],
                },
                AliasesCheckIndexResult {
                    table_epoch: 3,
                    verdict: IndexState::Valid,
                    retracted_pair: None,
                    rebuild_target: None,
                    blocking_reason: None,
                },
            ),
            (
                "An index that holds both sides of a retracted pair",
                AliasesCheckIndexParams {
                    index_fingerprint: FINGERPRINT.to_owned(),
                    provenance_set: vec![FINGERPRINT.to_owned(), OTHER.to_owned()],
                },
                AliasesCheckIndexResult {
                    table_epoch: 3,
                    verdict: IndexState::MigrationRequired,
                    retracted_pair: Some([FINGERPRINT.to_owned(), OTHER.to_owned()]),
                    rebuild_target: Some(FINGERPRINT.to_owned()),
                    blocking_reason: None,
                },
            ),
        ]),
    ]
}
