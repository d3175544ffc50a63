//! How one call's items are spread over ranks.
//!
//! Owns nothing: a plan is a value. The plan never changes a bit of the result, only the time.

use std::ops::Range;

/// Rows that one rank takes at once in bulk: enough to reuse weights, few enough for the caches.
const GROUP_ROWS: usize = 256;
/// Rows of the last groups in bulk: ranks that run dry wait for no more than such a one.
const LAST_GROUP_ROWS: usize = 64;
/// Below this many rows per rank the weights are better read once, by all ranks together.
const LEAST_ROWS_PER_RANK: usize = 48;

/// One item of the batch: its tokens' range in the batch and its row in the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Index in the batch.
    pub index: usize,
    /// Its tokens.
    pub tokens: Range<usize>,
}

/// Items that are computed together, back to back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The items.
    pub items: Vec<Item>,
    /// Their tokens in all.
    pub rows: usize,
    /// Tokens of the longest.
    pub longest: usize,
}

impl Group {
    fn push(&mut self, item: Item) {
        self.rows += item.tokens.len();
        self.longest = self.longest.max(item.tokens.len());
        self.items.push(item);
    }
}

/// Who computes what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// All ranks work on one group after the other, meeting at barriers.
    Together(Vec<Group>),
    /// Each rank takes whole groups and meets nobody.
    Apart(Vec<Group>),
}

impl Plan {
    /// Plans items (none of them empty) for so many ranks.
    #[must_use]
    pub fn new(items: Vec<Item>, ranks: usize) -> Self {
        let rows: usize = items.iter().map(|item| item.tokens.len()).sum();
        let longest = items.iter().map(|item| item.tokens.len()).max().unwrap_or(0);
        let uneven = longest * ranks * 2 > rows * 3 && longest > LEAST_ROWS_PER_RANK;
        if ranks > 1 && (rows < ranks * LEAST_ROWS_PER_RANK || uneven) {
            Self::Together(merge(guided(items, 1)))
        } else {
            Self::Apart(guided(items, ranks))
        }
    }

    /// The same groups for a single rank.
    #[must_use]
    pub fn for_one_rank(self) -> Self {
        match self {
            Self::Together(groups) | Self::Apart(groups) => Self::Apart(merge(groups)),
        }
    }

    /// The groups.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        match self {
            Self::Together(groups) | Self::Apart(groups) => groups,
        }
    }
}

/// Longest first, in groups that become smaller towards the end (guided self-scheduling), so that ranks which take one
/// after the other finish at about the same time.
fn guided(mut items: Vec<Item>, ranks: usize) -> Vec<Group> {
    items.sort_by_key(|item| std::cmp::Reverse(item.tokens.len()));
    let mut left: usize = items.iter().map(|item| item.tokens.len()).sum();
    let mut groups = Vec::new();
    let mut group = Group::default();
    let target = |left: usize| match ranks {
        1 => GROUP_ROWS,
        _ => (left / (2 * ranks)).clamp(LAST_GROUP_ROWS, GROUP_ROWS),
    };
    let mut most = target(left);
    for item in items {
        let rows = item.tokens.len();
        if group.rows > 0 && group.rows + rows > most {
            left -= group.rows;
            groups.push(std::mem::take(&mut group));
            most = target(left);
        }
        group.push(item);
    }
    groups.extend(Some(group).filter(|group| group.rows > 0));
    groups
}

/// Joins groups while they stay within the rows of one.
fn merge(groups: Vec<Group>) -> Vec<Group> {
    let mut merged: Vec<Group> = Vec::new();
    for group in groups {
        match merged.last_mut() {
            Some(last) if last.rows + group.rows <= GROUP_ROWS => {
                group.items.into_iter().for_each(|item| last.push(item))
            }
            _ => merged.push(group),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn items(lengths: &[usize]) -> Vec<Item> {
        let mut start = 0;
        lengths
            .iter()
            .enumerate()
            .map(|(index, &length)| {
                start += length;
                Item {
                    index,
                    tokens: start - length..start,
                }
            })
            .collect()
    }

    #[test]
    fn a_query_is_shared_and_bulk_is_not() {
        assert!(matches!(Plan::new(items(&[16]), 2), Plan::Together(groups) if groups.len() == 1));
        assert!(matches!(Plan::new(items(&[16]), 1), Plan::Apart(_)));
        assert!(matches!(Plan::new(items(&[128]), 2), Plan::Together(_)));
        assert!(matches!(Plan::new(items(&[256; 12]), 2), Plan::Apart(groups) if groups.len() == 12));
        let Plan::Apart(groups) = Plan::new(items(&[16; 192]), 2) else {
            panic!("bulk is computed apart");
        };
        let rows: Vec<usize> = groups.iter().map(|group| group.rows).collect();
        assert_eq!((rows[0], rows[rows.len() - 1]), (GROUP_ROWS, LAST_GROUP_ROWS));
        assert!(rows.is_sorted_by(|before, after| before >= after), "{rows:?}");
    }

    proptest! {
        #[test]
        fn every_item_is_in_exactly_one_group(lengths in prop::collection::vec(1_usize..600, 1..70), ranks in 1_usize..5) {
            let plan = Plan::new(items(&lengths), ranks);
            let mut seen = vec![0; lengths.len()];
            for group in plan.groups() {
                prop_assert!(!group.items.is_empty());
                prop_assert_eq!(group.rows, group.items.iter().map(|item| item.tokens.len()).sum::<usize>());
                prop_assert_eq!(Some(group.longest), group.items.iter().map(|item| item.tokens.len()).max());
                group.items.iter().for_each(|item| seen[item.index] += 1);
            }
            prop_assert!(seen.iter().all(|&count| count == 1));
        }
    }
}
