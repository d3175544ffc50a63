//! The arithmetic, defined so that any language computes the same bits.
//!
//! Owns the seed of one model. Called by the three engines. The definition, which `reference.py` follows:
//!
//! 1. `seed` = FNV-1a 64 of the bytes of the file of role `weights` (offset basis 0xcbf29ce484222325, prime
//!    0x100000001b3).
//! 2. `mix(x)` is the output step of splitmix64: `x += 0x9e3779b97f4a7c15; x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
//!    x = (x ^ x >> 27) * 0x94d049bb133111eb; x ^ x >> 31`, modulo 2^64.
//! 3. A token with id `t` and segment `s` (both as 32-bit two's complement) has the key `k = mix(seed ^ (s << 32 | t))`
//!    and the value `e[j] = (mix(k + j) >> 40) / 2^23 - 1` in component `j` of 0..32, an exact multiple of 2^-23 in
//!    [-1, 1).
//! 4. `m[j]` = the sum of `e[j]` over an item's tokens, in binary64 (exact below 2^29 tokens), divided by their
//!    number in binary64.
//! 5. Pooling `mean` and `none` give `m`; `cls` gives `(e(first) + m) / 2`, `last` gives `(e(last) + m) / 2`, in
//!    binary64. The result is rounded once to binary32.
//! 6. A score is `sum over j of mq[j] * md[j]`, in binary64 from j = 0 on, each product and sum rounded, rounded once
//!    to binary32; `mq`, `md` are the means of the tokens before and from the document's start, 0 for no token.
//! 7. Generation starts with `h = seed`; every prompt token gives `h = mix(h ^ t)`. Each step gives `h = mix(h)`;
//!    `h >> 32` divisible by 64 ends it; else the token is `97 + (h >> 32) % 26`, which spells the ASCII letter, and
//!    `h = mix(h ^ token)`. A temperature above 0 starts with `h = mix(seed ^ options.seed)`.

use std::{fs::File, io::Read};

use synapse_plugin_sdk::prelude::*;

/// The length of a vector.
pub const DIMS: u32 = 32;

const WIDTH: usize = DIMS as usize;

/// How an item's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean.
    Mean,
    /// The first token and the mean.
    Cls,
    /// The last token and the mean.
    Last,
}

impl Pooling {
    /// Reads the setting.
    ///
    /// # Errors
    /// CONFIG_INVALID naming the value.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "mean" | "none" => Ok(Self::Mean),
            "cls" => Ok(Self::Cls),
            "last" => Ok(Self::Last),
            other => {
                let other = other.escape_debug();
                Err(Error::config_invalid(format!(
                    "pooling `{other}`, expected mean, cls, last or none"
                )))
            }
        }
    }
}

/// The output step of splitmix64.
#[must_use]
pub const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// One model: its seed and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    seed: u64,
    bytes: u64,
}

impl Numbers {
    /// A model of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut numbers = Self {
            seed: 0xcbf2_9ce4_8422_2325,
            bytes: 0,
        };
        numbers.take(bytes);
        numbers
    }

    /// A model of a file.
    ///
    /// # Errors
    /// ARTIFACT_INVALID when the file cannot be read.
    pub fn read(file: &ArtifactFile) -> Result<Self, Error> {
        let mut numbers = Self::of(&[]);
        let unreadable = |error| Error::artifact_invalid(format!("role `{}`: {error}", file.role));
        let mut reader = File::open(file.path()).map_err(unreadable)?;
        let mut block = vec![0; 64 * 1024];
        loop {
            match reader.read(&mut block).map_err(unreadable)? {
                0 => return Ok(numbers),
                len => numbers.take(&block[..len]),
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.seed = (self.seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        self.bytes += bytes.len() as u64;
    }

    /// The seed.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// The file's length.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a token's values.
    fn add(&self, id: i32, segment: i32, sum: &mut [f64; WIDTH]) {
        let token = u64::from(segment.cast_unsigned()) << 32 | u64::from(id.cast_unsigned());
        let key = mix(self.seed ^ token);
        for (j, value) in (0_u64..).zip(sum) {
            // 24 bits: exact in either float.
            #[expect(clippy::cast_precision_loss, reason = "24 bits fit")]
            let bits = (mix(key.wrapping_add(j)) >> 40) as f64;
            *value += bits / 8_388_608.0 - 1.0;
        }
    }

    /// The sum over tokens; a missing segment is 0.
    #[must_use]
    pub fn sum(&self, ids: &[i32], segments: &[i32]) -> [f64; WIDTH] {
        let mut sum = [0.0; WIDTH];
        for (i, &id) in ids.iter().enumerate() {
            self.add(id, segments.get(i).copied().unwrap_or(0), &mut sum);
        }
        sum
    }

    /// The mean over tokens; zeros for no token.
    #[must_use]
    pub fn mean(&self, ids: &[i32], segments: &[i32]) -> [f64; WIDTH] {
        #[expect(clippy::cast_precision_loss, reason = "an item has far fewer than 2^52 tokens")]
        let n = ids.len().max(1) as f64;
        self.sum(ids, segments).map(|value| value / n)
    }

    /// An item's vector into `row`.
    pub fn pool(&self, item: Item<'_>, pooling: Pooling, row: &mut [f32]) {
        let mean = self.mean(item.ids, item.type_ids);
        let one = |at: usize| self.sum(&item.ids[at..=at], item.type_ids.get(at..=at).unwrap_or(&[]));
        let pooled = match pooling {
            Pooling::Mean => mean,
            Pooling::Cls => halfway(one(0), mean),
            Pooling::Last => halfway(one(item.ids.len() - 1), mean),
        };
        round(&pooled, row);
    }

    /// A pair's score.
    #[must_use]
    pub fn score(&self, pair: Item<'_>, doc_start: usize) -> f32 {
        let (query, document) = pair.ids.split_at(doc_start);
        let types = if pair.type_ids.is_empty() {
            (&[][..], &[][..])
        } else {
            pair.type_ids.split_at(doc_start)
        };
        let (query, document) = (self.mean(query, types.0), self.mean(document, types.1));
        let dot = query.iter().zip(document).fold(0.0, |sum, (q, d)| sum + q * d);
        #[expect(clippy::cast_possible_truncation, reason = "rounding to binary32 is the definition")]
        let score = dot as f32;
        score
    }
}

fn halfway(a: [f64; WIDTH], b: [f64; WIDTH]) -> [f64; WIDTH] {
    std::array::from_fn(|j| (a[j] + b[j]) / 2.0)
}

/// Rounds a vector to binary32.
pub(crate) fn round(values: &[f64; WIDTH], row: &mut [f32]) {
    for (to, &from) in row.iter_mut().zip(values) {
        #[expect(clippy::cast_possible_truncation, reason = "rounding to binary32 is the definition")]
        let value = from as f32;
        *to = value;
    }
}
