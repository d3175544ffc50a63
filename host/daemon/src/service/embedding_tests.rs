//! The embedding path on a real daemon with a toy engine: what is refused, what reaches the engine, what comes back.

use synapse_wire::client::{EmbedBatchResult, EmbedQueryParams, EmbedReply, ErrorCode, Role, Text};

use super::toy::{Bench, Setup, ask, ask_all, batch, code, query};
use super::{ServiceError, embed_batch};
use crate::config::Config;

fn values(reply: &EmbedReply, item: usize) -> Vec<f32> {
    reply.vectors[item].clone().unwrap().into_values().unwrap()
}

/// The toy's row, scaled to unit length in f64 by hand.
fn unit(row: &[f64]) -> Vec<f32> {
    let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
    #[expect(clippy::cast_possible_truncation, reason = "the expected f32")]
    row.iter().map(|x| (x / length) as f32).collect()
}

/// Proves API-09, API-12, API-14, TOK-04, FPR-07.
#[tokio::test]
async fn a_query_is_templated_tokenized_embedded_and_scaled() {
    let bench = Bench::loaded().await;
    // "one {text}": [CLS] one two three [SEP].
    let reply = ask(&bench, query("two three")).await.unwrap();
    assert_eq!(values(&reply, 0), unit(&[1.0 + 3.0 + 4.0 + 5.0 + 2.0, 5.0, 1.0, 0.0]));
    assert_eq!(
        (reply.dims, reply.table_epoch, reply.real_token_counts.as_slice()),
        (4, 0, &[5][..])
    );
    let item = &reply.items[0];
    assert_eq!(
        (item.submitted_tokens, item.effective_tokens, item.truncated),
        (5, 5, false)
    );
    let provenance = &reply.provenance;
    assert_eq!(provenance.by.fingerprint, reply.fingerprint);
    assert_eq!(
        (provenance.by.engine.as_str(), provenance.by.engine_version.as_str()),
        ("toy", "3")
    );
    assert_eq!(provenance.by.lane, "toy@toy:f32");
    assert_eq!(
        (provenance.role, provenance.template_id.as_deref()),
        (Role::Query, Some("toy/query"))
    );
    assert!(provenance.normalized && provenance.by.certification.is_none());

    // Another role has no template here, and is the same numeric space.
    let other = ask(
        &bench,
        EmbedQueryParams {
            role: Some(Role::Document),
            ..query("two three")
        },
    )
    .await
    .unwrap();
    assert_eq!(values(&other, 0), unit(&[1.0 + 4.0 + 5.0 + 2.0, 4.0, 1.0, 0.0]));
    assert_eq!(
        (&other.fingerprint, &other.provenance.template_id),
        (&reply.fingerprint, &None)
    );

    // Shorter, and not scaled: another space of the same profile each.
    let short = ask(
        &bench,
        EmbedQueryParams {
            dimensions: Some(2),
            ..query("two three")
        },
    )
    .await
    .unwrap();
    assert_eq!(values(&short, 0), unit(&[15.0, 5.0]));
    let raw = ask(
        &bench,
        EmbedQueryParams {
            normalize: Some(false),
            ..query("two three")
        },
    )
    .await
    .unwrap();
    assert_eq!(values(&raw, 0), [15.0, 5.0, 1.0, 0.0]);
    for served in [&short, &raw] {
        assert_ne!(served.fingerprint, reply.fingerprint);
        assert_eq!(served.numeric_profile_id, reply.numeric_profile_id);
    }

    // Too long: cut, and said so. Empty: its two special tokens, with the template's word.
    let long = ask(&bench, query(&"two ".repeat(30))).await.unwrap();
    let item = &long.items[0];
    assert_eq!(
        (item.submitted_tokens, item.effective_tokens, item.truncated),
        (33, 8, true)
    );
    let empty = ask(
        &bench,
        EmbedQueryParams {
            role: Some(Role::None),
            ..query("")
        },
    )
    .await
    .unwrap();
    assert_eq!(empty.real_token_counts, [2]);
}

