//! Choosing the next token: greedy, by temperature and nucleus, under a grammar.
//!
//! Owns the grammar's state and the random numbers of one generation. Caller: `generate`. llama.cpp does the grammar;
//! the choice itself is made here, because llama.cpp's own samplers throw where a grammar is left, sort what may not
//! be a number, and take one of the seeds for "any".

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token::data::LlamaTokenData;
use llama_cpp_2::token::data_array::LlamaTokenDataArray;
use synapse_plugin_sdk::prelude::*;

use crate::{grammar, log};

/// What one step gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This token comes next; it may be one that ends the generation.
    Token(LlamaToken),
    /// The grammar allows no token at all any more.
    Nothing,
}

/// The choices of one generation.
#[derive(Debug)]
pub struct Sampler {
    grammar: Option<LlamaSampler>,
    temperature: f32,
    top_p: f32,
    random: Random,
}

impl Sampler {
    /// For a model's vocabulary and checked options.
    ///
    /// # Errors
    /// GRAMMAR_INVALID for a grammar that does not parse or costs too much.
    pub fn new(model: &LlamaModel, options: &GenerateOptions<'_>) -> Result<Self, Error> {
        let grammar = options.grammar.map(|text| parse(model, text)).transpose()?;
        Ok(Self {
            grammar,
            temperature: options.temperature,
            top_p: options.top_p,
            random: Random(options.seed),
        })
    }

    /// Chooses among the logits of a whole vocabulary. At temperature 0 the highest wins, of equals the first;
    /// otherwise logits are divided by the temperature, the likeliest tokens that together reach `top_p` stay, and one
    /// of them is drawn.
    ///
    /// # Errors
    /// NON_FINITE when a logit is not a number.
    pub fn choose(&mut self, logits: &[f32]) -> Result<Choice, Error> {
        if logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            return Err(Error::non_finite("the model gives logits that are no numbers"));
        }
        let greedy = self.temperature == 0.0;
        if greedy && let Some(best) = best(&candidates(logits)) {
            // The likeliest token alone mostly fits the grammar, which spares a walk over the vocabulary.
            if self.allowed(vec![best]).first().is_some_and(possible) {
                return Ok(Choice::Token(best.id()));
            }
        }
        let candidates = self.allowed(candidates(logits));
        let chosen = if greedy {
            best(&candidates)
        } else {
            self.draw(candidates)
        };
        Ok(chosen.map_or(Choice::Nothing, |chosen| Choice::Token(chosen.id())))
    }

    /// Tells the grammar what came.
    ///
    /// # Errors
    /// INTERNAL when the grammar does not allow it, which [`Sampler::choose`] has seen to.
    pub fn accept(&mut self, token: LlamaToken) -> Result<(), Error> {
        match &mut self.grammar {
            Some(grammar) => grammar.try_accept(token).map_err(|error| {
                Error::internal(format!("llama.cpp's grammar refuses a token that it allowed: {error}"))
            }),
            None => Ok(()),
        }
    }

    /// The candidates, those that the grammar forbids at -∞.
    fn allowed(&mut self, candidates: Vec<LlamaTokenData>) -> Vec<LlamaTokenData> {
        match &mut self.grammar {
            Some(grammar) => LlamaTokenDataArray::new(candidates, false).with_sampler(grammar).data,
            None => candidates,
        }
    }

    fn draw(&mut self, mut candidates: Vec<LlamaTokenData>) -> Option<LlamaTokenData> {
        candidates.retain(possible);
        candidates.sort_unstable_by(|a, b| b.logit().total_cmp(&a.logit()).then(a.id().0.cmp(&b.id().0)));
        let highest = f64::from(candidates.first()?.logit());
        let temperature = f64::from(self.temperature);
        let weight = |candidate: &LlamaTokenData| ((f64::from(candidate.logit()) - highest) / temperature).exp();
        let weights: Vec<f64> = candidates.iter().map(weight).collect();
        let kept = nucleus(&weights, f64::from(self.top_p));
        let target = self.random.unit() * kept.iter().sum::<f64>();
        let mut sum = 0.0;
        let drawn = kept.iter().position(|weight| {
            sum += weight;
            target < sum
        });
        // Rounding may leave the target at the sum of all.
        candidates.get(drawn.unwrap_or(kept.len() - 1)).copied()
    }
}

fn candidates(logits: &[f32]) -> Vec<LlamaTokenData> {
    let with_id = |(id, logit): (i32, &f32)| LlamaTokenData::new(LlamaToken(id), *logit, 0.0);
    (0..).zip(logits).map(with_id).collect()
}

fn possible(candidate: &LlamaTokenData) -> bool {
    candidate.logit() > f32::NEG_INFINITY
}

