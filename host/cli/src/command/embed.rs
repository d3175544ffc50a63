//! `synapse embed`: texts in, vectors out, for pipes of any length.
//!
//! No state. Texts are sent in batches that stay under the daemon's inline caps. Order and ids are kept. A
//! file goes another way: `embed_file`.

use serde::Serialize;
use synapse_client::wire::{Failure, ItemOutcome, ModelKind};
use synapse_client::{BatchItem, BatchOutcome, Client, EmbedBatchParams, Embedded};

use crate::args::{Embed, Global};
use crate::batch::{Batch, halved};
use crate::command::embed_file;
use crate::error::CliError;
use crate::input::Texts;
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::{Style, Tone};
use crate::table::{Cell, Table};

/// Numbers of a vector that the table shows.
const SHOWN: usize = 4;

/// One line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    id: &'a str,
    model: &'a str,
    fingerprint: &'a str,
    dims: u32,
    submitted_tokens: u32,
    effective_tokens: u32,
    truncated: bool,
    vector: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Failure>,
}

/// Embeds everything and prints as it goes; a file becomes a job.
pub async fn run(global: &Global, embed: Embed, output: &mut Output) -> Result<(), CliError> {
    if let (Some(file), Some(out)) = (&embed.large.file, &embed.large.out) {
        return embed_file::run(global, &embed, file, out, output).await;
    }
    let mut texts = Texts::choose(embed.texts.clone(), embed.jsonl)?;
    let patience = if embed.no_wait { Patience::None } else { Patience::Load };
    let client = session::open(global, output, patience).await?;
    let limits = client.server_info().await?.result.limits;
    let template = EmbedBatchParams {
        role: Some(embed.role),
        dimensions: embed.dimensions,
        normalize: embed.no_normalize.then_some(false),
        truncate: embed.no_truncate.then_some(false),
        ..EmbedBatchParams::new(
            session::model_or_default(&client, embed.model, ModelKind::Embed).await?,
            Vec::new(),
        )
    };
    let mut failed = 0;
    let mut first = true;
    let mut batch = Batch::new(limits.inline_items, limits.inline_text_bytes);
    loop {
        let next = texts.next_item()?;
        let ended = next.is_none();
        let full = match next {
            Some(item) => batch.push(item),
            None => Some(batch.rest()),
        };
        for items in full.filter(|items| !items.is_empty()).into_iter() {
            for embedded in send(&client, &template, items).await? {
                failed += embedded.reply.items.iter().filter(|item| item.error.is_some()).count();
                print(output, &embedded, &mut first)?;
            }
        }
        if ended {
            break;
        }
    }
    match failed {
        0 => Ok(()),
        1 => Err(CliError::Found("1 text has no vector".to_owned())),
        _ => Err(CliError::Found(format!("{failed} texts have no vector"))),
    }
}

/// Sends a batch, in parts where it is over a cap.
async fn send(client: &Client, template: &EmbedBatchParams, items: Vec<BatchItem>) -> Result<Vec<Embedded>, CliError> {
    halved(items, async |items| {
        let params = EmbedBatchParams {
            items,
            ..template.clone()
        };
        match client.embed_batch(params).await? {
            BatchOutcome::Vectors(embedded) => Ok(*embedded),
            BatchOutcome::Job(job) => Err(CliError::without_key(&job)),
        }
    })
    .await
}

fn print(output: &mut Output, embedded: &Embedded, first: &mut bool) -> Result<(), CliError> {
    if output.is_json() {
        for (item, vector) in embedded.reply.items.iter().zip(&embedded.vectors) {
            output.json(&line(embedded, item, vector.as_deref()))?;
        }
        return Ok(());
    }
    let text = render(embedded, *first, output.style());
    *first = false;
    output.text(&text)
}

fn line<'a>(embedded: &'a Embedded, item: &'a ItemOutcome, vector: Option<&'a [f32]>) -> Line<'a> {
    let reply = &embedded.reply;
    Line {
        id: &item.id,
        model: &reply.model,
        fingerprint: &reply.fingerprint,
        dims: reply.dims,
        submitted_tokens: item.submitted_tokens,
        effective_tokens: item.effective_tokens,
        truncated: item.truncated,
        vector,
        error: item.error.as_ref(),
    }
}

