//! A large job is no wall: queries and small jobs are answered while it runs. Order only; no time is measured.

use serde_json::json;

use super::{MODEL, TEXTS, Walk, alone, end, place, serving, start, start_large, status, walk};

/// So many texts keep the job at work until everything else is answered.
const LARGE: usize = 20_000;

/// Proves SCHED-05, SCHED-06.
#[test]
fn queries_and_small_jobs_end_before_a_large_job_that_was_first() {
    let place = place("{}");
    let (daemon, mut client) = serving(&place);
    let expected = alone(&mut client);
    let large = start_large(&mut client, "large", LARGE);
    while status(&mut client, &large)["state"] == "queued" {}
    for (text, vector) in TEXTS.iter().zip(&expected) {
        let params = json!({"model": MODEL, "text": text, "role": "document", "encoding": "base64"});
        let answer = client.ok("embed.query", &params);
        assert_eq!(answer["vectors"][0], **vector);
    }
    let view = status(&mut client, &large);
    assert_eq!(view["state"], "running", "the queries were first: {view}");

    let small: Vec<String> = (0..6).map(|n| start(&mut client, &format!("small-{n}"), 70)).collect();
    for id in &small {
        let view = end(&mut client, id);
        assert_eq!(view["state"], "done", "{view}");
    }
    let view = status(&mut client, &large);
    assert_eq!(view["state"], "running", "the small jobs were first: {view}");
    for id in small.iter().chain([&large]) {
        let items = if *id == large { LARGE } else { 70 };
        let mut seen = Walk::new(&expected);
        walk(&mut client, id, &mut seen);
        assert!(seen.is_whole(items), "{id}: {} of {items}", seen.seen.len());
    }
    assert!(daemon.stop().success());
}
