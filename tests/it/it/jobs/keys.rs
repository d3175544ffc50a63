//! What a `request_key` names: one job, whoever asks, however often, by whichever way; and never other work.

use std::sync::Barrier;

use serde_json::{Value, json};

use super::{Walk, alone, batch, creation, end, job_id, place, serving, start, texts, walk};
use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::toys::{self, Kind};

/// Twenty connections submit the same batch at once; the names of the jobs that they were told.
fn twenty(daemon: &Daemon, key: &str, items: usize) -> Vec<String> {
    let at_once = Barrier::new(20);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..20)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = daemon.connect();
                    let params = batch(key, items);
                    at_once.wait();
                    job_id(&client.ok("embed.batch", &params))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("an answer"))
            .collect()
    })
}

/// The jobs of the kind that batches are.
fn batches(client: &mut Client) -> Vec<Value> {
    let jobs = client.ok("job.list", &json!({}))["jobs"].take();
    let jobs = jobs.as_array().expect("a list").iter();
    jobs.filter(|job| job["kind"] == "embed_batch").cloned().collect()
}

/// Proves JOB-06, SCHED-14. While it is accepted, while it runs, and when it is done.
#[test]
fn twenty_submissions_of_one_key_are_one_job() {
    const ITEMS: usize = 1_500;
    let place = place("{}");
    let (daemon, mut client) = serving(&place);
    let expected = alone(&mut client);
    let first = twenty(&daemon, "key", ITEMS);
    assert_eq!(first, vec![first[0].clone(); 20]);
    let mut seen = Walk::new(&expected);
    walk(&mut client, &first[0], &mut seen);
    assert!(seen.is_whole(ITEMS));
    assert_eq!(twenty(&daemon, "key", ITEMS), first, "done: the same job");
    let jobs = batches(&mut client);
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    assert_eq!(
        (&jobs[0]["state"], &jobs[0]["progress"]["done"]),
        (&json!("done"), &json!(ITEMS))
    );
    assert!(daemon.stop().success());
}

/// Proves JOB-06. Other texts, other options and another model are other work: the key is refused for them, and the refusal
/// names the job that has it.
#[test]
fn a_key_is_refused_for_other_work() {
    let place = place("{}");
    toys::write(&place, "other", Kind::Embed);
    let (daemon, mut client) = serving(&place);
    toys::install(&mut client, &place, "other");
    let id = start(&mut client, "key", 70);
    let change = |name: &str, value: Value| {
        let mut params = batch("key", 70);
        params[name] = value;
        params
    };
    let mut reworded = batch("key", 70);
    reworded["items"][69]["text"] = json!("another");
    for (what, params) in [
        ("fewer texts", batch("key", 69)),
        ("another text", reworded),
        (
            "another order",
            change(
                "items",
                texts(0, 70).as_array().expect("a list").iter().rev().cloned().collect(),
            ),
        ),
        ("an option", change("normalize", json!(true))),
        ("another role", change("role", json!("query"))),
        ("another model", change("model", json!("other"))),
    ] {
        let error = client
            .call("embed.batch", &params)
            .err()
            .unwrap_or_else(|| panic!("{what} is the same work"));
        assert_eq!(error["data"]["code"], "idempotency_conflict", "{what}: {error}");
        assert_eq!(error["data"]["class"], "permanent", "{what}: {error}");
        assert_eq!(error["data"]["detail"]["job_id"], *id, "{what}: {error}");
    }
    // By appends the answer comes with the seal, which leaves nothing of the second job.
    let second = job_id(&client.ok("job.create", &creation("key")));
    client.ok(
        "job.append",
        &json!({"job_id": second, "seq": 0, "items": texts(0, 69)}),
    );
    let (code, error) = client.fails("job.seal", &json!({"job_id": second}));
    assert_eq!(
        (code.as_str(), &error["data"]["detail"]["job_id"]),
        ("idempotency_conflict", &json!(id)),
        "{error}"
    );
    assert_eq!(client.fails("job.status", &json!({"job_id": second})).0, "unknown_job");
    assert_eq!(end(&mut client, &id)["state"], "done");
    assert_eq!(batches(&mut client).len(), 1);
    assert!(daemon.stop().success());
}
