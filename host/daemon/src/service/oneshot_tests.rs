//! `microllm.oneshot` on a real daemon with a toy engine: what is refused, what reaches the engine, what comes back.
//!
//! The toy's words are `one` to `five` with the ids 3 to 7. Its text begins with the word whose id is 3 plus the sum of the
//! prompt's ids modulo 5, and goes on in that order, round and round.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use synapse_core::engine::{
    EngineError, EngineErrorCode, EngineState, FinishReason as Finish, Flow, GenerateOptions, Generated, TokenSink,
};
use synapse_loader::BundleStatus;
use synapse_wire::client::{ErrorCode, FinishReason, MicrollmOneshotParams, Text};

use super::toy::{Bench, HANG, ask, ask_scores, ask_text, code, context, generation, query, rerank};
use crate::config::Config;
use crate::lane::work::MAX_TEXT_BYTES;

async fn loaded() -> Bench {
    Bench::loaded_with(Config::default(), "toy-chat").await
}

fn with_grammars() -> Config {
    Config {
        grammar_enabled: true,
        ..Config::default()
    }
}

fn short(prompt: &str) -> MicrollmOneshotParams {
    MicrollmOneshotParams {
        max_tokens: Some(3),
        ..generation(prompt)
    }
}

fn raw(prompt: &str) -> MicrollmOneshotParams {
    MicrollmOneshotParams {
        max_tokens: Some(3),
        ..MicrollmOneshotParams::new("toy-raw", prompt)
    }
}

fn failure(code: EngineErrorCode) -> EngineError {
    EngineError::new(code, EngineState::Usable, "scripted")
}

/// Proves API-16: greedy by default, so the same prompt gives the same text.
#[tokio::test]
async fn a_prompt_is_rendered_tokenized_and_continued() {
    let bench = loaded().await;
    // "two five three" behind `[CLS]`: 1 + 4 + 7 + 5.
    let reply = ask_text(&bench, &bench.ctx(), short("five")).await.unwrap();
    assert_eq!(
        (reply.text.as_str(), reply.finish_reason, reply.chat),
        ("three four five ", FinishReason::Length, true)
    );
    assert_eq!((reply.prompt_tokens, reply.generated_tokens), (4, 3));
    assert_eq!((reply.model.as_str(), reply.table_epoch), ("toy-chat", 0));
    assert_eq!(reply.provenance.lane, "toy-chat@toy:f32");
    assert_eq!(reply.provenance.fingerprint, reply.fingerprint);
    let again = ask_text(&bench, &bench.ctx(), short("five")).await.unwrap();
    assert_eq!(again, reply);
    let greedy = GenerateOptions {
        max_tokens: 3,
        temperature: 0.0,
        top_p: 1.0,
        seed: 0,
        stop: Vec::new(),
        grammar: String::new(),
        extra: Vec::new(),
    };
    assert_eq!(
        bench.script.generations(),
        [(vec![1, 4, 7, 5], greedy.clone()), (vec![1, 4, 7, 5], greedy)]
    );

    // "one four two five three".
    let system = MicrollmOneshotParams {
        system: Some(Text::from("four")),
        ..short("five")
    };
    let reply = ask_text(&bench, &bench.ctx(), system).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.prompt_tokens), ("two three four ", 6));
    // Without the template, because it was asked so.
    let bare = MicrollmOneshotParams {
        chat: Some(false),
        ..short("five")
    };
    let reply = ask_text(&bench, &bench.ctx(), bare).await.unwrap();
    assert_eq!(
        (reply.text.as_str(), reply.prompt_tokens, reply.chat),
        ("four five one ", 2, false)
    );
    // Without the template, because there is none.
    bench.load("toy-raw").await.unwrap();
    let reply = ask_text(&bench, &bench.ctx(), raw("five")).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.chat), ("four five one ", false));
    // Text that spells a control token is text.
    ask_text(&bench, &bench.ctx(), raw("five [SEP]")).await.unwrap();
    let (ids, _) = bench.script.generations().pop().unwrap();
    assert_eq!(ids[..2], [1, 7]);
    assert!(!ids.contains(&2), "{ids:?}");
}

