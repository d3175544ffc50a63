//! What the SDK keeps for the author, tried through the trait objects that a host gets.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use synapse_plugin_sdk::{
    api::{
        EmbedEngineObject, EngineState, ExtensionHeader, ExtensionRef, ExtensionTable, KeyValue, ModelRef, VectorsOut,
        abi_stable::std_types::RSlice, ext::grammar::GrammarTable,
    },
    prelude::*,
    testing::{FakeCall, FakeHost, artifact, runtime_config},
};

/// Counts what is alive.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An engine whose every method can panic: `where` says in which.
struct Touchy {
    place: &'static str,
    _alive: Alive,
    count: Arc<AtomicUsize>,
}

impl Touchy {
    fn touch(&self, place: &str) {
        assert!(self.place != place, "touched in {place}");
    }
}

struct Model {
    _alive: Alive,
    panics: bool,
}

impl Drop for Model {
    fn drop(&mut self) {
        assert!(!self.panics, "touched in drop");
    }
}

impl Embedder for Touchy {
    type Model = Model;
    const EXTRA_KEYS: &'static [&'static str] = &["known"];

    fn load(&self, call: &Call<'_>, _: Artifact<'_>, _: RuntimeConfig<'_>) -> Result<Loaded<Model>, Error> {
        self.touch("load");
        assert!(call.remaining().is_none(), "this call has no deadline");
        let model = Model {
            _alive: Alive::new(&self.count),
            panics: self.place == "drop",
        };
        Ok(Loaded::new(model, 2).max_tokens(4).memory_bytes(100))
    }

    fn embed(&self, call: &Call<'_>, _: &Model, batch: TokenBatch<'_>, out: &mut [f32]) -> Result<(), Error> {
        self.touch("embed_batch");
        for rows in call.row_blocks(batch.len(), 2) {
            let rows = rows?;
            out[2 * rows.start..2 * rows.end].fill(1.0);
        }
        Ok(())
    }

    fn embed_one(&self, _: &Call<'_>, _: &Model, _: &[i32], out: &mut [f32]) -> Result<(), Error> {
        self.touch("embed_one");
        out.fill(2.0);
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        self.touch("memory");
        7
    }

    fn extension(&self, _: &str) -> Option<ExtensionRef<'_>> {
        self.touch("extension");
        None
    }
}

struct Rig {
    engine: EmbedEngineObject,
    count: Arc<AtomicUsize>,
    host: FakeHost,
}

fn rig(place: &'static str) -> Rig {
    let count = Arc::new(AtomicUsize::new(0));
    let shared = Arc::clone(&count);
    let plugin = Plugin::new(
        Identity::new("touchy", "3")
            .build_flag("b")
            .build_flag("a")
            .build_flag("b"),
    )
    .supports(Support::embed("bytes", "f32"))
    .embedder(move |_| {
        Ok(Touchy {
            place,
            _alive: Alive::new(&shared),
            count: Arc::clone(&shared),
        })
    });
    let host = FakeHost::new();
    Rig {
        engine: plugin.open_embed(host.host(), "{}").expect("opens").expect("offered"),
        count,
        host,
    }
}

impl Rig {
    fn load(&self) -> Result<ModelRef, synapse_plugin_sdk::api::EngineError> {
        let files = artifact(&[]).expect("no file");
        let loaded = self
            .engine
            .load(&FakeCall::new(1).context(), &files, &runtime_config("bytes", "f32"));
        loaded.into_result().map(|loaded| {
            assert_eq!((loaded.dims, loaded.max_tokens, loaded.max_concurrency), (2, 4, 2));
            loaded.model
        })
    }

    fn embed(
        &self,
        call: &FakeCall,
        model: ModelRef,
        ids: &[i32],
        offsets: &[u32],
        types: &[i32],
        out: usize,
    ) -> Result<Vec<f32>, synapse_plugin_sdk::api::EngineError> {
        let mut values = vec![0.0; out];
        let batch = synapse_plugin_sdk::api::TokenBatch::new(ids, offsets, types);
        let done = self
            .engine
            .embed_batch(&call.context(), model, &batch, VectorsOut::new(&mut values, 2));
        done.into_result().map(|()| values)
    }

