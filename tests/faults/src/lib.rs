//! Deliberately bad bundles: one stress library with modes, and faults made by editing the files of a good bundle.
//!
//! State: a temporary folder per [`Stage`]. Callers: the tests of this crate, and others that need a bad bundle. Not
//! known here: what the host should say about them.

#![forbid(unsafe_code)]

pub mod kit;
pub mod zoo;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use synapse_loader::{Bundle, BundleStatus, Loader, LoaderConfig, MemoryOnly, ScanMemory, trust};

/// The stress library's file name in a bundle.
pub const LIBRARY: &str = "libstress.so";

/// What stands before the mode in the stress library.
const MODE_PREFIX: &[u8] = b"SYNAPSE-STRESS-MODE:";
/// The bytes of a mode.
const MODE_BYTES: usize = 32;
/// The id in the magic as it was built.
const BUILT_ID: &[u8; 64] = b"stress-stress-stress-stress-stress-stress-stress-stress-stress-s";

/// A place with a plugin folder, a staging folder, a trust file, and a worker.
#[derive(Debug)]
pub struct Stage {
    dir: tempfile::TempDir,
    worker: PathBuf,
    library: PathBuf,
}

impl Stage {
    /// An empty place. `worker` is the worker binary; `library` the stress library as cargo built it.
    ///
    /// # Panics
    /// When there is no room for temporary files.
    #[must_use]
    pub fn new(worker: &Path, library: &Path) -> Self {
        let dir = tempfile::tempdir().expect("temporary files");
        std::fs::create_dir(dir.path().join("plugins")).expect("temporary files");
        Self {
            dir,
            worker: worker.to_owned(),
            library: library.to_owned(),
        }
    }

    /// A path of this place.
    #[must_use]
    pub fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join(relative)
    }

    /// Adds a bundle of the stress library in `mode`.
    ///
    /// # Panics
    /// When files cannot be written, or the library is not the stress library.
    pub fn add(&self, id: &str, mode: &str) -> BundleFiles {
        let dir = self.path("plugins").join(id);
        std::fs::create_dir(&dir).expect("a new bundle");
        let mut bytes = std::fs::read(&self.library)
            .unwrap_or_else(|error| panic!("the stress library {}: {error}", self.library.display()));
        let field = |text: &str, length: usize| {
            assert!(text.len() <= length, "{text} is longer than {length} bytes");
            let mut field = text.as_bytes().to_vec();
            field.resize(length, 0);
            field
        };
        let built = [MODE_PREFIX, &field("good", MODE_BYTES)].concat();
        let wanted = [MODE_PREFIX, &field(mode, MODE_BYTES)].concat();
        assert_eq!(
            replace(&mut bytes, &built, &wanted),
            1,
            "the mode stands once in the library"
        );
        // The note and the exported symbol.
        assert_eq!(
            replace(&mut bytes, BUILT_ID, &field(id, BUILT_ID.len())),
            2,
            "the id stands twice"
        );
        std::fs::write(dir.join(LIBRARY), bytes).expect("a new library");
        let manifest = format!(
            "schema = 1\nid = \"{id}\"\nversion = \"0.1.0\"\nkind = \"library\"\nlibrary = \"{LIBRARY}\"\n\
             risk = \"abort-safe\"\nabi = \"1.0\"\n"
        );
        std::fs::write(dir.join("plugin.toml"), manifest).expect("a new manifest");
        BundleFiles { dir }
    }

    /// A loader over this place.
    ///
    /// # Panics
    /// When the staging folder cannot be made.
    #[must_use]
    pub fn loader(&self, memory: Arc<dyn ScanMemory>, scan_timeout: Duration) -> Loader {
        let config = LoaderConfig {
            plugin_dirs: vec![self.path("plugins"), self.path("more-plugins")],
            staging_dir: self.path("staging"),
            worker_binary: self.worker.clone(),
            trust_file: self.path("trust.toml"),
            scan_timeout,
            max_bundle_bytes: 64 << 20,
        };
        Loader::new(config, memory).expect("a loader")
    }

    /// What a fresh loader finds, with a bound that no healthy library reaches.
    #[must_use]
    pub fn discover(&self) -> Vec<Bundle> {
        self.loader(Arc::new(MemoryOnly::default()), Duration::from_secs(60))
            .discover()
    }

    /// Promotes the bundle of `id` and gives it, with the loader that may open it.
    ///
    /// # Panics
    /// When the bundle is not ready after that.
    #[must_use]
    pub fn promote(&self, id: &str) -> (Loader, Bundle) {
        let loader = self.loader(Arc::new(MemoryOnly::default()), Duration::from_secs(60));
        let find = || {
            let found = loader.discover().into_iter().find(|bundle| bundle.id == id);
            found.expect("the bundle is there")
        };
        let digest = find().digest.expect("a digest");
        trust::trust(&self.path("trust.toml"), id, &digest).expect("a trust file");
        let bundle = find();
        assert_eq!(bundle.status, BundleStatus::Ready);
        (loader, bundle)
    }
}

