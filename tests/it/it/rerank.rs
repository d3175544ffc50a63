//! `rerank.score` over the socket and on the command line.
//!
//! The scores are those of the reference engine, whose arithmetic `support::toys` computes a second time from the ids:
//! so a test sees which tokens the engine got, in which order, and that nothing was done to its numbers. How real
//! cross-encoders fare is in `zoo`.

use serde_json::{Value, json};

use crate::support::cli::synapse;
use crate::support::client::Client;
use crate::support::daemon::{Daemon, Place};
use crate::support::toys::{self, Kind, MAX_TOKENS};

const QUERY: &str = "how do two programs share one file";
const TEXTS: [&str; 5] = [
    "take a lock on the file first",
    "bread needs flour and water",
    "one two three",
    "a lock is advisory unless both programs ask for it",
    "",
];

/// A daemon with a toy that reranks and one that embeds, whose tokenizer is the same.
fn serving(place: &Place) -> (Daemon, Client) {
    toys::write(place, "ranker", Kind::Rerank);
    toys::write(place, "embedder", Kind::Embed);
    let daemon = place.start();
    let mut client = daemon.connect();
    for model in ["ranker", "embedder"] {
        toys::install(&mut client, place, model);
    }
    (daemon, client)
}

fn candidates(texts: &[&str]) -> Value {
    let items = texts.iter().enumerate();
    items
        .map(|(n, text)| json!({"id": format!("c{n}"), "text": text}))
        .collect()
}

fn request(query: &str, texts: &[&str]) -> Value {
    json!({"model": "ranker", "query": query, "candidates": candidates(texts)})
}

/// The score that the definition gives to a pair in the frame of BERT: `[CLS] query [SEP] document [SEP]`, the document
/// cut from its end to fit.
fn expected(client: &mut Client, query: &str, document: &str) -> f32 {
    let query = toys::ids(client, "embedder", query);
    let mut document = toys::ids(client, "embedder", document).split_off(1);
    let room = usize::try_from(MAX_TOKENS).expect("is small") - query.len();
    if document.len() > room {
        let end = document.pop().expect("the frame's end");
        document.truncate(room - 1);
        document.push(end);
    }
    toys::score("ranker", &query, &document)
}

/// One score as an f32, whose digits give it back; NaN, which equals nothing, where there is none.
#[expect(clippy::cast_possible_truncation, reason = "an f32 was written")]
fn number(score: &Value) -> f32 {
    score.as_f64().unwrap_or(f64::NAN) as f32
}

fn scores(answer: &Value) -> Vec<f32> {
    answer["scores"]
        .as_array()
        .expect("scores")
        .iter()
        .map(number)
        .collect()
}

/// The engine's raw numbers, bit for bit, in the request's order, whatever that is.
///
/// Proves API-15.
#[test]
fn scores_are_the_engines_raw_numbers_in_the_requests_order() {
    let place = Place::new();
    let (daemon, mut client) = serving(&place);
    let expected: Vec<f32> = TEXTS.iter().map(|text| expected(&mut client, QUERY, text)).collect();
    assert!(
        !expected.is_sorted_by(|a, b| a >= b),
        "a sorted reply must not look right: {expected:?}"
    );
    let answer = client.ok("rerank.score", &request(QUERY, &TEXTS));
    assert_eq!(scores(&answer), expected, "{answer}");
    assert_eq!(answer["score_kind"], "log_odds");
    assert_eq!(answer["provenance"]["lane"], "ranker@reference:f32");
    assert_eq!(answer["fingerprint"], answer["provenance"]["fingerprint"]);
    for (n, text) in TEXTS.iter().enumerate() {
        let item = &answer["items"][n];
        let tokens =
            toys::ids(&mut client, "embedder", QUERY).len() + toys::ids(&mut client, "embedder", text).len() - 1;
        assert_eq!(item["id"], format!("c{n}"));
        assert_eq!(
            (&item["submitted_tokens"], &item["effective_tokens"]),
            (&json!(tokens), &json!(tokens))
        );
        assert_eq!(
            (&item["truncated"], &answer["real_token_counts"][n]),
            (&json!(false), &json!(tokens))
        );
    }
    let mut reversed = TEXTS;
    reversed.reverse();
    let mut again = scores(&client.ok("rerank.score", &request(QUERY, &reversed)));
    again.reverse();
    assert_eq!(again, expected);
    assert!(daemon.stop().success());
}

