//! Jobs that their callers end: open ones and running ones, and names that no job has.

use serde_json::json;

use super::{
    Walk, alone, batch, creation, end, job_id, place, result, serving, start, start_large, status, texts, walk,
};
use crate::support::client::code;

/// Texts of a job that is cancelled long before it is done.
const MANY: usize = 20_000;

/// A job that runs stops; what it had done stays readable, and its key still names it.
#[test]
fn a_running_job_stops_and_keeps_its_pages() {
    let place = place("{}");
    let (daemon, mut client) = serving(&place);
    let expected = alone(&mut client);
    let id = start_large(&mut client, "key", MANY);
    while !result(&mut client, &id, 0)["content"].is_object() {}
    client.ok("job.cancel", &json!({"job_id": id}));
    let view = end(&mut client, &id);
    assert_eq!(
        (&view["state"], &view["error"]["code"]),
        (&json!("cancelled"), &json!("cancelled")),
        "{view}"
    );
    let mut seen = Walk::new(&expected);
    let (pages, _) = walk(&mut client, &id, &mut seen);
    assert!(!pages.is_empty() && seen.seen.len() < MANY, "{} texts", seen.seen.len());
    // Asking again changes nothing; the same work under the same key is this job; the lane is free for others.
    let again = client.ok("job.cancel", &json!({"job_id": id}));
    assert_eq!((&again["state"], job_id(&again)), (&json!("cancelled"), id.clone()));
    assert_eq!(start_sealed(&mut client, "key"), id);
    let other = start(&mut client, "other", 70);
    assert_eq!(end(&mut client, &other)["state"], "done");
    daemon.kill();

    let daemon = place.start();
    let mut client = daemon.connect();
    assert_eq!(status(&mut client, &id)["state"], "cancelled", "a cancellation is kept");
    let mut seen = Walk::new(&expected);
    assert_eq!(walk(&mut client, &id, &mut seen).0, pages);
    assert!(daemon.stop().success());
}

/// The same texts once more, appended and sealed; the name of the job that the key names.
fn start_sealed(client: &mut crate::support::client::Client, key: &str) -> String {
    let id = job_id(&client.ok("job.create", &creation(key)));
    for (seq, from) in (0..MANY).step_by(MANY / 4).enumerate() {
        let items = texts(from, from + MANY / 4);
        client.ok("job.append", &json!({"job_id": id, "seq": seq, "items": items}));
    }
    job_id(&client.ok("job.seal", &json!({"job_id": id})))
}

/// A job that waits for texts ends at once and takes no more of them.
#[test]
fn an_open_job_ends_at_once() {
    let place = place("{}");
    let (daemon, mut client) = serving(&place);
    let id = job_id(&client.ok("job.create", &creation("key")));
    client.ok("job.append", &json!({"job_id": id, "seq": 0, "items": texts(0, 3)}));
    let view = client.ok("job.cancel", &json!({"job_id": id}));
    assert_eq!(view["state"], "cancelled", "{view}");
    let (code, error) = client.fails("job.append", &json!({"job_id": id, "seq": 1, "items": texts(3, 4)}));
    assert_eq!(code, "invalid_request", "{error}");
    let sealed = client.ok("job.seal", &json!({"job_id": id}));
    assert_eq!(
        (&sealed["state"], job_id(&sealed)),
        (&json!("cancelled"), id.clone()),
        "a seal cannot bring it back"
    );
    // Its key was never taken: it was not sealed.
    let fresh = start(&mut client, "key", 70);
    assert_ne!(fresh, id);
    assert_eq!(end(&mut client, &fresh)["state"], "done");
    assert!(daemon.stop().success());
}

#[test]
fn a_name_that_no_job_has_is_an_error_everywhere() {
    let place = place("{}");
    let (daemon, mut client) = serving(&place);
    let none = "job-0-0";
    for (method, params) in [
        ("job.status", json!({"job_id": none})),
        ("job.cancel", json!({"job_id": none})),
        ("job.seal", json!({"job_id": none})),
        ("job.result", json!({"job_id": none, "page": 0})),
        ("job.append", json!({"job_id": none, "seq": 0, "items": texts(0, 1)})),
    ] {
        let (code, error) = client.fails(method, &params);
        assert_eq!(code, "unknown_job", "{method}: {error}");
    }
    assert!(daemon.stop().success());
}

/// What could never be served is refused before it becomes a job, whichever way it comes; nothing is left behind, and the
/// key is free.
#[test]
fn work_that_no_lane_can_do_becomes_no_job() {
    let place = place("{}");
    let (daemon, mut client) = serving(&place);
    let before = client.ok("job.list", &json!({}))["jobs"].clone();
    for (name, value, expected) in [
        ("model", json!("no-such-model"), "unknown_model"),
        ("dimensions", json!(33), "unsupported"),
        ("target_fingerprint", json!("0".repeat(64)), "substitution_rejected"),
    ] {
        let mut whole = batch("key", 70);
        whole[name] = value.clone();
        let mut created = creation("key");
        if name == "model" {
            created[name] = value;
        } else {
            created["options"] = json!({name: value});
        }
        for (method, params) in [("embed.batch", whole), ("job.create", created)] {
            let error = client
                .call(method, &params)
                .err()
                .unwrap_or_else(|| panic!("{method} with {name} is a job"));
            assert_eq!(code(&error), expected, "{method}: {error}");
        }
    }
    assert_eq!(client.ok("job.list", &json!({}))["jobs"], before);
    let id = start(&mut client, "key", 70);
    assert_eq!(end(&mut client, &id)["state"], "done");
    assert!(daemon.stop().success());
}
