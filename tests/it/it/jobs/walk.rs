//! Pages read while they are written, and the memory that a large job takes.

use std::io::Write;

use serde_json::json;

use super::{Walk, alone, end, place, serving, start_large, walk};

/// What the lane may hold, in MiB: the least that a configuration allows.
const BUDGET: u64 = 1;
/// What the daemon may take beyond that, in MiB.
const ALLOWANCE: u64 = 60;

/// Proves API-11, JOB-07. Every text comes once, though the reader is faster than the job; and the most that the daemon
/// ever took is bounded, however many texts the job has.
#[test]
fn a_large_job_is_read_while_it_runs_and_takes_no_memory() {
    let items = match std::env::var_os("SYNAPSE_TEST_LONG") {
        Some(_) => 100_000,
        None => 20_000,
    };
    let place = place(&format!(r#"{{"schedule": {{"lane_byte_budget": {}}}}}"#, BUDGET << 20));
    let (daemon, mut client) = serving(&place);
    let expected = alone(&mut client);
    let loaded = daemon.memory("VmRSS");
    let id = start_large(&mut client, "large", items);
    let mut seen = Walk::new(&expected);
    let (pages, ahead) = walk(&mut client, &id, &mut seen);
    assert!(seen.is_whole(items), "{} of {items}", seen.seen.len());
    assert!(ahead > 0, "the reader never met the end of a job that runs");
    let view = end(&mut client, &id);
    assert_eq!(
        (&view["state"], &view["progress"]["done"]),
        (&json!("done"), &json!(items)),
        "{view}"
    );
    let most = daemon.memory("VmHWM");
    let bound = loaded + ((BUDGET + ALLOWANCE) << 10);
    let stderr = std::io::stderr();
    let _ = writeln!(
        stderr.lock(),
        "{items} texts in {} pages, the reader {ahead} times ahead; {loaded} KiB when loaded, {most} at most of {bound}",
        pages.len()
    );
    assert!(most <= bound, "{most} KiB, loaded {loaded}, at most {bound}");
    // Read again from the start, the pages are those that were read while it ran.
    for (number, page) in pages.iter().enumerate().step_by(17) {
        assert_eq!(&super::result(&mut client, &id, number)["content"], page);
    }
    assert!(daemon.stop().success());
}
