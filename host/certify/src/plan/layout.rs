//! Which calls a probe makes, in which order, with which items.
//!
//! State: the texts and pairs of one plan. Caller: [`super::Plan`]. First every text of the corpus alone through the batch
//! path, which is the base that all else is compared with and gives the token counts; then, in [`Layout::rest`]:
//!
//! | series | what it tries |
//! |---|---|
//! | `Query` | the corpus' queries and a part of its texts through the query path |
//! | `Corpus` | the corpus, a part of its long texts, in batches as the scheduler packs them, longest first |
//! | `Length` | texts cut to every length up to 64 tokens, then around the powers of two up to the bound, alone |
//! | `Ramp` | a part of the same in batches of mixed lengths |
//! | `Even`, `Mixed` | a few texts in batches of each power of two and one more, among short and among long ones |
//! | `Corner` | the most items with the most tokens; the longest items together |
//! | `Trial` | the same calls again, and with other thread counts |
//! | `Timed` | speed, each text used once |
//!
//! A lane that cannot give way to a query in the middle of a call is never asked for more at once than the scheduler would
//! ([`Layout::most_tokens`]): then the corners are those of such calls.

use std::sync::Arc;

use synapse_catalog::Kind;
use synapse_core::fingerprint::EnvelopeBounds;
use synapse_core::schedule::{Packing, QuantumBounds};

pub(super) use super::ask::{Ask, Material, Run, Series};
use super::{PairItem, Step, StepId, TextItem, Work};
use crate::corpus::Corpus;
use crate::subject::{Depth, Options, Subject};
use crate::verdict::Workload;

/// Tokens of a batch, except where a corner of the envelope asks for more: about a quantum.
const BATCH_TOKENS: u64 = 3_072;
/// Texts that every batch size is tried with.
const WITNESSES: usize = 16;
/// The longest of them, and the neighbour that `Mixed` puts beside them, in tokens.
const WITNESS_TOKENS: u32 = 64;
const NEIGHBOUR_TOKENS: u32 = 128;
/// Texts from this many tokens on are long. They are few, and most of a probe's work.
const LONG_TOKENS: u32 = 128;
/// What is computed a second time takes every so many-th of what it could take: texts through the query path, long texts
/// there and in batches, lengths in batches.
const QUERY_PATH_EVERY: usize = 4;
const LONG_EVERY: usize = 8;
const RAMP_EVERY: usize = 3;
/// Tokens of a timed query, and its calls: as many as OQ-26 asks for where they are cheap, fewer of the long ones.
const QUERY_CALLS: [(u32, usize); 4] = [(8, 30), (32, 30), (128, 10), (512, 5)];
/// Timed calls of each batch size; items of a batch, and tokens of each.
const TIMED_BATCHES: usize = 3;
/// Timed generations.
const TIMED_GENERATIONS: usize = 8;
const BATCH_ITEMS: [u32; 3] = [1, 8, 32];
const BATCH_ITEM_TOKENS: u32 = 32;
/// The shortest composed text: a word between two special tokens.
const SHORTEST_TEXT: u32 = 3;
/// The shortest composed pair: its query is two words, which are many tokens where a byte is one.
const SHORTEST_PAIR: u32 = 32;
/// Tokens that a generation may have.
const ANSWER_TOKENS: u32 = 24;
/// Composed texts are numbered from here on, so that timed texts are no others.
const TIMED_FROM: usize = 10_000;

/// The items of a plan, and the calls made of them.
#[derive(Debug)]
pub(super) struct Layout {
    kind: Kind,
    dims: usize,
    bounds: EnvelopeBounds,
    options: Options,
    thread_invariant: bool,
    items: Vec<Material>,
    /// How many items are the corpus: texts and then queries, or pairs set by set.
    pub corpus_items: usize,
    /// How many of those are texts; pairs have no queries.
    pub texts: usize,
    /// Items a set, for pairs.
    pub sets: Vec<std::ops::Range<usize>>,
    /// Items of exact lengths, shortest first.
    lengths: Vec<usize>,
    neighbour: usize,
    corner: Vec<usize>,
    timed: Vec<(Workload, usize, std::ops::Range<usize>)>,
}

