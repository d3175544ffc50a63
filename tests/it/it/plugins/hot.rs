//! Bundles that change while the daemon runs.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use synapse_loader::{Loader, LoaderConfig, MemoryOnly, trust};

use super::{
    ID, UNWATCHED, drop_in, edit, embed, entry, install, place, place_where, prepare, query, seal, served_by, until,
};
use crate::support::HANG;
use crate::support::client::Client;
use crate::support::daemon::build;
use crate::support::toys::{self, Kind};
use crate::worker::children;

/// Prepares the next version of the example: other files, the same numbers.
fn next_version(plugins: &std::path::Path) {
    let bundle = prepare(plugins, ID);
    edit(&bundle, "plugin.toml", "version = \"0.1.0\"", "version = \"0.1.1\"");
    edit(&bundle, "worker.py", "\"0.1.0\"", "\"0.1.1\"");
}

/// Sends queries until `enough` were answered and one came from another bundle than `old`. Gives the answers' digests and
/// the codes of the errors.
fn ask_until_replaced(
    client: &mut Client,
    old: &str,
    enough: usize,
    answered: &AtomicUsize,
) -> (BTreeSet<String>, Vec<Value>) {
    let bound = Instant::now() + HANG;
    let (mut digests, mut errors, mut count, mut switched) = (BTreeSet::new(), Vec::new(), 0, false);
    while count < enough || !switched {
        assert!(Instant::now() < bound, "never replaced: {errors:?}");
        match client.call("embed.query", &query("hello")) {
            Ok(reply) => {
                let digest = served_by(&reply);
                assert!(!switched || digest != old, "the old version answers after the new one");
                switched |= digest != old;
                digests.insert(digest);
                count += 1;
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => errors.push(error),
        }
    }
    (digests, errors)
}

/// 200 requests and more run while the bundle is replaced: none fails but for a typed transient reason, the new digest
/// serves after, the old process is gone.
#[test]
fn a_bundle_is_replaced_under_load() {
    const CLIENTS: usize = 4;
    const EACH: usize = 50;
    let (place, plugins) = place("");
    prepare(&plugins, ID);
    drop_in(&plugins, ID);
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    install(&mut client);
    let old = served_by(&embed(&mut client, "hello"));
    let before = embed(&mut client, "hello")["vectors"].clone();
    let old_workers = children(daemon.pid());
    next_version(&plugins);
    let answered = AtomicUsize::new(0);
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (mut client, old, answered) = (daemon.connect(), old.clone(), &answered);
                scope.spawn(move || ask_until_replaced(&mut client, &old, EACH, answered))
            })
            .collect();
        // In the middle of the load, and without being asked to look.
        until("requests run", || {
            answered.load(Ordering::Relaxed) >= CLIENTS * EACH / 4
        });
        drop_in(&plugins, ID);
        asking
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    let mut digests = BTreeSet::new();
    for (seen, errors) in outcomes {
        digests.extend(seen);
        for error in errors {
            assert_eq!(error["data"]["class"], "transient", "{error}");
        }
    }
    assert!(answered.load(Ordering::Relaxed) >= CLIENTS * EACH);
    assert_eq!(digests.len(), 2, "one old and one new version: {digests:?}");
    let reply = embed(&mut client, "hello");
    assert_ne!(served_by(&reply), old);
    assert_eq!(reply["vectors"], before, "the same numbers");
    until("the old worker is gone", || {
        let now = children(daemon.pid());
        now.len() == 1 && old_workers.iter().all(|pid| !now.contains(pid))
    });
    let entry = entry(&mut client, ID);
    assert_eq!(
        (&entry["version"], &entry["digest"]),
        (&json!("0.1.1"), &json!(served_by(&reply)))
    );
    assert!(daemon.log().contains("plugin changed"), "{}", daemon.log());
    assert!(daemon.stop().success());
}

#[test]
fn a_dropped_bundle_serves_and_a_removed_one_does_not() {
    let (place, plugins) = place("");
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    // The bundle of this build is searched as well: what is dropped comes first.
    let known = |client: &mut Client| {
        entry(client, ID)["dir"]
            .as_str()
            .is_some_and(|dir| dir.starts_with(plugins.to_str().unwrap()))
    };
    assert!(!known(&mut client));
    prepare(&plugins, ID);
    drop_in(&plugins, ID);
    until("it is found", || known(&mut client));
    install(&mut client);
    embed(&mut client, "hello");
    let workers = children(daemon.pid());
    assert_eq!(workers.len(), 1);
    // The same files lie in the folder of this build: nothing changes but the place.
    fs::remove_dir_all(plugins.join(ID)).expect("removes");
    until("it is gone", || !known(&mut client));
    assert_eq!(children(daemon.pid()), workers, "the same digest is the same bundle");
    assert!(daemon.stop().success());
}

