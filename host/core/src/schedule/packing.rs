//! Packing items into quanta: engine calls that stay within the certified envelope and the measured budget
//! (SCHED-04, SCHED-15).
//!
//! State: a [`Packing`] holds the items of one call or job window that are still to do. Callers: the daemon's work on
//! the lanes. Items are packed by length, so that those of one call are alike and padding costs little; results are
//! keyed by the item, never by the order of work. Not known here: which call runs when, what an item is.

/// What one engine call may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantumBounds {
    /// The most items of one call, at least 1.
    pub max_items: u32,
    /// The most tokens of one call, over all items. One item that alone has more gets a call of its own.
    pub max_tokens: u64,
}

/// Items that wait to be packed, longest first.
#[derive(Clone, Debug, Default)]
pub struct Packing {
    /// Item and token count, shortest first: the next item is the last.
    left: Vec<(usize, u32)>,
    tokens: u64,
}

impl Packing {
    /// The items at every position of `item_tokens`, except those that `done` names as finished: a job that goes on
    /// after a restart computes nothing twice. `done` may be shorter.
    #[must_use]
    pub fn new(item_tokens: &[u32], done: &[bool]) -> Self {
        let open = |item: &usize| !done.get(*item).copied().unwrap_or(false);
        let mut left: Vec<(usize, u32)> = (0..item_tokens.len())
            .filter(open)
            .map(|item| (item, item_tokens[item]))
            .collect();
        // Items of one length keep the request's order, so a repeated request is cut the same way.
        left.sort_by_key(|&(item, tokens)| (tokens, std::cmp::Reverse(item)));
        let tokens = left.iter().map(|&(_, tokens)| u64::from(tokens)).sum();
        Self { left, tokens }
    }

    /// Takes the items of the next engine call, longest first: as many as fit, at least one while any is left.
    pub fn next(&mut self, bounds: QuantumBounds) -> Option<Vec<usize>> {
        let max_items = usize::try_from(bounds.max_items.max(1)).unwrap_or(usize::MAX);
        let (first, tokens) = self.left.pop()?;
        let mut items = vec![first];
        let mut held = u64::from(tokens);
        while items.len() < max_items
            && let Some(&(item, tokens)) = self.left.last()
            && held.saturating_add(u64::from(tokens)) <= bounds.max_tokens
        {
            self.left.pop();
            items.push(item);
            held += u64::from(tokens);
        }
        self.tokens -= held;
        Some(items)
    }

    /// Tokens of the items that are left.
    #[must_use]
    pub const fn tokens_left(&self) -> u64 {
        self.tokens
    }

    /// Whether no item is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }
}

/// Every call of a request that is cut at once, under bounds that do not change on the way.
#[must_use]
pub fn cut(item_tokens: &[u32], bounds: QuantumBounds) -> Vec<Vec<usize>> {
    let mut packing = Packing::new(item_tokens, &[]);
    std::iter::from_fn(|| packing.next(bounds)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(lengths: &[u32], max_items: u32, max_tokens: u64) -> Vec<Vec<usize>> {
        super::cut(lengths, QuantumBounds { max_items, max_tokens })
    }

    /// Proves SCHED-04.
    #[test]
    fn items_are_grouped_by_length_within_both_bounds() {
        assert_eq!(cut(&[], 4, 100), Vec::<Vec<usize>>::new());
        assert_eq!(cut(&[5, 9, 7], 4, 100), [vec![1, 2, 0]]);
        assert_eq!(cut(&[5, 9, 7], 2, 100), [vec![1, 2], vec![0]]);
        assert_eq!(cut(&[5, 9, 7], 4, 12), [vec![1], vec![2, 0]]);
        // Longer than the bound: alone, and not lost.
        assert_eq!(cut(&[5, 99, 7], 4, 12), [vec![1], vec![2, 0]]);
        assert_eq!(cut(&[3, 3, 3, 3], 0, 12), [[0], [1], [2], [3]]);
    }

    #[test]
    fn finished_items_are_left_out() {
        let mut packing = Packing::new(&[5, 9, 7, 8], &[false, true, false]);
        assert_eq!(packing.tokens_left(), 20);
        let bounds = QuantumBounds {
            max_items: 2,
            max_tokens: 100,
        };
        assert_eq!(packing.next(bounds), Some(vec![3, 2]));
        assert_eq!((packing.tokens_left(), packing.is_empty()), (5, false));
        assert_eq!(packing.next(bounds), Some(vec![0]));
        assert_eq!((packing.next(bounds), packing.tokens_left()), (None, 0));
        assert!(packing.is_empty());
    }
}
