//! A store that is damaged: found at the start or at the read, never served as if it were whole, and never changed by a
//! start that refuses it.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{PERMANENT, assert_kept, assert_refused, done_job};
use crate::jobs::{MODEL, alone, place, serving};
use crate::support::client::{Client, code};
use crate::support::daemon::Place;

fn store(place: &Place) -> PathBuf {
    place.data().join("store.db")
}

/// Puts these bytes in the store's place, and nothing beside them: what an earlier start logged belongs to other bytes.
fn put(place: &Place, bytes: &[u8]) {
    for beside in ["store.db-wal", "store.db-shm"] {
        match fs::remove_file(place.data().join(beside)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{beside}: {error}"),
            _ => {}
        }
    }
    fs::write(store(place), bytes).expect("writes");
}

/// A place whose daemon has ended, with a job that is done. An orderly stop leaves the one file, which is damaged
/// afterwards: its log is folded in and gone.
fn left_behind() -> (Place, String, Vec<Value>) {
    let place = place("{}");
    let (daemon, mut client) = serving(&place);
    let expected = alone(&mut client);
    let (id, pages) = done_job(&mut client, &expected);
    drop(client);
    assert!(daemon.stop().success());
    for beside in ["store.db-wal", "store.db-shm"] {
        assert!(!place.data().join(beside).exists(), "a stop leaves {beside}");
    }
    (place, id, pages)
}

/// Files that are no store of ours, or not all of one: the start is refused and leaves the file as it is; what is moved
/// back is served, and so is a fresh store where the file is moved away.
#[test]
fn what_is_no_whole_store_is_refused_and_left_as_it_is() {
    let (place, id, pages) = left_behind();
    let whole = fs::read(store(&place)).expect("reads");
    let mut no_header = whole.clone();
    no_header[..16].fill(0x55);
    let mut no_pages = whole.clone();
    no_pages[4096..].fill(0xa5);
    let damaged: [(&str, Vec<u8>); 5] = [
        ("garbage", b"this is no database".repeat(1_000)),
        ("the first half", whole[..whole.len() / 2].to_vec()),
        ("not even a page", whole[..1_000].to_vec()),
        ("another header", no_header),
        ("other pages", no_pages),
    ];
    for (what, bytes) in damaged {
        put(&place, &bytes);
        let refused = assert_refused(&place, PERMANENT, &["damaged", "move store.db"]);
        assert!(refused.words.contains("state_unusable"), "{what}: {}", refused.words);
        assert!(
            fs::read(store(&place)).expect("reads") == bytes,
            "{what}: the file was changed"
        );
    }
    put(&place, &whole);
    let daemon = place.start();
    assert_kept(&mut daemon.connect(), &id, &pages);
    assert!(daemon.stop().success());

    // What the refusal advises: jobs are gone with the file, models are not.
    put(&place, &[]);
    fs::remove_file(store(&place)).expect("removes");
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    client.load(MODEL);
    assert_eq!(client.fails("job.status", &json!({"job_id": id})).0, "unknown_job");
    assert!(daemon.stop().success());
}

/// The next number of a seeded row: splitmix64.
fn draw(state: &mut u64, bound: usize) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    usize::try_from((x ^ (x >> 31)) % u64::try_from(bound).expect("fits")).expect("fits")
}

/// What a read of a page gave: the page, or the code of a typed error.
fn read(client: &mut Client, id: &str, page: usize) -> Result<Value, String> {
    let params = json!({"job_id": id, "page": page, "encoding": "base64"});
    let answer = client.call("job.result", &params).map_err(|error| code(&error))?;
    match answer["content"].is_object() {
        true => Ok(answer["content"].clone()),
        false => Err(format!("no page {page} of {}", answer["pages"])),
    }
}

/// Bytes that change under a daemon that is away: each page is served as it was or not at all, and an error is typed.
/// `SYNAPSE_TEST_LONG` makes it 100 places.
#[test]
fn a_page_with_other_bytes_is_never_served() {
    let rounds = match std::env::var_os("SYNAPSE_TEST_LONG") {
        Some(_) => 100,
        None => 10,
    };
    let (place, id, pages) = left_behind();
    let whole = fs::read(store(&place)).expect("reads");
    let (mut refused, mut damaged, mut intact) = (0, 0, 0);
    for round in 0..rounds {
        let mut state = round;
        let mut bytes = whole.clone();
        for _ in 0..=draw(&mut state, 4) {
            let at = draw(&mut state, bytes.len());
            bytes[at] ^= 1 << draw(&mut state, 8);
        }
        put(&place, &bytes);
        let Ok(daemon) = place.try_start() else {
            assert_refused(&place, PERMANENT, &[]);
            assert!(
                fs::read(store(&place)).expect("reads") == bytes,
                "round {round}: the file was changed"
            );
            refused += 1;
            continue;
        };
        let mut client = daemon.connect();
        for (number, page) in pages.iter().enumerate() {
            match read(&mut client, &id, number) {
                Ok(found) => {
                    assert_eq!(&found, page, "round {round}");
                    intact += 1;
                }
                Err(code) => {
                    assert!(
                        ["storage_failed", "unknown_job"].contains(&&*code),
                        "round {round}: {code}"
                    );
                    damaged += 1;
                }
            }
        }
        client.ok("health", &json!({}));
        daemon.kill();
    }
    let stderr = std::io::stderr();
    let _ = writeln!(
        stderr.lock(),
        "{rounds} damaged stores: {refused} refused; of the others {damaged} pages refused, {intact} served as they were"
    );
    assert!(damaged > 0 && intact > 0, "the damage met pages and passed others by");
}