    /// Calls every method and gives the names of those that failed with PANIC.
    fn failing(&self) -> Vec<&'static str> {
        let model = self.load();
        let handle = model.clone().unwrap_or(ModelRef(1));
        let call = FakeCall::new(1);
        let mut row = [0.0; 2];
        let one = self.engine.embed_one(
            &call.context(),
            handle,
            RSlice::from_slice(&[1]),
            VectorsOut::new(&mut row, 2),
        );
        let results = [
            ("load", model.err()),
            ("embed_batch", self.embed(&call, handle, &[1], &[0, 1], &[], 2).err()),
            ("embed_one", one.err().into_option()),
            ("memory", None),
            ("extension", None),
        ];
        let memory = self.engine.memory();
        let _ = self.engine.extension("any".into());
        let mut failed: Vec<&str> = results
            .iter()
            .filter(|(_, error)| error.as_ref().is_some_and(|error| error.code == ErrorCode::PANIC))
            .map(|(name, _)| *name)
            .collect();
        if memory.extra.iter().any(|pair| pair.key == "error") {
            failed.push("memory");
        }
        failed
    }
}

/// A panic in any method is contained, marks the engine, and keeps its destructors from running.
#[test]
fn a_panic_in_any_method_is_contained() {
    assert_eq!(rig("nowhere").failing(), Vec::<&str>::new());
    // From the first panic on every later method answers PANIC too.
    assert_eq!(rig("load").failing(), ["load", "embed_batch", "embed_one", "memory"]);
    assert_eq!(rig("embed_batch").failing(), ["embed_batch", "memory"]);
    assert_eq!(rig("embed_one").failing(), ["embed_batch", "embed_one", "memory"]);
    assert_eq!(rig("memory").failing(), ["memory"]);
    for place in ["memory", "extension"] {
        let rig = rig(place);
        rig.failing();
        let error = rig.load().unwrap_err();
        assert_eq!((error.code, error.state), (ErrorCode::PANIC, EngineState::ENGINE_BAD));
        assert!(
            rig.host
                .logs()
                .iter()
                .any(|(level, line)| *level == LogLevel::ERROR && line.contains("panic in"))
        );
        let count = Arc::clone(&rig.count);
        let before = count.load(Ordering::SeqCst);
        drop(rig);
        assert_eq!(
            count.load(Ordering::SeqCst),
            before,
            "a bad engine's destructors do not run"
        );
    }
}

/// Models are dropped at unload, engines with their last models when the object goes, and a panic there is contained.
#[test]
fn models_and_engines_are_dropped_once() {
    let good = rig("nowhere");
    let (first, second) = (good.load().expect("loads"), good.load().expect("loads"));
    assert_ne!(first, second);
    assert_eq!(
        (good.count.load(Ordering::SeqCst), good.engine.memory().model_bytes),
        (3, 200)
    );
    good.engine.unload(first).unwrap();
    assert_eq!(
        (good.count.load(Ordering::SeqCst), good.engine.memory().model_bytes),
        (2, 100)
    );
    assert_eq!(good.engine.unload(first).unwrap_err().code, ErrorCode::INVALID_ARGUMENT);
    assert_ne!(good.load().expect("loads"), first, "a handle is never given twice");
    let count = Arc::clone(&good.count);
    drop(good);
    assert_eq!(count.load(Ordering::SeqCst), 0);

    let bad = rig("drop");
    let model = bad.load().expect("loads");
    let error = bad.engine.unload(model).unwrap_err();
    assert_eq!((error.code, error.state), (ErrorCode::PANIC, EngineState::ENGINE_BAD));
    let bad = rig("drop");
    bad.load().expect("loads");
    drop(bad);
}

/// Ids, offsets, segments, length of the output, and the error's code and a word of it.
type BadBatch = (
    &'static [i32],
    &'static [u32],
    &'static [i32],
    usize,
    ErrorCode,
    &'static str,
);

