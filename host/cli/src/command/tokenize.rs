//! `synapse tokenize TEXT`: how a text becomes token ids, piece by piece.
//!
//! No state. The pieces are cut from the text by the byte offsets of the answer.

use synapse_client::TokenizeParams;
use synapse_client::wire::{ModelKind, TokenizeResult};

use crate::args::{Global, Tokenize};
use crate::error::CliError;
use crate::input::argument_or_stdin;
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::{Style, Tone};
use crate::table::{Cell, Table};

/// Asks and prints.
pub async fn run(global: &Global, tokenize: Tokenize, output: &mut Output) -> Result<(), CliError> {
    let text = argument_or_stdin(&tokenize.text)?;
    let client = session::open(global, output, Patience::Short).await?;
    let params = TokenizeParams {
        model: session::model_or_default(&client, tokenize.model, ModelKind::Embed).await?,
        text: text.as_str().into(),
        role: Some(tokenize.role),
        truncate: tokenize.no_truncate.then_some(false),
    };
    let result = client.tokenize(&params).await?.result;
    output.value(&result, |result, style| render(result, &text, style))
}

fn render(result: &TokenizeResult, text: &str, style: Style) -> String {
    let cut = if result.truncated {
        format!(", cut from {}", result.submitted_tokens)
    } else {
        String::new()
    };
    let mut shown = format!("{} tokens{cut}, {}\n\n", result.effective_tokens, result.model);
    let mut table = Table::new(&["ID", "BYTES", "TEXT"]);
    for (id, [start, end]) in result.ids.iter().zip(&result.offsets) {
        let piece = usize::try_from(*start)
            .ok()
            .zip(usize::try_from(*end).ok())
            .and_then(|(start, end)| text.get(start..end))
            .filter(|piece| !piece.is_empty());
        let (range, piece) = match piece {
            Some(piece) => (format!("{start}..{end}"), Cell::from(piece)),
            None => (String::new(), Cell::new(Tone::Quiet, "(special)")),
        };
        table.row(vec![id.to_string().into(), range.into(), piece]);
    }
    shown.push_str(&table.render(style));
    shown
}

#[cfg(test)]
mod tests {
    use synapse_client::Role;

    use super::*;

    #[test]
    fn pieces_are_cut_by_bytes_and_bad_offsets_are_survived() {
        let result = TokenizeResult {
            model: "m".to_owned(),
            tokenizer_digest: "d".to_owned(),
            role: Role::Query,
            template_id: None,
            ids: vec![101, 7, 8, 9, 102],
            count: 5,
            submitted_tokens: 9,
            effective_tokens: 5,
            truncated: true,
            offsets: vec![[0, 0], [0, 5], [6, 7], [1, 3], [0, 99]],
        };
        assert_eq!(
            render(&result, "grün e", Style::plain()),
            "\
5 tokens, cut from 9, m

ID   BYTES  TEXT
101         (special)
7    0..5   grün
8    6..7   e
9           (special)
102         (special)
"
        );
    }
}