#[test]
fn a_removed_bundle_ends_with_its_records_and_its_worker() {
    let (place, plugins) = place("");
    let bundle = prepare(&plugins, ID);
    // An id of its own: no other folder has it.
    for file in ["plugin.toml", "worker.py", "catalog/hashed.toml", "catalog/lanes.toml"] {
        let path = bundle.join(file);
        let text = fs::read_to_string(&path).expect("a text");
        fs::write(path, text.replace("python-example", "lonely")).expect("writes");
    }
    fs::rename(bundle, plugins.join("lonely")).expect("moves");
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    let ask = json!({"model": "lonely/hashed", "text": "hello", "deadline_ms": 120_000, "max_queue_ms": 120_000});
    let pulled = client.ok("models.pull", &json!({"model": "lonely/hashed"}));
    assert_eq!(client.job(&pulled)["state"], "done");
    client.load("lonely/hashed");
    client.ok("embed.query", &ask);
    fs::remove_dir_all(plugins.join("lonely")).expect("removes");
    until("it is not listed", || entry(&mut client, "lonely").is_null());
    let (code, error) = client.fails("embed.query", &ask);
    assert_eq!(code, "unknown_model", "{error}");
    until("its worker ends", || children(daemon.pid()).is_empty());
    assert!(daemon.log().contains("plugin removed"), "{}", daemon.log());
    assert!(daemon.stop().success());
}

/// The manifest and its list of digests come first, the last file slowly: the bundle never counts before it is whole, and
/// the old one serves meanwhile.
#[test]
fn a_half_copied_bundle_is_not_taken() {
    let (place, plugins) = place("");
    prepare(&plugins, ID);
    drop_in(&plugins, ID);
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    install(&mut client);
    let old = served_by(&embed(&mut client, "hello"));
    next_version(&plugins);
    let source = plugins.join(format!(".{ID}"));
    seal(&source);
    let target = plugins.join(ID);
    fs::copy(source.join("plugin.toml"), target.join("plugin.toml")).expect("copies");
    let program = fs::read(source.join("worker.py")).expect("reads");
    for part in 0..=10 {
        let end = program.len() * part / 10;
        fs::write(target.join("worker.py"), &program[..end]).expect("writes");
        if part == 5 {
            // Whoever asks now says that it is complete, and it is not: its digests say so.
            client.ok("plugins.rescan", &json!({}));
            let entry = entry(&mut client, ID);
            assert_eq!(
                (&entry["status"], &entry["digest"]),
                (&json!("ready"), &json!(old)),
                "{entry}"
            );
            assert_eq!(entry["pending"]["reason"], "digest_mismatch", "{entry}");
        }
        if part < 10 {
            assert_eq!(served_by(&embed(&mut client, "hello")), old, "part {part}");
        }
        std::thread::yield_now();
    }
    until("the whole one serves", || {
        served_by(&embed(&mut client, "hello")) != old
    });
    until("nothing waits any more", || entry(&mut client, ID)["pending"].is_null());
    assert!(daemon.stop().success());
}

/// A replacement that is refused, or crashes when it is described, takes nothing; its repair does.
#[test]
fn a_bad_replacement_keeps_the_old_one_serving() {
    let (place, plugins) = place_where(UNWATCHED, "");
    prepare(&plugins, ID);
    drop_in(&plugins, ID);
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    install(&mut client);
    let old = served_by(&embed(&mut client, "hello"));
    let worker = children(daemon.pid());
    for (from, to, reason) in [
        ("protocol = 3", "protocol = 9", "protocol_version"),
        ("program = \"worker.py\"", "program = \"engine.py\"", "not_executable"),
        ("kind =", "knid =", "manifest_invalid"),
    ] {
        edit(&prepare(&plugins, ID), "plugin.toml", from, to);
        drop_in(&plugins, ID);
        let result = client.ok("plugins.rescan", &json!({}));
        let change = &result["changes"][0];
        assert_eq!(
            (&change["change"], &change["from"]),
            (&json!("waits"), &json!(old)),
            "{result}"
        );
        let listed = entry(&mut client, ID);
        assert_eq!(
            (&listed["status"], &listed["digest"]),
            (&json!("ready"), &json!(old)),
            "{listed}"
        );
        assert_eq!(listed["pending"]["reason"], reason, "{listed}");
        assert_eq!(served_by(&embed(&mut client, "hello")), old);
    }
    let health = client.ok("health", &json!({}));
    assert_eq!(
        (&health["status"], &health["plugins"]["pending"]),
        (&json!("ok"), &json!(1)),
        "{health}"
    );
    assert!(health["text"].as_str().expect("words").contains(ID), "{health}");
    assert_eq!(children(daemon.pid()), worker, "nothing was started anew");
    // One that crashes.
    let bundle = prepare(&plugins, ID);
    edit(&bundle, "worker.py", "import argparse", "import no_such_module");
    drop_in(&plugins, ID);
    client.ok("plugins.rescan", &json!({}));
    assert_eq!(entry(&mut client, ID)["pending"]["reason"], "quarantined");
    // One that is described and cannot load: it takes the bundle's place and not the lane's.
    let bundle = prepare(&plugins, ID);
    edit(&bundle, "engine.py", "MAGIC = b\"HASHED01\"", "MAGIC = b\"HASHED02\"");
    drop_in(&plugins, ID);
    let result = client.ok("plugins.rescan", &json!({}));
    assert_eq!(result["changes"][0]["change"], "replaced", "{result}");
    until("its load fails", || {
        daemon
            .log()
            .contains("the new version of the lane's bundle cannot load the model")
    });
    assert_eq!(served_by(&embed(&mut client, "hello")), old);
    next_version(&plugins);
    drop_in(&plugins, ID);
    client.ok("plugins.rescan", &json!({}));
    until("the repair serves", || served_by(&embed(&mut client, "hello")) != old);
    assert_eq!(entry(&mut client, ID)["version"], "0.1.1");
    assert!(entry(&mut client, ID)["pending"].is_null());
    assert!(daemon.stop().success());
}

