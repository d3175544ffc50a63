//! `synapse aliases …`: the pairs of numeric spaces, and the check of an index.
//!
//! No state.

use synapse_client::wire::{
    AliasEntry, AliasState, AliasesCheckIndexParams, AliasesCheckIndexResult, AliasesDeclareParams, AliasesListParams,
    AliasesResult, AliasesRetractParams, IndexState,
};

use crate::args::{Aliases, Global};
use crate::error::CliError;
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::{Style, Tone};
use crate::table::{Cell, Table};

/// Carries out a subcommand.
pub async fn run(global: &Global, aliases: Aliases, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let table = match aliases {
        Aliases::List { all } => client.aliases_list(AliasesListParams { retracted: all }).await?,
        Aliases::Declare { first, second } => {
            let lanes = [first, second];
            client.aliases_declare(&AliasesDeclareParams { lanes }).await?
        }
        Aliases::Retract { first, second, reason } => {
            let pair = [first, second];
            client.aliases_retract(&AliasesRetractParams { pair, reason }).await?
        }
        Aliases::Check { index, written } => {
            let params = AliasesCheckIndexParams {
                index_fingerprint: index,
                provenance_set: written,
            };
            let verdict = client.aliases_check_index(&params).await?.result;
            output.value(&verdict, |verdict, _| verdict_words(verdict))?;
            return match verdict.verdict {
                IndexState::Valid => Ok(()),
                IndexState::MigrationRequired | IndexState::Unknown => Err(CliError::Found(
                    "the index must be rebuilt before it is written again".to_owned(),
                )),
            };
        }
    };
    output.value(&table.result, render)
}

fn render(table: &AliasesResult, style: Style) -> String {
    let epoch = format!("epoch {}\n", table.table_epoch);
    if table.aliases.is_empty() {
        return format!("no aliases\n{epoch}");
    }
    let mut rows = Table::new(&["LANES", "DIMS", "STATE", "EPOCHS", "FINGERPRINTS"]);
    for alias in &table.aliases {
        rows.row(vec![
            format!("{} ≡ {}", alias.lanes[0], lane_end(&alias.lanes[1])).into(),
            shape(alias).into(),
            state(alias.state),
            epochs(alias).into(),
            format!("{} ≡ {}", short(&alias.fingerprints[0]), short(&alias.fingerprints[1])).into(),
        ]);
    }
    rows.render(style) + &epoch
}

/// The second lane without the model, which both share.
fn lane_end(lane: &str) -> &str {
    lane.find('@').map_or(lane, |at| &lane[at..])
}

fn shape(alias: &AliasEntry) -> String {
    let raw = if alias.normalized { "" } else { " raw" };
    format!("{}{raw}", alias.dims)
}

fn state(state: AliasState) -> Cell {
    let tone = match state {
        AliasState::Certified => Tone::Good,
        AliasState::Declared | AliasState::Lapsed | AliasState::Unknown => Tone::Notice,
        AliasState::Retracted => Tone::Bad,
    };
    Cell::new(tone, state.as_str())
}

/// From the epoch of the certificate (otherwise of the declaration) to that of the retraction.
fn epochs(alias: &AliasEntry) -> String {
    let from = alias.valid_from.unwrap_or(alias.declared);
    alias
        .valid_to
        .map_or_else(|| format!("{from}–"), |to| format!("{from}–{to}"))
}

/// The first digits of a fingerprint; `--json` has all of them.
fn short(fingerprint: &str) -> &str {
    fingerprint.get(..12).unwrap_or(fingerprint)
}

fn verdict_words(verdict: &AliasesCheckIndexResult) -> String {
    let epoch = verdict.table_epoch;
    if verdict.verdict == IndexState::Valid {
        return format!("valid at epoch {epoch}\n");
    }
    let why = match &verdict.retracted_pair {
        Some([first, second]) => format!("{first} ≡ {second} was retracted"),
        None => "its spaces never were equivalent".to_owned(),
    };
    let target = match &verdict.rebuild_target {
        Some(target) => format!("rebuild it for {target}"),
        None => "no certified space covers any of it; `synapse probe run` first".to_owned(),
    };
    format!("migration required at epoch {epoch}: {why}\n{target}\n")
}

#[cfg(test)]
mod tests {
    use synapse_client::wire::AliasOrigin;

    use super::*;

    fn alias(state: AliasState, valid_from: Option<u64>, valid_to: Option<u64>) -> AliasEntry {
        AliasEntry {
            fingerprints: ["1a2b3c4d5e6f7890".to_owned(), "ffeeddccbbaa9988".to_owned()],
            lanes: ["m@ort:f32".to_owned(), "m@llama-cpp:f16".to_owned()],
            model: "m".to_owned(),
            dims: 384,
            normalized: state != AliasState::Retracted,
            origin: AliasOrigin::Builtin,
            state,
            declared: 1,
            valid_from,
            valid_to,
            end_reason: None,
        }
    }

    #[test]
    fn each_pair_has_a_line_and_the_epoch_ends_the_list() {
        let table = AliasesResult {
            table_epoch: 7,
            aliases: vec![
                alias(AliasState::Certified, Some(2), None),
                alias(AliasState::Retracted, Some(3), Some(5)),
                alias(AliasState::Declared, None, None),
            ],
        };
        let text = render(&table, Style::plain());
        assert_eq!(
            text,
            "\
LANES                       DIMS     STATE      EPOCHS  FINGERPRINTS
m@ort:f32 ≡ @llama-cpp:f16  384      certified  2–      1a2b3c4d5e6f ≡ ffeeddccbbaa
m@ort:f32 ≡ @llama-cpp:f16  384 raw  retracted  3–5     1a2b3c4d5e6f ≡ ffeeddccbbaa
m@ort:f32 ≡ @llama-cpp:f16  384      declared   1–      1a2b3c4d5e6f ≡ ffeeddccbbaa
epoch 7
"
        );
    }

    #[test]
    fn a_verdict_says_what_to_do() {
        let mut verdict = AliasesCheckIndexResult {
            table_epoch: 9,
            verdict: IndexState::Valid,
            retracted_pair: None,
            rebuild_target: None,
            blocking_reason: None,
        };
        assert_eq!(verdict_words(&verdict), "valid at epoch 9\n");
        verdict.verdict = IndexState::MigrationRequired;
        assert_eq!(
            verdict_words(&verdict),
            "migration required at epoch 9: its spaces never were equivalent\n\
             no certified space covers any of it; `synapse probe run` first\n"
        );
        verdict.retracted_pair = Some(["a".to_owned(), "b".to_owned()]);
        verdict.rebuild_target = Some("b".to_owned());
        assert_eq!(
            verdict_words(&verdict),
            "migration required at epoch 9: a ≡ b was retracted\nrebuild it for b\n"
        );
    }
}