#[tokio::test]
async fn the_engine_is_asked_as_the_caller_asked() {
    let bench = loaded().await;
    let params = MicrollmOneshotParams {
        temperature: Some(0.75),
        top_p: Some(0.5),
        seed: Some(u64::MAX),
        stop: vec!["x".repeat(256); 8],
        ..short("five")
    };
    ask_text(&bench, &bench.ctx(), params.clone()).await.unwrap();
    let (_, options) = bench.script.generations().pop().unwrap();
    assert_eq!(
        (options.temperature, options.top_p, options.seed),
        (0.75, 0.5, u64::MAX)
    );
    assert_eq!(options.stop, params.stop);
    // Why it ended, and how many tokens that took, is the engine's to say.
    bench.script.generate(|_, sink| {
        sink.push(&[3], "sm\u{f8}r".as_bytes());
        Ok(Generated {
            prompt_tokens: 4,
            generated_tokens: 2,
            finish: Finish::Stop,
        })
    });
    let reply = ask_text(&bench, &bench.ctx(), short("five")).await.unwrap();
    assert_eq!(
        (reply.text.as_str(), reply.generated_tokens, reply.finish_reason),
        ("sm\u{f8}r", 2, FinishReason::Stop)
    );
}

/// Proves API-17, CONF-09: with a length the request gets it or is refused; without one it gets what fits.
#[tokio::test]
async fn a_text_has_the_length_asked_for_or_none() {
    let bench = loaded().await;
    let length = |max_tokens| MicrollmOneshotParams {
        max_tokens,
        ..generation("five")
    };
    // The lane's context is 20, the prompt has 4.
    for (asked, generated) in [(Some(16), 16), (None, 16), (Some(1), 1)] {
        let reply = ask_text(&bench, &bench.ctx(), length(asked)).await.unwrap();
        assert_eq!(reply.generated_tokens, generated);
    }
    let error = ask_text(&bench, &bench.ctx(), length(Some(17))).await.unwrap_err();
    assert_eq!(*error.code(), ErrorCode::InputTooLong);
    for part in ["4 tokens", "17", "21", "20"] {
        assert!(error.message().contains(part), "{error}");
    }
    // Longer than the whole context.
    let error = ask_text(&bench, &bench.ctx(), generation(&"five ".repeat(40)))
        .await
        .unwrap_err();
    assert_eq!(*error.code(), ErrorCode::InputTooLong);
    assert_eq!(error.facts().unwrap().maximum, Some(20));

    let config = Config {
        microllm_max_tokens: 10,
        ..Config::default()
    };
    let bench = Bench::loaded_with(config, "toy-chat").await;
    for asked in [Some(10), None] {
        let reply = ask_text(&bench, &bench.ctx(), length(asked)).await.unwrap();
        assert_eq!(reply.generated_tokens, 10);
    }
    let refused = ask_text(&bench, &bench.ctx(), length(Some(11))).await.unwrap_err();
    assert_eq!(*refused.code(), ErrorCode::InvalidRequest);
    assert_eq!(refused.facts().unwrap().maximum, Some(10));
}

