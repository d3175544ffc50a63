//! A file system that is full, and one that is read-only.

use serde_json::{Value, json};

use super::{PERMANENT, TRANSIENT, assert_kept, assert_refused, done_job, sqlite};
use crate::jobs::{
    MODEL, TEXTS, Walk, alone, creation, end, job_id, place, result, serving, start_large, status, walk,
};
use crate::support::client::Client;
use crate::support::daemon::{Daemon, Place};
use crate::support::mount::Mount;
use crate::support::skipped;

/// Texts of a job that is far from its end when the file system is full.
const MANY: usize = 20_000;
/// Bytes of the file system: room for the store of such a job.
const SIZE: u64 = 96 << 20;

/// A place on a file system of its own, or `None` where there cannot be one.
fn mounted(test: &str) -> Option<(Place, Mount)> {
    let place = place("{}");
    match Mount::over(&place, SIZE) {
        Ok(mount) => {
            let script = mount.script();
            Some((place.through(&script), mount))
        }
        Err(why) => {
            skipped(test, &why);
            None
        }
    }
}

/// More than the log of the store has room for where a page did not fit.
fn long_texts() -> Value {
    let item = |n: usize| json!({"id": n.to_string(), "text": TEXTS[n % TEXTS.len()].repeat(20)});
    (0..5_000).map(item).collect()
}

/// A large job that is under way, with its first pages, when the file system is full; the job waits for room.
fn filled(mount: &Mount, daemon: &Daemon, client: &mut Client) -> String {
    let id = start_large(client, "large", MANY);
    while !result(client, &id, 1)["content"].is_object() {}
    mount.fill();
    while !daemon.log().contains("the job waits for the disk") {
        assert_eq!(status(client, &id)["state"], "running", "{}", daemon.log());
    }
    id
}

/// A job whose page finds no room waits and goes on; what was committed is read meanwhile, and queries need no disk.
#[test]
fn a_full_file_system_loses_nothing() {
    let Some((place, mount)) = mounted("a_full_file_system_loses_nothing") else {
        return;
    };
    let (daemon, mut client) = serving(&place);
    let expected = alone(&mut client);
    let (done, pages) = done_job(&mut client, &expected);
    let other = job_id(&client.ok("job.create", &creation("other")));
    let id = filled(&mount, &daemon, &mut client);
    let append = json!({"job_id": other, "seq": 0, "items": long_texts()});
    let (code, error) = client.fails("job.append", &append);
    assert_eq!(code, "storage_failed", "{error}");
    let words = error["message"].as_str().expect("words");
    assert!(
        words.contains("no space is left") && words.contains("store.db"),
        "{error}"
    );
    assert_kept(&mut client, &done, &pages);
    let params = json!({"model": MODEL, "text": TEXTS[0], "role": "document", "encoding": "base64"});
    assert_eq!(client.ok("embed.query", &params)["vectors"][0], *expected[0]);
    mount.free();
    assert_eq!(
        client.ok("job.append", &append)["kept"],
        true,
        "nothing of it was kept before"
    );
    assert_eq!(end(&mut client, &id)["state"], "done");
    let mut seen = Walk::new(&expected);
    walk(&mut client, &id, &mut seen);
    assert!(seen.is_whole(MANY), "{} of {MANY}", seen.seen.len());
    assert!(daemon.stop().success());
}

/// Killed while there is no room, started while there is none, started again when there is.
#[test]
fn a_start_without_room_says_so_and_succeeds_later() {
    let Some((place, mount)) = mounted("a_start_without_room_says_so_and_succeeds_later") else {
        return;
    };
    let (daemon, mut client) = serving(&place);
    let expected = alone(&mut client);
    let (done, pages) = done_job(&mut client, &expected);
    let id = filled(&mount, &daemon, &mut client);
    let before: Vec<_> = (0..2)
        .map(|page| result(&mut client, &id, page)["content"].take())
        .collect();
    daemon.kill();
    // A log has room for a small write where a page did not fit, and so has its index, which every start makes anew. With
    // an empty log and the smallest index a start has none.
    mount.free();
    let smallest = "store.execute('PRAGMA user_version').fetchall(); store.close()\n\
                    store = sqlite3.connect(sys.argv[1]); store.execute('PRAGMA user_version').fetchall(); os._exit(0)";
    // By its path in the namespace: SQLite resolves the one through /proc to a file outside of it.
    sqlite(mount.enter("python3"), &place.data().join("store.db"), smallest);
    mount.fill();
    assert_refused(&place, TRANSIENT, &["no space is left"]);

    mount.free();
    let daemon = place.start();
    let mut client = daemon.connect();
    assert_kept(&mut client, &done, &pages);
    let view = status(&mut client, &id);
    assert_eq!(view["error"]["code"], "module_restarted", "{view}");
    let fresh = job_id(&client.ok("job.seal", &json!({"job_id": id})));
    client.healthy();
    client.load(MODEL);
    assert_eq!(end(&mut client, &fresh)["state"], "done");
    let mut seen = Walk::new(&expected);
    let (pages, _) = walk(&mut client, &fresh, &mut seen);
    assert!(seen.is_whole(MANY) && pages.starts_with(&before));
    assert!(daemon.stop().success());
}

/// A data directory that cannot be written: the start says which, and changes nothing.
#[test]
fn a_read_only_data_directory_is_refused_in_words() {
    let Some((place, mount)) = mounted("a_read_only_data_directory_is_refused_in_words") else {
        return;
    };
    let (daemon, mut client) = serving(&place);
    let expected = alone(&mut client);
    let (done, pages) = done_job(&mut client, &expected);
    drop(client);
    assert!(daemon.stop().success());
    mount.remount("ro");
    let refused = place.refused();
    let data = place.data();
    assert_eq!(refused.code, PERMANENT, "{}", refused.words);
    assert!(
        refused.words.contains("the data directory") && refused.words.contains(&data.display().to_string()),
        "{}",
        refused.words
    );
    assert!(refused.words.contains("ead-only"), "{}", refused.words);
    mount.remount("rw");
    let daemon = place.start();
    assert_kept(&mut daemon.connect(), &done, &pages);
    assert!(daemon.stop().success());
}