impl Layout {
    pub(super) fn new(subject: &Subject, options: Options) -> Self {
        let corpus = Corpus::builtin();
        let bounds = subject.row.bounds;
        let mut layout = Self {
            kind: subject.record.kind,
            dims: usize::try_from(subject.record.dims).unwrap_or(usize::MAX).max(1),
            bounds,
            options,
            thread_invariant: subject.thread_invariant,
            items: Vec::new(),
            corpus_items: 0,
            texts: 0,
            sets: Vec::new(),
            lengths: Vec::new(),
            neighbour: 0,
            corner: Vec::new(),
            timed: Vec::new(),
        };
        let cut = match &subject.references {
            Some(references) if references.max_tokens > 0 => references.max_tokens.min(bounds.max_tokens),
            _ => bounds.max_tokens,
        };
        match layout.kind {
            Kind::Embed => layout.add_texts(corpus, cut),
            Kind::Rerank => layout.add_pairs(corpus, cut),
            Kind::Generate => layout.add_prompts(corpus),
        }
        layout
    }

    /// A sample takes every n-th of what a full probe takes all of.
    fn thinned<T: Clone>(&self, all: &[T], every: usize) -> Vec<T> {
        match self.options.depth {
            Depth::Full => all.to_vec(),
            Depth::Sample => all.iter().step_by(every).cloned().collect(),
        }
    }

    fn add(&mut self, text: &Arc<str>, query: Option<&Arc<str>>, cut: u32) -> usize {
        self.items.push(Material {
            text: Arc::clone(text),
            query: query.map(Arc::clone),
            cut,
        });
        self.items.len() - 1
    }

    /// A text of exactly `tokens` tokens, wherever a word is at least one: it has more words than that and is cut. The
    /// query of a pair is two words, so only pairs of some length can be had.
    fn add_composed(&mut self, number: usize, tokens: u32) -> usize {
        let words = usize::try_from(tokens).unwrap_or(usize::MAX);
        let text = Corpus::builtin().composed(number, words);
        let query = (self.kind == Kind::Rerank).then(|| Corpus::builtin().composed(number + 1, 2));
        self.add(&text, query.as_ref(), tokens)
    }

    fn add_texts(&mut self, corpus: &Corpus, cut: u32) {
        for text in corpus.texts.iter().chain(&corpus.queries) {
            self.add(text, None, cut);
        }
        self.texts = corpus.texts.len();
        self.corpus_items = self.items.len();
        self.add_shapes(SHORTEST_TEXT);
        let longest = self.bounds.max_tokens;
        for (tokens, calls) in QUERY_CALLS.into_iter().filter(|(tokens, _)| *tokens <= longest) {
            self.add_timed(Workload::Query { tokens }, tokens, 1, calls);
        }
        let tokens = BATCH_ITEM_TOKENS.min(longest);
        let bounds = self.bounds;
        let fits = |items: &u32| *items <= bounds.max_batch && items * tokens <= bounds.max_batch_tokens;
        for items in BATCH_ITEMS.into_iter().filter(fits) {
            let count = usize::try_from(items).unwrap_or(1);
            self.add_timed(Workload::Batch { items }, tokens, count, TIMED_BATCHES);
        }
    }

    fn add_pairs(&mut self, corpus: &Corpus, cut: u32) {
        for set in &corpus.rerank {
            let from = self.items.len();
            for document in &set.documents {
                self.add(document, Some(&set.query), cut);
            }
            self.sets.push(from..self.items.len());
        }
        self.corpus_items = self.items.len();
        self.texts = self.items.len();
        self.add_shapes(SHORTEST_PAIR);
        let possible = SHORTEST_PAIR..=self.bounds.max_tokens;
        for (tokens, calls) in QUERY_CALLS.into_iter().filter(|(tokens, _)| possible.contains(tokens)) {
            self.add_timed(Workload::Pair { tokens }, tokens, 1, calls);
        }
    }

