//! `rerank.score` on a real daemon with a toy engine: what is refused, what reaches the engine, what comes back.
//!
//! The toy's score of a pair is ten times the sum of the document's ids and of the `[SEP]` (2) behind it, less what stands
//! before the document: `[CLS]` (1), the query, `[SEP]` (2).

use synapse_wire::client::{BatchItem, ErrorCode, RerankReply, RerankScoreParams, ScoreKind, Text};

use super::toy::{Bench, HANG, ask, ask_scores, code, context, query, rerank, until_cancelled};
use super::{ServiceError, tokenize};
use crate::config::Config;

async fn loaded() -> Bench {
    Bench::loaded_with(Config::default(), "toy-rank").await
}

fn surrogate() -> Text {
    serde_json::from_str(r#""\ud800""#).unwrap()
}

/// Proves API-15, API-14, API-12.
#[tokio::test]
async fn scores_are_raw_and_in_the_requests_order() {
    let bench = loaded().await;
    // `one` is 3, `two` 4, `three` 5, `four` 6, `five` 7: before the document stand 1 + 3 + 2.
    let documents = [
        "two",
        "five five",
        "",
        "three",
        "two",
        "five five five five five five five",
    ];
    let reply = ask_scores(&bench, &bench.ctx(), rerank("one", &documents))
        .await
        .unwrap();
    let expected = [
        10.0 * (4.0 + 2.0) - 6.0,
        10.0 * (14.0 + 2.0) - 6.0,
        10.0 * 2.0 - 6.0,
        10.0 * (5.0 + 2.0) - 6.0,
        10.0 * (4.0 + 2.0) - 6.0,
        // Cut from its end to the lane's 9 tokens: five of its seven words are left.
        10.0 * (35.0 + 2.0) - 6.0,
    ];
    assert_eq!(reply.scores, expected.map(Some));
    assert_eq!(reply.real_token_counts, [5, 6, 4, 5, 5, 9]);
    let ids: Vec<&str> = reply.items.iter().map(|item| item.id.as_str()).collect();
    assert_eq!(ids, ["c0", "c1", "c2", "c3", "c4", "c5"]);
    let submitted: Vec<(u32, bool)> = reply
        .items
        .iter()
        .map(|item| (item.submitted_tokens, item.truncated))
        .collect();
    assert_eq!(
        submitted,
        [(5, false), (6, false), (4, false), (5, false), (5, false), (11, true)]
    );
    assert_eq!(
        (reply.model.as_str(), reply.score_kind, reply.table_epoch),
        ("toy-rank", ScoreKind::Logit, 0)
    );
    assert_eq!(reply.provenance.lane, "toy-rank@toy:f32");
    assert_eq!(reply.provenance.fingerprint, reply.fingerprint);
    // Every engine call is within the envelope's bounds of 3 pairs and 12 tokens.
    let calls = bench.script.calls();
    assert_eq!(calls.iter().map(Vec::len).sum::<usize>(), documents.len());
    for call in &calls {
        assert!(call.len() <= 3 && call.iter().sum::<usize>() <= 12, "{calls:?}");
    }
    // Alone, a candidate has the score that it has among others.
    let alone = ask_scores(&bench, &bench.ctx(), rerank("one", &documents[5..]))
        .await
        .unwrap();
    assert_eq!(
        (alone.scores[0], &alone.fingerprint),
        (reply.scores[5], &reply.fingerprint)
    );
}

#[tokio::test]
async fn a_failed_candidate_fails_alone() {
    let bench = loaded().await;
    let mut params = rerank("one", &["two", "", "two two two two two two two", "three"]);
    params.candidates[1].text = surrogate();
    params.truncate = Some(false);
    // Two pairs are sound; the engine leaves the second one's score unwritten, as a broken engine would.
    bench.script.then(|_, out| {
        out[1] = f32::NAN;
        Ok(())
    });
    let reply = ask_scores(&bench, &bench.ctx(), params).await.unwrap();
    let codes: Vec<Option<&ErrorCode>> = reply
        .items
        .iter()
        .map(|item| item.error.as_ref().map(|failure| &failure.code))
        .collect();
    assert_eq!(
        codes,
        [
            None,
            Some(&ErrorCode::InvalidText),
            Some(&ErrorCode::InputTooLong),
            Some(&ErrorCode::NonFiniteOutput)
        ]
    );
    assert_eq!(reply.scores, [Some(54.0), None, None, None]);
    assert_eq!(reply.real_token_counts, [5, 0, 0, 0]);
    // Infinite is not finite either.
    bench.script.then(|_, out| {
        out[0] = f32::NEG_INFINITY;
        Ok(())
    });
    let reply = ask_scores(&bench, &bench.ctx(), rerank("one", &["two"])).await.unwrap();
    assert_eq!(reply.scores, [None]);
    // Nothing sound is left: the engine is not called.
    let calls = bench.script.calls().len();
    let mut params = rerank("one", &[""]);
    params.candidates[0].text = surrogate();
    let reply = ask_scores(&bench, &bench.ctx(), params).await.unwrap();
    assert_eq!((reply.scores.len(), bench.script.calls().len()), (1, calls));
}

/// Proves API-05, API-06, API-07: each refusal has its code, and the engine hears of none of them.
#[tokio::test]
async fn what_cannot_be_scored_is_refused_before_the_engine_is_called() {
    let bench = loaded().await;
    let good = ask_scores(&bench, &bench.ctx(), rerank("one", &["two"]))
        .await
        .unwrap()
        .fingerprint;
    bench.load("toy").await.unwrap();
    let before = bench.script.calls().len();
    let p = || rerank("one", &["two", "three"]);
    let twice = |second: &str| {
        let items = ["a", second].map(|id| BatchItem::new(id, "two"));
        RerankScoreParams::new("toy-rank", "one", items.to_vec())
    };
    let with = |change: fn(&mut RerankScoreParams)| {
        let mut params = p();
        change(&mut params);
        params
    };
    let refused = [
        (rerank("one", &[]), ErrorCode::InvalidRequest),
        (twice("a"), ErrorCode::InvalidRequest),
        (twice(""), ErrorCode::InvalidRequest),
        (with(|p| p.request_key = Some(String::new())), ErrorCode::InvalidRequest),
        (with(|p| p.query = surrogate()), ErrorCode::InvalidText),
        // Six words and the frame of three leave no room for a document, whether or not it may be cut.
        (rerank("one one one one one one", &["two"]), ErrorCode::InputTooLong),
        (
            RerankScoreParams {
                truncate: Some(false),
                ..rerank("one one one one one one", &["two"])
            },
            ErrorCode::InputTooLong,
        ),
        (with(|p| p.required_epoch = Some(1)), ErrorCode::SubstitutionRejected),
        (
            with(|p| p.required_fingerprint = Some("0".repeat(64))),
            ErrorCode::SubstitutionRejected,
        ),
        (
            with(|p| p.required_fingerprint = Some("x".to_owned())),
            ErrorCode::InvalidRequest,
        ),
        (
            with(|p| p.require_device = Some("cuda".to_owned())),
            ErrorCode::NotCertified,
        ),
        (with(|p| p.model = "toy".to_owned()), ErrorCode::Unsupported),
        (with(|p| p.model = "toy-chat".to_owned()), ErrorCode::Unsupported),
        (with(|p| p.model = "nothing".to_owned()), ErrorCode::UnknownModel),
        (
            with(|p| p.model = "toy-rank@toy:f16".to_owned()),
            ErrorCode::UnknownModel,
        ),
    ];
    for (params, expected) in refused {
        let shown = format!("{params:?}");
        assert_eq!(
            code(ask_scores(&bench, &bench.ctx(), params).await),
            Some(expected),
            "{shown}"
        );
    }
    assert_eq!(bench.script.calls().len(), before);
    let served = RerankScoreParams {
        model: "toy-rank@toy".to_owned(),
        required_fingerprint: Some(good.clone()),
        required_epoch: Some(0),
        require_device: Some("cpu".to_owned()),
        ..p()
    };
    let reply = ask_scores(&bench, &bench.ctx(), served).await.unwrap();
    assert_eq!(reply.fingerprint, good);

    // And the other way round: nothing else is asked of a reranker.
    let mut wrong = query("one");
    wrong.model = "toy-rank".to_owned();
    let error = ask(&bench, wrong).await.unwrap_err();
    assert_eq!(*error.code(), ErrorCode::Unsupported);
    assert!(error.message().contains("reranking, not for embedding"), "{error}");
    // Its tokenizer can be asked.
    let params = serde_json::from_str(r#"{"model": "toy-rank", "text": "one"}"#).unwrap();
    let tokens = tokenize::run(&bench.daemon, &bench.ctx(), params).await.unwrap();
    assert_eq!(tokens.ids, [1, 3, 2]);
}

/// Proves API-15: at each cap a rerank is served, beyond it the cap is named.
#[tokio::test]
async fn the_caps_of_a_rerank_are_named() {
    let mut config = Config::default();
    config.rerank.max_candidates = 5;
    config.rerank.max_tokens = 30;
    config.inline.max_text_bytes = 60;
    config.inline.max_item_bytes = 50;
    let bench = Bench::loaded_with(config, "toy-rank").await;
    let limit_of = |outcome: Result<RerankReply, ServiceError>| {
        outcome.err().map(|error| {
            assert_eq!(*error.code(), ErrorCode::LimitExceeded, "{error}");
            let limit = error.facts().unwrap().limit.clone().unwrap();
            // A job takes more than a request, but no larger query.
            assert_eq!(
                limit != "inline.max_item_bytes",
                error.message().contains("request_key"),
                "{error}"
            );
            limit
        })
    };
    let spaces = |n: usize| " ".repeat(n);
    let cases: [(String, Vec<String>, Option<&str>); 8] = [
        (String::new(), vec![String::new(); 5], None),
        (String::new(), vec![String::new(); 6], Some("rerank.max_candidates")),
        // A pair has 3 tokens around it: 5 * (3 + 1 + 2) is 30.
        ("one".to_owned(), vec!["two two".to_owned(); 5], None),
        (
            "one".to_owned(),
            [vec!["two two".to_owned(); 4], vec!["two two two".to_owned()]].concat(),
            Some("rerank.max_tokens"),
        ),
        (spaces(20), vec![spaces(20); 2], None),
        (spaces(21), vec![spaces(20); 2], Some("inline.max_text_bytes")),
        (spaces(50), vec![String::new()], None),
        (spaces(51), vec![String::new()], Some("inline.max_item_bytes")),
    ];
    for (text, documents, expected) in cases {
        let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
        let outcome = ask_scores(&bench, &bench.ctx(), rerank(&text, &documents)).await;
        assert_eq!(limit_of(outcome).as_deref(), expected, "{text:?} {documents:?}");
    }
    // One document that is too large by itself is that candidate's affair.
    let large = spaces(51);
    let reply = ask_scores(&bench, &bench.ctx(), rerank("", &[&large, "two"]))
        .await
        .unwrap();
    let failure = reply.items[0].error.as_ref().unwrap();
    assert_eq!(failure.code, ErrorCode::LimitExceeded);
    assert!(reply.scores[0].is_none() && reply.scores[1].is_some());
}

/// Proves SCHED-02: a small rerank is interactive, a large one is bulk and does not hold it up.
#[tokio::test]
async fn a_small_rerank_goes_before_a_large_one() {
    let mut config = Config::default();
    config.rerank.interactive_candidates = 2;
    let bench = Bench::loaded_with(config, "toy-rank").await;
    // Both slots of the lane: the large one's first quantum holds one until it has seen a small one answered.
    let (seen_tx, seen) = std::sync::mpsc::sync_channel::<()>(1);
    bench.script.then(move |_, _| {
        seen.recv_timeout(HANG).unwrap();
        Ok(())
    });
    let ctx = bench.ctx();
    let large = ask_scores(&bench, &ctx, rerank("one", &["two"; 12]));
    let small = async {
        while bench.script.calls().is_empty() {
            tokio::task::yield_now().await;
        }
        let ctx = bench.ctx();
        let reply = ask_scores(&bench, &ctx, rerank("one", &["three", "four"]))
            .await
            .unwrap();
        // The large one's other quanta are to come.
        assert_eq!(bench.script.calls().len(), 2);
        seen_tx.send(()).unwrap();
        reply
    };
    let (large, small) = tokio::join!(large, small);
    assert_eq!(large.unwrap().scores, [Some(54.0); 12]);
    assert_eq!(small.scores, [Some(64.0), Some(74.0)]);
}

#[tokio::test]
async fn a_rerank_ends_at_its_deadline_and_at_its_cancellation() {
    let bench = loaded().await;
    for by_cancel in [false, true] {
        bench.script.then(|ctx, _| Err(until_cancelled(ctx)));
        let ctx = context(
            HANG,
            if by_cancel {
                HANG
            } else {
                std::time::Duration::from_millis(50)
            },
        );
        let calls = bench.script.calls().len();
        let (outcome, ()) = tokio::join!(ask_scores(&bench, &ctx, rerank("one", &["two"])), async {
            while by_cancel && bench.script.calls().len() == calls {
                tokio::task::yield_now().await;
            }
            if by_cancel {
                ctx.cancel.cancel();
            }
        });
        let expected = if by_cancel {
            ErrorCode::Cancelled
        } else {
            ErrorCode::DeadlineExceeded
        };
        assert_eq!(code(outcome), Some(expected));
        bench.script.forget();
    }
    ask_scores(&bench, &bench.ctx(), rerank("one", &["two"])).await.unwrap();
}