/// The files of one bundle, to be made worse.
#[derive(Clone, Debug)]
pub struct BundleFiles {
    dir: PathBuf,
}

impl BundleFiles {
    /// A path of the bundle.
    #[must_use]
    pub fn path(&self, relative: &str) -> PathBuf {
        self.dir.join(relative)
    }

    /// Replaces a text of the manifest that is there.
    ///
    /// # Panics
    /// When it is not there.
    pub fn edit_manifest(&self, from: &str, to: &str) {
        let path = self.path("plugin.toml");
        let text = std::fs::read_to_string(&path).expect("a manifest");
        assert!(text.contains(from), "{from} is not in the manifest");
        std::fs::write(path, text.replacen(from, to, 1)).expect("a manifest");
    }

    /// Lets `edit` change the library's bytes.
    ///
    /// # Panics
    /// When the library cannot be read or written.
    pub fn edit_library(&self, edit: impl FnOnce(&mut Vec<u8>)) {
        let path = self.path(LIBRARY);
        let mut bytes = std::fs::read(&path).expect("a library");
        edit(&mut bytes);
        std::fs::write(path, bytes).expect("a library");
    }

    /// Replaces every occurrence of a byte string in the library.
    ///
    /// # Panics
    /// When it is not there, or the lengths differ.
    pub fn patch(&self, from: &[u8], to: &[u8]) {
        self.edit_library(|bytes| assert_ne!(replace(bytes, from, to), 0, "{from:?} is not in the library"));
    }

    /// Changes bytes of the magic, at an offset from its start, in both its places or only in the note.
    ///
    /// # Panics
    /// When the magic is not there.
    pub fn patch_magic(&self, offset: usize, to: &[u8], only_note: bool) {
        self.edit_library(|bytes| {
            let places: Vec<usize> = find(bytes, b"SYNAPSE\0").collect();
            assert_eq!(places.len(), 2, "the magic stands in the note and in the symbol");
            for place in places {
                let is_note = place
                    .checked_sub(8)
                    .is_some_and(|name| bytes[name..place] == *b"Synapse\0");
                if is_note || !only_note {
                    bytes[place + offset..place + offset + to.len()].copy_from_slice(to);
                }
            }
        });
    }
}

fn find<'a>(bytes: &'a [u8], text: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    bytes
        .windows(text.len())
        .enumerate()
        .filter(move |(_, window)| *window == text)
        .map(|(place, _)| place)
}

/// Replaces every occurrence; how many there were.
fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) -> usize {
    assert_eq!(from.len(), to.len(), "a file's layout must not move");
    let places: Vec<usize> = find(bytes, from).collect();
    for place in &places {
        bytes[*place..place + to.len()].copy_from_slice(to);
    }
    places.len()
}
