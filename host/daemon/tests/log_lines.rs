//! The daemon's log as a whole: its format, its loggers, its samples, and what must never be in it.
//!
//! One test, because the logger belongs to the process.

#[allow(dead_code, reason = "not every test file needs all of it")]
mod running;

use serde_json::json;
use synapse_daemon::log::LOGGERS;

use running::{Place, Running};

/// What no log line may hold.
const MARKER: &str = "a-text-of-the-user-7f3a";

/// Whether the line is `YYYY-MM-DDTHH:MM:SS.mmmZ LEVEL logger: message`.
fn well_formed(line: &str) -> bool {
    let mut parts = line.splitn(3, ' ');
    let (time, level, rest) = (
        parts.next().unwrap(),
        parts.next().unwrap_or(""),
        parts.next().unwrap_or(""),
    );
    let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let logger = rest.split(": ").next().unwrap();
    shape == "0000-00-00T00:00:00.000Z"
        && ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"].contains(&level)
        && LOGGERS.contains(&logger)
}

/// Proves LOG-05, LOG-07, LOG-11. The requests fail in every way they can without a model, at the finest level.
#[tokio::test(flavor = "multi_thread")]
async fn a_whole_log_is_well_formed_and_holds_nothing_of_the_user() {
    let place = Place::new();
    place.write_user_config(r#"{"log": {"perf_interval_secs": 1}}"#);
    let running = Running::start_in(&place, &[("SYNAPSE_LOG", "trace")]).await;
    let mut client = running.connect().await;
    let model = "all-minilm-l6-v2";
    client
        .call("embed.query", &json!({"model": model, "text": MARKER}))
        .await;
    client
        .call(
            "embed.batch",
            &json!({"model": model, "items": [{"id": MARKER, "text": MARKER}]}),
        )
        .await;
    client
        .call("text.tokenize", &json!({"model": model, "text": MARKER}))
        .await;
    client
        .call("embed.query", &json!({"model": MARKER, "text": MARKER}))
        .await;
    client
        .call(
            "embed.query",
            &json!({"model": model, "text": MARKER, "dimensions": MARKER}),
        )
        .await;
    client
        .call("embed.query", &json!({"model": model, "text": MARKER, MARKER: 1}))
        .await;
    client.call(MARKER, &json!({"text": MARKER})).await;
    client.line(format!("{{\"text\": \"{MARKER}\"").as_bytes()).await;
    client.line(format!("[\"{MARKER}\"]").as_bytes()).await;
    client.line(MARKER.as_bytes()).await;

    let read = || -> String {
        let files = std::fs::read_dir(place.data().join("logs")).unwrap();
        files
            .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
            .collect()
    };
    let activity = "DEBUG synapse.perf: activity in_flight=";
    while !read().contains(activity) {
        client.call("health", &json!({})).await;
    }
    running.stop().await.unwrap();
    let log = read();
    assert!(
        log.contains("INFO synapse: serving") && log.contains("INFO synapse: stopped"),
        "{log}"
    );
    assert!(
        log.contains("request_id=02-000001"),
        "the requests themselves were logged"
    );
    assert!(!log.contains(MARKER), "{log}");
    for line in log.lines() {
        assert!(well_formed(line), "{line}");
    }
}
