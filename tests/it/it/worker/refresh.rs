//! What the daemon knows of idle workers, and how: its own refresher asks, never a health call.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use super::{SHORT, place, serving, signal, until, vector, worker};
use crate::support::daemon::Place;

/// An interval that no test lives to see.
const NEVER: &str = r#", "refresh_ms": 3600000"#;

/// A place whose worker program is honest and counts the PINGs that it gets.
fn counting(bounds: &str) -> Place {
    let place = place(&[], bounds);
    let program = place.path().join("honest");
    fs::copy(Path::new(env!("CARGO_BIN_EXE_synapse-scripted-worker")), &program).expect("copies");
    place.worker(program)
}

fn pings(place: &Place) -> usize {
    fs::read(place.path().join("pings")).map_or(0, |bytes| bytes.len())
}

/// Proves HEALTH-06: however often health is asked, no PING is sent for it.
#[test]
fn health_calls_send_no_ping() {
    let place = counting(NEVER);
    let (_daemon, mut client) = serving(&place);
    let before = pings(&place);
    for _ in 0..500 {
        let health = client.ok("health", &json!({}));
        assert_eq!(health["workers"][0]["alive"], true, "{health}");
    }
    // An exchange after them: whatever a health call had started would have run before it.
    vector(&mut client, "toy-a", SHORT);
    assert_eq!(pings(&place), before);
}

/// Proves HEALTH-06: without a single health call, the refresher goes on asking.
#[test]
fn the_refresher_pings_on_its_own() {
    let place = counting(r#", "refresh_ms": 20"#);
    let (daemon, mut client) = serving(&place);
    until("ten PINGs", || pings(&place) >= 10);
    vector(&mut client, "toy-a", SHORT);
    let seen = pings(&place);
    until("more PINGs after a request", || pings(&place) > seen);
    assert_eq!(daemon.log().matches("worker started").count(), 1);
}

/// Fault S5: the end of a process is seen when it happens. No request and no PING has to meet it first.
///
/// Proves HEALTH-07.
#[test]
fn a_worker_that_died_is_not_shown_as_alive() {
    let place = place(&[], NEVER);
    let (daemon, mut client) = serving(&place);
    let health = client.ok("health", &json!({}));
    assert_eq!(health["workers"][0]["alive"], true, "{health}");
    signal(worker(&daemon), Signal::KILL);
    until("health says so", || {
        client.ok("health", &json!({}))["workers"][0]["alive"] == false
    });
    assert_eq!(
        daemon.log().matches("worker started").count(),
        1,
        "nobody asked for one"
    );
    vector(&mut client, "toy-a", SHORT);
    assert_eq!(client.ok("health", &json!({}))["workers"][0]["alive"], true);
}
