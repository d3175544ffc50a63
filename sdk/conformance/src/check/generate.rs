//! What a generate engine gives (PC-32 to PC-34).

use synapse_plugin_api::{ErrorCode, FinishReason, GenerateOptions, KeyValue, Prompt};

use crate::bench::{Bench, Heard, Lane, greedy, refused, said, went};
use crate::call::Call;
use crate::catalogue::{Check, Level, Run, Verdict, fail, skip};
use crate::subject::Kind;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "generate-text",
        level: Level::Core,
        rules: &["PC-32"],
        says: "The sink gets whole UTF-8 sequences, and no more ids than the result counts.",
        why: "A client prints what it gets.",
        fix: "Hold an unfinished sequence back until it is whole.",
        run: Run::Library(text),
    },
    Check {
        id: "generate-limits",
        level: Level::Core,
        rules: &["PC-34", "PC-43"],
        says: "max_tokens and stop texts are kept, and a sink that says stop ends the call.",
        why: "An ignored option is a wrong answer, and a client that left must cost nothing.",
        fix: "Count tokens, hold back what may begin a stop text, and look at what the sink returns.",
        run: Run::Library(limits),
    },
    Check {
        id: "generate-control",
        level: Level::Full,
        rules: &["PC-33"],
        says: "Text that spells a control token is tokenized as text.",
        why: "Whoever writes a text must not end a turn or speak for another role.",
        fix: "Turn the tokenizer's parsing of special tokens off for the prompt's text.",
        run: Run::Library(control),
    },
    Check {
        id: "generate-options",
        level: Level::Core,
        rules: &["PC-34"],
        says: "Options out of range, and keys that the engine does not know, are CONFIG_INVALID.",
        why: "An ignored option is a wrong answer.",
        fix: "Check max_tokens, temperature, top_p, stop and extra before the first token.",
        run: Run::Library(options),
    },
    Check {
        id: "generate-grammar",
        level: Level::Full,
        rules: &["PC-34"],
        says: "A grammar that does not parse is refused, and never ignored.",
        why: "Who asks for a grammar parses the answer by it.",
        fix: "Answer GRAMMAR_INVALID, or GRAMMAR_UNAVAILABLE in a build without grammars.",
        run: Run::Library(grammar),
    },
];

/// Continues a drawn prompt.
fn continued(
    lane: &Lane<'_>,
    options: &GenerateOptions,
    heard: &mut Heard,
) -> Result<synapse_plugin_api::Generated, synapse_plugin_api::EngineError> {
    let prompt = lane.items(30, &[12]).remove(0);
    let call = Call::new(2).leaked();
    lane.engine
        .generate(call, lane.loaded.model, Prompt::ids(&prompt), options, heard)
}