/// A version for the daemon itself waits for the next start, and everybody says so.
#[test]
fn a_promoted_bundle_says_that_it_needs_a_restart() {
    let (place, plugins) = place("");
    let trust_file = place.path().join("trust.toml");
    let place = place.trust_file(trust_file.clone());
    toys::write(&place, "toy", Kind::Embed);
    prepare(&plugins, "reference");
    drop_in(&plugins, "reference");
    let config = LoaderConfig {
        plugin_dirs: vec![plugins.clone()],
        staging_dir: place.path().join("staging"),
        worker_binary: build().join("synapse-worker"),
        trust_file: trust_file.clone(),
        scan_timeout: Duration::from_secs(60),
        max_bundle_bytes: 64 << 20,
    };
    let loader = Loader::new(config, std::sync::Arc::new(MemoryOnly::default())).expect("a loader");
    // Promoted before it is dropped in, as an operator's installer would: the daemon sees both at once.
    let aside = place.path().join("aside");
    let promote = || {
        let digest = loader.examine_one(&aside.join("reference")).digest.expect("a digest");
        trust::trust(&trust_file, "reference", &digest).expect("writes");
        digest.to_string()
    };
    prepare(&aside, "reference");
    drop_in(&aside, "reference");
    let first = promote();
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    toys::install(&mut client, &place, "toy");
    let ask = json!({"model": "toy", "text": "hello", "role": "none"});
    let reply = client.ok("embed.query", &ask);
    assert_eq!(
        (&reply["provenance"]["placement"], served_by(&reply)),
        (&json!("in_process"), first.clone())
    );
    let another = ("schema = 1", "# another build\nschema = 1");
    edit(&aside.join("reference"), "plugin.toml", another.0, another.1);
    let second = promote();
    edit(&prepare(&plugins, "reference"), "plugin.toml", another.0, another.1);
    drop_in(&plugins, "reference");
    until("it waits", || !entry(&mut client, "reference")["pending"].is_null());
    let listed = entry(&mut client, "reference");
    assert_eq!(
        (&listed["digest"], &listed["pending"]["digest"]),
        (&json!(first), &json!(second)),
        "{listed}"
    );
    assert_eq!(listed["pending"]["reason"], "needs_restart");
    let health = client.ok("health", &json!({}));
    assert_eq!(health["text"], "ok; waits for a restart: a new version of reference");
    assert!(daemon.log().contains("plugin waits"), "{}", daemon.log());
    assert_eq!(served_by(&client.ok("embed.query", &ask)), first);
    assert!(daemon.stop().success());
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    client.load("toy");
    let reply = client.ok("embed.query", &ask);
    assert_eq!(
        (&reply["provenance"]["placement"], served_by(&reply)),
        (&json!("in_process"), second)
    );
    assert!(daemon.stop().success());
}

/// Without a watcher changes count when somebody asks, and say what they were.
#[test]
fn a_rescan_counts_where_nothing_watches() {
    let (place, plugins) = place_where(UNWATCHED, "");
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    assert_eq!(client.ok("plugins.rescan", &json!({}))["changes"], json!([]));
    next_version(&plugins);
    drop_in(&plugins, ID);
    let result = client.ok("plugins.rescan", &json!({}));
    assert_eq!(
        result["changes"][0]["change"], "replaced",
        "the one of this build comes after: {result}"
    );
    fs::remove_dir_all(plugins.join(ID)).expect("removes");
    let result = client.ok("plugins.rescan", &json!({}));
    assert_eq!(result["changes"][0]["change"], "replaced", "{result}");
    assert_eq!(client.ok("plugins.rescan", &json!({}))["changes"], json!([]));
    let (code, _) = client.fails("plugins.rescan", &json!({"now": true}));
    assert_eq!(code, "invalid_request");
}
