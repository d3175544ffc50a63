//! Bundles as operators meet them: an executable one in Python, changes without a restart, the `plugin` commands.
//!
//! The Python example is the bundle that most tests change: it is isolated, its model lies in it, and its vectors are
//! computed here a second time.

mod hot;
mod operator;
mod python;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use synapse_core::digest::sha256;

use crate::support::HANG;
use crate::support::client::Client;
use crate::support::daemon::{Place, build};

/// The example's bundle, and its model.
pub(crate) const ID: &str = "python-example";
const MODEL: &str = "python-example/hashed";

/// Glances that make no test slow, and waits between deaths that do not either.
const WATCHED: &str = r#""plugins": {"watch_ms": 50, "settle_ms": 300}"#;
/// Changes count when `plugins.rescan` asks.
const UNWATCHED: &str = r#""plugins": {"watch_ms": 0}"#;
const QUICK: &str = r#""worker": {"backoff_first_ms": 10, "backoff_second_ms": 10, "backoff_ms": 10"#;

/// A place whose own plugin folder is searched first, with these further bounds of workers (JSON members).
fn place(bounds: &str) -> (Place, PathBuf) {
    place_where(WATCHED, bounds)
}

/// [`place`], with this `plugins` member of the configuration.
fn place_where(plugins: &str, bounds: &str) -> (Place, PathBuf) {
    let place = Place::new().config(&format!("{{{plugins}, {QUICK}{bounds}}}}}"));
    let plugins = place.path().join("plugins");
    fs::create_dir(&plugins).expect("a folder");
    (place.plugin_dir(plugins.clone()), plugins)
}

/// Copies a bundle of this build into a folder under a name that discovery does not look at. [`drop_in`] shows it.
pub(crate) fn prepare(plugins: &Path, id: &str) -> PathBuf {
    let hidden = plugins.join(format!(".{id}"));
    copy_tree(&build().join("bundles").join(id), &hidden);
    hidden
}

/// Puts a prepared bundle in its place in one step, and gives the one that was there away.
pub(crate) fn drop_in(plugins: &Path, id: &str) {
    let (hidden, place, old) = (
        plugins.join(format!(".{id}")),
        plugins.join(id),
        plugins.join(format!(".old-{id}")),
    );
    if place.exists() {
        fs::rename(&place, &old).expect("moves");
    }
    fs::rename(hidden, place).expect("moves");
    if old.exists() {
        fs::remove_dir_all(old).expect("removes");
    }
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from)
        .unwrap_or_else(|error| panic!("{}: {error}", from.display()))
        .flatten()
    {
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copies");
        }
    }
}

/// Replaces a piece of a bundle's file.
pub(crate) fn edit(bundle: &Path, file: &str, from: &str, to: &str) {
    let path = bundle.join(file);
    let text = fs::read_to_string(&path).expect("a text");
    assert!(text.contains(from), "{file} has no {from:?}");
    fs::write(path, text.replacen(from, to, 1)).expect("writes");
}

/// Lists every file of a bundle in its manifest, so that a part of it is never taken for the whole.
fn seal(bundle: &Path) {
    let mut files = BTreeMap::new();
    digests(bundle, "", &mut files);
    let mut manifest = fs::read_to_string(bundle.join("plugin.toml")).expect("a manifest");
    manifest.push_str("\n[files]\n");
    for (path, digest) in files {
        let _ = writeln!(manifest, "\"{path}\" = \"{digest}\"");
    }
    fs::write(bundle.join("plugin.toml"), manifest).expect("writes");
}

fn digests(folder: &Path, prefix: &str, into: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_str().expect("UTF-8"));
        if entry.file_type().expect("a type").is_dir() {
            digests(&entry.path(), &format!("{name}/"), into);
        } else if name != "plugin.toml" {
            into.insert(name, sha256(&fs::read(entry.path()).expect("reads")).to_string());
        }
    }
}

/// What `plugins.list` says of a bundle; null where it is not listed.
fn entry(client: &mut Client, id: &str) -> Value {
    let listed = client.ok("plugins.list", &json!({}));
    let plugins = listed["plugins"].as_array().expect("a list").clone();
    plugins
        .into_iter()
        .find(|entry| entry["id"] == id && entry["status"] != "shadowed")
        .unwrap_or(Value::Null)
}

/// Pulls the example's model, whose files lie in its bundle, and loads it.
fn install(client: &mut Client) {
    let pulled = client.ok("models.pull", &json!({"model": MODEL}));
    let view = client.job(&pulled);
    assert_eq!(view["state"], "done", "{view}");
    assert_eq!(view["result"]["source"], "bundle", "{view}");
    client.load(MODEL);
}

/// A query that waits as long as it must.
fn query(text: &str) -> Value {
    json!({"model": MODEL, "text": text, "role": "none", "deadline_ms": 120_000, "max_queue_ms": 120_000})
}

/// The answer to a query, once the model is in memory.
fn embed(client: &mut Client, text: &str) -> Value {
    let bound = Instant::now() + HANG;
    loop {
        match client.call("embed.query", &query(text)) {
            Ok(reply) => return reply,
            Err(error) => {
                assert_eq!(error["data"]["class"], "transient", "{error}");
                assert!(Instant::now() < bound, "{error}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// The digest of the bundle that answered.
fn served_by(reply: &Value) -> String {
    reply["provenance"]["bundle_digest"]
        .as_str()
        .expect("a digest")
        .to_owned()
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let bound = Instant::now() + HANG;
    while !holds() {
        assert!(Instant::now() < bound, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