/// The likeliest candidate, of equals the first; none when none is possible.
fn best(candidates: &[LlamaTokenData]) -> Option<LlamaTokenData> {
    let possible = candidates.iter().copied().filter(possible);
    possible.reduce(|best, next| if next.logit() > best.logit() { next } else { best })
}

/// The shortest run of the greatest weights, which are sorted, that holds the part `top_p` of their sum.
fn nucleus(weights: &[f64], top_p: f64) -> &[f64] {
    let enough = top_p * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    let last = weights.iter().position(|weight| {
        sum += weight;
        sum >= enough
    });
    &weights[..last.map_or(weights.len(), |last| last + 1)]
}

fn parse(model: &LlamaModel, text: &str) -> Result<LlamaSampler, Error> {
    let refuse = |why: String| Error::grammar_invalid(format!("the grammar is refused: {why}; expected GBNF"));
    grammar::check(text).map_err(|refused| refuse(refused.to_string()))?;
    log::clear();
    LlamaSampler::grammar(model, text, "root").map_err(|_| refuse(log::complaint()))
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): the same numbers for a
/// seed on every machine.
#[derive(Clone, Copy, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to, not with, 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit an f64 exactly")]
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f32, top_p: f32, seed: u64) -> Sampler {
        Sampler {
            grammar: None,
            temperature,
            top_p,
            random: Random(seed),
        }
    }

    fn token(choice: Result<Choice, Error>) -> i32 {
        match choice {
            Ok(Choice::Token(LlamaToken(id))) => id,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn greedy_takes_the_highest_and_of_equals_the_first() {
        let mut sampler = sampler(0.0, 1.0, 0);
        assert_eq!(token(sampler.choose(&[1.0, 3.0, 2.0, 3.0])), 1);
        assert_eq!(token(sampler.choose(&[f32::NEG_INFINITY, -7.0])), 1);
        assert_eq!(sampler.choose(&[f32::NEG_INFINITY; 3]), Ok(Choice::Nothing));
    }

    #[test]
    fn what_is_no_number_is_refused_greedy_or_not() {
        for temperature in [0.0, 1.0] {
            for bad in [f32::NAN, f32::INFINITY] {
                let error = sampler(temperature, 1.0, 0).choose(&[0.0, bad]).unwrap_err();
                assert_eq!(error.code, ErrorCode::NON_FINITE);
            }
        }
    }

    /// The numbers of the paper's reference implementation for seed 1234567.
    #[test]
    fn random_numbers_are_those_of_the_paper() {
        let mut random = Random(1_234_567);
        let found: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(
            found,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    /// Drawn shares are those of the softmax at that temperature, computed here by hand: weights e^0, e^-1, e^-2 at
    /// temperature 1; e^0, e^-2, e^-4 at 0.5.
    #[test]
    fn draws_follow_the_temperature() {
        for (temperature, expected) in [(1.0, [0.6652, 0.2447, 0.0900]), (0.5, [0.8668, 0.1173, 0.0159])] {
            let mut sampler = sampler(temperature, 1.0, 42);
            let mut counts = [0u32; 3];
            for _ in 0..20_000 {
                counts[usize::try_from(token(sampler.choose(&[1.0, 3.0, 2.0]))).unwrap()] += 1;
            }
            for (id, expected) in [1, 2, 0].into_iter().zip(expected) {
                let share = f64::from(counts[id]) / 20_000.0;
                assert!(
                    (share - expected).abs() < 0.012,
                    "{temperature}: {id} {share}, expected {expected}"
                );
            }
        }
    }

    #[test]
    fn the_nucleus_is_the_shortest_that_reaches_top_p() {
        // Shares 0.6652, 0.2447, 0.0900.
        for (top_p, allowed) in [(0.5, &[1][..]), (0.7, &[1, 2]), (0.95, &[1, 2, 0]), (1.0, &[1, 2, 0])] {
            let mut sampler = sampler(1.0, top_p, 7);
            let mut seen: Vec<i32> = (0..2000).map(|_| token(sampler.choose(&[1.0, 3.0, 2.0]))).collect();
            seen.sort_unstable();
            seen.dedup();
            let mut allowed = allowed.to_vec();
            allowed.sort_unstable();
            assert_eq!(seen, allowed, "{top_p}");
        }
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let draw = |seed| {
            let mut sampler = sampler(1.0, 1.0, seed);
            (0..40).map(|_| token(sampler.choose(&[0.0; 50]))).collect::<Vec<_>>()
        };
        assert_eq!(
            draw(u64::from(u32::MAX)),
            draw(u64::from(u32::MAX)),
            "llama.cpp's seed for `any`"
        );
        assert_ne!(draw(1), draw(2));
        assert_ne!(draw(1), draw(1 + (1 << 32)), "the upper half counts");
    }
}
