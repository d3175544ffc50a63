//! How long the job will take, said before it is begun: a few of its texts are embedded and timed.
//!
//! It owns the sample, which is drawn while the input is read for the first time: texts at equal distances, whatever
//! their number turns out to be. What else the daemon does meanwhile is not known here, so the estimate is for a lane that
//! has nothing else to do.

use std::time::{Duration, Instant};

use synapse_client::{BatchItem, BatchOutcome, Client, EmbedBatchParams};

use super::ticket::Work;
use crate::session;

/// The most texts of a sample; at least half as many are kept of a longer input.
const TEXTS: usize = 32;
/// An input of fewer texts is done about as soon as its sample.
const WORTH: u64 = 512;
/// Texts that are tried at once: an inline batch of so many is served before any job.
const BATCH: usize = 8;
/// Bytes of a text that are tried; no model reads further.
const BYTES: usize = 64 << 10;
/// A sample that has taken so long is large enough.
const ENOUGH: Duration = Duration::from_secs(2);

/// Texts of an input at equal distances.
#[derive(Debug)]
pub struct Sample {
    texts: Vec<String>,
    /// Each so-many-th text is kept.
    stride: u64,
    seen: u64,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            texts: Vec::new(),
            stride: 1,
            seen: 0,
        }
    }
}

impl Sample {
    /// Takes the next text into account.
    pub fn take(&mut self, item: &BatchItem) {
        if self.seen.is_multiple_of(self.stride) {
            if self.texts.len() == TEXTS {
                // Of those at the old distance, those at twice that are left.
                let mut at = 0_usize;
                self.texts.retain(|_| {
                    at += 1;
                    at % 2 == 1
                });
                self.stride *= 2;
            }
            if self.seen.is_multiple_of(self.stride) {
                let text = item.text.as_str().unwrap_or_default();
                self.texts.push(text[..text.floor_char_boundary(BYTES)].to_owned());
            }
        }
        self.seen += 1;
    }

    /// How many texts are tried.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// How long all texts take, by those of the sample; `None` where there are few, or where they cannot be tried: the
    /// job will say why.
    pub async fn estimate(&self, client: &Client, work: &Work, wait: bool) -> Option<Duration> {
        if self.seen < WORTH {
            return None;
        }
        let batches: Vec<Vec<BatchItem>> = self.texts.chunks(BATCH).map(items).collect();
        let first = batches.first()?;
        // The first call is not timed: it may have to wait for the model.
        let tried = session::when_loaded(client, wait, "trying the model", async || {
            client.embed_batch(params(work, first.clone())).await
        });
        tried.await.ok()?;
        let (begun, mut done) = (Instant::now(), 0_usize);
        for batch in batches {
            let texts = batch.len();
            match client.embed_batch(params(work, batch)).await {
                Ok(BatchOutcome::Vectors(_)) => done += texts,
                Ok(BatchOutcome::Job(_)) | Err(_) => return None,
            }
            if begun.elapsed() > ENOUGH {
                break;
            }
        }
        Some(scaled(begun.elapsed(), done, self.seen))
    }
}

/// The time of `all` texts where `done` of them have taken `elapsed`.
fn scaled(elapsed: Duration, done: usize, all: u64) -> Duration {
    let done = u128::try_from(done.max(1)).unwrap_or(u128::MAX);
    let nanoseconds = elapsed.as_nanos().saturating_mul(all.into()) / done;
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

fn items(texts: &[String]) -> Vec<BatchItem> {
    let item = |(at, text): (usize, &String)| BatchItem::new(at.to_string(), text.as_str());
    texts.iter().enumerate().map(item).collect()
}

fn params(work: &Work, items: Vec<BatchItem>) -> EmbedBatchParams {
    let options = &work.options;
    EmbedBatchParams {
        role: options.role,
        dimensions: options.dimensions,
        normalize: options.normalize,
        truncate: options.truncate,
        ..EmbedBatchParams::new(work.model.as_str(), items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_over_the_whole_input() {
        for count in [0_u64, 1, 31, 32, 33, 64, 65, 1_000, 4_097] {
            let mut sample = Sample::default();
            for n in 0..count {
                sample.take(&BatchItem::new("0", n.to_string()));
            }
            let kept: Vec<u64> = sample.texts.iter().map(|text| text.parse().unwrap()).collect();
            let expected: Vec<u64> = (0..count).step_by(usize::try_from(sample.stride).unwrap()).collect();
            assert_eq!(kept, expected, "of {count}");
            assert!(kept.len() <= TEXTS && (kept.len() >= TEXTS / 2 || sample.stride == 1));
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let mut sample = Sample::default();
        let text = format!("x{}", "é".repeat(BYTES));
        sample.take(&BatchItem::new("0", text));
        assert_eq!(sample.texts[0].len(), BYTES - 1);
    }

    #[test]
    fn the_time_grows_with_the_number_of_texts() {
        assert_eq!(scaled(Duration::from_secs(2), 32, 3_200), Duration::from_secs(200));
        assert_eq!(scaled(Duration::from_millis(1), 0, 3), Duration::from_millis(3));
    }
}
