//! `synapse rerank QUERY`: texts in, the same texts out in the order of how well they answer.
//!
//! It owns the texts of one run. The daemon scores them and does not sort; sorting, and asking in parts where there are
//! more texts than one request may hold, is done here. A score belongs to its pair alone, so parts change nothing.

use serde::Serialize;
use synapse_client::wire::{Failure, ItemOutcome, ModelKind, RerankReply};
use synapse_client::{BatchItem, Client, RerankOutcome, RerankScoreParams, Reranked};

use crate::args::{Global, Rerank};
use crate::batch::{Batch, halved};
use crate::error::CliError;
use crate::input::Texts;
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::{Style, Tone};
use crate::table::{Cell, Table, cut};

/// Columns of a text that the table shows.
const SHOWN: usize = 160;

/// One line of `--json`, the best text first.
#[derive(Serialize)]
struct Line<'a> {
    /// From 1; null for a text that has no score.
    rank: Option<usize>,
    id: &'a str,
    model: &'a str,
    fingerprint: &'a str,
    score_kind: &'a str,
    score: Option<f32>,
    submitted_tokens: u32,
    effective_tokens: u32,
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Failure>,
}

/// A text with its score.
#[derive(Debug)]
struct Scored {
    id: String,
    text: String,
    score: Option<f32>,
    outcome: ItemOutcome,
}

/// Scores everything and prints the best.
pub async fn run(global: &Global, rerank: Rerank, output: &mut Output) -> Result<(), CliError> {
    let texts = read(&rerank)?;
    let patience = if rerank.no_wait {
        Patience::None
    } else {
        Patience::Short
    };
    let client = session::open(global, output, patience).await?;
    let template = RerankScoreParams {
        truncate: rerank.no_truncate.then_some(false),
        ..RerankScoreParams::new(
            session::model_or_default(&client, rerank.model.clone(), ModelKind::Rerank).await?,
            rerank.query.as_str(),
            Vec::new(),
        )
    };
    let answers = score(&client, &template, &texts, !rerank.no_wait).await?;
    let Some(first) = answers.first().map(|reranked| reranked.reply.clone()) else {
        return Err(CliError::Internal("no text was scored".to_owned()));
    };
    let ranked = rank(texts, answers)?;
    let best = rerank
        .top
        .and_then(|top| usize::try_from(top).ok())
        .unwrap_or(usize::MAX);
    print(output, &first, &ranked, best)?;
    match ranked.iter().filter(|scored| scored.score.is_none()).count() {
        0 => Ok(()),
        1 => Err(CliError::Found("1 text has no score".to_owned())),
        failed => Err(CliError::Found(format!("{failed} texts have no score"))),
    }
}

/// The texts with the caller's names for them. Blank lines are no candidates.
fn read(rerank: &Rerank) -> Result<Vec<(String, String)>, CliError> {
    let mut texts = match &rerank.file {
        Some(path) => Texts::from_file(path, rerank.jsonl)?,
        None => Texts::choose(rerank.texts.clone(), rerank.jsonl)?,
    };
    let mut all = Vec::new();
    while let Some(item) = texts.next_item()? {
        let text = item
            .text
            .into_string()
            .map_err(|error| CliError::Usage(error.to_string()))?;
        if !text.trim().is_empty() {
            all.push((item.id, text));
        }
    }
    if all.is_empty() {
        return Err(CliError::Usage("nothing to order: every line is blank".to_owned()));
    }
    Ok(all)
}

/// Asks for the scores, in as many requests as the daemon's caps make of them. The ids on the wire are positions, so
/// that the caller's may repeat.
async fn score(
    client: &Client,
    template: &RerankScoreParams,
    texts: &[(String, String)],
    wait: bool,
) -> Result<Vec<Reranked>, CliError> {
    let limits = client.server_info().await?.result.limits;
    let mut batch = Batch::new(limits.rerank_candidates, limits.inline_text_bytes);
    let mut parts = Vec::new();
    for (position, (_, text)) in texts.iter().enumerate() {
        parts.extend(batch.push(BatchItem::new(position.to_string(), text.as_str())));
    }
    parts.push(batch.rest());
    let mut answers = Vec::new();
    for part in parts {
        let scored = halved(part, async |candidates| {
            let params = RerankScoreParams {
                candidates,
                ..template.clone()
            };
            let call = async || client.rerank_score(&params).await;
            match session::when_loaded(client, wait, "scoring", call).await? {
                RerankOutcome::Scores(reranked) => Ok(*reranked),
                RerankOutcome::Job(job) => Err(CliError::without_key(&job)),
            }
        });
        answers.extend(scored.await?);
    }
    Ok(answers)
}

