//! A sound artifact with seeded damage: a load refuses it or serves it, and never panics, hangs or reads past an end.
//!
//! `SYNAPSE_TEST_LONG=1` goes on for ten minutes; `SYNAPSE_TEST_SEED` starts from another seed. A failure names its seed,
//! which makes the same damage again.

mod zoo;

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use synapse_owned::artifact::modules::Pooling;
use synapse_owned::engine::Engine;
use synapse_owned::kernel::isa::Kernels;

/// What stands where a number stood: limits of every width, and what is no size at all.
const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "15",
    "16",
    "17",
    "40",
    "255",
    "65536",
    "2147483648",
    "4294967296",
    "9007199254740993",
    "18446744073709551615",
    "1e300",
];
/// What stands where a word stood.
const WORDS: [&str; 10] = [
    "F32",
    "F16",
    "BF16",
    "I64",
    "F4",
    "U8",
    "",
    "gelu",
    "bert",
    "embeddings.word_embeddings.weight",
];

/// A small generator; the seed is all of its state.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        // xorshift64* (Vigna 2016).
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(drawn).unwrap() % limit.max(1)
    }

    fn of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }
}

/// The runs of bytes that `is` holds for.
fn runs(text: &[u8], is: impl Fn(u8) -> bool) -> Vec<std::ops::Range<usize>> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let start = at;
        while at < text.len() && is(text[at]) {
            at += 1;
        }
        if at > start {
            runs.push(start..at);
        }
        at += 1;
    }
    runs
}

/// One change to JSON text.
fn damage_text(text: &mut Vec<u8>, draw: &mut Draw) {
    let numbers = runs(text, |byte| byte.is_ascii_digit());
    let words = runs(text, |byte| {
        byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.'
    });
    match draw.below(6) {
        0 | 1 if !numbers.is_empty() => {
            let place = numbers[draw.below(numbers.len())].clone();
            drop(text.splice(place, draw.of(&NUMBERS).bytes()));
        }
        2 if !words.is_empty() => {
            let place = words[draw.below(words.len())].clone();
            drop(text.splice(place, draw.of(&WORDS).bytes()));
        }
        3 if words.len() > 1 => {
            // A piece of the text again, somewhere else: keys twice, shapes of others.
            let from = draw.below(text.len());
            let piece = text[from..(from + draw.below(90)).min(text.len())].to_vec();
            let to = draw.below(text.len());
            let end = (to + draw.below(90)).min(text.len());
            drop(text.splice(to..end, piece));
        }
        4 if !text.is_empty() => {
            let from = draw.below(text.len());
            text.drain(from..(from + 1 + draw.below(8)).min(text.len()));
        }
        _ => {
            let at = draw.below(text.len());
            if let Some(byte) = text.get_mut(at) {
                *byte ^= 1 << draw.below(8);
            }
        }
    }
}

/// Some changes to a safetensors file: its length field, its header, its data.
fn damage_weights(file: &[u8], draw: &mut Draw) -> Vec<u8> {
    let length = usize::try_from(u64::from_le_bytes(*file.first_chunk().unwrap())).unwrap();
    let (mut header, mut data) = (file[8..8 + length].to_vec(), file[8 + length..].to_vec());
    for _ in 0..1 + draw.below(3) {
        match draw.below(8) {
            0 => data.truncate(draw.below(data.len())),
            1 => data.extend(std::iter::repeat_n(0, draw.below(64))),
            2 => {
                let at = draw.below(data.len());
                if let Some(byte) = data.get_mut(at) {
                    *byte = u8::try_from(draw.below(256)).unwrap();
                }
            }
            _ => damage_text(&mut header, draw),
        }
    }
    let stated = match draw.below(12) {
        0 => u64::MAX >> draw.below(64),
        1 => (header.len() as u64 + draw.below(16) as u64).wrapping_sub(8),
        _ => header.len() as u64,
    };
    [&stated.to_le_bytes()[..], &header, &data].concat()
}

/// Loads a damaged artifact and, where that succeeds, uses it.
fn survive(engine: &Engine, folder: &Path, (config, weights): (&[u8], &[u8])) -> bool {
    let files = zoo::files(folder.join("config.json"), folder.join("model.safetensors"));
    std::fs::write(&files.config, config).unwrap();
    std::fs::write(&files.weights, weights).unwrap();
    let mut settings = zoo::settings(Pooling::Mean, 8);
    settings.max_batch = 4;
    let Ok(model) = engine.load(&files, settings, &mut |_, _| true) else {
        return false;
    };
    // f16 weights take twice their file as f32, and panels round widths up to 16.
    assert!(
        model.weight_bytes() <= 64 * weights.len() + (1 << 20),
        "more memory than a file of its size can fill"
    );
    let items: [&[i32]; 3] = [&[2, 31, 32, 3], &[2, 3], &[2, 39, 38, 37, 36, 35, 34, 3]];
    if let Ok(vectors) = zoo::try_embed(engine, &model, &items, 2, &zoo::GoOn) {
        let alone = zoo::embed(engine, &model, &items[..1], 1);
        // Weights of any size may overflow; a NaN's bits are not defined.
        if alone[0].iter().all(|value| value.is_finite()) {
            assert_eq!(
                zoo::bits(&vectors[..1]),
                zoo::bits(&alone),
                "an item depends on its company"
            );
        }
    }
    true
}

#[test]
fn damage_is_refused_or_served_and_nothing_else() {
    let engine = Engine::new(Kernels::preferred());
    let sound = zoo::fixture("bad/good-control-bert");
    let config = std::fs::read(sound.join("config.json")).unwrap();
    let weights = std::fs::read(sound.join("model.safetensors")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    assert!(
        survive(&engine, folder.path(), (&config, &weights)),
        "the undamaged artifact is served"
    );

    let long = std::env::var_os("SYNAPSE_TEST_LONG").is_some();
    let first = std::env::var("SYNAPSE_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let (start, began) = (first.unwrap_or(1_u64), Instant::now());
    let (mut served, mut refused) = (0_u64, 0_u64);
    let mut seed = start;
    while if long {
        began.elapsed() < Duration::from_secs(600)
    } else {
        seed < start + 3_000
    } {
        let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (mut config, mut weights) = (config.clone(), weights.clone());
        // Mostly the weights, whose header is the larger part of the format.
        if draw.below(4) == 0 {
            damage_text(&mut config, &mut draw);
        } else {
            weights = damage_weights(&weights, &mut draw);
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            survive(&engine, folder.path(), (&config, &weights))
        }));
        match outcome {
            Ok(true) => served += 1,
            Ok(false) => refused += 1,
            Err(_) => panic!("seed {seed}: the message is above"),
        }
        seed += 1;
    }
    let last = seed - 1;
    let _ = writeln!(
        std::io::stderr(),
        "{served} served, {refused} refused, seeds {start} to {last}"
    );
    // Damage to a value or to a name that nobody needs is served; nearly all other is not.
    assert!(served > 0 && refused > served, "{served} served, {refused} refused");
}