fn lanes(bench: &Bench, body: impl Fn(&Lane<'_>) -> Verdict) -> Verdict {
    bench.lanes(&[Kind::Generate], body)
}

fn text(bench: &Bench) -> Verdict {
    lanes(bench, |lane| {
        for seed in 0..4u64 {
            let options = GenerateOptions {
                temperature: if seed == 0 { 0.0 } else { 1.5 },
                seed,
                ..greedy(16)
            };
            let mut heard = Heard::default();
            let done = went("a generation", continued(lane, &options, &mut heard))?;
            if let Some(at) = heard
                .pushes
                .iter()
                .position(|bytes| std::str::from_utf8(bytes).is_err())
            {
                return fail(format!(
                    "push {at} holds part of a UTF-8 sequence: {:?}",
                    heard.pushes[at]
                ));
            }
            let ids = heard.ids.len();
            if ids > done.generated_tokens as usize || done.generated_tokens > 16 {
                return fail(format!(
                    "{ids} ids, {} counted, at most 16 asked for",
                    done.generated_tokens
                ));
            }
            if done.prompt_tokens == 0 {
                return fail("a prompt of 12 ids is counted as none");
            }
        }
        Ok(())
    })
}

fn limits(bench: &Bench) -> Verdict {
    lanes(bench, |lane| {
        let mut whole = Heard::default();
        let full = went("a generation", continued(lane, &greedy(16), &mut whole))?;
        for most in [1, 3] {
            let done = went(
                "a short generation",
                continued(lane, &greedy(most), &mut Heard::default()),
            )?;
            if done.generated_tokens > most {
                return fail(format!("{} tokens, at most {most} asked for", done.generated_tokens));
            }
            if full.generated_tokens > most && done.finish != FinishReason::LENGTH {
                return fail(format!(
                    "finish {} at max_tokens {most}, expected length",
                    done.finish.0
                ));
            }
        }
        // A piece of what it says: with it as a stop text, the text ends before it.
        let said_text = whole.text();
        let stop: String = said_text.chars().skip(2).take(2).collect();
        if stop.chars().count() == 2 {
            let options = GenerateOptions {
                stop: vec![stop.as_str().into()].into(),
                ..greedy(16)
            };
            let mut heard = Heard::default();
            let done = went("a generation with a stop text", continued(lane, &options, &mut heard))?;
            if heard.text().contains(&stop) || done.finish != FinishReason::STOP {
                return fail(format!(
                    "the text {:?} (finish {}) after the stop text {stop:?}",
                    heard.text(),
                    done.finish.0
                ));
            }
        }
        let mut heard = Heard {
            stop_at: 1,
            ..Heard::default()
        };
        let result = continued(lane, &greedy(16), &mut heard);
        if full.generated_tokens < 4 || heard.pushes.is_empty() {
            return skip("the model ends too soon to be stopped");
        }
        refused("a generation whose sink said stop", &result, &[ErrorCode::CANCELLED])?;
        if heard.after_stop > 1 {
            return fail(format!("{} more pushes after the sink said stop", heard.after_stop));
        }
        Ok(())
    })
}

fn control(bench: &Bench) -> Verdict {
    lanes(bench, |lane| {
        let prompt_tokens = |text: &str| {
            let call = Call::new(2).leaked();
            lane.engine.generate(
                call,
                lane.loaded.model,
                Prompt::text(text),
                &greedy(1),
                &mut Heard::default(),
            )
        };
        let plain = match prompt_tokens("hello") {
            Err(error) if error.code == ErrorCode::UNSUPPORTED => {
                return skip("the engine takes ids only: the host tokenizes");
            }
            result => went("a prompt of text", result)?.prompt_tokens,
        };
        for spelt in ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>", "[INST]"] {
            let with = went("a prompt of text", prompt_tokens(&format!("hello{spelt}")))?.prompt_tokens;
            // As text it is several tokens; as a control token it would be one, or none.
            if with < plain + 2 {
                return fail(format!(
                    "the text {spelt:?} adds {} tokens to a prompt, expected it as text",
                    with.saturating_sub(plain)
                ));
            }
        }
        Ok(())
    })
}

fn options(bench: &Bench) -> Verdict {
    lanes(bench, |lane| {
        let base = greedy(4);
        let cases: Vec<(&str, GenerateOptions)> = vec![
            ("max_tokens 0", greedy(0)),
            (
                "temperature -1",
                GenerateOptions {
                    temperature: -1.0,
                    ..base.clone()
                },
            ),
            (
                "temperature NaN",
                GenerateOptions {
                    temperature: f32::NAN,
                    ..base.clone()
                },
            ),
            (
                "top_p 0",
                GenerateOptions {
                    top_p: 0.0,
                    ..base.clone()
                },
            ),
            (
                "top_p 1.5",
                GenerateOptions {
                    top_p: 1.5,
                    ..base.clone()
                },
            ),
            (
                "an empty stop text",
                GenerateOptions {
                    stop: vec!["".into()].into(),
                    ..base.clone()
                },
            ),
            (
                "an unknown key",
                GenerateOptions {
                    extra: vec![KeyValue::new("no-such-key", "1")].into(),
                    ..base.clone()
                },
            ),
        ];
        for (what, options) in cases {
            refused(
                what,
                &continued(lane, &options, &mut Heard::default()),
                &[ErrorCode::CONFIG_INVALID],
            )?;
        }
        went("good options after them", continued(lane, &base, &mut Heard::default())).map(|_| ())
    })
}

fn grammar(bench: &Bench) -> Verdict {
    lanes(bench, |lane| {
        let with = |grammar: &str| GenerateOptions {
            grammar: grammar.into(),
            ..greedy(8)
        };
        let bad = continued(lane, &with("root ::= ((( \"a\""), &mut Heard::default());
        refused(
            "a grammar that does not parse",
            &bad,
            &[ErrorCode::GRAMMAR_INVALID, ErrorCode::GRAMMAR_UNAVAILABLE],
        )?;
        let mut heard = Heard::default();
        match continued(lane, &with("root ::= \"no\" | \"yes\""), &mut heard) {
            Err(error) if error.code == ErrorCode::GRAMMAR_UNAVAILABLE => Ok(()),
            Err(error) => fail(format!("a small grammar: {}", said(&error))),
            Ok(_) if ["no", "yes"].iter().any(|word| word.starts_with(heard.text().trim())) => Ok(()),
            Ok(_) => fail(format!(
                "the text {:?} under a grammar of \"no\" and \"yes\"",
                heard.text()
            )),
        }
    })
}
