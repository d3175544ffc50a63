//! What can be seen of a data directory and of bundles while no daemon runs there.
//!
//! State: none; [`look`] holds the directory's lease while it looks, so that it never races a starting daemon.
//! Callers: `synapse doctor` and `synapse plugin` where no daemon answers. Not known here: sockets, operations, how a
//! finding is shown. Bundles are scanned exactly as at a start, in child processes, but nothing is remembered.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use synapse_catalog::Catalog;
use synapse_loader::{Loader, LoaderConfig, MemoryOnly};
use synapse_wire::client::PluginEntry;

use crate::models::{ModelStore, ModelStoreConfig};
use crate::paths::DataDir;
use crate::service::plugins_list;
use crate::singleton::Lease;

/// Where to look.
#[derive(Clone, Debug)]
pub struct OfflineOptions {
    /// The data directory; one that does not exist is not made.
    pub data: DataDir,
    /// The folders that hold bundles, in order.
    pub plugin_dirs: Vec<PathBuf>,
    /// The trust file.
    pub trust_file: PathBuf,
    /// The `synapse-worker` binary.
    pub worker_binary: PathBuf,
}

/// One model of the catalog, as it lies on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfflineModel {
    /// The catalog id.
    pub id: String,
    /// Whether its files are here.
    pub installed: bool,
}

/// What was seen. Each part says in words why it could not be.
#[derive(Clone, Debug)]
pub struct Sight {
    /// Every bundle, in the search order.
    pub plugins: Result<Vec<PluginEntry>, String>,
    /// Every model of the catalog, the operator's records included.
    pub models: Result<Vec<OfflineModel>, String>,
}

/// Looks at bundles and models. Blocks: new bundles are described by child processes.
///
/// # Errors
/// In words: another process holds the data directory's lease.
pub fn look(options: &OfflineOptions) -> Result<Sight, String> {
    let data = &options.data;
    if !data.root().is_dir() {
        let scratch = scratch_folder();
        let plugins = bundles(options, &scratch);
        // What the scan copied is of no use any more; a rest in the temporary folder harms nobody.
        let _ = std::fs::remove_dir_all(&scratch);
        let models = Ok(catalog(data).records().map(|record| absent(&record.id)).collect());
        return Ok(Sight { plugins, models });
    }
    let _lease = Lease::take(data.root(), &data.lock()).map_err(|error| error.to_string())?;
    Ok(Sight {
        plugins: bundles(options, &data.staging()),
        models: models(data),
    })
}

/// The rows of a trust file: id and digest.
///
/// # Errors
/// In words, what is wrong with the file.
pub fn trusted(file: &Path) -> Result<Vec<(String, String)>, String> {
    let rows = synapse_loader::trust::read(file).map_err(|error| error.to_string())?;
    Ok(rows.into_iter().map(|row| (row.id, row.digest.to_string())).collect())
}

/// Promotes a bundle by its digest; it counts from the daemon's next start on.
///
/// # Errors
/// In words: the digest is none, or what is wrong with the file.
pub fn trust(file: &Path, id: &str, digest: &str) -> Result<(), String> {
    let digest = digest.parse().map_err(|error| format!("{digest}: {error}"))?;
    synapse_loader::trust::trust(file, id, &digest).map_err(|error| error.to_string())
}

/// Takes promotions of a bundle back; whether there was one.
///
/// # Errors
/// In words, what is wrong with the file.
pub fn untrust(file: &Path, id: &str) -> Result<bool, String> {
    synapse_loader::trust::untrust(file, id).map_err(|error| error.to_string())
}

/// Switches a bundle off, or on again; whether that changed anything.
///
/// # Errors
/// In words, what is wrong with the file.
pub fn set_disabled(file: &Path, id: &str, off: bool) -> Result<bool, String> {
    synapse_loader::trust::set_disabled(file, id, off).map_err(|error| error.to_string())
}

