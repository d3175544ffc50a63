//! `synapse generate PROMPT`: a text from a prompt.
//!
//! No state. The text alone goes to stdout; how it came about goes to stderr, where it was asked for or where the text
//! is not whole.

use std::path::Path;
use std::time::{Duration, Instant};

use synapse_client::MicrollmOneshotParams;
use synapse_client::wire::{FinishReason, MicrollmOneshotResult, ModelKind, oneshot::MAX_GRAMMAR_BYTES};

use crate::args::{Generate, Global};
use crate::error::CliError;
use crate::input::{argument_or_stdin, whole_file};
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::{clean_lines, duration};

/// Asks, waits and prints.
pub async fn run(global: &Global, generate: Generate, output: &mut Output) -> Result<(), CliError> {
    let prompt = argument_or_stdin(&generate.prompt)?;
    let grammar = generate.grammar.as_deref().map(read_grammar).transpose()?;
    let patience = if generate.no_wait {
        Patience::None
    } else {
        Patience::Short
    };
    let client = session::open(global, output, patience).await?;
    let model = session::model_or_default(&client, generate.model.clone(), ModelKind::Generate).await?;
    let params = params(&generate, &model, &prompt, grammar);
    let begun = Instant::now();
    let call = async || client.oneshot(&params).await;
    let result = session::when_loaded(&client, !generate.no_wait, "generating", call)
        .await?
        .result;
    for note in notes(&result, generate.verbose.then(|| begun.elapsed())) {
        output.say(&note);
    }
    let for_people = output.is_terminal();
    output.value(&result, |result, _| render(&result.text, for_people))
}

fn params(generate: &Generate, model: &str, prompt: &str, grammar: Option<String>) -> MicrollmOneshotParams {
    let chat = match (generate.chat, generate.no_chat) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        (false, false) => None,
    };
    MicrollmOneshotParams {
        system: generate.system.as_deref().map(Into::into),
        chat,
        max_tokens: generate.max_tokens,
        temperature: generate.temperature,
        top_p: generate.top_p,
        seed: generate.seed,
        stop: generate.stop.clone(),
        grammar,
        deadline_ms: Some(u64::from(generate.timeout) * 1000),
        ..MicrollmOneshotParams::new(model, prompt)
    }
}

fn read_grammar(path: &Path) -> Result<String, CliError> {
    whole_file(path, u64::try_from(MAX_GRAMMAR_BYTES).unwrap_or(u64::MAX))
}

/// What is said besides the text: that it is cut off, and with `--verbose` how it came about.
fn notes(result: &MicrollmOneshotResult, elapsed: Option<Duration>) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(elapsed) = elapsed {
        let template = if result.chat { ", chat template" } else { "" };
        notes.push(format!(
            "{}: {} prompt tokens{template}, {} generated in {}, {}",
            result.provenance.lane,
            result.prompt_tokens,
            result.generated_tokens,
            duration(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)),
            result.finish_reason.as_str()
        ));
        notes.push(format!("fingerprint {}", result.fingerprint));
    }
    if result.finish_reason == FinishReason::Length {
        notes.push(format!(
            "the text was cut off after {} tokens: --max-tokens allows more",
            result.generated_tokens
        ));
    }
    notes
}

/// The text as it is, ended by a line break; for a terminal with nothing in it that a terminal would obey.
fn render(text: &str, for_people: bool) -> String {
    let mut shown = if for_people { clean_lines(text) } else { text.to_owned() };
    if !shown.ends_with('\n') {
        shown.push('\n');
    }
    shown
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use synapse_client::wire::{Placement, ServedBy};

    use super::*;
    use crate::args::{Arguments, Command};

    fn result(finish_reason: FinishReason) -> MicrollmOneshotResult {
        MicrollmOneshotResult {
            model: "m".to_owned(),
            text: "Paris.".to_owned(),
            finish_reason,
            prompt_tokens: 31,
            generated_tokens: 3,
            chat: true,
            fingerprint: "ab".to_owned(),
            numeric_profile_id: "cd".to_owned(),
            table_epoch: 0,
            provenance: ServedBy {
                fingerprint: "ab".to_owned(),
                engine: "llama-cpp".to_owned(),
                engine_version: "1".to_owned(),
                bundle_digest: String::new(),
                lane: "m@llama-cpp:q4_1".to_owned(),
                placement: Placement::Worker,
                model_digest: String::new(),
                machine_profile_hash: None,
                certification: None,
            },
        }
    }

    fn parsed(line: &[&str]) -> MicrollmOneshotParams {
        let arguments = Arguments::try_parse_from([&["synapse", "generate", "p"], line].concat()).unwrap();
        let Command::Generate(generate) = arguments.command else {
            panic!("not generate");
        };
        params(&generate, "m", &generate.prompt, None)
    }

    #[test]
    fn only_what_was_said_is_sent() {
        let plain = MicrollmOneshotParams {
            deadline_ms: Some(120_000),
            ..MicrollmOneshotParams::new("m", "p")
        };
        assert_eq!(parsed(&[]), plain);
        assert_eq!(
            parsed(&[
                "--no-chat",
                "--max-tokens=7",
                "--temperature=0.5",
                "--top-p=0.9",
                "--seed=3",
                "--stop=a",
                "--stop",
                "-b",
                "--timeout=2"
            ]),
            MicrollmOneshotParams {
                chat: Some(false),
                max_tokens: Some(7),
                temperature: Some(0.5),
                top_p: Some(0.9),
                seed: Some(3),
                stop: vec!["a".to_owned(), "-b".to_owned()],
                deadline_ms: Some(2000),
                ..plain.clone()
            }
        );
        let with_system = MicrollmOneshotParams {
            system: Some("s".into()),
            chat: Some(true),
            ..plain
        };
        assert_eq!(parsed(&["--system", "s", "--chat"]), with_system);
    }

    #[test]
    fn a_text_that_is_cut_off_is_said_to_be() {
        assert_eq!(notes(&result(FinishReason::Stop), None), Vec::<String>::new());
        let cut = notes(&result(FinishReason::Length), None);
        assert!(cut.len() == 1 && cut[0].contains("after 3 tokens"), "{cut:?}");
        assert_eq!(
            notes(&result(FinishReason::Stop), Some(Duration::from_millis(250))),
            [
                "m@llama-cpp:q4_1: 31 prompt tokens, chat template, 3 generated in 250 ms, stop",
                "fingerprint ab"
            ]
        );
    }

    #[test]
    fn a_terminal_gets_lines_and_no_commands() {
        assert_eq!(render("a\tb\n\u{1b}[2Jc", true), "a\tb\n\\u{1b}[2Jc\n");
        assert_eq!(render("a\n\u{1b}[2Jc\n", false), "a\n\u{1b}[2Jc\n");
        assert_eq!(render("", true), "\n");
    }
}