/// Puts texts and scores together, the best first, those without a score last; equal ones keep their order.
fn rank(texts: Vec<(String, String)>, answers: Vec<Reranked>) -> Result<Vec<Scored>, CliError> {
    let one_space = |a: &Reranked, b: &Reranked| a.reply.fingerprint == b.reply.fingerprint;
    if !answers.windows(2).all(|pair| one_space(&pair[0], &pair[1])) {
        return Err(CliError::Found(
            "the model was replaced while it scored, so the scores do not compare; run the command again".to_owned(),
        ));
    }
    let outcomes = answers
        .into_iter()
        .flat_map(|answer| answer.reply.scores.into_iter().zip(answer.reply.items));
    let mut ranked: Vec<Scored> = texts
        .into_iter()
        .zip(outcomes)
        .map(|((id, text), (score, outcome))| Scored {
            id,
            text,
            score,
            outcome,
        })
        .collect();
    ranked.sort_by(|a, b| match (a.score, b.score) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (a, b) => b.is_some().cmp(&a.is_some()),
    });
    Ok(ranked)
}

/// What is shown: the best, and every text that has no score.
fn shown(ranked: &[Scored], best: usize) -> impl Iterator<Item = (Option<usize>, &Scored)> {
    ranked
        .iter()
        .enumerate()
        .filter(move |(position, scored)| *position < best || scored.score.is_none())
        .map(|(position, scored)| (scored.score.map(|_| position + 1), scored))
}

fn print(output: &mut Output, reply: &RerankReply, ranked: &[Scored], best: usize) -> Result<(), CliError> {
    if !output.is_json() {
        let text = render(reply, ranked, best, output.style());
        return output.text(&text);
    }
    for (rank, scored) in shown(ranked, best) {
        output.json(&line(reply, rank, scored))?;
    }
    Ok(())
}

fn line<'a>(reply: &'a RerankReply, rank: Option<usize>, scored: &'a Scored) -> Line<'a> {
    Line {
        rank,
        id: &scored.id,
        model: &reply.model,
        fingerprint: &reply.fingerprint,
        score_kind: reply.score_kind.as_str(),
        score: scored.score,
        submitted_tokens: scored.outcome.submitted_tokens,
        effective_tokens: scored.outcome.effective_tokens,
        truncated: scored.outcome.truncated,
        error: scored.outcome.error.as_ref(),
    }
}

fn render(reply: &RerankReply, ranked: &[Scored], best: usize, style: Style) -> String {
    let mut facts = Table::facts();
    facts.fact("model", &reply.model);
    facts.fact("fingerprint", &reply.fingerprint);
    facts.fact("lane", &reply.provenance.lane);
    facts.fact("scores", reply.score_kind.as_str());
    let mut text = facts.render(style);
    text.push('\n');
    let mut table = Table::new(&["RANK", "SCORE", "ID", "TOKENS", "TEXT"]);
    for (rank, scored) in shown(ranked, best) {
        let outcome = &scored.outcome;
        let tokens = if outcome.truncated {
            let cut = format!("{} of {}", outcome.effective_tokens, outcome.submitted_tokens);
            Cell::new(Tone::Notice, &cut)
        } else {
            outcome.effective_tokens.to_string().into()
        };
        let words = scored.text.split_whitespace().collect::<Vec<_>>().join(" ");
        let shown = match (&outcome.error, scored.score) {
            (Some(error), _) => Cell::new(Tone::Bad, &format!("{}: {}", error.code, error.message)),
            (None, None) => Cell::new(Tone::Bad, "no score"),
            (None, Some(_)) => cut(&words, SHOWN).into(),
        };
        table.row(vec![
            rank.map(|rank| rank.to_string()).unwrap_or_default().into(),
            scored
                .score
                .map(|score| format!("{score:.4}"))
                .unwrap_or_default()
                .into(),
            (&scored.id).into(),
            tokens,
            shown,
        ]);
    }
    text.push_str(&table.render(style));
    text
}

#[cfg(test)]
mod tests {
    use synapse_client::ErrorCode;
    use synapse_client::wire::{Class, Placement, ScoreKind, ServedBy, Stamp};

    use super::*;

