//! Durable jobs at the store: who gets a key, what survives, what is refused, and a disk that is full.
//!
//! State: a store in a temporary folder each. A crash is a copy of the files as they are after an answer: what a dead
//! process leaves behind.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::SystemTime;

use super::*;
use crate::task::Tasks;

const UID: u32 = 1_000;

fn open(dir: &Path) -> Store {
    let tasks = Tasks::new(tokio::runtime::Handle::current());
    Store::open(&dir.join("store.db"), &tasks, SystemTime::now()).unwrap()
}

/// The store as the next start finds it if the process dies now.
fn crashed(dir: &Path) -> (tempfile::TempDir, Store) {
    let copy = tempfile::tempdir().unwrap();
    for name in ["store.db", "store.db-wal"] {
        fs::copy(dir.join(name), copy.path().join(name)).unwrap();
    }
    let store = open(copy.path());
    store.end_interrupted_jobs(|_| "restarted".to_owned(), 50).unwrap();
    (copy, store)
}

fn new(id: &str, key: Option<&str>) -> NewJob {
    NewJob {
        id: id.to_owned(),
        uid: UID,
        kind: "embed_batch".to_owned(),
        model: "toy".to_owned(),
        request: "{}".to_owned(),
        request_key: key.map(ToOwned::to_owned),
        weight: 1,
        now_ms: 10,
    }
}

fn items(range: std::ops::Range<u32>) -> Vec<JobItem> {
    range
        .map(|n| JobItem {
            id: format!("item-{n}"),
            text: format!("the text of {n}").into_bytes(),
        })
        .collect()
}

fn accept(store: &Store, id: &str, key: Option<&str>, count: u32) -> Sealed {
    store
        .accept_job(new(id, key), items(0..count), InputLimits::default())
        .unwrap()
}

fn queued(sealed: Sealed) -> JobRow {
    match sealed {
        Sealed::Queued(row) => *row,
        other => panic!("{other:?}"),
    }
}

fn append(store: &Store, id: &str, seq: u64, range: std::ops::Range<u32>) -> Appended {
    store
        .append_job(id, UID, seq, items(range), InputLimits::default(), 20)
        .unwrap()
}

fn run(store: &Store, id: &str) {
    let state = store.move_job(id, JobEvent::Start, None, 30).unwrap();
    assert_eq!(state, Some(JobState::Running));
}

fn page(positions: &[u64]) -> NewPage {
    NewPage {
        positions: positions.to_vec(),
        body: format!("{positions:?}").into_bytes(),
    }
}

