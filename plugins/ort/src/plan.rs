//! A ragged batch cut into small padded ones.
//!
//! Owns nothing. Callers: [`crate::encoder`]. onnxruntime needs rectangles: items of similar length share one, so that
//! little is padded, and small ones are faster than large ones on a CPU.

use synapse_plugin_sdk::TokenBatch;

/// Most items of a rectangle.
const ITEMS: usize = 8;
/// Most tokens of a rectangle, padding included, unless one item alone has more.
const TOKENS: usize = 2048;

/// Items that run together, as positions in the batch.
pub type Group = Vec<usize>;

/// Groups of items by length, `most` items each at the most. Every item is in exactly one.
pub fn groups(batch: &TokenBatch<'_>, most: usize) -> Vec<Group> {
    let length = |index: usize| batch.item(index).ids.len();
    let mut order: Vec<usize> = (0..batch.len()).collect();
    order.sort_by_key(|index| length(*index));
    let mut groups: Vec<Group> = Vec::new();
    for index in order {
        let fits = |group: &Group| group.len() < most.min(ITEMS) && (group.len() + 1) * length(index) <= TOKENS;
        match groups.last_mut().filter(|group| fits(group)) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_runs_once_and_rectangles_stay_small() {
        let lengths = [5u32, 700, 1, 900, 5, 5, 3000, 2, 2, 2, 2, 2, 2, 2, 2, 2];
        let mut offsets = vec![0];
        for length in lengths {
            offsets.push(offsets.last().unwrap() + length);
        }
        let ids = vec![1; *offsets.last().unwrap() as usize];
        let batch = TokenBatch {
            ids: &ids,
            offsets: &offsets,
            type_ids: &[],
        };
        for most in [1, 8] {
            let groups = groups(&batch, most);
            let mut seen: Vec<usize> = groups.concat();
            seen.sort_unstable();
            assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
            for group in groups {
                let longest = group.iter().map(|index| lengths[*index] as usize).max().unwrap();
                assert!(group.len() <= most && (group.len() == 1 || group.len() * longest <= TOKENS));
            }
        }
    }
}
