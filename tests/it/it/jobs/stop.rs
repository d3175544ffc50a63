//! An orderly stop in the middle of a job: it waits for its grace and no longer, and the next start goes on with the job.

use serde_json::json;

use super::{Walk, alone, job_id, place, result, serving, start_large, status, walk};

/// Texts of a job that is far from its end at the stop.
const MANY: usize = 20_000;

/// Proves JOB-04, JOB-05. What a stop leaves is what a kill leaves.
#[test]
fn a_stop_leaves_a_running_job_to_the_next_start() {
    let place = place(r#"{"shutdown": {"grace_ms": 1}}"#);
    let (daemon, mut client) = serving(&place);
    let expected = alone(&mut client);
    let id = start_large(&mut client, "large", MANY);
    while !result(&mut client, &id, 1)["content"].is_object() {}
    let before: Vec<_> = (0..2)
        .map(|page| result(&mut client, &id, page)["content"].take())
        .collect();
    assert!(daemon.stop().success());

    let daemon = place.start();
    let mut client = daemon.connect();
    let view = status(&mut client, &id);
    assert_eq!(
        (&view["state"], &view["error"]["code"]),
        (&json!("failed_transient"), &json!("module_restarted")),
        "{view}"
    );
    let (kept, _) = walk(&mut client, &id, &mut Walk::new(&expected));
    assert!(kept.starts_with(&before), "its pages are readable");
    let fresh = job_id(&client.ok("job.seal", &json!({"job_id": id})));
    let mut seen = Walk::new(&expected);
    let (pages, _) = walk(&mut client, &fresh, &mut seen);
    assert!(
        seen.is_whole(MANY) && pages.starts_with(&kept),
        "{} of {MANY}",
        seen.seen.len()
    );
    assert!(daemon.stop().success());
}