fn scratch_folder() -> PathBuf {
    std::env::temp_dir().join(format!("synapse-look-{}", uuid::Uuid::new_v4()))
}

fn bundles(options: &OfflineOptions, staging: &Path) -> Result<Vec<PluginEntry>, String> {
    let config = LoaderConfig {
        plugin_dirs: options.plugin_dirs.clone(),
        staging_dir: staging.to_owned(),
        worker_binary: options.worker_binary.clone(),
        trust_file: options.trust_file.clone(),
        scan_timeout: LoaderConfig::SCAN_TIMEOUT,
        max_bundle_bytes: LoaderConfig::MAX_BUNDLE_BYTES,
    };
    let loader = Loader::new(config, Arc::new(MemoryOnly::default())).map_err(|error| error.to_string())?;
    Ok(loader.discover().iter().map(plugins_list::entry).collect())
}

/// The built-in catalog with the operator's records. A record that is refused is logged at a start and left out here.
fn catalog(data: &DataDir) -> Catalog {
    Catalog::builtin().with_dir(&data.catalog()).0
}

fn models(data: &DataDir) -> Result<Vec<OfflineModel>, String> {
    let catalog = catalog(data);
    if !data.models().is_dir() {
        return Ok(catalog.records().map(|record| absent(&record.id)).collect());
    }
    let store = ModelStore::open(ModelStoreConfig {
        root: data.models(),
        hf_endpoint: String::new(),
        idle_timeout: Duration::ZERO,
        wheel_cache_dir: None,
        python: PathBuf::new(),
    })
    .map_err(|error| error.to_string())?;
    let installed = store.list().map_err(|error| error.to_string())?;
    let is_here = |id: &str| installed.iter().any(|model| model.record().model == id);
    Ok(catalog
        .records()
        .map(|record| OfflineModel {
            id: record.id.clone(),
            installed: is_here(&record.id),
        })
        .collect())
}

fn absent(id: &str) -> OfflineModel {
    OfflineModel {
        id: id.to_owned(),
        installed: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(root: &Path) -> OfflineOptions {
        let data = DataDir::new(root.join("data"));
        OfflineOptions {
            plugin_dirs: vec![root.join("plugins")],
            trust_file: data.trust_file(),
            worker_binary: root.join("no-worker"),
            data,
        }
    }

    #[test]
    fn looking_makes_no_data_directory() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        let sight = look(&options).unwrap();
        assert_eq!(sight.plugins.unwrap(), []);
        let models = sight.models.unwrap();
        assert!(
            models
                .iter()
                .any(|model| model.id == "all-minilm-l6-v2" && !model.installed),
            "{models:?}"
        );
        assert!(!options.data.root().exists());
    }

    #[test]
    fn a_held_data_directory_is_not_looked_into() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        crate::paths::private_dir(options.data.root()).unwrap();
        let lease = Lease::take(options.data.root(), &options.data.lock()).unwrap();
        assert!(look(&options).is_err());
        drop(lease);
        assert!(look(&options).is_ok());
    }

    #[test]
    fn a_bundle_that_is_none_is_seen_as_refused() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        let bundle = folder.path().join("plugins/broken");
        std::fs::create_dir_all(&bundle).unwrap();
        std::fs::write(bundle.join("plugin.toml"), "colour = 1\n").unwrap();
        let plugins = look(&options).unwrap().plugins.unwrap();
        assert_eq!(plugins.len(), 1);
        assert_eq!(plugins[0].reason.as_deref(), Some("manifest_invalid"), "{plugins:?}");
    }

    #[test]
    fn promotions_come_and_go_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trust.toml");
        let digest = "ab".repeat(32);
        trust(&file, "owned", &digest).unwrap();
        assert_eq!(trusted(&file).unwrap(), [("owned".to_owned(), digest)]);
        assert!(untrust(&file, "owned").unwrap());
        assert!(!untrust(&file, "owned").unwrap());
        assert!(trust(&file, "owned", "xyz").is_err());
    }
}
