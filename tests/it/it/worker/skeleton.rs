//! The whole way once: daemon, real worker program, one engine of each kind, every operation on them, each as it
//! succeeds and as it fails. What an operation does in detail is in the file of its subject.

use serde_json::{Value, json};

use super::{until, workers};
use crate::support::client::Client;
use crate::support::daemon::Place;
use crate::support::toys::{self, Kind};

const TEXT: &str = "a lock on the file";

fn fails(client: &mut Client, method: &str, params: &Value, expected: &str) {
    let (code, error) = client.fails(method, params);
    assert_eq!(code, expected, "{method}: {error}");
}

/// Proves TEST-48, WPROTO-20, WPROTO-21.
#[test]
fn skeleton_e2e() {
    let place = Place::new();
    for (model, kind) in [
        ("embedder", Kind::Embed),
        ("ranker", Kind::Rerank),
        ("writer", Kind::Generate),
    ] {
        toys::write(&place, model, kind);
    }
    let daemon = place.start();
    let mut client = daemon.connect();
    client.healthy();
    fails(
        &mut client,
        "embed.query",
        &json!({"model": "embedder", "text": TEXT}),
        "model_not_installed",
    );
    for model in ["embedder", "ranker", "writer"] {
        toys::install(&mut client, &place, model);
    }
    assert_eq!(workers(&daemon).len(), 3, "a process a lane");

    let query = client.ok(
        "embed.query",
        &json!({"model": "embedder", "text": TEXT, "role": "none"}),
    );
    assert_eq!(query["provenance"]["placement"], "worker", "{query}");
    let items = json!([{"id": "a", "text": TEXT}, {"id": "b", "text": "bread"}]);
    let batch = client.ok(
        "embed.batch",
        &json!({"model": "embedder", "items": items, "role": "none"}),
    );
    assert_eq!(batch["vectors"][0], query["vectors"][0]);
    assert_ne!(batch["vectors"][1], query["vectors"][0]);
    fails(
        &mut client,
        "embed.batch",
        &json!({"model": "nobody", "items": items}),
        "unknown_model",
    );

    let ids = toys::ids(&mut client, "embedder", TEXT);
    let candidates = json!([{"id": "a", "text": TEXT}, {"id": "b", "text": "bread"}]);
    let ranked = client.ok(
        "rerank.score",
        &json!({"model": "ranker", "query": TEXT, "candidates": candidates}),
    );
    let score = toys::score("ranker", &ids, &ids[1..]);
    assert_eq!(
        ranked["scores"][0].as_f64().map(f64::to_bits),
        Some(written(score)),
        "{ranked}"
    );
    assert_eq!(ranked["provenance"]["placement"], "worker", "{ranked}");
    let many: Value = (0..65).map(|n| json!({"id": n.to_string(), "text": "x"})).collect();
    fails(
        &mut client,
        "rerank.score",
        &json!({"model": "ranker", "query": TEXT, "candidates": many}),
        "limit_exceeded",
    );

    let generated = client.ok(
        "microllm.oneshot",
        &json!({"model": "writer", "prompt": TEXT, "max_tokens": 20}),
    );
    // A prompt has the frame's begin and not its end.
    let (text, _) = toys::text("writer", &ids[..ids.len() - 1], 20, None);
    assert_eq!(generated["text"], text, "{generated}");
    assert_eq!(generated["provenance"]["placement"], "worker", "{generated}");
    fails(
        &mut client,
        "microllm.oneshot",
        &json!({"model": "writer", "prompt": TEXT, "grammar": "root ::= \"a\""}),
        "grammar_disabled",
    );

    for model in ["embedder", "ranker", "writer"] {
        client.ok("model.unload", &json!({"model": model}));
    }
    until("no worker is left", || workers(&daemon).is_empty());
    assert!(daemon.stop().success());
}

/// An f32 as its shortest decimal reads back as f64, which is how JSON carries it.
fn written(score: f32) -> u64 {
    score
        .to_string()
        .parse::<f64>()
        .expect("a decimal is a number")
        .to_bits()
}