/// Batches that break the contract never reach the author.
#[test]
fn batches_are_checked_before_the_author_sees_them() {
    let rig = rig("nowhere");
    let model = rig.load().expect("loads");
    let call = FakeCall::new(1);
    let all = rig.embed(&call, model, &[1, 2, 3, 4, 5], &[0, 4, 5], &[0, 0, 1, 1, 0], 4);
    assert_eq!(all, Ok(vec![1.0; 4]));
    assert_eq!(
        rig.embed(&call, model, &[], &[0], &[], 0),
        Ok(Vec::new()),
        "no item is no work"
    );
    let cases: &[BadBatch] = &[
        (&[1], &[], &[], 2, ErrorCode::INVALID_ARGUMENT, "offsets"),
        (&[1], &[1, 1], &[], 2, ErrorCode::INVALID_ARGUMENT, "offsets"),
        (&[1], &[0, 2], &[], 2, ErrorCode::INVALID_ARGUMENT, "offsets"),
        (&[1, 2], &[0, 2, 1, 2], &[], 6, ErrorCode::INVALID_ARGUMENT, "item 1"),
        (&[1, 2], &[0, 2, 2], &[], 4, ErrorCode::INVALID_ARGUMENT, "item 1"),
        (&[1, 2], &[0, u32::MAX, 2], &[], 4, ErrorCode::INPUT_TOO_LONG, "item 0"),
        (&[1, 2], &[0, 2], &[0], 2, ErrorCode::INVALID_ARGUMENT, "type_ids"),
        (
            &[1, 2, 3, 4, 5],
            &[0, 5],
            &[],
            2,
            ErrorCode::INPUT_TOO_LONG,
            "5 tokens, the loaded model takes 4",
        ),
        (&[1], &[0, 1], &[], 1, ErrorCode::INVALID_ARGUMENT, "out"),
        (&[1], &[0, 1], &[], 4, ErrorCode::INVALID_ARGUMENT, "out"),
    ];
    for (ids, offsets, types, out, code, names) in cases {
        let error = rig.embed(&call, model, ids, offsets, types, *out).unwrap_err();
        assert_eq!((error.code, error.state), (*code, EngineState::USABLE), "{error}");
        assert!(error.message.contains(names), "{error}");
    }
    let error = rig.embed(&call, ModelRef(99), &[1], &[0, 1], &[], 2).unwrap_err();
    assert!(error.message.contains("model 99"), "{error}");
    let mut row = [0.0; 2];
    let empty = rig
        .engine
        .embed_one(&call.context(), model, RSlice::EMPTY, VectorsOut::new(&mut row, 2));
    assert_eq!(empty.unwrap_err().code, ErrorCode::INVALID_ARGUMENT);
}

/// Settings that the engine does not know, and combinations that the plugin does not list, are refused by name.
#[test]
fn settings_are_checked_before_load() {
    let rig = rig("nowhere");
    let files = artifact(&[]).expect("no file");
    let load = |change: &dyn Fn(&mut synapse_plugin_sdk::api::RuntimeConfig)| {
        let mut config = runtime_config("bytes", "f32");
        change(&mut config);
        rig.engine
            .load(&FakeCall::new(1).context(), &files, &config)
            .into_result()
    };
    assert!(load(&|config| config.extra = vec![KeyValue::new("known", "1")].into()).is_ok());
    let error = load(&|config| config.extra = vec![KeyValue::new("unknown", "1")].into()).unwrap_err();
    assert_eq!(error.code, ErrorCode::CONFIG_INVALID);
    assert!(
        error.message.contains("`unknown`") && error.message.contains("known"),
        "{error}"
    );
    assert_eq!(
        load(&|config| config.threads = 0).unwrap_err().code,
        ErrorCode::CONFIG_INVALID
    );
    let error = load(&|config| config.dtype = "f16".into()).unwrap_err();
    assert_eq!(error.code, ErrorCode::UNSUPPORTED);
    assert!(error.message.contains("f16"), "{error}");
    assert_eq!(
        rig.engine.identity().build_flags.as_slice(),
        ["a", "b"],
        "sorted, without duplicates"
    );
    let plugin = Plugin::new(Identity::new("none", "1"));
    assert!(plugin.open_rerank(rig.host.host(), "").expect("opens").is_none());
}

/// Checkpoints come between row blocks with growing counts, and cancelling ends the call at once.
#[test]
fn row_blocks_report_and_stop() {
    let rig = rig("nowhere");
    let model = rig.load().expect("loads");
    let (ids, offsets) = ([1; 7], [0, 1, 2, 3, 4, 5, 6, 7]);
    let call = FakeCall::new(1);
    assert!(rig.embed(&call, model, &ids, &offsets, &[], 14).is_ok());
    assert_eq!((call.checkpoints(), call.violations()), (4, Vec::new()));
    let call = FakeCall::new(1).cancel_at(2);
    let error = rig.embed(&call, model, &ids, &offsets, &[], 14).unwrap_err();
    assert_eq!(
        (error.code, error.state, call.checkpoints()),
        (ErrorCode::CANCELLED, EngineState::USABLE, 2)
    );
}

