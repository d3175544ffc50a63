//! Repeatable chance: a seed decides a whole history.
//!
//! State: one number. Caller: the simulation. The generator is SplitMix64 (Steele, Lea and Flood, 2014).

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `from` to `to`, both included.
    pub fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from + 1)
    }

    /// An index below `len`, which is not 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.within(0, len as u64 - 1)).expect("an index")
    }

    /// True `percent` times in a hundred.
    pub fn happens(&mut self, percent: u64) -> bool {
        self.within(1, 100) <= percent
    }

    /// A number whose size class is even: small ones are as likely as large ones.
    pub fn scaled(&mut self, from: u64, to: u64) -> u64 {
        let octaves = u64::from(to.max(1).ilog2().saturating_sub(from.max(1).ilog2()));
        let top = (from << self.within(0, octaves)).max(from);
        self.within(top.min(to), (top.saturating_mul(2)).min(to))
    }
}