    fn add_prompts(&mut self, corpus: &Corpus) {
        for prompt in &corpus.prompts {
            self.add(prompt, None, 0);
        }
        self.corpus_items = self.items.len();
        self.texts = self.items.len();
        // A long message, far enough from the bound for any tokenizer.
        let words = usize::try_from(self.bounds.max_tokens / 8).unwrap_or(16).clamp(2, 256);
        let text = Corpus::builtin().composed(1, words);
        let long = self.add(&text, None, 0);
        self.corner = vec![long];
        let from = self.items.len();
        for number in 0..TIMED_GENERATIONS {
            let text = Corpus::builtin().composed(TIMED_FROM + number, 6);
            self.add(&text, None, 0);
        }
        self.timed.push((Workload::Generation, 1, from..self.items.len()));
    }

    /// Items for exact lengths and for the corners.
    fn add_shapes(&mut self, shortest: u32) {
        let longest = self.bounds.max_tokens;
        let mut lengths: Vec<u32> = (shortest..=WITNESS_TOKENS.min(longest)).collect();
        let powers = std::iter::successors(Some(128u32), |power| power.checked_mul(2));
        for power in powers.take_while(|power| *power <= longest) {
            lengths.extend([power - 1, power, power + 1]);
        }
        lengths.extend([longest.saturating_sub(1), longest]);
        lengths.retain(|length| (shortest..=longest).contains(length));
        lengths.sort_unstable();
        lengths.dedup();
        for (number, length) in self.thinned(&lengths, 4).into_iter().enumerate() {
            let item = self.add_composed(2 * number, length);
            self.lengths.push(item);
        }
        self.neighbour = self.add_composed(500, NEIGHBOUR_TOKENS.min(longest));
        // The most items with the most tokens, of four texts: their rows alone are cheap.
        let each = (self.bounds.max_batch_tokens / self.bounds.max_batch.max(1))
            .max(shortest)
            .min(longest);
        let corner = [
            (502, each),
            (504, each),
            (506, each),
            (508, each),
            (510, longest),
            (512, longest),
        ];
        self.corner = corner
            .map(|(number, tokens)| self.add_composed(number, tokens))
            .to_vec();
    }

    fn add_timed(&mut self, workload: Workload, tokens: u32, items: usize, calls: usize) {
        let calls = self.thinned(&vec![(); calls], 4).len();
        let from = self.items.len();
        for _ in 0..calls * items {
            let number = TIMED_FROM + 2 * self.items.len();
            self.add_composed(number, tokens);
        }
        self.timed.push((workload, items, from..self.items.len()));
    }

    /// The corpus, alone, through the batch path; a generator's messages.
    pub(super) fn first(&self) -> Vec<Ask> {
        let all: Vec<usize> = (0..self.corpus_items).collect();
        let ask = |item: usize| self.ask(Series::Alone, vec![item]);
        self.thinned(&all, 16).into_iter().map(ask).collect()
    }

    /// The most tokens of a call of several items. One item is never cut, so it is at least the row's longest.
    pub(super) fn most_tokens(&self, nanos_per_token: Option<u64>) -> u64 {
        let row = u64::from(self.bounds.max_batch_tokens);
        let (Some(time), Some(nanos)) = (self.options.call_time, nanos_per_token) else {
            return row;
        };
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        (time / nanos.max(1)).max(u64::from(self.bounds.max_tokens)).min(row)
    }