/// The test host notes the rules that a call can break.
#[test]
fn the_test_host_notes_broken_rules() {
    let host = FakeHost::new().host();
    let fake = FakeCall::new(2).deadline_ns(0);
    let context = fake.context();
    let call = Call::new(&context, host);
    assert_eq!(call.remaining(), Some(std::time::Duration::ZERO));
    call.checkpoint(2, 5).expect("goes on");
    call.checkpoint(1, 5).expect("goes on");
    call.checkpoint(3, 6).expect("goes on");
    thread::scope(|scope| {
        scope.spawn(|| call.checkpoint(4, 6).expect("goes on"));
    });
    let notes = fake.violations();
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert!(notes[0].contains("after done = 2") && notes[1].contains("total") && notes[2].contains("thread"));
}

/// Charged memory is zeroed, aligned, bounded by the budget, and given back.
#[test]
fn buffers_are_charged_and_given_back() {
    let fake = FakeHost::with_budget(4096);
    let host = fake.host();
    let mut buffer = host.buffer(1000).expect("within the budget");
    assert_eq!(fake.charged(), 4000);
    assert!(buffer.iter().all(|&value| value == 0.0) && buffer.as_ptr().addr().is_multiple_of(64));
    buffer[999] = 1.0;
    assert_eq!(host.buffer(100).unwrap_err().code, ErrorCode::OUT_OF_MEMORY);
    assert_eq!(host.buffer(usize::MAX).unwrap_err().code, ErrorCode::OUT_OF_MEMORY);
    drop(buffer);
    assert_eq!(fake.charged(), 0);
    drop(host.buffer(0).expect("nothing is something"));
    assert_eq!(fake.charged(), 0);
}

/// An extension of the author's reaches the host as it is.
#[test]
fn extensions_are_handed_on() {
    struct Offers(GrammarTable);

    unsafe extern "C" fn validate(
        _: *const (),
        _: synapse_plugin_sdk::api::abi_stable::std_types::RStr<'_>,
    ) -> synapse_plugin_sdk::api::abi_stable::std_types::RResult<(), synapse_plugin_sdk::api::EngineError> {
        synapse_plugin_sdk::api::abi_stable::std_types::RResult::ROk(())
    }

    impl Reranker for Offers {
        type Model = ();

        fn load(&self, _: &Call<'_>, _: Artifact<'_>, _: RuntimeConfig<'_>) -> Result<Loaded<()>, Error> {
            Ok(Loaded::new((), 0))
        }

        fn score(&self, _: &Call<'_>, (): &(), _: PairBatch<'_>, out: &mut [f32]) -> Result<(), Error> {
            out.fill(0.0);
            Ok(())
        }

        fn extension(&self, id: &str) -> Option<ExtensionRef<'_>> {
            (id == GrammarTable::ID).then(|| ExtensionRef::new(&self.0))
        }
    }

    let table = || GrammarTable {
        header: ExtensionHeader::of::<GrammarTable>(),
        state: std::ptr::null(),
        max_bytes: 77,
        validate,
    };
    let plugin = Plugin::new(Identity::new("offers", "1")).reranker(move |_| Ok(Offers(table())));
    let engine = plugin
        .open_rerank(FakeHost::new().host(), "")
        .expect("opens")
        .expect("offered");
    let found = engine
        .extension(GrammarTable::ID.into())
        .into_option()
        .expect("offered");
    assert_eq!(found.open::<GrammarTable>().map(|table| table.max_bytes), Ok(77));
    assert!(engine.extension("synapse.chat/1".into()).is_none());
}

/// What a crate logs through the `log` facade arrives at the host.
#[test]
fn the_log_facade_is_bridged() {
    let fake = FakeHost::new();
    synapse_plugin_sdk::log_bridge::install(fake.host());
    log::warn!(target: "engine::cache", "grew to {} bytes", 12);
    let line = (LogLevel::WARN, "engine::cache: grew to 12 bytes".to_owned());
    assert!(fake.logs().contains(&line), "{:?}", fake.logs());
}
