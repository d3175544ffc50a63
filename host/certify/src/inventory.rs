//! Did a compiled engine hold what was admitted to it (CERT-16, CERT-17)?
//!
//! State: none. Caller: the supervisor of compiled shapes, where `certify_observation` is on. Two streams that know nothing
//! of each other are compared: what each worker lists, and how many admissions the supervisor counted. A list that is
//! missing is not an empty list: it fails.

use std::collections::BTreeSet;

use crate::figures::count;
use crate::gate::{Bound, Figure, Gate, GateResult, Outcome};

/// What is known of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerObservation {
    /// The worker's name.
    pub worker: String,
    /// The shapes that the worker says it holds; `None` where it said nothing.
    pub inventory: Option<Vec<String>>,
    /// The admissions that the supervisor counted for it, less the evictions.
    pub admitted: u64,
}

/// Compares the streams. No observation at all fails: the switch was off, or nothing ran.
#[must_use]
pub fn inventory_gate(observations: &[WorkerObservation]) -> GateResult {
    if observations.is_empty() {
        return GateResult::bare(Gate::Placement, Outcome::Failed, "no worker was observed");
    }
    let mut notes = Vec::new();
    let (mut omitted, mut mismatched) = (0, 0);
    for WorkerObservation {
        worker,
        inventory,
        admitted,
    } in observations
    {
        let Some(inventory) = inventory else {
            omitted += 1;
            notes.push(format!("{worker} gave no inventory, with {admitted} admitted"));
            continue;
        };
        let held: BTreeSet<&String> = inventory.iter().collect();
        let same = u64::try_from(held.len()) == Ok(*admitted) && held.len() == inventory.len();
        if !same {
            mismatched += 1;
            notes.push(format!("{worker} lists {}, with {admitted} admitted", inventory.len()));
        }
    }
    let at_most_none = |name, value| Figure {
        name,
        value: count(value),
        bound: Some(Bound::AtMost(0.0)),
    };
    let figures = vec![
        at_most_none("omitted_inventories", omitted),
        at_most_none("count_mismatches", mismatched),
        Figure {
            name: "workers",
            value: count(observations.len()),
            bound: None,
        },
    ];
    GateResult::of(Gate::Placement, figures, notes.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(worker: &str, inventory: Option<&[&str]>, admitted: u64) -> WorkerObservation {
        WorkerObservation {
            worker: worker.to_owned(),
            inventory: inventory.map(|shapes| shapes.iter().map(|shape| (*shape).to_owned()).collect()),
            admitted,
        }
    }

    /// Proves CERT-16, CERT-17.
    #[test]
    fn an_omitted_inventory_and_a_wrong_count_fail() {
        let sound = [observed("a", Some(&["32", "64"]), 2), observed("b", Some(&[]), 0)];
        assert_eq!(inventory_gate(&sound).outcome, Outcome::Passed);
        for (bad, word) in [
            (observed("c", None, 0), "c gave no inventory, with 0 admitted"),
            (observed("c", None, 3), "c gave no inventory, with 3 admitted"),
            (observed("c", Some(&["32"]), 2), "c lists 1, with 2 admitted"),
            (observed("c", Some(&["32", "64"]), 1), "c lists 2, with 1 admitted"),
            (observed("c", Some(&["32", "32"]), 2), "c lists 2, with 2 admitted"),
            (observed("c", Some(&[]), 1), "c lists 0, with 1 admitted"),
        ] {
            let result = inventory_gate(&[sound.to_vec(), vec![bad]].concat());
            assert_eq!((result.outcome, result.note.as_str()), (Outcome::Failed, word));
        }
        assert_eq!(
            inventory_gate(&[]).outcome,
            Outcome::Failed,
            "nothing observed is nothing shown"
        );
    }
}