    /// Everything else, once the corpus' token counts are known (0 for an item without a row), in calls of at most `most`
    /// tokens.
    pub(super) fn rest(&self, tokens: &[u32], most: u64) -> Vec<Ask> {
        if self.kind == Kind::Generate {
            return self.generations();
        }
        let known: Vec<usize> = (0..self.corpus_items)
            .filter(|item| tokens.get(*item).is_some_and(|n| *n > 0))
            .collect();
        let is_long = |item: &usize| tokens[*item] >= LONG_TOKENS;
        let long: Vec<usize> = known.iter().copied().filter(is_long).step_by(LONG_EVERY).collect();
        let mut asks = Vec::new();
        if self.kind == Kind::Embed {
            let query = |item: &usize| Ask {
                as_query: true,
                ..self.ask(Series::Query, vec![*item])
            };
            let queries = known.iter().filter(|item| **item >= self.texts);
            let texts = known.iter().filter(|item| **item < self.texts && !is_long(item));
            let texts = texts.step_by(QUERY_PATH_EVERY).chain(&long);
            asks.extend(texts.chain(queries).map(query));
        }
        let mut batched: Vec<usize> = known.iter().copied().filter(|item| !is_long(item)).collect();
        batched.extend(&long);
        let counts: Vec<u32> = batched.iter().map(|item| tokens[*item]).collect();
        asks.extend(self.packed(Series::Corpus, &batched, &counts, most));
        asks.extend(self.lengths.iter().map(|item| self.ask(Series::Length, vec![*item])));
        asks.extend(self.ramp(most));
        let witnesses = self.witnesses(&known, tokens);
        let tokens_of = |item: usize| u64::from(tokens.get(item).copied().unwrap_or(self.items[item].cut));
        let fits = |ask: &Ask| ask.items.iter().map(|item| tokens_of(*item)).sum::<u64>() <= most;
        asks.push(self.ask(Series::Length, vec![self.neighbour]));
        asks.extend(self.sizes(&witnesses, fits));
        asks.extend(self.corners(most));
        asks.extend(self.trials(&witnesses, fits));
        asks.extend(self.timings(most));
        asks
    }

    /// About four characters a token, for a first estimate of the work.
    pub(super) fn guessed_tokens(&self) -> Vec<u32> {
        let guess = |item: &Material| u32::try_from(item.text.len() / 4 + 2).unwrap_or(u32::MAX).min(item.cut);
        let asked = self.first().into_iter().flat_map(|ask| ask.items);
        let mut guessed = vec![0; self.corpus_items];
        for item in asked {
            guessed[item] = guess(&self.items[item]);
        }
        guessed
    }

    fn ask(&self, series: Series, items: Vec<usize>) -> Ask {
        Ask {
            series,
            items,
            threads: self.options.threads,
            as_query: false,
        }
    }

    /// As the scheduler packs them: alike lengths together.
    fn packed(&self, series: Series, items: &[usize], tokens: &[u32], most: u64) -> Vec<Ask> {
        let bounds = QuantumBounds {
            max_items: self.bounds.max_batch,
            max_tokens: BATCH_TOKENS.min(most),
        };
        let mut packing = Packing::new(tokens, &[]);
        let calls = std::iter::from_fn(|| packing.next(bounds));
        calls
            .map(|call| self.ask(series, call.into_iter().map(|at| items[at]).collect()))
            .collect()
    }

    /// The exact lengths in batches, short and long in turn.
    fn ramp(&self, most: u64) -> Vec<Ask> {
        let lengths: Vec<usize> = self.lengths.iter().copied().step_by(RAMP_EVERY).collect();
        let mut order: Vec<usize> = Vec::with_capacity(lengths.len());
        let (mut low, mut high) = (0, lengths.len());
        while low < high {
            order.push(lengths[low]);
            low += 1;
            if low < high {
                high -= 1;
                order.push(lengths[high]);
            }
        }
        let most = BATCH_TOKENS.min(most);
        let most_items = usize::try_from(self.bounds.max_batch).unwrap_or(usize::MAX);
        let mut calls: Vec<(u64, Vec<usize>)> = Vec::new();
        for item in order {
            let tokens = u64::from(self.items[item].cut);
            match calls.last_mut() {
                Some((held, call)) if *held + tokens <= most && call.len() < most_items => {
                    *held += tokens;
                    call.push(item);
                }
                _ => calls.push((tokens, vec![item])),
            }
        }
        let batches = calls.into_iter().filter(|(_, call)| call.len() > 1);
        batches.map(|(_, call)| self.ask(Series::Ramp, call)).collect()
    }

