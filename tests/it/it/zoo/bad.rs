//! Files that nobody may trust, GGUF and ONNX: each meets its manifest's verdict through the whole path (catalog, pull,
//! load, request), and the daemon is the same process afterwards.

use serde_json::{Value, json};

use super::{install, start};
use crate::support::client::{Client, code};
use crate::support::daemon::Place;
use crate::support::zoo::{Recipe, Zoo};

/// Codes that a refused file may end in; anything else would be a defect or somebody else's fault.
const REFUSALS: [&str; 3] = ["artifact_invalid", "unsupported", "load_failed"];

/// The record that leads to one bad file. The tokenizer of the ONNX files is the one that their manifest names.
fn recipe(zoo: &Zoo, name: &str, file: &str) -> Recipe {
    let is_onnx = file.ends_with(".onnx");
    let longest = if name == "onnx-static-batch-1-seq-8" { 8 } else { 32 };
    Recipe {
        id: format!("bad-{name}"),
        kind: if is_onnx { "embed" } else { "generate" },
        family: "bert".to_owned(),
        fields: match is_onnx {
            true => "dims = 16\npooling = \"mean\"\nnormalize = false".to_owned(),
            false => String::new(),
        },
        folder: zoo.folder("bad"),
        tokenizer: is_onnx.then(|| "good-control-bert/tokenizer.json".to_owned()),
        layout: Vec::new(),
        format: if is_onnx { "onnx" } else { "gguf" },
        weights: file.to_owned(),
        max_tokens: longest,
    }
}

/// Whether the daemon refused the file, at whichever step: with which code.
fn refusal(client: &mut Client, recipe: &Recipe) -> Option<String> {
    let pull = match client.call(
        "models.pull",
        &json!({"model": recipe.id, "source": "local", "path": recipe.folder}),
    ) {
        Ok(pull) => pull,
        Err(error) => return Some(code(&error)),
    };
    let ended = |view: Value| match view["state"].as_str() {
        Some("done") => None,
        _ => Some(
            view["error"]["code"]
                .as_str()
                .unwrap_or_else(|| panic!("no code: {view}"))
                .to_owned(),
        ),
    };
    if let Some(code) = ended(client.job(&pull)) {
        return Some(code);
    }
    let load = client.ok("model.load", &json!({"model": recipe.id}));
    ended(client.job(&load))
}

/// A query, or its public code and the engine's own code, where it was an engine that refused.
fn embed(client: &mut Client, recipe: &Recipe, text: &str) -> Result<Value, (String, Value)> {
    let params = json!({"model": recipe.id, "text": text, "truncate": false, "role": "none"});
    let refused = |error: Value| (code(&error), error["data"]["detail"]["engine_code"].clone());
    client.call("embed.query", &params).map_err(refused)
}

/// What has to hold of a file that is not refused.
fn serves_within_its_verdict(client: &mut Client, recipe: &Recipe, name: &str, verdict: &str) {
    match (verdict, recipe.format) {
        ("accept", "onnx") => assert!(embed(client, recipe, "a").is_ok(), "{name}"),
        ("accept-static-envelope", _) => {
            assert!(embed(client, recipe, "a").is_ok(), "{name}");
            let long = "a ".repeat(20);
            let refused = embed(client, recipe, &long).map_err(|(code, _)| code);
            assert_eq!(refused, Err("input_too_long".to_owned()), "{name}");
        }
        ("accept" | "accept-capped", "gguf") => {
            let params = json!({"model": recipe.id, "prompt": "a", "chat": false, "max_tokens": 4});
            let reply = client.ok("microllm.oneshot", &params);
            assert!(reply["generated_tokens"].as_u64() <= Some(4), "{name}: {reply}");
        }
        // The token of `hello` gives NaN, the others do not: a text gets numbers or a typed error.
        ("request-error", _) if name == "onnx-nan-output" => {
            let refused = embed(client, recipe, "hello").map_err(|(code, _)| code);
            assert_eq!(refused, Err("non_finite_output".to_owned()), "{name}");
            let reply = embed(client, recipe, "a").unwrap_or_else(|error| panic!("{name}: {error:?}"));
            let vector = reply["vectors"][0].as_array().expect("a vector");
            assert!(vector.iter().all(Value::is_number), "{name}: {reply}");
        }
        // An id that the graph has no row for is the host's mistake in the engine's eyes, not a crash.
        ("request-error", _) => {
            let refused = embed(client, recipe, "hello");
            let expected = Err(("engine_crashed".to_owned(), json!("invalid_argument")));
            assert_eq!(refused, expected, "{name}");
        }
        other => panic!("{name}: no rule for the verdict {other:?}"),
    }
}

/// Proves CACHE-08, CACHE-12.
#[test]
fn bad_files_meet_their_verdict() {
    let Some(zoo) = Zoo::find("bad_files_meet_their_verdict") else {
        return;
    };
    let place = Place::new();
    let mut entries = Vec::new();
    for entry in zoo.bad() {
        let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        let (name, file, verdict) = (text("name"), text("file"), text("verdict"));
        if file.ends_with(".onnx") || file.ends_with(".gguf") {
            entries.push((recipe(&zoo, &name, &file), name, verdict));
        }
    }
    assert!(entries.len() >= 50, "{} files", entries.len());
    let good = zoo.encoder("bert-embed", "onnx");
    for (recipe, ..) in &entries {
        recipe.write(&place.data().join("catalog"));
    }
    let (mut daemon, mut client) = start(&place, std::slice::from_ref(&good));
    let pid = daemon.pid();
    for (recipe, name, verdict) in &entries {
        let refused = refusal(&mut client, recipe);
        match (verdict.as_str(), &refused) {
            // An empty file has no record: the catalog refuses it, so the model is unknown.
            ("reject", Some(code)) if name.ends_with("-empty") => assert_eq!(code, "unknown_model", "{name}"),
            ("reject" | "reject-preferred" | "reject-or-ignore" | "reject-by-self-check", Some(code)) => {
                assert!(REFUSALS.contains(&code.as_str()), "{name}: {code}");
            }
            (verdict, Some(code)) => panic!("{name} is {verdict}, but was refused with {code}"),
            ("reject" | "reject-preferred" | "reject-by-self-check", None) => panic!("{name} was loaded"),
            ("reject-or-ignore", None) => {}
            (verdict, None) => serves_within_its_verdict(&mut client, recipe, name, verdict),
        }
        client.ok("health", &json!({}));
    }
    assert!(daemon.is_running() && daemon.pid() == pid);
    // The same process still serves a good model.
    install(&mut client, &good);
    assert!(embed(&mut client, &good, "a").is_ok());
    assert!(daemon.stop().success());
}
