//! `microllm.oneshot` over the socket and on the command line.
//!
//! Here with the reference engine, whose text `support::toys` computes a second time from the ids of the prompt. A real
//! model is in `smollm2`, what a grammar may do in `grammar`.

mod grammar;
mod smollm2;

use serde_json::{Value, json};

use crate::support::cli::synapse;
use crate::support::client::Client;
use crate::support::daemon::{Daemon, Place};
use crate::support::toys::{self, CONTEXT, Kind};

const PROMPT: &str = "a lock on the file";

/// A daemon with a toy that generates and one that embeds, whose tokenizer is the same.
fn serving(place: &Place) -> (Daemon, Client) {
    toys::write(place, "writer", Kind::Generate);
    toys::write(place, "embedder", Kind::Embed);
    let daemon = place.start();
    let mut client = daemon.connect();
    for model in ["writer", "embedder"] {
        toys::install(&mut client, place, model);
    }
    (daemon, client)
}

/// The ids of a prompt: the begin token and the text. An embedding's frame has an end besides.
fn prompt_ids(client: &mut Client, text: &str) -> Vec<u32> {
    let ids = toys::ids(client, "embedder", text);
    ids[..ids.len() - 1].to_vec()
}

/// What the toy gives for `PROMPT` with more params.
fn generated(client: &mut Client, more: &Value) -> Value {
    let mut params = json!({"model": "writer", "prompt": PROMPT});
    for (field, value) in more.as_object().expect("fields") {
        params[field] = value.clone();
    }
    client.ok("microllm.oneshot", &params)
}

/// The engine's own text, greedy by default and the same each time; with a temperature it depends on the seed alone.
///
/// Proves API-16.
#[test]
fn the_same_request_gives_the_engines_text_each_time() {
    let place = Place::new();
    let (daemon, mut client) = serving(&place);
    let ids = prompt_ids(&mut client, PROMPT);
    let (text, ended) = toys::text("writer", &ids, 100, None);
    for _ in 0..2 {
        let answer = generated(&mut client, &json!({"max_tokens": 100}));
        assert_eq!(
            (&answer["text"], &answer["prompt_tokens"]),
            (&json!(text), &json!(ids.len())),
            "{answer}"
        );
        assert_eq!(answer["finish_reason"], if ended { "stop" } else { "length" });
        assert_eq!(
            (&answer["generated_tokens"], &answer["chat"]),
            (&json!(text.len()), &json!(false))
        );
        assert_eq!(answer["provenance"]["lane"], "writer@reference:f32");
        assert_eq!(answer["fingerprint"], answer["provenance"]["fingerprint"]);
    }
    for seed in [0, 7, u64::MAX] {
        let (expected, _) = toys::text("writer", &ids, 100, Some(seed));
        assert_ne!(expected, text, "a seed that changes nothing proves nothing");
        let params = json!({"max_tokens": 100, "temperature": 0.7, "seed": seed});
        assert_eq!(generated(&mut client, &params)["text"], expected, "seed {seed}");
    }
    let unseeded = generated(&mut client, &json!({"max_tokens": 100, "temperature": 2.0}));
    assert_eq!(
        unseeded["text"],
        toys::text("writer", &ids, 100, Some(0)).0,
        "the default seed is 0"
    );
    assert!(daemon.stop().success());
}

/// A stop text ends the generation and is no part of it, also where it spans tokens.
#[test]
fn a_stop_text_ends_the_text_before_it() {
    let place = Place::new();
    let (daemon, mut client) = serving(&place);
    let whole = generated(&mut client, &json!({"max_tokens": 40}))["text"]
        .as_str()
        .expect("a text")
        .to_owned();
    assert!(whole.len() > 12, "{whole}");
    let stop = &whole[8..11];
    let until = whole.find(stop).expect("is there");
    let answer = generated(&mut client, &json!({"max_tokens": 40, "stop": ["THIS", stop]}));
    assert_eq!(
        (&answer["text"], &answer["finish_reason"]),
        (&json!(whole[..until]), &json!("stop"))
    );
    assert!(daemon.stop().success());
}