fn body(store: &Store, id: &str, number: u64) -> String {
    match store.job_page(id, number).unwrap() {
        PageRead::Body(body) => String::from_utf8(body).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn open_positions(store: &Store, id: &str) -> Vec<u64> {
    let open = store.open_items(id, 1_000, u64::MAX).unwrap();
    open.into_iter().map(|open| open.position).collect()
}

/// Proves JOB-01, JOB-04, JOB-05. What was answered is there after a crash: an accepted job, each committed page, each
/// append. Queued and running jobs have failed for now, open ones are open, ended ones are as they were.
#[tokio::test]
async fn a_crash_loses_nothing_that_was_answered() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for id in ["waits", "runs", "ends"] {
        queued(accept(&store, id, None, 4));
    }
    store.create_job(new("opens", None), InputLimits::default()).unwrap();
    assert_eq!(append(&store, "opens", 0, 0..2), Appended::Kept { next_seq: 1 });
    run(&store, "runs");
    run(&store, "ends");
    assert_eq!(
        store.commit_pages("runs", vec![page(&[3, 1])]).unwrap(),
        Committed::Kept
    );
    assert_eq!(
        store.commit_pages("ends", vec![page(&[0, 1]), page(&[2, 3])]).unwrap(),
        Committed::Kept
    );
    store.move_job("ends", JobEvent::Finish, None, 40).unwrap();
    let (_copy, later) = crashed(dir.path());
    let states: Vec<(String, JobState, Option<String>)> = later
        .jobs()
        .unwrap()
        .into_iter()
        .map(|job| (job.id, job.state, job.error))
        .collect();
    let failed = Some("restarted".to_owned());
    let expected = [
        ("opens", JobState::Open, None),
        ("ends", JobState::Done, None),
        ("runs", JobState::FailedTransient, failed.clone()),
        ("waits", JobState::FailedTransient, failed),
    ];
    assert_eq!(states, expected.map(|(id, state, error)| (id.to_owned(), state, error)));
    assert_eq!(body(&later, "runs", 0), "[3, 1]");
    assert_eq!(body(&later, "ends", 1), "[2, 3]");
    assert_eq!(append(&later, "opens", 0, 0..2), Appended::Kept { next_seq: 1 });
    assert_eq!(append(&later, "opens", 1, 2..3), Appended::Kept { next_seq: 2 });
    assert_eq!(queued(later.seal_job("opens", UID, 60).unwrap()).items, 3);
}

/// Proves JOB-06. Twenty callers with one key and one payload: one of them makes the job.
#[tokio::test]
async fn twenty_resubmissions_make_one_job() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let round = |name: &str| -> (Vec<String>, Vec<String>) {
        let threads: Vec<_> = (0..20)
            .map(|n| {
                let (store, id) = (store.clone(), format!("{name}-{n}"));
                thread::spawn(move || accept(&store, &id, Some("key"), 3))
            })
            .collect();
        let (mut made, mut found) = (Vec::new(), Vec::new());
        for thread in threads {
            match thread.join().unwrap() {
                Sealed::Queued(job) => made.push(job.id),
                Sealed::Existing(job) => found.push(job.id),
                other => panic!("{other:?}"),
            }
        }
        (made, found)
    };
    let (first, found) = round("first");
    assert_eq!((first.len(), found), (1, vec![first[0].clone(); 19]));

    // It fails for now with one page kept: one fresh job goes on with it, and computes no item twice.
    run(&store, &first[0]);
    store.commit_pages(&first[0], vec![page(&[2])]).unwrap();
    store
        .move_job(&first[0], JobEvent::FailTransient, Some("lost".to_owned()), 40)
        .unwrap();
    let (second, found) = round("second");
    assert_eq!((second.len(), found), (1, vec![second[0].clone(); 19]));
    assert_ne!(second, first);
    assert_eq!(open_positions(&store, &second[0]), [0, 1]);
    assert_eq!(body(&store, &second[0], 0), "[2]");
    assert_eq!(
        body(&store, &first[0], 0),
        "[2]",
        "the failed job's page stays readable"
    );
    run(&store, &second[0]);
    assert_eq!(
        store.commit_pages(&second[0], vec![page(&[2])]).unwrap(),
        Committed::Refused
    );
    store.commit_pages(&second[0], vec![page(&[0, 1])]).unwrap();
    store.move_job(&second[0], JobEvent::Finish, None, 50).unwrap();

    let (made, found) = round("third");
    assert_eq!(
        (made, found),
        (vec![], vec![second[0].clone(); 20]),
        "done: the same job"
    );
    let names: Vec<String> = store.jobs().unwrap().into_iter().map(|job| job.id).collect();
    assert_eq!(
        names,
        [second[0].clone(), first[0].clone()],
        "nothing else is left behind"
    );
}

