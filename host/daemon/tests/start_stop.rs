//! The daemon's life: what stops a start, what every answer carries, and how a stop looks from outside.
//!
//! Each test runs a whole daemon in this process, in a data directory of its own, without bundles and without a model.

#[allow(dead_code, reason = "not every test file needs all of it")]
mod running;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use synapse_daemon::StartError;
use synapse_wire::client::Method;

use running::{Place, Running};

/// Parameters that the method takes, where it needs any.
fn params(method: Method) -> Value {
    match method {
        Method::RequestCancel => json!({"id": "none"}),
        Method::EmbedQuery | Method::TextTokenize => json!({"model": "all-minilm-l6-v2", "text": "a"}),
        Method::EmbedBatch => json!({"model": "all-minilm-l6-v2", "items": [{"id": "a", "text": "a"}]}),
        Method::ModelsPull => json!({"model": "no-such-model"}),
        Method::ModelsRemove | Method::ModelLoad | Method::ModelStatus | Method::ModelUnload => {
            json!({"model": "all-minilm-l6-v2"})
        }
        Method::JobStatus | Method::JobCancel => json!({"job_id": "none"}),
        _ => json!({}),
    }
}

/// Proves API-13, JOB-09. Every operation, with good parameters and with an unknown field.
#[tokio::test(flavor = "multi_thread")]
async fn every_answer_carries_the_start_number_and_it_grows_with_each_start() {
    let place = Place::new();
    let mut starts = Vec::new();
    for _ in 0..3 {
        let running = Running::start(&place).await;
        let mut client = running.connect().await;
        let mut seen = BTreeSet::new();
        for &method in Method::ALL {
            let answer = client.call(method.name(), &params(method)).await;
            let refused = client.call(method.name(), &json!({"no_such_field": 1})).await;
            assert_eq!(refused["error"]["code"], -32602, "{method:?}");
            let named = refused["error"]["message"].as_str().unwrap();
            assert!(named.contains("no_such_field"), "{method:?}: {named}");
            for answer in [&answer, &refused] {
                let carrier = answer.get("result").unwrap_or(&answer["error"]["data"]);
                assert!(carrier["request_id"].is_string(), "{method:?}");
                seen.insert(carrier["module_generation"].as_u64().unwrap());
            }
        }
        assert_eq!(seen.len(), 1, "it never changes within one run");
        starts.extend(seen);
        running.stop().await.unwrap();
    }
    assert!(starts.is_sorted_by(|one, next| one < next), "{starts:?}");
}

/// Proves CONF-14.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_of_a_data_directory_does_not_start_and_disturbs_nothing() {
    let place = Place::new();
    let first = Running::start(&place).await;
    let refused = Running::refused(&place, &[]).await;
    assert!(
        matches!(refused, StartError::Singleton(_)) && refused.event() == "singleton_held",
        "{refused}"
    );
    let mut client = first.connect().await;
    assert!(client.call("health", &json!({})).await["result"].is_object());
    first.stop().await.unwrap();
    Running::start(&place).await.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_closes_connections_and_removes_the_socket() {
    let place = Place::new();
    let running = Running::start(&place).await;
    let mut client = running.connect().await;
    client.call("health", &json!({})).await;
    running.stop().await.unwrap();
    assert_eq!(client.rest().await, "");
    assert!(!place.socket().exists());
}

/// Proves CONF-04, CONF-12.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_configuration_stops_the_start_and_a_change_waits_for_the_next() {
    let place = Place::new();
    place.write_user_config(r#"{"knobb": 1}"#);
    let refused = Running::refused(&place, &[]).await;
    assert!(
        refused.to_string().contains("knobb") && refused.event() == "config_refused",
        "{refused}"
    );
    assert!(!place.socket().exists());

    place.write_user_config(r#"{"inline": {"max_items": 7}}"#);
    let running = Running::start(&place).await;
    let mut client = running.connect().await;
    let items = |answer: &Value| answer["result"]["limits"]["inline_items"].as_u64();
    assert_eq!(items(&client.call("server.info", &json!({})).await), Some(7));
    place.write_user_config(r#"{"inline": {"max_items": 9}}"#);
    assert_eq!(items(&client.call("server.info", &json!({})).await), Some(7));
    running.stop().await.unwrap();
    let running = Running::start(&place).await;
    assert_eq!(
        items(&running.connect().await.call("server.info", &json!({})).await),
        Some(9)
    );
    running.stop().await.unwrap();
}

/// Proves CONF-06. The variable of old has no effect, and a model that cannot be loaded does not stop the start.
#[tokio::test(flavor = "multi_thread")]
async fn models_of_the_configuration_are_loaded_by_jobs_and_the_old_variable_does_nothing() {
    let place = Place::new();
    place.write_user_config(r#"{"preload_models": ["no-such-model"]}"#);
    let running = Running::start_in(&place, &[("SYNAPSE_PRELOAD_MODELS", "all-minilm-l6-v2")]).await;
    let answer = running.connect().await.call("job.list", &json!({})).await;
    let jobs = answer["result"]["jobs"].as_array().unwrap();
    let found: Vec<_> = jobs
        .iter()
        .map(|job| (job["kind"].as_str(), job["model"].as_str()))
        .collect();
    assert_eq!(found, [(Some("model_load"), Some("no-such-model"))]);
    running.stop().await.unwrap();
}

/// Proves HEALTH-05: asking changes nothing, and no lane is made by asking.
#[tokio::test(flavor = "multi_thread")]
async fn asking_for_health_does_nothing() {
    let place = Place::new();
    let running = Running::start(&place).await;
    let mut client = running.connect().await;
    for _ in 0..1_000 {
        let health = client.call("health", &json!({})).await;
        assert_eq!(
            (&health["result"]["lanes"], &health["result"]["workers"]),
            (&json!([]), &json!([]))
        );
    }
    running.stop().await.unwrap();
}