/// Only a document is ever cut, from its end, and it is said; without permission it fails alone. A query that leaves no
/// room fails the request.
///
/// Proves API-14.
#[test]
fn only_documents_are_cut_and_it_is_said() {
    let place = Place::new();
    let (daemon, mut client) = serving(&place);
    let long = "a lock on the file keeps other programs out ".repeat(20);
    let texts = ["short", long.as_str()];
    let answer = client.ok("rerank.score", &request(QUERY, &texts));
    let both: Vec<f32> = texts.iter().map(|text| expected(&mut client, QUERY, text)).collect();
    assert_eq!(scores(&answer), both);
    let whole = toys::ids(&mut client, "embedder", QUERY).len() + toys::ids(&mut client, "embedder", &long).len() - 1;
    let cut = &answer["items"][1];
    assert_eq!(
        (&cut["truncated"], &cut["submitted_tokens"]),
        (&json!(true), &json!(whole))
    );
    assert_eq!(
        (&cut["effective_tokens"], &answer["real_token_counts"][1]),
        (&json!(MAX_TOKENS), &json!(MAX_TOKENS))
    );

    let mut params = request(QUERY, &texts);
    params["truncate"] = json!(false);
    let answer = client.ok("rerank.score", &params);
    assert_eq!(number(&answer["scores"][0]), both[0]);
    assert_eq!(answer["scores"][1], Value::Null);
    let failed = &answer["items"][1];
    assert_eq!(
        (&failed["error"]["code"], &failed["truncated"]),
        (&json!("input_too_long"), &json!(false))
    );
    assert_eq!(answer["real_token_counts"][1], 0);

    for truncate in [true, false] {
        let mut params = request(&long, &["short"]);
        params["truncate"] = json!(truncate);
        let (code, error) = client.fails("rerank.score", &params);
        assert_eq!(code, "input_too_long", "{error}");
    }
    assert!(daemon.stop().success());
}

/// What concerns one candidate fails that one; what concerns the request fails the request, before anything runs.
#[test]
fn a_bad_candidate_fails_alone_and_a_bad_request_as_a_whole() {
    let place = Place::new();
    let (daemon, mut client) = serving(&place);
    let good = expected(&mut client, QUERY, "good");
    let half = r#"{"jsonrpc":"2.0","id":"half","method":"rerank.score","params":{"model":"ranker","query":"QUERY","candidates":[{"id":"a","text":"x\ud800"},{"id":"b","text":"good"}]}}"#;
    client
        .send(format!("{}\n", half.replace("QUERY", QUERY)).as_bytes())
        .expect("sends");
    let answer = client.line().expect("an answer")["result"].clone();
    assert_eq!(answer["items"][0]["error"]["code"], "invalid_text", "{answer}");
    assert_eq!(
        (&answer["scores"][0], number(&answer["scores"][1])),
        (&Value::Null, good)
    );
    client
        .send(format!("{}\n", half.replace("QUERY", r"\udc00")).as_bytes())
        .expect("sends");
    let answer = client.line().expect("an answer");
    assert_eq!(answer["error"]["data"]["code"], "invalid_text", "{answer}");

    let mut table = vec![
        ("no candidate", request(QUERY, &[]), "invalid_request"),
        (
            "another kind",
            json!({"model": "embedder", "query": "q", "candidates": [{"id": "a", "text": "x"}]}),
            "unsupported",
        ),
        (
            "no model",
            json!({"model": "nobody", "query": "q", "candidates": [{"id": "a", "text": "x"}]}),
            "unknown_model",
        ),
    ];
    let mut twice = request(QUERY, &["x", "y"]);
    twice["candidates"][1]["id"] = json!("c0");
    table.push(("an id twice", twice, "invalid_request"));
    let mut nameless = request(QUERY, &["x"]);
    nameless["candidates"][0]["id"] = json!("");
    table.push(("an empty id", nameless, "invalid_request"));
    for (what, params, expected) in table {
        let (code, error) = client.fails("rerank.score", &params);
        assert_eq!(code, expected, "{what}: {error}");
    }
    for (method, params) in [
        ("embed.query", json!({"model": "ranker", "text": "t"})),
        ("microllm.oneshot", json!({"model": "ranker", "prompt": "p"})),
    ] {
        let (code, error) = client.fails(method, &params);
        assert_eq!(code, "unsupported", "{method}: {error}");
    }
    assert!(daemon.stop().success());
}

/// A score that is no number is the failure of its candidate, and never a score.
#[test]
fn a_score_that_is_not_finite_is_an_error_of_its_candidate() {
    for fault in ["nan", "infinite"] {
        let place = Place::new().reference(&[("fault", fault)]);
        let (daemon, mut client) = serving(&place);
        let answer = client.ok("rerank.score", &request(QUERY, &TEXTS));
        assert_eq!(answer["scores"], json!([null, null, null, null, null]), "{fault}");
        for n in 0..TEXTS.len() {
            let item = &answer["items"][n];
            assert_eq!(item["error"]["code"], "non_finite_output", "{fault}: {item}");
            assert_eq!(
                (&item["id"], &answer["real_token_counts"][n]),
                (&json!(format!("c{n}")), &json!(0))
            );
        }
        let run = synapse(&place, &["rerank", QUERY, "x", "--json"], "");
        let line = &run.lines()[0];
        assert_eq!(
            (run.code, &line["rank"], &line["score"]),
            (3, &Value::Null, &Value::Null),
            "{}",
            run.stderr
        );
        assert!(daemon.stop().success());
    }
}

