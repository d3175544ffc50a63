//! Sending the texts: bounded appends, which a later run cuts in the same places.
//!
//! It owns the append being filled. Texts that an earlier run sent are read past and not sent again. Items are named by
//! their rows, so ids may repeat and the answer needs no table of them.

use synapse_client::{BatchItem, Client};

use super::source::{Measure, Source};
use super::ticket::Work;
use crate::error::CliError;
use crate::progress::Meter;

/// Texts of one append.
const APPEND_ITEMS: usize = 1_000;
/// Bytes of text in one append, after its first text. JSON makes at most six of one, so a line holds them.
const APPEND_BYTES: usize = 1 << 20;

/// Texts that go together.
#[derive(Debug, Default)]
struct Append {
    items: Vec<BatchItem>,
    bytes: usize,
}

impl Append {
    /// Takes one more text, and hands out those that were full before it.
    fn push(&mut self, item: BatchItem) -> Option<Vec<BatchItem>> {
        let bytes = item.text.byte_len();
        let full = self.items.len() >= APPEND_ITEMS || self.bytes.saturating_add(bytes) > APPEND_BYTES;
        let handed = (full && !self.items.is_empty()).then(|| self.rest());
        self.bytes = self.bytes.saturating_add(bytes);
        self.items.push(item);
        handed
    }

    fn rest(&mut self) -> Vec<BatchItem> {
        self.bytes = 0;
        std::mem::take(&mut self.items)
    }
}

/// Where the next append stands.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    seq: u64,
    items: u64,
}

/// Sends what the open job does not have yet: it has the first `kept` texts.
///
/// # Errors
/// The daemon's refusal; [`CliError::Usage`] where the input is not the one that was measured.
pub async fn send(
    client: &Client,
    job: &str,
    source: &Source,
    work: &Work,
    kept: u64,
    meter: &mut Meter,
) -> Result<(), CliError> {
    let mut texts = source.texts()?;
    let mut measure = Measure::default();
    let mut append = Append::default();
    let mut position = Position::default();
    loop {
        let next = texts.next_item()?;
        let ended = next.is_none();
        let full = match next {
            Some(item) => {
                measure.take(&item);
                let row = measure.items - 1;
                append.push(BatchItem::new(row.to_string(), item.text))
            }
            None => Some(append.rest()),
        };
        if ended && measure.digest() != work.input_sha256 {
            return Err(changed(source));
        }
        if let Some(items) = full.filter(|items| !items.is_empty()) {
            position = put(client, job, items, position, kept).await?;
            meter.amount("send", position.items, Some(work.items), "items");
        }
        if ended {
            return Ok(());
        }
    }
}

/// Sends one append, unless the job has it.
async fn put(
    client: &Client,
    job: &str,
    items: Vec<BatchItem>,
    position: Position,
    kept: u64,
) -> Result<Position, CliError> {
    let after = Position {
        seq: position.seq + 1,
        items: position.items + u64::try_from(items.len()).unwrap_or(u64::MAX),
    };
    if after.items <= kept {
        return Ok(after);
    }
    let answer = client.job_append(job, position.seq, items).await?.result;
    if answer.kept {
        return Ok(after);
    }
    Err(CliError::Internal(format!(
        "the job {job} awaits the append {}, and this is {}; `synapse jobs cancel {job}` and start anew",
        answer.next_seq, position.seq
    )))
}

fn changed(source: &Source) -> CliError {
    CliError::Usage(format!(
        "{} was changed while it was read; nothing was computed: run the command again",
        source.name()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_are_bounded_by_items_and_by_bytes() {
        let mut append = Append::default();
        let mut sizes = Vec::new();
        let short = |count| std::iter::repeat_n(1, count);
        let lengths = short(1_001).chain([APPEND_BYTES + 5, 7, APPEND_BYTES - 7, 1]);
        for length in lengths {
            let handed = append.push(BatchItem::new("0", "x".repeat(length)));
            sizes.extend(handed.map(|items| items.len()));
        }
        sizes.push(append.rest().len());
        // A thousand, the one after them, one that is too large by itself, two that just fit, and the last.
        assert_eq!(sizes, [1_000, 1, 1, 2, 1]);
        assert!(append.rest().is_empty());
    }
}