/// Proves JOB-06. A key belongs to one user and one kind of work, and to one payload, however it was cut into appends.
#[tokio::test]
async fn a_key_names_one_payload() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let first = queued(accept(&store, "a", Some("key"), 4)).id;
    let conflict = |sealed| matches!(sealed, Sealed::Conflict { existing } if existing == "a");
    assert!(conflict(accept(&store, "b", Some("key"), 3)), "fewer items");
    let mut other = items(0..4);
    other[3].text.push(b'!');
    let limits = InputLimits::default();
    assert!(
        conflict(store.accept_job(new("c", Some("key")), other, limits).unwrap()),
        "another text"
    );
    let dims = NewJob {
        request: "{\"dimensions\":8}".to_owned(),
        ..new("d", Some("key"))
    };
    assert!(
        conflict(store.accept_job(dims, items(0..4), limits).unwrap()),
        "another request"
    );

    store.create_job(new("e", Some("key")), limits).unwrap();
    append(&store, "e", 0, 0..1);
    append(&store, "e", 1, 1..4);
    let sealed = store.seal_job("e", UID, 30).unwrap();
    assert!(
        matches!(sealed, Sealed::Existing(job) if job.id == first),
        "the same items in two pieces"
    );
    let again = store.seal_job("e", UID, 31).unwrap();
    assert!(
        matches!(again, Sealed::Existing(job) if job.id == first),
        "a seal whose answer was lost hears it again"
    );
    assert_eq!(store.seal_job("e", 2, 31).unwrap(), Sealed::Unknown, "another user");
    store.create_job(new("e2", Some("key")), limits).unwrap();
    append(&store, "e2", 0, 0..2);
    for _ in 0..2 {
        assert!(
            conflict(store.seal_job("e2", UID, 32).unwrap()),
            "and so does a conflict"
        );
    }
    for (id, other) in [
        (
            "f",
            NewJob {
                uid: 2,
                ..new("f", Some("key"))
            },
        ),
        (
            "g",
            NewJob {
                kind: "rerank".to_owned(),
                ..new("g", Some("key"))
            },
        ),
        ("h", new("h", None)),
    ] {
        assert_eq!(queued(store.accept_job(other, items(0..1), limits).unwrap()).id, id);
    }
    assert_eq!(
        store.seal_job("h", 2, 30).unwrap(),
        Sealed::Unknown,
        "another user's job"
    );
    assert!(matches!(store.seal_job("h", UID, 30).unwrap(), Sealed::NotOpen(_)));
}

/// A job that failed for now is queued again without its input: once, however often it is asked, with or without a key.
#[tokio::test]
async fn a_failed_job_is_retried_once_and_keeps_its_pages() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let retry = |id: &str, fresh: &str| store.retry_job(id, UID, fresh.to_owned(), 50).unwrap();
    queued(accept(&store, "a", None, 3));
    assert!(
        matches!(retry("a", "b"), Sealed::Existing(job) if job.id == "a"),
        "it has not failed"
    );
    run(&store, "a");
    store.commit_pages("a", vec![page(&[1])]).unwrap();
    store.move_job("a", JobEvent::FailTransient, None, 40).unwrap();
    let fresh = queued(retry("a", "b"));
    assert_eq!((fresh.id.as_str(), fresh.items, fresh.committed), ("b", 3, 1));
    assert!(matches!(retry("a", "c"), Sealed::Existing(job) if job.id == "b"));
    run(&store, "b");
    assert_eq!(open_positions(&store, "b"), [0, 2]);
    assert_eq!(
        store.commit_pages("a", vec![page(&[0])]).unwrap(),
        Committed::NotRunning
    );
    assert_eq!(
        store.retry_job("a", 2, "d".to_owned(), 50).unwrap(),
        Sealed::Unknown,
        "another user's job"
    );
}

#[tokio::test]
async fn appends_come_in_order_and_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let limits = InputLimits {
        open_jobs: 2,
        items: 4,
        bytes: 100,
        open_bytes: 120,
    };
    let append = |id: &str, seq, items| store.append_job(id, UID, seq, items, limits, 20).unwrap();
    assert_eq!(store.create_job(new("a", None), limits).unwrap(), Created::Open);
    assert_eq!(store.create_job(new("b", None), limits).unwrap(), Created::Open);
    assert_eq!(store.create_job(new("c", None), limits).unwrap(), Created::TooManyOpen);
    assert_eq!(append("c", 0, items(0..1)), Appended::Unknown);
    assert_eq!(store.seal_job("a", UID, 20).unwrap(), Sealed::Empty);
    assert_eq!(append("a", 1, items(0..1)), Appended::Gap { next_seq: 0 });
    assert_eq!(append("a", 0, items(0..3)), Appended::Kept { next_seq: 1 });
    assert_eq!(append("a", 0, items(0..3)), Appended::Kept { next_seq: 1 }, "again");
    assert_eq!(append("a", 0, items(1..3)), Appended::OtherItems);
    let twice = Appended::Repeated {
        id: "item-2".to_owned(),
    };
    assert_eq!(append("a", 1, items(2..3)), twice);
    let pair = [items(3..4), items(3..4)].concat();
    let many = Appended::Beyond {
        limit: "jobs.max_items",
        maximum: 4,
        found: 5,
    };
    assert_eq!(append("a", 1, pair), many);
    let long = |bytes| {
        vec![JobItem {
            id: "long".to_owned(),
            text: vec![b'x'; bytes],
        }]
    };
    // Three texts of 13 bytes are there: 61 more fill the job, 62 do not fit; both jobs together hold 120.
    let big = Appended::Beyond {
        limit: "jobs.max_bytes",
        maximum: 100,
        found: 101,
    };
    assert_eq!(append("a", 1, long(62)), big);
    assert_eq!(append("a", 1, long(61)), Appended::Kept { next_seq: 2 });
    let open = Appended::Beyond {
        limit: "jobs.max_open_bytes",
        maximum: 120,
        found: 121,
    };
    assert_eq!(append("b", 0, long(21)), open);
    assert_eq!(append("b", 0, long(20)), Appended::Kept { next_seq: 1 });
    queued(store.seal_job("a", UID, 20).unwrap());
    assert_eq!(append("a", 2, items(5..6)), Appended::NotOpen(JobState::Queued));
    assert_eq!(
        append("b", 1, items(5..6)),
        Appended::Kept { next_seq: 2 },
        "a sealed job is no longer open"
    );
}