/// Proves API-11, SCHED-15: every engine call is within the envelope's bounds of 3 items and 12 tokens.
#[tokio::test]
async fn a_batch_is_cut_to_the_envelope_and_comes_back_in_order() {
    let bench = Bench::loaded().await;
    let texts = [
        "one",
        "two two two two",
        "three",
        "",
        "five five five five five five",
        "one two",
        "four",
    ];
    let reply = ask_all(&bench, &bench.ctx(), batch(&texts)).await.unwrap();
    let ids: Vec<&str> = reply.items.iter().map(|item| item.id.as_str()).collect();
    assert_eq!(ids, ["i0", "i1", "i2", "i3", "i4", "i5", "i6"]);
    assert_eq!(reply.real_token_counts, [3, 6, 3, 2, 8, 4, 3]);
    for (n, (sum, length)) in [
        (6.0, 3.0),
        (19.0, 6.0),
        (8.0, 3.0),
        (3.0, 2.0),
        (45.0, 8.0),
        (10.0, 4.0),
        (9.0, 3.0),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(values(&reply, n), unit(&[sum, length, 1.0, 0.0]), "item {n}");
    }
    let calls = bench.script.calls();
    assert_eq!(calls.iter().map(Vec::len).sum::<usize>(), texts.len());
    for call in &calls {
        assert!(call.len() <= 3 && call.iter().sum::<usize>() <= 12, "{calls:?}");
    }
    // One text alone is bit for bit what it is in the batch (FPR-05).
    let alone = ask_all(&bench, &bench.ctx(), batch(&texts[4..5])).await.unwrap();
    assert_eq!(values(&alone, 0), values(&reply, 4));
    assert_eq!(alone.fingerprint, reply.fingerprint);
}