    fn outcome(submitted: u32, effective: u32, error: Option<Failure>) -> ItemOutcome {
        ItemOutcome {
            id: "position".to_owned(),
            submitted_tokens: submitted,
            effective_tokens: effective,
            truncated: submitted != effective,
            error,
        }
    }

    fn answer(fingerprint: &str, scores: &[Option<f32>]) -> Reranked {
        let failure = Failure {
            code: ErrorCode::InputTooLong,
            message: "it is too long".to_owned(),
            class: Class::Permanent,
            retry_after_ms: None,
            safe_to_retry_same_request: false,
            detail: None,
        };
        let item = |score: &Option<f32>| match score {
            Some(score) if *score > 5.0 => outcome(300, 128, None),
            Some(_) => outcome(9, 9, None),
            None => outcome(0, 0, Some(failure.clone())),
        };
        Reranked {
            stamp: Stamp {
                request_id: "7c-000001".to_owned(),
                module_generation: 1,
            },
            reply: RerankReply {
                model: "m".to_owned(),
                fingerprint: fingerprint.to_owned(),
                numeric_profile_id: "cd".to_owned(),
                table_epoch: 0,
                score_kind: ScoreKind::Logit,
                scores: scores.to_vec(),
                real_token_counts: vec![9; scores.len()],
                items: scores.iter().map(item).collect(),
                provenance: ServedBy {
                    fingerprint: fingerprint.to_owned(),
                    engine: "ort".to_owned(),
                    engine_version: "1".to_owned(),
                    bundle_digest: String::new(),
                    lane: "m@ort:f32".to_owned(),
                    placement: Placement::Worker,
                    model_digest: String::new(),
                    machine_profile_hash: None,
                    certification: None,
                },
            },
        }
    }

    fn ranked() -> (RerankReply, Vec<Scored>) {
        let texts = ["first  text", "second", "a\nthird", "fourth", "fifth"];
        let texts = texts
            .iter()
            .enumerate()
            .map(|(n, text)| (format!("t{n}"), (*text).to_owned()));
        let answers = vec![
            answer("ab", &[Some(-1.0), None, Some(6.5)]),
            answer("ab", &[Some(-1.0), Some(2.25)]),
        ];
        let reply = answers[0].reply.clone();
        (reply, rank(texts.collect(), answers).unwrap())
    }

    #[test]
    fn the_best_stands_first_and_what_has_no_score_last() {
        let (reply, ranked) = ranked();
        let order: Vec<&str> = ranked.iter().map(|scored| scored.id.as_str()).collect();
        assert_eq!(
            order,
            ["t2", "t4", "t0", "t3", "t1"],
            "over parts, and equal scores in their order"
        );
        assert_eq!(
            render(&reply, &ranked, 2, Style::plain()),
            "\
model        m
fingerprint  ab
lane         m@ort:f32
scores       logit

RANK  SCORE   ID  TOKENS      TEXT
1     6.5000  t2  128 of 300  a third
2     2.2500  t4  9           fifth
              t1  0           input_too_long: it is too long
"
        );
        let all = render(&reply, &ranked, usize::MAX, Style::plain());
        assert_eq!(all.lines().count(), 11, "{all}");
    }

    #[test]
    fn a_json_line_stands_for_itself() {
        let (reply, ranked) = ranked();
        let lines: Vec<serde_json::Value> = shown(&ranked, 1)
            .map(|(rank, scored)| serde_json::to_value(line(&reply, rank, scored)).unwrap())
            .collect();
        assert_eq!(
            lines[0],
            serde_json::json!({"rank": 1, "id": "t2", "model": "m", "fingerprint": "ab", "score_kind": "logit",
                "score": 6.5, "submitted_tokens": 300, "effective_tokens": 128, "truncated": true})
        );
        assert_eq!(lines.len(), 2);
        assert_eq!(
            (&lines[1]["rank"], &lines[1]["score"]),
            (&serde_json::Value::Null, &serde_json::Value::Null)
        );
        assert_eq!(lines[1]["error"]["code"], "input_too_long");
    }

    #[test]
    fn scores_of_two_spaces_are_not_put_in_one_order() {
        let texts = vec![("a".to_owned(), "x".to_owned()), ("b".to_owned(), "y".to_owned())];
        let answers = vec![answer("ab", &[Some(1.0)]), answer("cd", &[Some(2.0)])];
        let error = rank(texts, answers).unwrap_err();
        assert!(error.to_string().contains("do not compare"), "{error}");
    }
}
