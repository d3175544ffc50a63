//! Plugins that were built elsewhere run in this host, all in one process.

use std::{path::Path, sync::Arc, time::Duration};

use synapse_abi::{
    bundle::Host,
    fixture::{Compiler, Variant, version},
};
use synapse_core::{
    digest::sha256,
    engine::{
        CallContext, CallControl, EmbedEngine, EngineKind, Flow, Preempt, RuntimeConfig, TokenBatch, ValidatedArtifact,
        VerifiedFile,
    },
};
use synapse_loader::BundleStatus;
use synapse_plugin_api::module;

struct GoOn;

impl CallControl for GoOn {
    fn cancelled(&self) -> bool {
        false
    }

    fn checkpoint(&self, _: u64, _: u64) -> Flow {
        Flow::Continue
    }
}

fn host_with(variants: &[Variant]) -> Host {
    let host = Host::new(Path::new(env!("CARGO_BIN_EXE_abi-worker")));
    for variant in variants {
        let library = variant.library(Path::new(env!("CARGO_TARGET_TMPDIR")));
        host.add(variant.name(), &std::fs::read(library).expect("built"));
    }
    host
}

fn runs(engine: &Arc<dyn EmbedEngine>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model");
    std::fs::write(&path, b"bytes").expect("writable");
    let measured = (sha256(b"bytes"), 5);
    let file = VerifiedFile::check("weights", path, measured, measured).expect("equal");
    let config = RuntimeConfig {
        format: "bytes".to_owned(),
        dtype: "f32".to_owned(),
        pooling: "mean".to_owned(),
        max_tokens: 16,
        max_batch: 4,
        max_batch_tokens: 64,
        threads: 1,
        extra: Vec::new(),
    };
    let call = CallContext {
        request_id: 9,
        remaining: Some(Duration::from_secs(60)),
        threads: 1,
        control: &GoOn,
    };
    let loaded = engine
        .load(&call, &ValidatedArtifact::new(vec![file]), &config)
        .expect("loads");
    assert_eq!((loaded.dims, loaded.max_tokens, loaded.memory_bytes), (2, 16, 5));
    let batch = TokenBatch {
        ids: &[3, 4, 5, 9],
        offsets: &[0, 3, 4],
        type_ids: &[],
    };
    let mut out = [f32::NAN; 4];
    engine
        .embed_batch(&call, loaded.model, &batch, &mut out)
        .expect("embeds");
    assert_eq!(out, [3.0, 12.0, 1.0, 9.0]);
    let mut one = [f32::NAN; 2];
    engine
        .embed_one(&call, loaded.model, &[3, 4, 5], &mut one)
        .expect("embeds");
    assert_eq!(one, [3.0, 12.0]);
    assert_eq!(engine.memory().model_bytes, 5);
    engine.unload(loaded.model).expect("unloads");
}

/// A plugin built from the frozen 1.0.0 source and one built against 1.1.0 with one more extension are described,
/// trusted, opened in this process side by side, and each runs its own code.
///
/// Proves ENG-02.
#[test]
fn frozen_and_newer_plugins_run_in_this_host() {
    let variants = [Variant::Frozen, Variant::Newer];
    let host = host_with(&variants);
    for bundle in host.discover() {
        assert!(
            matches!(bundle.status, BundleStatus::NeedsWorker { .. }),
            "{}: {:?}",
            bundle.id,
            bundle.status
        );
    }
    host.trust_all();
    let bundles = host.discover();
    assert_eq!(bundles.len(), variants.len());
    for bundle in &bundles {
        assert_eq!(bundle.status, BundleStatus::Ready, "{}", bundle.id);
        let descriptor = bundle.descriptor.as_ref().expect("described");
        assert_eq!(
            (
                descriptor.identity.engine.as_str(),
                descriptor.identity.version.as_str()
            ),
            (&*bundle.id, "7")
        );
        assert_eq!(descriptor.package_version.to_string(), "0.3.1");
        let support = &descriptor.supports[0];
        assert_eq!(
            (support.kind, support.preempt),
            (EngineKind::Embed, Preempt::Checkpoint)
        );
    }
    let engines: Vec<_> = bundles
        .iter()
        .map(|bundle| host.loader().open(bundle).expect("opens").embed(&[]).expect("offered"))
        .collect();
    for (engine, bundle) in engines.iter().zip(&bundles) {
        assert_eq!(engine.identity().engine, bundle.id, "each plugin's own code answers");
        runs(engine);
    }
}

/// The newer plugin's extra extension is there for a host that knows it, and harmless for one that does not.
#[test]
fn an_unknown_extension_is_listed_by_its_header() {
    let open = |variant: Variant| {
        module::open(variant.library(Path::new(env!("CARGO_TARGET_TMPDIR")))).expect("the layout fits")
    };
    let table = open(Variant::Newer).extension()("synapse.novel/1".into())
        .into_option()
        .expect("offered");
    assert_eq!((table.header().len, table.header().rev), (16, 1));
    assert!(open(Variant::Frozen).extension()("synapse.novel/1".into()).is_none());
}

/// A plugin that another compiler built from the frozen source runs in this host: the ABI is the contract's, not one
/// compiler's. Where there is no other compiler the test says so; `SYNAPSE_OTHER_RUSTC` names one.
#[test]
fn a_plugin_of_another_compiler_runs_in_this_host() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let ours = version(Path::new(option_env!("RUSTC").unwrap_or("rustc"))).expect("the compiler of these tests");
    let Some(other) = Compiler::other_than(&ours).expect("a compiler") else {
        use std::io::Write as _;
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED a_plugin_of_another_compiler_runs_in_this_host: no other compiler than {ours}; install one (Debian: \
             rustc-web) or name it in SYNAPSE_OTHER_RUSTC"
        );
        return;
    };
    let library = Variant::Frozen
        .library_by(scratch, &other)
        .unwrap_or_else(|error| panic!("{}: {error}", other.version));
    let host = Host::new(Path::new(env!("CARGO_BIN_EXE_abi-worker")));
    host.add(Variant::Frozen.name(), &std::fs::read(&library).expect("built"));
    host.trust_all();
    let bundle = host.discover().remove(0);
    assert_eq!(bundle.status, BundleStatus::Ready, "{}", other.version);
    let engine = host.loader().open(&bundle).expect("opens").embed(&[]).expect("offered");
    runs(&engine);
}