/// Proves JOB-07. Items leave the list of open ones with their page, a page is whole or not there, and what the disk
/// changed is not handed out.
#[tokio::test]
async fn pages_hold_each_item_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    queued(accept(&store, "a", None, 5));
    assert_eq!(
        store.commit_pages("a", vec![page(&[0])]).unwrap(),
        Committed::NotRunning
    );
    run(&store, "a");
    let first = store.open_items("a", 2, u64::MAX).unwrap();
    assert_eq!(first[1].item, items(1..2)[0]);
    assert_eq!(store.open_items("a", 9, 30).unwrap().len(), 2, "13 bytes each");
    assert_eq!(store.open_items("a", 9, 1).unwrap().len(), 1, "one at least");
    for wrong in [vec![page(&[0, 0])], vec![page(&[0]), page(&[0])], vec![page(&[5])]] {
        assert_eq!(store.commit_pages("a", wrong).unwrap(), Committed::Refused);
    }
    assert_eq!(
        open_positions(&store, "a"),
        [0, 1, 2, 3, 4],
        "nothing of a refused commit is kept"
    );
    assert_eq!(
        store.commit_pages("a", vec![page(&[4, 0]), page(&[2])]).unwrap(),
        Committed::Kept
    );
    assert_eq!(open_positions(&store, "a"), [1, 3]);
    let row = store.job("a").unwrap().unwrap();
    assert_eq!((row.items, row.committed, row.pages), (5, 3, 2));
    assert_eq!(store.job_page("a", 2).unwrap(), PageRead::NotYet { pages: 2 });
    assert_eq!(store.job_page("b", 0).unwrap(), PageRead::Unknown);
    let flipped = store
        .writer
        .call(|connection| connection.execute("UPDATE job_page SET body = CAST('[4, 1]' AS BLOB) WHERE page = 0", []));
    assert_eq!(flipped.unwrap(), 1);
    assert_eq!(store.job_page("a", 0).unwrap(), PageRead::Damaged);
    store.move_job("a", JobEvent::Cancel, None, 40).unwrap();
    assert_eq!(
        store.commit_pages("a", vec![page(&[1])]).unwrap(),
        Committed::NotRunning
    );
    assert_eq!(body(&store, "a", 1), "[2]", "what was finished before the cancellation");
}