    /// A few short texts of the corpus, of as many different lengths as there are.
    fn witnesses(&self, known: &[usize], tokens: &[u32]) -> Vec<usize> {
        let mut short: Vec<usize> = known
            .iter()
            .copied()
            .filter(|item| tokens[*item] <= WITNESS_TOKENS)
            .collect();
        short.sort_by_key(|item| tokens[*item]);
        let step = (short.len() / WITNESSES).max(1);
        short.into_iter().step_by(step).take(WITNESSES).collect()
    }

    /// Every power of two and one more, up to the bound.
    fn batch_sizes(&self) -> Vec<usize> {
        let most = usize::try_from(self.bounds.max_batch).unwrap_or(usize::MAX);
        let powers = std::iter::successors(Some(2usize), |power| power.checked_mul(2));
        let mut sizes: Vec<usize> = powers
            .take_while(|power| *power <= most)
            .flat_map(|power| [power, power + 1])
            .collect();
        sizes.push(most);
        sizes.retain(|size| (2..=most).contains(size));
        sizes.sort_unstable();
        sizes.dedup();
        self.thinned(&sizes, 3)
    }

    /// Each size among short texts and beside a long one; with fewer, shorter texts where the bound on tokens is tight.
    fn sizes(&self, witnesses: &[usize], fits: impl Fn(&Ask) -> bool) -> Vec<Ask> {
        let mut asks = Vec::new();
        for size in self.batch_sizes() {
            let around = |from: usize, many: usize| -> Vec<usize> {
                witnesses.iter().cycle().skip(from).take(many).copied().collect()
            };
            let shortest =
                |many: usize| -> Vec<usize> { witnesses.iter().take(2).cycle().take(many).copied().collect() };
            let calls = 0..witnesses.len().div_ceil(size);
            let mut even: Vec<Ask> = calls
                .map(|call| self.ask(Series::Even, around(call * size, size)))
                .collect();
            if !even.iter().all(&fits) {
                even = vec![self.ask(Series::Even, shortest(size))];
            }
            let mixed = |mut items: Vec<usize>| {
                items.insert(0, self.neighbour);
                items.reverse();
                self.ask(Series::Mixed, items)
            };
            let mut beside = mixed(around(size, size - 1));
            if !fits(&beside) {
                beside = mixed(shortest(size - 1));
            }
            asks.extend(even.into_iter().chain([beside]).filter(&fits));
        }
        asks
    }

    fn corners(&self, most: u64) -> Vec<Ask> {
        let Some((full, longest)) = self.corner.split_at_checked(4) else {
            return Vec::new();
        };
        let mut asks: Vec<Ask> = self
            .corner
            .iter()
            .map(|item| self.ask(Series::Length, vec![*item]))
            .collect();
        let most_items = u64::from(self.bounds.max_batch);
        let fits = (most / u64::from(self.items[full[0]].cut.max(1))).min(most_items);
        let many = usize::try_from(fits).unwrap_or(1);
        if many > 1 {
            asks.push(self.ask(Series::Corner, full.iter().cycle().take(many).copied().collect()));
        }
        let fits = most / u64::from(self.bounds.max_tokens.max(1));
        if fits.min(most_items) > 1 {
            asks.push(self.ask(Series::Corner, longest.to_vec()));
        }
        asks
    }

    /// The calls that are made again: one alone and one batch, of as many witnesses as fit.
    fn trials(&self, witnesses: &[usize], fits: impl Fn(&Ask) -> bool) -> Vec<Ask> {
        let most = usize::try_from(self.bounds.max_batch).unwrap_or(usize::MAX);
        let mut batch: Vec<usize> = witnesses.iter().take(most).copied().collect();
        while batch.len() > 1 && !fits(&self.ask(Series::Even, batch.clone())) {
            batch.pop();
        }
        let calls = [vec![self.neighbour], batch]
            .into_iter()
            .filter(|call| !call.is_empty());
        let runs = self.runs();
        let mut asks = Vec::new();
        for (number, call) in (0..).zip(calls) {
            for run in &runs {
                asks.push(self.trial(number, *run, call.clone()));
            }
        }
        asks
    }

