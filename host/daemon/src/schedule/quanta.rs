//! Cutting one request into quanta: engine calls that stay within the certified envelope (SCHED-04, SCHED-15).
//!
//! State: none. Caller: the embedding path, once a request is tokenized. Not known here: which call runs when.

/// What one engine call may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantumBounds {
    /// The most items of one call, at least 1.
    pub max_items: u32,
    /// The most tokens of one call, over all items. One item that alone has more gets a call of its own.
    pub max_tokens: u64,
}

/// Cuts items with these token counts into calls: each a list of item positions, longest items first, so that the
/// items of one call are of similar length. Every position occurs exactly once.
#[must_use]
pub fn cut(item_tokens: &[u32], bounds: QuantumBounds) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..item_tokens.len()).collect();
    // Stable: items of one length keep the request's order, so a repeated request is cut the same way.
    order.sort_by_key(|&item| std::cmp::Reverse(item_tokens[item]));
    let max_items = usize::try_from(bounds.max_items.max(1)).unwrap_or(usize::MAX);
    let mut quanta: Vec<Vec<usize>> = Vec::new();
    let mut held = 0_u64;
    for item in order {
        let tokens = u64::from(item_tokens[item]);
        match quanta.last_mut() {
            Some(last) if last.len() < max_items && held.saturating_add(tokens) <= bounds.max_tokens => {
                last.push(item);
                held += tokens;
            }
            _ => {
                quanta.push(vec![item]);
                held = tokens;
            }
        }
    }
    quanta
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(max_items: u32, max_tokens: u64) -> QuantumBounds {
        QuantumBounds { max_items, max_tokens }
    }

    #[test]
    fn items_are_grouped_by_length_within_both_bounds() {
        assert_eq!(cut(&[], bounds(4, 100)), Vec::<Vec<usize>>::new());
        assert_eq!(cut(&[5, 9, 7], bounds(4, 100)), [vec![1, 2, 0]]);
        assert_eq!(cut(&[5, 9, 7], bounds(2, 100)), [vec![1, 2], vec![0]]);
        assert_eq!(cut(&[5, 9, 7], bounds(4, 12)), [vec![1], vec![2, 0]]);
        // Longer than the bound: alone, and not lost.
        assert_eq!(cut(&[5, 99, 7], bounds(4, 12)), [vec![1], vec![2, 0]]);
        assert_eq!(cut(&[3, 3, 3, 3], bounds(0, 12)), [[0], [1], [2], [3]]);
    }

    /// Proves SCHED-04.
    #[test]
    fn every_item_is_in_exactly_one_call_and_no_call_is_too_large() {
        // A fixed linear congruence stands for chance, so that a failure can be repeated.
        let mut seed = 12_345_u64;
        let mut next = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..500 {
            let lengths: Vec<u32> = (0..next(80)).map(|_| u32::try_from(next(600)).unwrap()).collect();
            let bounds = bounds(u32::try_from(next(12)).unwrap(), next(4_000));
            let quanta = cut(&lengths, bounds);
            let mut seen: Vec<usize> = quanta.iter().flatten().copied().collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
            for quantum in &quanta {
                let tokens: u64 = quantum.iter().map(|&item| u64::from(lengths[item])).sum();
                assert!(quantum.len() <= usize::try_from(bounds.max_items.max(1)).unwrap());
                assert!(quantum.len() == 1 || tokens <= bounds.max_tokens);
            }
        }
    }
}