/// At the operator's limit it is served, one more is refused by the limit's name, and never cut down.
///
/// Proves API-17.
#[test]
fn max_tokens_over_the_limit_is_refused_and_not_clamped() {
    for (config, most) in [("{}", 512), (r#"{"microllm_max_tokens": 3}"#, 3)] {
        let place = Place::new().config(config);
        let (daemon, mut client) = serving(&place);
        let limits = client.ok("server.info", &json!({}))["limits"].clone();
        assert_eq!(limits["microllm_max_tokens"], most);
        let answer = generated(&mut client, &json!({"max_tokens": most}));
        assert!(answer["generated_tokens"].as_u64() <= Some(most), "{answer}");
        // Unnamed, it is the limit: never more.
        let answer = generated(&mut client, &json!({}));
        assert!(answer["generated_tokens"].as_u64() <= Some(most), "{answer}");
        for wrong in [most + 1, 0, u64::from(u32::MAX)] {
            let params = json!({"model": "writer", "prompt": PROMPT, "max_tokens": wrong});
            let (code, error) = client.fails("microllm.oneshot", &params);
            assert_eq!(code, "invalid_request", "{error}");
            let words = error["message"].as_str().expect("words");
            assert!(
                words.contains("microllm_max_tokens") && words.contains(&most.to_string()),
                "{words}"
            );
            let detail = &error["data"]["detail"];
            assert_eq!(
                (&detail["field"], &detail["maximum"]),
                (&json!("max_tokens"), &json!(most)),
                "{error}"
            );
        }
        assert!(daemon.stop().success());
    }
}

/// Every bound of the params, each named.
#[test]
fn what_is_out_of_bounds_is_refused_by_name() {
    let place = Place::new();
    let (daemon, mut client) = serving(&place);
    let nine: Vec<&str> = vec!["x"; 9];
    for (field, value, expected) in [
        ("temperature", json!(-0.1), "invalid_request"),
        ("temperature", json!(2.5), "invalid_request"),
        ("temperature", json!(1e39), "invalid_request"),
        ("top_p", json!(0.0), "invalid_request"),
        ("top_p", json!(1.5), "invalid_request"),
        ("stop", json!([""]), "invalid_request"),
        ("stop", json!(nine), "limit_exceeded"),
        ("stop", json!(["x".repeat(257)]), "limit_exceeded"),
        ("chat", json!(true), "unsupported"),
        ("system", json!("be brief"), "unsupported"),
    ] {
        let mut params = json!({"model": "writer", "prompt": PROMPT});
        params[field] = value.clone();
        let (code, error) = client.fails("microllm.oneshot", &params);
        assert_eq!(code, expected, "{field} {value}: {error}");
        assert_eq!(error["data"]["detail"]["field"], field, "{error}");
        let words = error["message"].as_str().expect("words");
        assert!(words.contains(field), "{words}");
    }
    for (field, value) in [
        ("temperature", json!(2)),
        ("top_p", json!(1)),
        ("stop", json!(vec!["\u{1f680}".repeat(64); 8])),
        ("chat", json!(false)),
    ] {
        generated(&mut client, &json!({"max_tokens": 4, field: value}));
    }
    assert!(daemon.stop().success());
}

/// A prompt is never cut: it is refused where it and what is to be generated do not fit, at exactly that length.
#[test]
fn a_prompt_that_does_not_fit_is_refused() {
    let place = Place::new();
    let (daemon, mut client) = serving(&place);
    // A token each, behind the begin token.
    let words = |tokens: u32| vec!["a"; usize::try_from(tokens - 1).expect("is small")].join(" ");
    for (prompt, max_tokens, fits) in [
        (CONTEXT - 10, Some(10), true),
        (CONTEXT - 10, Some(11), false),
        (CONTEXT - 1, None, true),
        (CONTEXT, None, false),
        (CONTEXT + 500, None, false),
    ] {
        let mut params = json!({"model": "writer", "prompt": words(prompt)});
        if let Some(max_tokens) = max_tokens {
            params["max_tokens"] = json!(max_tokens);
        }
        if fits {
            let answer = client.ok("microllm.oneshot", &params);
            assert_eq!(answer["prompt_tokens"], prompt);
        } else {
            let (code, error) = client.fails("microllm.oneshot", &params);
            assert_eq!(code, "input_too_long", "{prompt} {max_tokens:?}: {error}");
            assert_eq!(error["data"]["detail"]["maximum"], CONTEXT, "{error}");
        }
    }
    for prompt in [r"x\ud800", r"\udc00"] {
        let line = r#"{"jsonrpc":"2.0","id":1,"method":"microllm.oneshot","params":{"model":"writer","prompt":"P"}}"#;
        client
            .send(format!("{}\n", line.replace("\"P\"", &format!("\"{prompt}\""))).as_bytes())
            .expect("sends");
        let answer = client.line().expect("an answer");
        assert_eq!(answer["error"]["data"]["code"], "invalid_text", "{answer}");
    }
    // An empty prompt is the begin token alone.
    let begin = prompt_ids(&mut client, "");
    let answer = client.ok(
        "microllm.oneshot",
        &json!({"model": "writer", "prompt": "", "max_tokens": 9}),
    );
    assert_eq!((&answer["prompt_tokens"], begin.len()), (&json!(1), 1));
    assert_eq!(answer["text"], toys::text("writer", &begin, 9, None).0);
    let (code, _) = client.fails("microllm.oneshot", &json!({"model": "embedder", "prompt": PROMPT}));
    assert_eq!(code, "unsupported");
    assert!(daemon.stop().success());
}

/// The common fields do the same on every operation that needs an engine: taken where they fit, typed refusals where
/// they do not, and a field that no operation has is refused by its name.
///
/// Proves API-04, API-07, API-08.
#[test]
fn the_common_fields_hold_on_every_engine_operation() {
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
    let texts = json!([{"id": "a", "text": "x"}]);
    let operations = [
        ("embed.query", json!({"model": "embedder", "text": "x"})),
        ("embed.batch", json!({"model": "embedder", "items": texts})),
        (
            "rerank.score",
            json!({"model": "ranker", "query": "x", "candidates": texts}),
        ),
        (
            "microllm.oneshot",
            json!({"model": "writer", "prompt": "x", "max_tokens": 2}),
        ),
    ];
    for model in ["embedder", "ranker", "writer"] {
        toys::install(&mut client, &place, model);
    }
    for (method, params) in operations {
        let fingerprint = client.ok(method, &params)["fingerprint"].clone();
        for (field, value, expected) in [
            ("deadline_ms", json!(60_000), None),
            ("deadline_ms", json!(0), Some("invalid_request")),
            ("max_queue_ms", json!(1000), None),
            ("max_queue_ms", json!(3_600_001), Some("invalid_request")),
            ("fail_if_not_ready", json!(true), None),
            ("required_fingerprint", fingerprint, None),
            (
                "required_fingerprint",
                json!("0".repeat(64)),
                Some("substitution_rejected"),
            ),
            ("allow_equivalent", json!(true), None),
            ("required_epoch", json!(0), None),
            ("required_epoch", json!(1), Some("substitution_rejected")),
            ("require_device", json!("cpu"), None),
            ("require_device", json!("gpu"), Some("not_certified")),
            ("deadline", json!(1), Some("invalid_request")),
        ] {
            let mut params = params.clone();
            params[field] = value.clone();
            let outcome = client.call(method, &params).map_err(|error| {
                assert!(
                    error["message"].as_str().expect("words").contains(field) || field == "required_epoch",
                    "{error}"
                );
                crate::support::client::code(&error)
            });
            assert_eq!(outcome.err().as_deref(), expected, "{method} {field} {value}");
        }
        let model = params["model"].clone();
        let unloaded = client.ok("model.unload", &json!({"model": model}));
        assert_eq!(unloaded["unloaded"], true, "{unloaded}");
        let mut cold = params.clone();
        cold["fail_if_not_ready"] = json!(true);
        let (code, error) = client.fails(method, &cold);
        assert_eq!(
            (code.as_str(), &error["data"]["class"]),
            ("model_loading", &json!("transient")),
            "{method}: {error}"
        );
        // It has started the load all the same; the next operation on the model needs it.
        client.load(model.as_str().expect("a model"));
    }
    assert!(daemon.stop().success());
}

/// The text alone on stdout, everything else on stderr.
#[test]
fn the_command_prints_the_text_alone() {
    let place = Place::new();
    let (daemon, mut client) = serving(&place);
    let ids = prompt_ids(&mut client, PROMPT);
    let (text, ended) = toys::text("writer", &ids, 12, None);
    assert!(!ended, "the text must be cut off here");
    let run = synapse(&place, &["generate", PROMPT, "--max-tokens", "12"], "");
    assert_eq!((run.code, run.stdout), (0, format!("{text}\n")), "{}", run.stderr);
    assert!(run.stderr.contains("cut off after 12 tokens"), "{}", run.stderr);
    let run = synapse(&place, &["generate", "-", "--max-tokens", "12", "--json", "-v"], PROMPT);
    let answer = &run.lines()[0];
    assert_eq!(
        (run.code, &answer["text"], &answer["finish_reason"]),
        (0, &json!(text), &json!("length"))
    );
    assert!(run.stderr.contains("writer@reference:f32"), "{}", run.stderr);
    let run = synapse(
        &place,
        &[
            "generate",
            PROMPT,
            "--max-tokens",
            "12",
            "--temperature",
            "1",
            "--seed",
            "7",
        ],
        "",
    );
    assert_eq!(run.stdout.trim_end(), toys::text("writer", &ids, 12, Some(7)).0);

    for (arguments, code, words) in [
        (
            vec!["generate", PROMPT, "--max-tokens", "513"],
            3,
            "microllm_max_tokens",
        ),
        (vec!["generate", PROMPT, "--chat"], 3, "chat template"),
        (vec!["generate", PROMPT, "--grammar", "absent.gbnf"], 1, "absent.gbnf"),
        (vec!["generate", PROMPT, "--model", "nobody"], 3, "nobody"),
    ] {
        let run = synapse(&place, &arguments, "");
        assert_eq!(
            (run.code, run.stdout.as_str()),
            (code, ""),
            "{arguments:?}: {}",
            run.stderr
        );
        assert!(run.stderr.contains(words), "{arguments:?}: {}", run.stderr);
    }
    assert!(daemon.stop().success());
}