/// Proves API-05, API-06, API-07, API-10: each refusal has its code, and the engine hears of none of them.
#[tokio::test]
async fn what_cannot_be_served_is_refused_before_the_engine_is_called() {
    let bench = Bench::loaded().await;
    let good = ask(&bench, query("one")).await.unwrap().fingerprint;
    let before = bench.script.calls().len();
    let other = "0123456789abcdef".repeat(4);
    let q = || query("one");
    let refused = [
        (
            EmbedQueryParams {
                required_epoch: Some(1),
                ..q()
            },
            ErrorCode::SubstitutionRejected,
        ),
        (
            EmbedQueryParams {
                required_fingerprint: Some(other.clone()),
                ..q()
            },
            ErrorCode::SubstitutionRejected,
        ),
        (
            EmbedQueryParams {
                required_fingerprint: Some(other.clone()),
                allow_equivalent: true,
                ..q()
            },
            ErrorCode::SubstitutionRejected,
        ),
        (
            EmbedQueryParams {
                target_fingerprint: Some(other),
                ..q()
            },
            ErrorCode::SubstitutionRejected,
        ),
        // The right space, but not in the shape asked for.
        (
            EmbedQueryParams {
                required_fingerprint: Some(good.clone()),
                dimensions: Some(2),
                ..q()
            },
            ErrorCode::SubstitutionRejected,
        ),
        (
            EmbedQueryParams {
                required_fingerprint: Some(good.to_uppercase()),
                ..q()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            EmbedQueryParams {
                target_fingerprint: Some(String::new()),
                ..q()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            EmbedQueryParams {
                require_device: Some("cuda".to_owned()),
                ..q()
            },
            ErrorCode::NotCertified,
        ),
        (
            EmbedQueryParams {
                dimensions: Some(3),
                ..q()
            },
            ErrorCode::Unsupported,
        ),
        (
            EmbedQueryParams {
                dimensions: Some(0),
                ..q()
            },
            ErrorCode::Unsupported,
        ),
        (
            EmbedQueryParams {
                truncate: Some(false),
                ..query(&"two ".repeat(30))
            },
            ErrorCode::InputTooLong,
        ),
        (
            EmbedQueryParams {
                model: "nothing".to_owned(),
                ..q()
            },
            ErrorCode::UnknownModel,
        ),
        (
            EmbedQueryParams {
                model: "toy@other".to_owned(),
                ..q()
            },
            ErrorCode::UnknownModel,
        ),
        (
            EmbedQueryParams {
                model: "toy@toy:f16".to_owned(),
                ..q()
            },
            ErrorCode::UnknownModel,
        ),
        (
            EmbedQueryParams {
                model: "toy@absent".to_owned(),
                ..q()
            },
            ErrorCode::NotCertified,
        ),
        (
            EmbedQueryParams {
                model: "no-row".to_owned(),
                ..q()
            },
            ErrorCode::NotCertified,
        ),
        (
            EmbedQueryParams {
                model: "no-engine".to_owned(),
                ..q()
            },
            ErrorCode::NotCertified,
        ),
        (
            EmbedQueryParams {
                model: "not a model".to_owned(),
                ..q()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            EmbedQueryParams {
                model: "toy-two".to_owned(),
                normalize: Some(false),
                ..q()
            },
            ErrorCode::Unsupported,
        ),
    ];
    for (params, expected) in refused {
        let shown = format!("{params:?}");
        assert_eq!(code(ask(&bench, params).await), Some(expected), "{shown}");
    }
    assert_eq!(bench.script.calls().len(), before);
    // And what may be served is: the constraints all hold, the lane is named.
    let served = ask(
        &bench,
        EmbedQueryParams {
            model: "toy@toy:f32".to_owned(),
            required_epoch: Some(0),
            required_fingerprint: Some(good.clone()),
            target_fingerprint: Some(good.clone()),
            require_device: Some("cpu".to_owned()),
            fail_if_not_ready: true,
            ..q()
        },
    );
    assert_eq!(served.await.unwrap().fingerprint, good);
}

/// Proves API-11: at each cap a batch is served, beyond it the cap is named, and a batch with a key becomes a job.
#[tokio::test]
async fn inline_caps_are_named() {
    let mut config = Config::default();
    config.inline.max_items = 5;
    config.inline.max_tokens = 20;
    config.inline.max_text_bytes = 60;
    config.inline.max_item_bytes = 50;
    let bench = Bench::with(Setup {
        config,
        ..Setup::default()
    })
    .await;
    bench.load("toy").await.unwrap();
    let limit_of = |outcome: Result<EmbedReply, ServiceError>| {
        outcome.err().map(|error| {
            assert_eq!(*error.code(), ErrorCode::LimitExceeded, "{error}");
            assert!(error.message().contains("request_key"), "{error}");
            error.facts().unwrap().limit.clone().unwrap()
        })
    };
    let ctx = bench.ctx();
    let cases: [(&[&str], Option<&str>); 6] = [
        (&[""; 5], None),
        (&[""; 6], Some("inline.max_items")),
        (&["one two", "one two", "one two", "one two", "one two"], None),
        (
            &["one two three", "one two", "one two", "one two", "one two"],
            Some("inline.max_tokens"),
        ),
        (&["                              "; 2], None),
        (&["                               "; 2], Some("inline.max_text_bytes")),
    ];
    for (texts, expected) in cases {
        let outcome = ask_all(&bench, &ctx, batch(texts)).await;
        assert_eq!(limit_of(outcome).as_deref(), expected, "{texts:?}");
        let mut keyed = batch(texts);
        keyed.request_key = Some(format!("{texts:?}"));
        let outcome = embed_batch::run(&bench.daemon, &ctx, keyed).await.unwrap();
        let is_job = matches!(outcome, EmbedBatchResult::Accepted(_));
        assert_eq!(is_job, expected.is_some(), "{texts:?} with a key");
    }
    // One text that is too large by itself is that item's affair.
    let large = " ".repeat(51);
    let reply = ask_all(&bench, &ctx, batch(&[&large, "one"])).await.unwrap();
    let failure = reply.items[0].error.as_ref().unwrap();
    assert_eq!(failure.code, ErrorCode::LimitExceeded);
    assert_eq!(
        failure.detail.as_ref().unwrap().limit.as_deref(),
        Some("inline.max_item_bytes")
    );
    assert!(reply.vectors[0].is_none() && reply.vectors[1].is_some());
    assert_eq!(code(ask(&bench, query(&large)).await), Some(ErrorCode::LimitExceeded));
}

#[tokio::test]
async fn a_failed_text_fails_its_item_and_not_the_batch() {
    let bench = Bench::loaded().await;
    let surrogate: Text = serde_json::from_str(r#""\ud800""#).unwrap();
    let mut params = batch(&["one", "", "two two two two two two two", "three"]);
    params.items[1].text = surrogate.clone();
    params.truncate = Some(false);
    // The engine leaves the last value of its second row unwritten, as a broken engine would.
    bench.script.then(|_, out| {
        out[7] = f32::NAN;
        Ok(())
    });
    let reply = ask_all(&bench, &bench.ctx(), params).await.unwrap();
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
    assert_eq!(
        reply.vectors.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, false, false, false]
    );
    assert_eq!(reply.real_token_counts, [3, 0, 0, 0]);

    // The one text of a query is the request.
    let invalid = EmbedQueryParams {
        text: surrogate,
        ..query("")
    };
    assert_eq!(code(ask(&bench, invalid).await), Some(ErrorCode::InvalidText));
    bench.script.then(|_, out| {
        out[0] = f32::INFINITY;
        Ok(())
    });
    assert_eq!(code(ask(&bench, query("one")).await), Some(ErrorCode::NonFiniteOutput));
    // Nothing sound is left: the engine is not called.
    let calls = bench.script.calls().len();
    let mut params = batch(&[""]);
    params.items[0].text = serde_json::from_str(r#""\udc00""#).unwrap();
    let reply = ask_all(&bench, &bench.ctx(), params).await.unwrap();
    assert_eq!((reply.vectors.len(), bench.script.calls().len()), (1, calls));
}