/// Proves API-05, API-06, API-07: each refusal has its code, and the engine hears of none of them.
#[tokio::test]
async fn what_cannot_be_generated_is_refused_before_the_engine_is_called() {
    let mut config = Config::default();
    config.inline.max_item_bytes = 50;
    let bench = Bench::loaded_with(config, "toy-chat").await;
    bench.load("toy-raw").await.unwrap();
    let surrogate: Text = serde_json::from_str(r#""\ud800""#).unwrap();
    let with = |change: &dyn Fn(&mut MicrollmOneshotParams)| {
        let mut params = short("five");
        change(&mut params);
        params
    };
    let refused = [
        (with(&|p| p.prompt = surrogate.clone()), ErrorCode::InvalidText),
        (with(&|p| p.system = Some(surrogate.clone())), ErrorCode::InvalidText),
        (with(&|p| p.prompt = " ".repeat(51).into()), ErrorCode::LimitExceeded),
        (
            with(&|p| p.system = Some(" ".repeat(51).into())),
            ErrorCode::LimitExceeded,
        ),
        (with(&|p| p.max_tokens = Some(0)), ErrorCode::InvalidRequest),
        (with(&|p| p.temperature = Some(-0.1)), ErrorCode::InvalidRequest),
        (with(&|p| p.temperature = Some(2.1)), ErrorCode::InvalidRequest),
        (with(&|p| p.temperature = Some(f32::NAN)), ErrorCode::InvalidRequest),
        (with(&|p| p.top_p = Some(0.0)), ErrorCode::InvalidRequest),
        (with(&|p| p.top_p = Some(1.1)), ErrorCode::InvalidRequest),
        (with(&|p| p.top_p = Some(f32::NAN)), ErrorCode::InvalidRequest),
        (with(&|p| p.stop = vec!["x".to_owned(); 9]), ErrorCode::LimitExceeded),
        (with(&|p| p.stop = vec!["x".repeat(257)]), ErrorCode::LimitExceeded),
        (with(&|p| p.stop = vec![String::new()]), ErrorCode::InvalidRequest),
        (
            with(&|p| {
                p.chat = Some(false);
                p.system = Some("one".into());
            }),
            ErrorCode::InvalidRequest,
        ),
        (
            with(&|p| p.grammar = Some("root ::= \"a\"".to_owned())),
            ErrorCode::GrammarDisabled,
        ),
        (with(&|p| p.grammar = Some(String::new())), ErrorCode::GrammarDisabled),
        (with(&|p| p.required_epoch = Some(1)), ErrorCode::SubstitutionRejected),
        (
            with(&|p| p.required_fingerprint = Some("0".repeat(64))),
            ErrorCode::SubstitutionRejected,
        ),
        (
            with(&|p| p.require_device = Some("cuda".to_owned())),
            ErrorCode::NotCertified,
        ),
        (with(&|p| p.model = "toy".to_owned()), ErrorCode::Unsupported),
        (with(&|p| p.model = "toy-rank".to_owned()), ErrorCode::Unsupported),
        (with(&|p| p.model = "nothing".to_owned()), ErrorCode::UnknownModel),
        // What a model without a template cannot do.
        (
            MicrollmOneshotParams {
                chat: Some(true),
                ..raw("five")
            },
            ErrorCode::Unsupported,
        ),
        (
            MicrollmOneshotParams {
                system: Some("one".into()),
                ..raw("five")
            },
            ErrorCode::Unsupported,
        ),
    ];
    for (params, expected) in refused {
        let shown = format!("{params:?}");
        assert_eq!(
            code(ask_text(&bench, &bench.ctx(), params).await),
            Some(expected),
            "{shown}"
        );
    }
    assert!(bench.script.generations().is_empty());
    let served = MicrollmOneshotParams {
        required_epoch: Some(0),
        require_device: Some("cpu".to_owned()),
        temperature: Some(2.0),
        top_p: Some(1.0),
        ..short("five")
    };
    ask_text(&bench, &bench.ctx(), served).await.unwrap();
}

/// Proves API-18: with the gate open the host refuses what no engine may see, and the engine decides the rest.
#[tokio::test]
async fn a_grammar_is_never_ignored() {
    let bench = Bench::loaded_with(with_grammars(), "toy-chat").await;
    let grammar = |text: &str| MicrollmOneshotParams {
        grammar: Some(text.to_owned()),
        ..short("five")
    };
    let nested = format!("root ::= {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000));
    for (text, expected) in [
        (String::new(), ErrorCode::GrammarInvalid),
        (nested, ErrorCode::GrammarInvalid),
        ("x".repeat(256 * 1024 + 1), ErrorCode::LimitExceeded),
    ] {
        assert_eq!(
            code(ask_text(&bench, &bench.ctx(), grammar(&text)).await),
            Some(expected)
        );
    }
    assert!(bench.script.generations().is_empty());
    // The toy has no grammars.
    let refused = ask_text(&bench, &bench.ctx(), grammar("root ::= \"a\"")).await;
    assert_eq!(code(refused), Some(ErrorCode::GrammarUnavailableInBuild));
    // An engine that has them reads this one and finds it wrong.
    bench
        .script
        .generate(|_, _| Err(failure(EngineErrorCode::GrammarInvalid)));
    let refused = ask_text(&bench, &bench.ctx(), grammar("root ::= (")).await;
    assert_eq!(code(refused), Some(ErrorCode::GrammarInvalid));
    let (_, options) = bench.script.generations().pop().unwrap();
    assert_eq!(options.grammar, "root ::= (");
    ask_text(&bench, &bench.ctx(), short("five")).await.unwrap();
}

/// What an engine writes before its call ends.
type Act = fn(&mut dyn TokenSink);

/// What an engine does in one call, and how that ends.
type Scripted = (Act, Result<Generated, EngineError>);

fn nothing(_: &mut dyn TokenSink) {}

/// Proves ERR-03: what the engine says, and what breaks the contract, each as one public error; the next request is served.
#[tokio::test]
async fn a_failed_generation_fails_alone() {
    let bench = loaded().await;
    let done = |generated_tokens| {
        Ok(Generated {
            prompt_tokens: 4,
            generated_tokens,
            finish: Finish::Stop,
        })
    };
    let fails = |code| (nothing as Act, Err(failure(code)));
    let cases: [(Scripted, ErrorCode); 8] = [
        (fails(EngineErrorCode::Internal), ErrorCode::EngineCrashed),
        (fails(EngineErrorCode::OutOfMemory), ErrorCode::EngineCrashed),
        (fails(EngineErrorCode::Unsupported), ErrorCode::Unsupported),
        (fails(EngineErrorCode::InputTooLong), ErrorCode::InputTooLong),
        // More tokens than asked for, by the count and by the ids; half a character.
        ((nothing, done(4)), ErrorCode::EngineCrashed),
        (
            (|sink| _ = sink.push(&[3; 4], b"one"), done(3)),
            ErrorCode::EngineCrashed,
        ),
        ((|sink| _ = sink.push(&[3], b"\xc3"), done(1)), ErrorCode::EngineCrashed),
        // A text that would not fit into one answer; the engine is told to stop there.
        (
            (
                |sink| {
                    assert_eq!(sink.push(&[3], &vec![b'x'; MAX_TEXT_BYTES]), Flow::Continue);
                    assert_eq!(sink.push(&[3], b"x"), Flow::Cancel);
                },
                Err(failure(EngineErrorCode::Cancelled)),
            ),
            ErrorCode::LimitExceeded,
        ),
    ];
    for (place, ((act, outcome), expected)) in cases.into_iter().enumerate() {
        bench.script.generate(move |_, sink| {
            act(sink);
            outcome
        });
        let refused = ask_text(&bench, &bench.ctx(), short("five")).await;
        assert_eq!(code(refused), Some(expected), "case {place}");
        ask_text(&bench, &bench.ctx(), short("five")).await.unwrap();
    }
}

/// Proves SCHED-17. The engine is told at its next token; were it not, the lane's one slot for bulk work would stay taken
/// and the next generation would not come to its turn.
#[tokio::test]
async fn a_generation_ends_at_its_deadline_and_at_its_cancellation() {
    let bench = loaded().await;
    for by_cancel in [false, true] {
        bench.script.generate(|_, sink| {
            while sink.push(&[], b"") == Flow::Continue {
                std::thread::yield_now();
            }
            Err(failure(EngineErrorCode::Cancelled))
        });
        let ctx = context(HANG, if by_cancel { HANG } else { Duration::from_millis(50) });
        let before = bench.script.generations().len();
        let (outcome, ()) = tokio::join!(ask_text(&bench, &ctx, short("five")), async {
            while by_cancel && bench.script.generations().len() == before {
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
        ask_text(&bench, &bench.ctx(), short("five")).await.unwrap();
    }
}

/// Proves SCHED-02, SCHED-03: a generation waits for its turn as long as its deadline allows, or as long as it says; the
/// lanes of queries and reranks serve meanwhile.
#[tokio::test]
async fn a_generation_holds_up_nobody_else() {
    let bench = loaded().await;
    for model in ["toy", "toy-rank"] {
        bench.load(model).await.unwrap();
    }
    let (open, opened) = sync_channel::<()>(1);
    bench.script.generate(move |_, _| {
        opened.recv_timeout(HANG).unwrap();
        Err(failure(EngineErrorCode::Internal))
    });
    let ctx = bench.ctx();
    let (held, ()) = tokio::join!(ask_text(&bench, &ctx, short("five")), async {
        while bench.script.generations().is_empty() {
            tokio::task::yield_now().await;
        }
        ask(&bench, query("one")).await.unwrap();
        ask_scores(&bench, &bench.ctx(), rerank("one", &["two"])).await.unwrap();
        // Another generation gives up when it said it would.
        let impatient = MicrollmOneshotParams {
            max_queue_ms: Some(20),
            ..short("five")
        };
        let waited = ask_text(&bench, &context(Duration::from_millis(20), HANG), impatient).await;
        assert_eq!(code(waited), Some(ErrorCode::DeadlineExceeded));
        open.send(()).unwrap();
    });
    assert_eq!(code(held), Some(ErrorCode::EngineCrashed));
}

/// Proves ENG-03: engines of all kinds have one life: a panic in one of them takes their bundle out of this process.
#[tokio::test]
async fn a_panic_in_one_engine_demotes_its_whole_bundle() {
    let bench = loaded().await;
    bench.load("toy").await.unwrap();
    bench.script.generate(|_, _| panic!("scripted defect"));
    let error = ask_text(&bench, &bench.ctx(), short("five")).await.unwrap_err();
    assert_eq!(*error.code(), ErrorCode::EngineCrashed);
    assert_eq!(error.facts().unwrap().stage.as_deref(), Some("panic"));
    let BundleStatus::NeedsWorker { reason } = &bench.daemon.plugins.bundles()[0].status else {
        panic!("{:?}", bench.daemon.plugins.bundles()[0].status)
    };
    assert!(reason.contains("generate: scripted defect"), "{reason}");
    for refused in [
        code(ask_text(&bench, &bench.ctx(), short("five")).await),
        code(ask(&bench, query("one")).await),
    ] {
        assert_eq!(refused, Some(ErrorCode::PluginRefused));
    }
}

/// Proves API-20: the rows of such models, from memory.
#[tokio::test]
async fn models_of_every_kind_are_shown() {
    use synapse_wire::client::{LaneStatus, ModelKind, ModelState, ModelsListParams};

    let bench = loaded().await;
    let listed = super::models_list::run(&bench.daemon, &bench.ctx(), ModelsListParams {})
        .await
        .unwrap();
    let find = |id: &str| listed.models.iter().find(|model| model.id == id).unwrap();
    for (id, kind, dims, state, lane) in [
        ("toy", ModelKind::Embed, 4, ModelState::Installed, LaneStatus::Available),
        (
            "toy-rank",
            ModelKind::Rerank,
            0,
            ModelState::Installed,
            LaneStatus::Available,
        ),
        (
            "toy-chat",
            ModelKind::Generate,
            0,
            ModelState::Loaded,
            LaneStatus::Loaded,
        ),
    ] {
        let model = find(id);
        assert_eq!((model.kind, model.dims, model.state), (kind, dims, state), "{id}");
        assert!(
            model.lanes.iter().any(|found| found.status == lane),
            "{:?}",
            model.lanes
        );
    }
}