/// Proves API-15. At a cap it is served, over it refused with the cap's name; a key changes nothing yet.
#[test]
fn the_caps_are_named_and_a_candidate_more_is_refused() {
    let place = Place::new();
    let (daemon, mut client) = serving(&place);
    let limits = client.ok("server.info", &json!({}))["limits"].clone();
    assert_eq!(
        (&limits["rerank_candidates"], &limits["rerank_interactive_candidates"]),
        (&json!(64), &json!(20))
    );
    for count in [1, 20, 21, 64] {
        let answer = client.ok("rerank.score", &request(QUERY, &vec!["x"; count]));
        assert_eq!(scores(&answer).len(), count);
        assert!(
            scores(&answer).iter().all(|score| *score == scores(&answer)[0]),
            "{answer}"
        );
    }
    let mut params = request(QUERY, &["x"; 65]);
    let (code, error) = client.fails("rerank.score", &params);
    let detail = &error["data"]["detail"];
    assert_eq!(code, "limit_exceeded", "{error}");
    assert_eq!(
        (&detail["maximum"], &detail["actual"]),
        (&json!(64), &json!(65)),
        "{error}"
    );
    params["request_key"] = json!("k");
    assert!(client.ok("rerank.score", &params)["job_id"].is_string());
    assert!(daemon.stop().success());
}

/// The command sorts, keeps the caller's ids, and asks in parts where there are more texts than one request may hold.
#[test]
fn the_command_orders_texts_of_any_number() {
    let place = Place::new();
    let (daemon, mut client) = serving(&place);
    let mut lines: Vec<String> = (0..150).map(|n| format!("text number {n} of many")).collect();
    lines.insert(7, "  ".to_owned());
    let stdin = lines.join("\n");
    let run = synapse(&place, &["rerank", QUERY, "--file", "-", "--json"], &stdin);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let ranked = run.lines();
    assert_eq!(ranked.len(), 150, "a blank line is no candidate");
    let mut right: Vec<(f32, usize)> = Vec::new();
    for (n, line) in lines.iter().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        right.push((expected(&mut client, QUERY, line), n));
    }
    right.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (position, (found, (score, n))) in ranked.iter().zip(&right).enumerate() {
        assert_eq!(
            (&found["rank"], &found["id"]),
            (&json!(position + 1), &json!(n.to_string()))
        );
        assert_eq!(number(&found["score"]), *score);
    }

    let jsonl = "{\"id\": \"first\", \"text\": \"one two three\"}\n\"bread needs flour\"\n";
    std::fs::write(place.path().join("docs.jsonl"), jsonl).expect("writes");
    let run = synapse(&place, &["rerank", QUERY, "--file", "docs.jsonl", "--top", "1"], "");
    assert_eq!(run.code, 0, "{}", run.stderr);
    let best = if expected(&mut client, QUERY, "one two three") > expected(&mut client, QUERY, "bread needs flour") {
        "one two three"
    } else {
        "bread needs flour"
    };
    let rows: Vec<&str> = run
        .stdout
        .lines()
        .skip_while(|line| !line.starts_with("RANK"))
        .skip(1)
        .collect();
    assert!(
        rows.len() == 1 && rows[0].starts_with('1') && rows[0].ends_with(best),
        "{}",
        run.stdout
    );

    let run = synapse(&place, &["rerank", QUERY, "--file", "absent.txt"], "");
    assert!(run.code == 1 && run.stderr.contains("absent.txt"), "{}", run.stderr);
    let run = synapse(&place, &["rerank", QUERY, "-"], "\n\n");
    assert!(run.code == 2 && run.stderr.contains("blank"), "{}", run.stderr);
    let run = synapse(&place, &["rerank", QUERY, "x", "--model", "nobody"], "");
    assert!(run.code == 3 && run.stderr.contains("nobody"), "{}", run.stderr);
    assert!(daemon.stop().success());
}

/// A model that is here but not in memory is loaded while the command waits, and one that is not here is named with the
/// command that brings it.
#[test]
fn the_command_waits_for_a_load_and_says_how_to_pull() {
    let place = Place::new();
    toys::write(&place, "ranker", Kind::Rerank);
    toys::write(&place, "absent", Kind::Rerank);
    let daemon = place.start();
    toys::pull(&mut daemon.connect(), &place, "ranker");
    // The only reranker that is installed is the one meant.
    let run = synapse(&place, &["rerank", "q", "a", "b", "--json"], "");
    assert_eq!((run.code, run.lines().len()), (0, 2), "{}", run.stderr);
    let run = synapse(&place, &["rerank", "q", "a", "--model", "absent"], "");
    assert!(
        run.code == 3 && run.stderr.contains("synapse models pull absent"),
        "{}",
        run.stderr
    );
    assert!(daemon.stop().success());
}
