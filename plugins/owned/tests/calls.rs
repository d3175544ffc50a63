//! Calls as a host makes them: arguments, checkpoints, cancellation, two at once, through the plugin's shims.

mod zoo;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};

use synapse_owned::artifact::modules::Pooling;
use synapse_owned::engine::{Batch, CallControl, Engine};
use synapse_owned::error::OwnedError;
use synapse_owned::kernel::isa::{Isa, Kernels};
use zoo::{bits, embed, load, try_embed};

/// The slowest kernels, so that small models have many checkpoints.
fn portable() -> Engine {
    Engine::new(Kernels::of(Isa::Portable).unwrap())
}

#[test]
fn bad_arguments_are_refused_by_name() {
    let engine = Engine::new(Kernels::preferred());
    let model = load(&engine, "bert-embed", "model.safetensors", Pooling::Mean, 16);
    let run = |ids: &[i32], offsets: &[u32], type_ids: &[i32], out: usize| {
        let mut out = vec![0.0; out];
        let batch = Batch { ids, offsets, type_ids };
        engine
            .embed(&model, batch, 1, &zoo::GoOn, &mut out)
            .map_err(|error| error.to_string())
    };
    type Case<'c> = (&'c [i32], &'c [u32], &'c [i32], usize, &'c str);
    let cases: [Case<'_>; 11] = [
        (&[1], &[], &[], 48, "offsets are empty"),
        (&[1], &[1, 1], &[], 48, "offsets run from 1"),
        (&[1], &[0, 2], &[], 48, "to the 1 tokens"),
        (&[1, 2], &[0, 0, 2], &[], 96, "item 0 spans [0, 0]"),
        (&[1, 2], &[0, 2, 1, 2], &[], 144, "item 1 spans [2, 1]"),
        (&[900], &[0, 1], &[], 48, "id 900"),
        (&[-1], &[0, 1], &[], 48, "id -1"),
        (&[1], &[0, 1], &[2], 48, "segment 2"),
        (&[1], &[0, 1], &[0, 0], 48, "2 segment ids for 1 tokens"),
        (&[1], &[0, 1], &[], 47, "output has 47 values"),
        (
            &[1; 17],
            &[0, 17],
            &[],
            48,
            "item 0 has 17 tokens, the model takes at most 16",
        ),
    ];
    for (ids, offsets, type_ids, out, words) in cases {
        let message = run(ids, offsets, type_ids, out).unwrap_err();
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(run(&[], &[0], &[], 0), Ok(()));
    assert_eq!(run(&[1; 16], &[0, 16], &[], 48), Ok(()));
}

#[test]
fn load_settings_are_bounded_by_the_model() {
    let engine = Engine::new(Kernels::preferred());
    let files = zoo::files(
        zoo::fixture("bert-embed/config.json"),
        zoo::fixture("bert-embed/model.safetensors"),
    );
    let message = |max_tokens| {
        let settings = zoo::settings(Pooling::Mean, max_tokens);
        engine
            .load(&files, settings, &mut |_, _| true)
            .err()
            .map(|error| error.to_string())
    };
    assert_eq!(message(128), None);
    assert!(message(129).unwrap().contains("max_tokens: 129"));
    assert!(message(0).unwrap().contains("max_tokens: 0"));
    assert!(Pooling::from_setting("max").is_err());
    let cancelled = engine.load(&files, zoo::settings(Pooling::Mean, 128), &mut |_, _| false);
    assert!(matches!(cancelled, Err(OwnedError::Cancelled)));
}

/// Counts checkpoints and checks their order; cancels at the given one.
#[derive(Default)]
struct Scripted {
    seen: AtomicU64,
    last: Mutex<(u64, u64)>,
    cancel_at: Option<u64>,
}

impl CallControl for Scripted {
    fn checkpoint(&self, done: u64, total: u64) -> bool {
        let mut last = self.last.lock().unwrap();
        assert!(done >= last.0 && done <= total, "{done} of {total} after {last:?}");
        assert!(
            last.1 == 0 || last.1 == total,
            "the total changed from {} to {total}",
            last.1
        );
        *last = (done, total);
        self.seen.fetch_add(1, Ordering::SeqCst) + 1 != self.cancel_at.unwrap_or(u64::MAX)
    }
}

const LONG: [i32; 128] = [7; 128];

#[test]
fn checkpoints_advance_and_cancellation_ends_the_call_on_any_threads() {
    let engine = portable();
    let model = load(&engine, "bert-embed", "model.safetensors", Pooling::Mean, 128);
    let items = [LONG.as_slice(); 12];
    for threads in [1, 2, 4] {
        for items in [&items[..1], &items[..]] {
            let control = Scripted::default();
            try_embed(&engine, &model, items, threads, &control).unwrap();
            let seen = control.seen.load(Ordering::SeqCst);
            // 128 tokens are about 15 M operations, 30 milliseconds' worth for these kernels.
            let expected = 10 * items.len() as u64 / threads as u64;
            assert!(seen >= expected, "{seen} checkpoints of rank 0 on {threads} threads");
            for cancel_at in [1, seen / 2 + 1] {
                let control = Scripted {
                    cancel_at: Some(cancel_at),
                    ..Scripted::default()
                };
                let outcome = try_embed(&engine, &model, items, threads, &control);
                if control.seen.load(Ordering::SeqCst) >= cancel_at {
                    assert!(matches!(outcome, Err(OwnedError::Cancelled)));
                    assert_eq!(
                        control.seen.load(Ordering::SeqCst),
                        cancel_at,
                        "checkpoints after a cancel"
                    );
                }
            }
        }
    }
    assert_eq!(embed(&engine, &model, &[&[1, 2]], 2).len(), 1);
}

/// A bulk call that the host holds at a checkpoint.
struct Held {
    entered: Mutex<mpsc::Sender<()>>,
    release: Mutex<mpsc::Receiver<()>>,
    first: AtomicBool,
}

impl CallControl for Held {
    fn checkpoint(&self, _done: u64, _total: u64) -> bool {
        if self.first.swap(false, Ordering::SeqCst) {
            self.entered.lock().unwrap().send(()).unwrap();
            // A test that failed meanwhile has dropped its side: go on then, too.
            let _ = self.release.lock().unwrap().recv();
        }
        true
    }
}

/// The contract's rule: parking one call never starves another.
#[test]
fn a_query_is_served_while_a_bulk_call_is_held() {
    let engine = portable();
    let model = load(&engine, "bert-embed", "model.safetensors", Pooling::Mean, 128);
    let query: &[i32] = &[2, 540, 253, 3];
    let expected_query = bits(&embed(&engine, &model, &[query], 1));
    let expected_bulk = bits(&embed(&engine, &model, &[LONG.as_slice(); 8], 1));
    for threads in [1, 2, 3] {
        for bulk in [1, 8] {
            let (entered, is_in) = mpsc::channel();
            let (let_go, release) = mpsc::channel();
            let held = Held {
                entered: Mutex::new(entered),
                release: Mutex::new(release),
                first: AtomicBool::new(true),
            };
            std::thread::scope(|scope| {
                let let_go = let_go;
                let call = scope.spawn(|| try_embed(&engine, &model, &vec![LONG.as_slice(); bulk], threads, &held));
                is_in.recv().unwrap();
                for _ in 0..3 {
                    assert_eq!(bits(&embed(&engine, &model, &[query], threads)), expected_query);
                }
                let_go.send(()).unwrap();
                assert_eq!(bits(&call.join().unwrap().unwrap()), expected_bulk[..bulk]);
            });
        }
    }
}

#[test]
fn calls_on_one_model_run_side_by_side() {
    let engine = Engine::new(Kernels::preferred());
    let model = load(&engine, "bert-embed", "model.safetensors", Pooling::Mean, 128);
    let oracle = zoo::oracle("bert-embed");
    let items: Vec<&[i32]> = oracle.items.iter().map(|item| item.ids.as_slice()).collect();
    let expected = bits(&embed(&engine, &model, &items, 1));
    std::thread::scope(|scope| {
        for threads in [1, 2, 2, 3] {
            let (engine, model, items, expected) = (&engine, &model, &items, &expected);
            scope.spawn(move || {
                for _ in 0..20 {
                    assert_eq!(&bits(&embed(engine, model, items, threads)), expected);
                }
            });
        }
    });
    assert!(engine.scratch_bytes() > 0);
    drop(model);
    assert_eq!(engine.scratch_bytes(), 0);
    engine.stop_threads();
}

/// Panics at its first checkpoint: the host's callback must not, but a bug of ours on rank 0 would look like it.
struct Panics;

impl CallControl for Panics {
    fn checkpoint(&self, _done: u64, _total: u64) -> bool {
        panic!("injected")
    }
}

#[test]
fn a_panic_ends_the_call_and_not_the_engine() {
    let engine = portable();
    let model = load(&engine, "bert-embed", "model.safetensors", Pooling::Mean, 128);
    for threads in [1, 2, 3] {
        for items in [1, 9] {
            let items = vec![LONG.as_slice(); items];
            let call = std::panic::AssertUnwindSafe(|| try_embed(&engine, &model, &items, threads, &Panics));
            assert!(std::panic::catch_unwind(call).is_err());
            assert_eq!(embed(&engine, &model, &[&[1, 2, 3]], threads).len(), 1);
        }
    }
}
