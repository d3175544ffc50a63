//! What the engines compute: values that depend on every id of an item, on its segments and on the model's bytes.
//!
//! State: none. Every value is the mean of small drawn numbers over an item's tokens, in f64 and in order.

/// The length of a vector.
pub(super) const DIMS: usize = 4;

/// One step of splitmix64.
pub(super) const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The seed of a model of these bytes.
pub(super) fn seed(bytes: &[u8]) -> u64 {
    bytes.iter().fold(1, |seed, byte| mix(seed ^ u64::from(*byte)))
}

/// The vector of one item; a missing segment is `segment`.
pub(super) fn vector(seed: u64, ids: &[i32], type_ids: &[i32], segment: i32) -> [f32; DIMS] {
    let mut sums = [0.0f64; DIMS];
    for (at, id) in ids.iter().enumerate() {
        let segment = type_ids.get(at).copied().unwrap_or(segment);
        let key = mix(seed ^ (u64::from(segment.cast_unsigned()) << 32) ^ u64::from(id.cast_unsigned()));
        for (j, sum) in (0..).zip(&mut sums) {
            *sum += f64::from(u32::try_from(mix(key ^ j) >> 40).unwrap_or(0)) / 4_194_304.0 - 2.0;
        }
    }
    let tokens = f64::from(u32::try_from(ids.len().max(1)).unwrap_or(u32::MAX));
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the result")]
    sums.map(|sum| (sum / tokens) as f32)
}

/// The score of one pair.
pub(super) fn score(seed: u64, query: &[i32], document: &[i32]) -> f32 {
    let (query, document) = (vector(seed, query, &[], 0), vector(seed, document, &[], 0));
    query.iter().zip(document).map(|(q, d)| q * d).sum()
}