    fn runs(&self) -> Vec<Run> {
        let mut runs = vec![Run::First, Run::Again];
        if self.thread_invariant {
            let mut counts = vec![1, 2, self.options.most_threads];
            counts.retain(|count| *count != self.options.threads);
            counts.dedup();
            runs.extend(counts.into_iter().map(Run::Threads));
        }
        runs
    }

    fn trial(&self, number: u32, run: Run, items: Vec<usize>) -> Ask {
        let threads = match run {
            Run::Threads(threads) => threads,
            Run::First | Run::Again => self.options.threads,
        };
        Ask {
            threads,
            ..self.ask(Series::Trial(number, run), items)
        }
    }

    /// A batch that is larger than a call may be is timed in several.
    fn timings(&self, most: u64) -> Vec<Ask> {
        let mut asks = Vec::new();
        for (workload, items, range) in &self.timed {
            let all: Vec<usize> = range.clone().collect();
            for batch in all.chunks_exact(*items) {
                let longest = batch.iter().map(|item| self.items[*item].cut).max();
                let fits = most / u64::from(longest.unwrap_or(1).max(1));
                let calls = batch.chunks(usize::try_from(fits).unwrap_or(usize::MAX).max(1));
                asks.extend(calls.map(|call| Ask {
                    as_query: matches!(workload, Workload::Query { .. }),
                    ..self.ask(Series::Timed(*workload), call.to_vec())
                }));
            }
        }
        asks
    }

    fn generations(&self) -> Vec<Ask> {
        let mut asks: Vec<Ask> = self
            .corner
            .iter()
            .map(|item| self.ask(Series::Corner, vec![*item]))
            .collect();
        // The first run of each message is the series `Alone`.
        let runs: Vec<Run> = self.runs().into_iter().filter(|run| *run != Run::First).collect();
        for number in 0..u32::try_from(self.corpus_items).unwrap_or(0) {
            let item = usize::try_from(number).unwrap_or(0);
            asks.extend(runs.iter().map(|run| self.trial(number, *run, vec![item])));
        }
        asks.extend(self.timings(u64::from(self.bounds.max_batch_tokens)));
        asks
    }

    /// An item by its number.
    pub(super) fn item(&self, item: usize) -> &Material {
        &self.items[item]
    }

    /// Values of a row: 1 for scores.
    pub(super) const fn dims(&self) -> usize {
        self.dims
    }

    /// What is timed, and of how many items.
    pub(super) fn workloads(&self) -> impl Iterator<Item = (Workload, usize)> {
        self.timed.iter().map(|(workload, items, _)| (*workload, *items))
    }

    /// How much is tried.
    pub(super) const fn depth(&self) -> Depth {
        self.options.depth
    }

    /// The most items of a call.
    pub(super) const fn max_batch(&self) -> u32 {
        self.bounds.max_batch
    }

    /// A call as the daemon makes it.
    pub(super) fn step(&self, id: StepId, ask: &Ask) -> Step {
        let materials = ask.items.iter().map(|item| &self.items[*item]);
        let guess = |item: &Material| {
            let bytes = item.text.len() + item.query.as_ref().map_or(0, |query| query.len());
            u64::try_from(bytes / 4 + 2)
                .unwrap_or(u64::MAX)
                .min(u64::from(item.cut.max(ANSWER_TOKENS)))
        };
        let tokens = materials.clone().map(guess).sum();
        let work = match self.kind {
            Kind::Embed => Work::Embed(
                materials
                    .map(|item| TextItem {
                        text: Arc::clone(&item.text),
                        max_tokens: item.cut,
                    })
                    .collect(),
            ),
            Kind::Rerank => Work::Rerank(
                materials
                    .map(|item| PairItem {
                        query: item.query.as_ref().map_or_else(|| Arc::from(""), Arc::clone),
                        document: Arc::clone(&item.text),
                        max_tokens: item.cut,
                    })
                    .collect(),
            ),
            Kind::Generate => Work::Generate {
                prompt: Arc::clone(&self.items[ask.items[0]].text),
                max_tokens: ANSWER_TOKENS,
            },
        };
        Step {
            id,
            work,
            threads: ask.threads,
            as_query: ask.as_query,
            tokens,
        }
    }
}
