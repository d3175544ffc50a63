//! A disk that takes nothing for a while: nothing that was kept is lost, errors are typed, and jobs go on when there is
//! room again.
//!
//! The disk is a real one with a file-size limit of the process, which the kernel enforces at the same calls.

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};

use super::{MODEL, TEXTS, Walk, alone, creation, end, place, result, serving, start, start_large, status, walk};
use crate::support::daemon::Daemon;

/// Texts of a job that is far from its end when the disk is full.
const MANY: usize = 20_000;

/// The daemon may write no file beyond so many bytes.
fn limit(daemon: &Daemon, bytes: Option<u64>) {
    let pid = i32::try_from(daemon.pid()).ok().and_then(Pid::from_raw);
    let limits = Rlimit {
        current: bytes,
        maximum: None,
    };
    prlimit(pid, Resource::Fsize, limits).expect("the daemon is ours");
}

/// A job whose page cannot be kept waits and goes on; requests that write are refused in words; queries need no disk. A
/// cancellation that cannot be kept is none.
#[test]
fn a_job_waits_for_a_full_disk_and_goes_on() {
    let place = place("{}").outlives_file_limits();
    let (daemon, mut client) = serving(&place);
    let expected = alone(&mut client);
    let id = start_large(&mut client, "large", MANY);
    while !result(&mut client, &id, 1)["content"].is_object() {}
    limit(&daemon, Some(1));
    while !daemon.log().contains("the job waits for the disk") {
        assert_eq!(status(&mut client, &id)["state"], "running", "{}", daemon.log());
    }
    for (method, params) in [
        ("job.create", creation("other")),
        ("embed.batch", super::batch("another", 70)),
        ("job.cancel", json!({"job_id": id})),
    ] {
        let (code, error) = client.fails(method, &params);
        assert_eq!(code, "storage_failed", "{method}: {error}");
        assert_eq!(error["data"]["class"], "transient", "{method}: {error}");
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|words| words.contains("store.db")),
            "{error}"
        );
    }
    let params = json!({"model": MODEL, "text": TEXTS[0], "role": "document", "encoding": "base64"});
    assert_eq!(client.ok("embed.query", &params)["vectors"][0], *expected[0]);
    let view = status(&mut client, &id);
    assert_eq!(
        (&view["state"], &view["waits_for"]),
        (&json!("running"), &json!("disk")),
        "{view}"
    );
    let kept = usize::try_from(view["progress"]["done"].as_u64().expect("a number")).expect("is small");
    assert!(kept > 0 && kept < MANY, "{view}");
    let first = result(&mut client, &id, 0)["content"].take();

    limit(&daemon, None);
    let view = end(&mut client, &id);
    assert_eq!(
        (&view["state"], &view["waits_for"]),
        (&json!("done"), &Value::Null),
        "{view}"
    );
    let mut seen = Walk::new(&expected);
    let (pages, _) = walk(&mut client, &id, &mut seen);
    assert!(seen.is_whole(MANY), "{} of {MANY}", seen.seen.len());
    assert_eq!(pages[0], first);
    for key in ["other", "another"] {
        let fresh = start(&mut client, key, 70);
        assert_eq!(end(&mut client, &fresh)["state"], "done", "{key} was never taken");
    }
    assert!(daemon.stop().success());
}

/// A job that waits for the disk holds up no stop.
#[test]
fn a_full_disk_holds_up_no_stop() {
    let place = place(r#"{"shutdown": {"grace_ms": 1}}"#).outlives_file_limits();
    let (daemon, mut client) = serving(&place);
    start_large(&mut client, "large", MANY);
    limit(&daemon, Some(1));
    while !daemon.log().contains("the job waits for the disk") {
        client.ok("health", &json!({}));
    }
    assert!(daemon.stop().success());
}

/// What the disk did not take when the daemon died is the next start's to say: the job failed for now, and goes on.
#[test]
fn a_daemon_that_dies_on_a_full_disk_has_lost_nothing() {
    let place = place("{}").outlives_file_limits();
    let (daemon, mut client) = serving(&place);
    let expected = alone(&mut client);
    let id = start_large(&mut client, "large", MANY);
    while !result(&mut client, &id, 1)["content"].is_object() {}
    limit(&daemon, Some(1));
    while !daemon.log().contains("the job waits for the disk") {
        assert_eq!(status(&mut client, &id)["state"], "running", "{}", daemon.log());
    }
    let before: Vec<_> = (0..2)
        .map(|page| result(&mut client, &id, page)["content"].take())
        .collect();
    daemon.kill();

    let daemon = place.start();
    let mut client = daemon.connect();
    let view = status(&mut client, &id);
    assert_eq!(
        (&view["state"], &view["error"]["code"]),
        (&json!("failed_transient"), &json!("module_restarted")),
        "{view}"
    );
    let fresh = super::job_id(&client.ok("job.seal", &json!({"job_id": id})));
    assert_ne!(fresh, id);
    let mut seen = Walk::new(&expected);
    let (pages, _) = walk(&mut client, &fresh, &mut seen);
    assert!(seen.is_whole(MANY) && pages.starts_with(&before));
    assert!(daemon.stop().success());
}