/// A full disk refuses with words, keeps what was answered, and takes more when there is room again.
#[tokio::test]
async fn a_full_disk_loses_no_committed_page() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    queued(accept(&store, "a", None, 2_000));
    run(&store, "a");
    let limit = |pages: u32| {
        let sql = format!("PRAGMA max_page_count = {pages}");
        store
            .writer
            .call(move |connection| connection.query_row(&sql, [], |row| row.get::<_, u32>(0)))
            .unwrap()
    };
    let pages: u32 = store
        .writer
        .call(|connection| connection.query_row("PRAGMA page_count", [], |row| row.get(0)))
        .unwrap();
    limit(pages + 40);
    let mut kept = 0;
    let full = loop {
        let page = NewPage {
            positions: vec![kept],
            body: vec![7; 10_000],
        };
        match store.commit_pages("a", vec![page]) {
            Ok(Committed::Kept) => kept += 1,
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, StoreError::Full { .. }), "{full}");
    assert!(kept > 5, "{kept}");
    let refused = store.accept_job(new("b", None), items(0..2_000), InputLimits::default());
    assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
    let (_copy, later) = crashed(dir.path());
    let row = later.job("a").unwrap().unwrap();
    assert_eq!((row.committed, row.state), (kept, JobState::FailedTransient));
    assert_eq!(later.job("b").unwrap(), None, "no half of a refused job");
    limit(u32::MAX);
    assert_eq!(store.commit_pages("a", vec![page(&[kept])]).unwrap(), Committed::Kept);
}

/// Proves JOB-01, JOB-04. Work without texts is a row like any: kept, moved, ended by a restart, bounded in number.
#[tokio::test]
async fn work_without_texts_is_kept_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let work = |id: &str| NewWork {
        id: id.to_owned(),
        uid: UID,
        kind: "model_load".to_owned(),
        model: "toy".to_owned(),
        now_ms: 10,
    };
    for id in ["a", "b", "c", "d"] {
        store.accept_work(work(id)).unwrap();
    }
    let end = |id: &str| {
        store
            .move_work(id, JobEvent::Finish, None, Some("{}".to_owned()), 40)
            .unwrap()
    };
    run(&store, "a");
    run(&store, "b");
    assert_eq!(end("a"), Some(JobState::Done));
    assert_eq!(end("d"), None, "it has not begun");
    let (_copy, later) = crashed(dir.path());
    let states: Vec<(String, JobState, Option<String>)> = later
        .jobs()
        .unwrap()
        .into_iter()
        .map(|row| (row.id, row.state, row.result.or(row.error)))
        .collect();
    let lost = |id: &str| (id.to_owned(), JobState::FailedTransient, Some("restarted".to_owned()));
    let done = ("a".to_owned(), JobState::Done, Some("{}".to_owned()));
    assert_eq!(states, [lost("d"), lost("c"), lost("b"), done]);
    assert_eq!(later.forget_work(3).unwrap(), 1, "the oldest goes");
    assert_eq!(later.job("a").unwrap(), None);
    assert_eq!(store.forget_work(0).unwrap(), 1, "what has not ended stays");
    assert_eq!(store.jobs().unwrap().len(), 3);
}

#[tokio::test]
async fn ended_jobs_and_abandoned_inputs_are_forgotten_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    queued(accept(&store, "a", Some("key"), 2));
    run(&store, "a");
    store.commit_pages("a", vec![page(&[0])]).unwrap();
    store.move_job("a", JobEvent::FailTransient, None, 100).unwrap();
    let again = NewJob {
        now_ms: 200,
        ..new("b", Some("key"))
    };
    queued(store.accept_job(again, items(0..2), InputLimits::default()).unwrap());
    store.create_job(new("c", None), InputLimits::default()).unwrap();
    append(&store, "c", 0, 0..2);
    let names = || -> Vec<String> { store.jobs().unwrap().into_iter().map(|job| job.id).collect() };
    assert_eq!(store.expire_jobs(100, 20).unwrap(), 0);
    assert_eq!(store.expire_jobs(101, 21).unwrap(), 2);
    assert_eq!(
        store.expire_jobs(9_999, 21).unwrap(),
        0,
        "a job that is not over is never forgotten"
    );
    assert_eq!(names(), ["b"]);
    assert_eq!(body(&store, "b", 0), "[0]", "its series is still there");
    assert_eq!(append(&store, "c", 1, 2..3), Appended::Unknown);
    let kept = |table: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        store
            .writer
            .call(move |connection| connection.query_row(&sql, [], |row| row.get(0)))
            .unwrap()
    };
    assert_eq!((kept("job_input"), kept("job_page")), (2, 1));
    store.move_job("b", JobEvent::Cancel, None, 300).unwrap();
    assert_eq!(store.expire_jobs(301, 21).unwrap(), 1);
    assert_eq!((kept("job_input"), kept("job_append"), kept("job_page")), (0, 0, 0));
}
