//! Hand-made engines: sound by themselves, spoilt by one function of a test.
//!
//! State: a [`Hand`] counts how often each call was made. A text's row is drawn from the bytes that its cut leaves.

use std::collections::BTreeMap;
use std::time::Duration;

use synapse_catalog::{EnvelopeRow, Origin, Record};
use synapse_certify::{
    Corpus, Depth, Gate, Observation, Options, Outcome, Plan, References, Step, StepOutput, Subject, Verdict, Work,
};
use synapse_core::digest::sha256;
use synapse_core::fingerprint::EnvelopeBounds;

/// Length of a row.
pub const DIMS: usize = 16;
/// The longest text, and where the references are cut.
pub const LONGEST: u32 = 256;

/// A full probe on two threads of four.
pub const FULL: Options = Options {
    threads: 2,
    most_threads: 4,
    call_time: None,
    depth: Depth::Full,
};

/// One call as a spoiling function sees it.
pub struct Call<'a> {
    pub step: &'a Step,
    /// Tokens of each item.
    pub tokens: &'a [u32],
    /// How often the same items were computed before.
    pub before: usize,
    /// Something that depends on every item of the call.
    pub content: u64,
}

/// Four bytes are a token, between two more.
fn tokens(text: &str, cut: u32) -> u32 {
    u32::try_from(text.len().div_ceil(4) + 2)
        .expect("a short text")
        .min(cut)
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Values between -1 and 1.
fn drawn(seed: u64, many: usize) -> Vec<f32> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f32::from(u16::try_from(state >> 48).expect("16 bits")) / 32_768.0 - 1.0
    };
    (0..many).map(|_| next()).collect()
}

/// A text's row.
pub fn row(text: &str, cut: u32) -> Vec<f32> {
    let kept = usize::try_from(4 * (cut - 2)).expect("a short text");
    drawn(hash(&text.as_bytes()[..text.len().min(kept)]), DIMS)
}

/// A pair's score.
pub fn score(query: &str, document: &str, cut: u32) -> f32 {
    let kept = usize::try_from(4 * (cut - 2))
        .expect("a short text")
        .saturating_sub(query.len());
    let document = &document.as_bytes()[..document.len().min(kept)];
    8.0 * drawn(hash(&[query.as_bytes(), b"|", document].concat()), 1)[0]
}

/// An answer's text.
pub fn answer(prompt: &str) -> String {
    format!("about {:x}", hash(prompt.as_bytes()))
}

/// An engine.
pub struct Hand<F> {
    spoil: F,
    seen: BTreeMap<String, usize>,
}