fn render(embedded: &Embedded, first: bool, style: Style) -> String {
    let reply = &embedded.reply;
    let mut text = String::new();
    if first {
        let mut facts = Table::facts();
        facts.fact("model", &reply.model);
        facts.fact("fingerprint", &reply.fingerprint);
        facts.fact("lane", &reply.provenance.by.lane);
        facts.fact("dims", reply.dims.to_string());
        text = facts.render(style);
        text.push('\n');
    }
    let mut table = Table::new(&["ID", "TOKENS", "VECTOR"]);
    for (item, vector) in reply.items.iter().zip(&embedded.vectors) {
        let tokens = if item.truncated {
            Cell::new(
                Tone::Notice,
                &format!("{} of {}", item.effective_tokens, item.submitted_tokens),
            )
        } else {
            item.effective_tokens.to_string().into()
        };
        let shown = match (vector, &item.error) {
            (Some(vector), _) => numbers(vector).into(),
            (None, Some(error)) => Cell::new(Tone::Bad, &format!("{}: {}", error.code, error.message)),
            (None, None) => Cell::new(Tone::Bad, "no vector"),
        };
        table.row(vec![(&item.id).into(), tokens, shown]);
    }
    text.push_str(&table.render(style));
    text
}

/// The first numbers of a vector, for example `0.0412 -0.1200 … (384)`.
fn numbers(vector: &[f32]) -> String {
    let mut text: Vec<String> = vector.iter().take(SHOWN).map(|value| format!("{value:>7.4}")).collect();
    if vector.len() > SHOWN {
        text.push(format!("… ({})", vector.len()));
    }
    text.join(" ")
}

#[cfg(test)]
mod tests {
    use synapse_client::wire::{Class, EmbedReply, Placement, Provenance, ServedBy, Stamp};
    use synapse_client::{ErrorCode, Role};

    use super::*;

    fn embedded() -> Embedded {
        let item = |id: &str, submitted, effective, error| ItemOutcome {
            id: id.to_owned(),
            submitted_tokens: submitted,
            effective_tokens: effective,
            truncated: submitted != effective,
            error,
        };
        let failure = Failure {
            code: ErrorCode::InvalidText,
            message: "half a pair".to_owned(),
            class: Class::Permanent,
            retry_after_ms: None,
            safe_to_retry_same_request: false,
            detail: None,
        };
        Embedded {
            stamp: Stamp {
                request_id: "7c-000001".to_owned(),
                module_generation: 1,
            },
            vectors: vec![Some(vec![0.5, -0.25, 0.125, 0.0, 1.0]), Some(vec![1.0; 5]), None],
            reply: EmbedReply {
                model: "m".to_owned(),
                fingerprint: "ab".to_owned(),
                numeric_profile_id: "cd".to_owned(),
                table_epoch: 0,
                dims: 5,
                provenance: Provenance {
                    by: ServedBy {
                        fingerprint: "ab".to_owned(),
                        engine: "owned".to_owned(),
                        engine_version: "1".to_owned(),
                        bundle_digest: String::new(),
                        lane: "m@owned:f32".to_owned(),
                        placement: Placement::InProcess,
                        model_digest: String::new(),
                        machine_profile_hash: None,
                        certification: None,
                    },
                    role: Role::Document,
                    template_id: None,
                    normalized: true,
                },
                vectors: Vec::new(),
                real_token_counts: vec![5, 256, 0],
                items: vec![
                    item("a", 5, 5, None),
                    item("b", 300, 256, None),
                    item("c", 0, 0, Some(failure)),
                ],
                equivalent_to: Vec::new(),
            },
        }
    }

    #[test]
    fn the_table_discloses_truncation_and_failures() {
        assert_eq!(
            render(&embedded(), true, Style::plain()),
            "\
model        m
fingerprint  ab
lane         m@owned:f32
dims         5

ID  TOKENS      VECTOR
a   5            0.5000 -0.2500  0.1250  0.0000 … (5)
b   256 of 300   1.0000  1.0000  1.0000  1.0000 … (5)
c   0           invalid_text: half a pair
"
        );
    }

    #[test]
    fn a_json_line_stands_for_itself() {
        let embedded = embedded();
        let json = |position: usize| {
            let item = &embedded.reply.items[position];
            serde_json::to_value(line(&embedded, item, embedded.vectors[position].as_deref())).unwrap()
        };
        assert_eq!(
            json(0),
            serde_json::json!({"id": "a", "model": "m", "fingerprint": "ab", "dims": 5, "submitted_tokens": 5,
                "effective_tokens": 5, "truncated": false, "vector": [0.5, -0.25, 0.125, 0.0, 1.0]})
        );
        assert_eq!(json(2)["vector"], serde_json::Value::Null);
        assert_eq!(json(2)["error"]["code"], "invalid_text");
    }
}
