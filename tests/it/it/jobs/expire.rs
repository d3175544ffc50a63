//! Jobs that are forgotten: after their time and not before, with their pages, and with the name that their key gave.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Walk, alone, creation, end, job_id, place, result, serving, start, texts, walk};
use crate::support::HANG;
use crate::support::client::{Client, code};

/// Asks again and again until the daemon knows no such job; whatever it says before is `true`.
fn until_unknown(client: &mut Client, method: &str, params: &Value, is_true: impl Fn(&Value)) {
    let bound = Instant::now() + HANG;
    loop {
        match client.call(method, params) {
            Ok(answer) => is_true(&answer),
            Err(error) => {
                assert_eq!(code(&error), "unknown_job", "{error}");
                return;
            }
        }
        assert!(Instant::now() < bound, "{method} still knows the job");
        // The socket has no push: a job is polled.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Proves JOB-05. Until a job is forgotten its pages are what they were; then its key names nothing.
#[test]
fn a_job_is_forgotten_after_its_time_with_its_pages_and_its_key() {
    let place = place(r#"{"jobs": {"ttl_secs": 2, "open_ttl_secs": 2}}"#);
    let (daemon, mut client) = serving(&place);
    let expected = alone(&mut client);
    let id = start(&mut client, "key", 70);
    assert_eq!(end(&mut client, &id)["state"], "done");
    let page = result(&mut client, &id, 0)["content"].take();
    assert!(page.is_object(), "{page}");
    let open = job_id(&client.ok("job.create", &creation("open")));
    client.ok("job.append", &json!({"job_id": open, "seq": 0, "items": texts(0, 3)}));

    let params = json!({"job_id": id, "page": 0, "encoding": "base64"});
    until_unknown(&mut client, "job.result", &params, |answer| {
        assert_eq!(answer["content"], page);
    });
    until_unknown(&mut client, "job.status", &json!({"job_id": id}), |view| {
        assert_eq!(view["state"], "done", "{view}");
    });
    until_unknown(&mut client, "job.status", &json!({"job_id": open}), |view| {
        assert_eq!(view["state"], "open", "{view}");
    });
    let jobs = client.ok("job.list", &json!({}));
    for gone in [&id, &open] {
        assert!(!jobs.to_string().contains(&format!("\"{gone}\"")), "{jobs}");
    }
    let fresh = start(&mut client, "key", 70);
    assert_ne!(fresh, id, "the key names new work");
    let mut seen = Walk::new(&expected);
    walk(&mut client, &fresh, &mut seen);
    assert!(seen.is_whole(70));
    assert!(daemon.stop().success());
}