/// What a spoiling function may change.
pub enum Out<'a> {
    /// The row of the item at this position.
    Row(usize, &'a mut Vec<f32>),
    /// The generated text.
    Text(&'a mut String),
}

impl<F: FnMut(&Call<'_>, Out<'_>)> Hand<F> {
    pub fn new(spoil: F) -> Self {
        Self {
            spoil,
            seen: BTreeMap::new(),
        }
    }

    /// Computes a step.
    pub fn compute(&mut self, step: &Step) -> StepOutput {
        let key = format!("{:?} {}", step.work, step.as_query);
        let before = self.seen.entry(key.clone()).or_default();
        let counts: Vec<u32> = match &step.work {
            Work::Embed(items) => items.iter().map(|item| tokens(&item.text, item.max_tokens)).collect(),
            Work::Rerank(items) => items
                .iter()
                .map(|item| tokens(&format!("{}{}", item.query, item.document), item.max_tokens))
                .collect(),
            Work::Generate { prompt, .. } => vec![tokens(prompt, LONGEST)],
        };
        let call = Call {
            step,
            tokens: &counts,
            before: *before,
            content: hash(key.as_bytes()),
        };
        *before += 1;
        let elapsed = Duration::from_micros(counts.iter().map(|count| u64::from(*count)).sum());
        match &step.work {
            Work::Embed(items) => {
                let mut rows: Vec<Vec<f32>> = items.iter().map(|item| row(&item.text, item.max_tokens)).collect();
                rows.iter_mut()
                    .enumerate()
                    .for_each(|(at, row)| (self.spoil)(&call, Out::Row(at, row)));
                StepOutput::Rows {
                    rows,
                    tokens: counts,
                    elapsed,
                }
            }
            Work::Rerank(items) => {
                let score =
                    |item: &synapse_certify::PairItem| vec![score(&item.query, &item.document, item.max_tokens)];
                let mut rows: Vec<Vec<f32>> = items.iter().map(score).collect();
                rows.iter_mut()
                    .enumerate()
                    .for_each(|(at, row)| (self.spoil)(&call, Out::Row(at, row)));
                let scores = rows.into_iter().map(|row| row[0]).collect();
                StepOutput::Scores {
                    scores,
                    tokens: counts,
                    elapsed,
                }
            }
            Work::Generate { prompt, .. } => {
                let mut text = answer(prompt);
                (self.spoil)(&call, Out::Text(&mut text));
                StepOutput::Text {
                    text,
                    tokens: 12,
                    elapsed,
                }
            }
        }
    }
}

/// Drives a plan to its end.
pub fn drive(subject: Subject, options: Options, mut compute: impl FnMut(&Step) -> StepOutput) -> Verdict {
    let mut plan = Plan::new(subject, options).expect("the references fit");
    while let Some(step) = plan.next() {
        let output = compute(&step);
        plan.answer(step.id, output).expect("the open step");
    }
    plan.finish(Observation::default())
}

/// A record of a kind, with what it needs.
pub fn record(kind: &str) -> Record {
    let lines = match kind {
        "embed" => "dims = 16\npooling = \"mean\"\nnormalize = false\n",
        "rerank" => "score_kind = \"logit\"\n",
        _ => "chat_template = \"x\"\n",
    };
    let digest = sha256(b"");
    let text = format!(
        "schema = 1\nid = \"hand\"\ntitle = \"made by hand\"\nfamily = \"toy\"\nkind = \"{kind}\"\nlicence = \"CC0-1.0\"\n\
         {lines}context = 8192\nmax_tokens = 64\n[[formats]]\nformat = \"bytes\"\nquant = \"f32\"\n[[formats.files]]\n\
         role = \"weights\"\npath = \"w\"\nsha256 = \"{digest}\"\nsize = 1\n[[sources]]\nkind = \"local\"\n"
    );
    synapse_catalog::check(&text).unwrap_or_else(|problems| panic!("{problems:?}"))
}

/// A subject with references of the very functions above.
pub fn subject(kind: &str) -> Subject {
    let record = record(kind);
    let row = EnvelopeRow {
        model: record.id.clone(),
        engine: "hand".to_owned(),
        engine_version: "*".parse().expect("a range"),
        variant: "f32".to_owned(),
        format: "bytes".to_owned(),
        quant: "f32".to_owned(),
        dtype: "f32".to_owned(),
        bounds: EnvelopeBounds {
            max_tokens: LONGEST,
            max_batch: 64,
            max_batch_tokens: 8_192,
            max_sequences: 64,
        },
        flash_attention: false,
        origin: Origin::Builtin,
    };
    Subject {
        record,
        row,
        f32_exact: true,
        thread_invariant: true,
        reports_placement: false,
        one_at_a_time: None,
        references: Some(references(kind)),
    }
}

/// References over the corpus.
pub fn references(kind: &str) -> References {
    let corpus = Corpus::builtin();
    let mut body = Vec::new();
    let (items, facts) = match kind {
        "embed" => {
            let all = corpus.texts.iter().chain(&corpus.queries);
            all.for_each(|text| body.extend(row(text, LONGEST).iter().flat_map(|value| value.to_le_bytes())));
            let facts = format!("dims {DIMS}\nmax_tokens {LONGEST}\nnormalized no\n");
            (corpus.texts.len() + corpus.queries.len(), facts)
        }
        "rerank" => {
            for set in &corpus.rerank {
                let scores = set
                    .documents
                    .iter()
                    .map(|document| score(&set.query, document, LONGEST));
                body.extend(scores.flat_map(f32::to_le_bytes));
            }
            (body.len() / 4, format!("max_tokens {LONGEST}\n"))
        }
        _ => {
            for prompt in &corpus.prompts {
                body.extend(answer(prompt)[..8].bytes());
                body.push(0);
            }
            (corpus.prompts.len(), String::new())
        }
    };
    let header = format!(
        "synapse-references 1\ncorpus {}\nkind {kind}\nmade_by hand\nitems {items}\n{facts}\n",
        corpus.digest
    );
    References::parse(&[header.as_bytes(), &body].concat()).expect("sound references")
}

/// The gates that failed or were not run, by name.
pub fn closed(verdict: &Verdict) -> Vec<&'static str> {
    let closed = verdict.gates.iter().filter(|result| !result.is_open());
    closed.map(|result| result.gate.name()).collect()
}

/// The gates of one outcome.
pub fn of(verdict: &Verdict, outcome: Outcome) -> Vec<Gate> {
    let gates = verdict.gates.iter().filter(|result| result.outcome == outcome);
    gates.map(|result| result.gate).collect()
}
