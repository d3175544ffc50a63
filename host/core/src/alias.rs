//! Which numeric spaces are equivalent, as an immutable snapshot: rows with validity intervals, and the epoch of the
//! whole table (ALIAS-01..11).
//!
//! State: none; a table is a value. Callers: the store makes one after each commit, admission asks
//! [`AliasTable::equivalents`], `aliases.check_index` asks [`AliasTable::verdict`]. Not known here: how a pair was measured,
//! SQL, clocks.
//!
//! The life of a row, each step an epoch of its own:
//! 1. *declared*: somebody says that two lanes serve one space. It counts for nothing yet.
//! 2. *certified*: the probe has measured the pair on this machine. From here on ([`AliasRow::valid_from`]) either lane
//!    may stand in for the other, where the request allows it.
//! 3. *lapsed*: the machine is another one than the one of the measurement. No request is served by it until the pair is
//!    measured again. What was written is not in doubt: an index stays valid.
//! 4. *retracted* ([`AliasRow::valid_to`]): by the operator, or because a later measurement failed. An index with vectors
//!    of both sides must be rebuilt; vectors of either side alone stay good for ever (ALIAS-06, ALIAS-09).
//!
//! Equivalence is of two, never a chain: `a ≡ b` and `b ≡ c` were each measured within a bound, `a` with `c` was not.

use std::collections::{BTreeMap, BTreeSet};

use crate::digest::Sha256Digest;
use crate::fingerprint::ServedShape;

/// Two different fingerprints, the smaller first: `{a, b}` and `{b, a}` are one pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    first: Sha256Digest,
    second: Sha256Digest,
}

impl Pair {
    /// The pair of two fingerprints; `None` where they are the same, which needs no alias.
    #[must_use]
    pub fn new(a: Sha256Digest, b: Sha256Digest) -> Option<Self> {
        match a.cmp(&b) {
            std::cmp::Ordering::Less => Some(Self { first: a, second: b }),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(Self { first: b, second: a }),
        }
    }

    /// The smaller fingerprint.
    #[must_use]
    pub const fn first(&self) -> Sha256Digest {
        self.first
    }

    /// The larger fingerprint.
    #[must_use]
    pub const fn second(&self) -> Sha256Digest {
        self.second
    }
}

/// Who declared a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Synapse itself: the pair of day one (ALIAS-05).
    Builtin,
    /// An operator, through `aliases.declare`.
    Operator,
}

impl Origin {
    /// The name in the database and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::Operator => "operator",
        }
    }
}

/// Where a row stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Declared, and never measured as equivalent.
    Declared,
    /// Measured as equivalent on this machine as it is: it counts.
    Certified,
    /// Measured as equivalent once, on a machine that is now another one.
    Lapsed,
    /// Over.
    Retracted,
}

impl Standing {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Certified => "certified",
            Self::Lapsed => "lapsed",
            Self::Retracted => "retracted",
        }
    }
}

/// One pair of served spaces: an alias holds for one pair of dimensions and normalisation as served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasRow {
    /// The two fingerprints.
    pub pair: Pair,
    /// The lanes that serve them, in the order of the pair.
    pub lanes: [String; 2],
    /// The model that both lanes serve.
    pub model: String,
    /// The shape in which both serve it.
    pub shape: ServedShape,
    /// Who declared it.
    pub origin: Origin,
    /// The epoch of the declaration.
    pub declared: u64,
    /// The epoch from which it was certified; `None` while it never was.
    pub valid_from: Option<u64>,
    /// The epoch of its retraction; `None` while it is open.
    pub valid_to: Option<u64>,
    /// The machine profile under which it counts now; `None` while it does not count.
    pub certified_by: Option<String>,
    /// Why it was retracted.
    pub end_reason: Option<String>,
}

impl AliasRow {
    /// Where it stands.
    #[must_use]
    pub const fn standing(&self) -> Standing {
        match (self.valid_to, &self.certified_by, self.valid_from) {
            (Some(_), ..) => Standing::Retracted,
            (None, Some(_), _) => Standing::Certified,
            (None, None, Some(_)) => Standing::Lapsed,
            (None, None, None) => Standing::Declared,
        }
    }
}

/// What may be done with an index now (ALIAS-07: a state of the index, never of one vector).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexVerdict {
    /// All its vectors may be compared; more of them may be written.
    Valid,
    /// It holds vectors of spaces that are not equivalent: rebuild it.
    MigrationRequired(Migration),
}

/// Why an index must be rebuilt, and for which space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The pair that was retracted last of those that the index spans; `None` where no pair of it ever was equivalent.
    pub retracted: Option<Pair>,
    /// The space to rebuild for: certified now, and covering most of the index (OQ-36). `None` where no certified space
    /// covers any of it: probe first.
    pub rebuild_target: Option<Sha256Digest>,
}

/// Every row, and the epoch of the table. Immutable: a change is another table with a larger epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AliasTable {
    epoch: u64,
    rows: Vec<AliasRow>,
    equivalents: BTreeMap<Sha256Digest, BTreeSet<Sha256Digest>>,
}

impl AliasTable {
    /// The table of these rows, in the order of their declaration, at `epoch`.
    #[must_use]
    pub fn new(epoch: u64, rows: Vec<AliasRow>) -> Self {
        let mut equivalents: BTreeMap<Sha256Digest, BTreeSet<Sha256Digest>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.standing() == Standing::Certified) {
            let Pair { first, second } = row.pair;
            equivalents.entry(first).or_default().insert(second);
            equivalents.entry(second).or_default().insert(first);
        }
        Self {
            epoch,
            rows,
            equivalents,
        }
    }

    /// The epoch: 0 for an empty table, larger after every change (ALIAS-03).
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Every row, open and closed, in the order of declaration.
    #[must_use]
    pub fn rows(&self) -> &[AliasRow] {
        &self.rows
    }

    /// The fingerprints that are equivalent to this one now, without itself, in order.
    pub fn equivalents(&self, fingerprint: Sha256Digest) -> impl Iterator<Item = Sha256Digest> + '_ {
        self.equivalents.get(&fingerprint).into_iter().flatten().copied()
    }

    /// Whether vectors of `a` may be served where `b` was asked for.
    #[must_use]
    pub fn equivalent(&self, a: Sha256Digest, b: Sha256Digest) -> bool {
        a == b || self.equivalents.get(&a).is_some_and(|others| others.contains(&b))
    }

    /// The verdict on an index of the space `index` that holds vectors of the spaces `provenance` (ALIAS-08, ALIAS-09).
    /// `certified` are the spaces that a certified lane serves now.
    #[must_use]
    pub fn verdict(
        &self,
        index: Sha256Digest,
        provenance: &BTreeSet<Sha256Digest>,
        certified: &BTreeSet<Sha256Digest>,
    ) -> IndexVerdict {
        let mut spaces = provenance.clone();
        spaces.insert(index);
        let open: BTreeSet<Pair> = self
            .rows
            .iter()
            .filter(|row| row.valid_from.is_some() && row.valid_to.is_none())
            .map(|row| row.pair)
            .collect();
        let apart: Vec<Pair> = pairs(&spaces).filter(|pair| !open.contains(pair)).collect();
        if apart.is_empty() {
            return IndexVerdict::Valid;
        }
        let retracted = self
            .rows
            .iter()
            .filter(|row| row.valid_from.is_some() && apart.contains(&row.pair))
            .filter_map(|row| Some((row.valid_to?, std::cmp::Reverse(row.pair))))
            .max();
        IndexVerdict::MigrationRequired(Migration {
            retracted: retracted.map(|(_, pair)| pair.0),
            rebuild_target: self.rebuild_target(&spaces, certified),
        })
    }

    /// The certified space that covers most of `spaces`, the lowest of several.
    fn rebuild_target(
        &self,
        spaces: &BTreeSet<Sha256Digest>,
        certified: &BTreeSet<Sha256Digest>,
    ) -> Option<Sha256Digest> {
        let covered = |target: Sha256Digest| spaces.iter().filter(|&&space| self.equivalent(target, space)).count();
        certified
            .iter()
            .map(|&target| (covered(target), std::cmp::Reverse(target)))
            .filter(|(covered, _)| *covered > 0)
            .max()
            .map(|(_, target)| target.0)
    }
}

/// Every pair of a set.
fn pairs(spaces: &BTreeSet<Sha256Digest>) -> impl Iterator<Item = Pair> + '_ {
    spaces.iter().enumerate().flat_map(|(position, &first)| {
        spaces
            .iter()
            .skip(position + 1)
            .map(move |&second| Pair { first, second })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(n: u8) -> Sha256Digest {
        Sha256Digest([n; 32])
    }

    fn pair(a: u8, b: u8) -> Pair {
        Pair::new(space(a), space(b)).unwrap()
    }

    fn row(a: u8, b: u8, valid_from: Option<u64>, valid_to: Option<u64>, counts: bool) -> AliasRow {
        AliasRow {
            pair: pair(a, b),
            lanes: ["m@one:f32".to_owned(), "m@two:f32".to_owned()],
            model: "m".to_owned(),
            shape: ServedShape {
                dims: 8,
                normalized: true,
            },
            origin: Origin::Builtin,
            declared: 1,
            valid_from,
            valid_to,
            certified_by: counts.then(|| "machine".to_owned()),
            end_reason: None,
        }
    }

    fn set(spaces: &[u8]) -> BTreeSet<Sha256Digest> {
        spaces.iter().map(|&n| space(n)).collect()
    }

    fn migration(verdict: IndexVerdict) -> (Option<Pair>, Option<Sha256Digest>) {
        match verdict {
            IndexVerdict::Valid => panic!("valid"),
            IndexVerdict::MigrationRequired(Migration {
                retracted,
                rebuild_target,
            }) => (retracted, rebuild_target),
        }
    }

    #[test]
    fn a_pair_has_no_order_and_two_sides() {
        assert_eq!(Pair::new(space(2), space(1)), Pair::new(space(1), space(2)));
        assert_eq!(Pair::new(space(1), space(1)), None);
    }

    /// Proves ALIAS-02 and ALIAS-05. Only a row that is certified here and open counts.
    #[test]
    fn a_row_counts_from_its_certificate_to_its_retraction() {
        for (row, standing) in [
            (row(1, 2, None, None, false), Standing::Declared),
            (row(1, 2, Some(2), None, true), Standing::Certified),
            (row(1, 2, Some(2), None, false), Standing::Lapsed),
            (row(1, 2, Some(2), Some(3), true), Standing::Retracted),
            (row(1, 2, None, Some(2), false), Standing::Retracted),
        ] {
            assert_eq!(row.standing(), standing);
            let table = AliasTable::new(3, vec![row]);
            let counts = standing == Standing::Certified;
            assert_eq!(table.equivalent(space(1), space(2)), counts, "{standing:?}");
            assert_eq!(table.equivalents(space(2)).count(), usize::from(counts), "{standing:?}");
        }
    }

    #[test]
    fn equivalence_is_no_chain() {
        let table = AliasTable::new(4, vec![row(1, 2, Some(3), None, true), row(2, 3, Some(4), None, true)]);
        assert!(table.equivalent(space(3), space(2)));
        assert!(!table.equivalent(space(1), space(3)));
        let verdict = table.verdict(space(1), &set(&[2, 3]), &set(&[2]));
        assert_eq!(migration(verdict), (None, Some(space(2))));
    }

    /// Proves ALIAS-08 and ALIAS-09.
    #[test]
    fn an_index_must_move_only_where_it_spans_the_retracted_pair() {
        let table = AliasTable::new(3, vec![row(1, 2, Some(2), Some(3), false)]);
        let certified = set(&[2, 9]);
        for held in [&[][..], &[1]] {
            assert_eq!(table.verdict(space(1), &set(held), &certified), IndexVerdict::Valid);
        }
        let (retracted, target) = migration(table.verdict(space(1), &set(&[1, 2]), &certified));
        assert_eq!((retracted, target), (Some(pair(1, 2)), Some(space(2))));
        // The index's own space counts too: its queries come from there.
        let (retracted, _) = migration(table.verdict(space(1), &set(&[2]), &certified));
        assert_eq!(retracted, Some(pair(1, 2)));
    }

    #[test]
    fn a_lapsed_pair_leaves_an_index_valid_and_a_declared_one_never_made_it_so() {
        let lapsed = AliasTable::new(3, vec![row(1, 2, Some(2), None, false)]);
        assert_eq!(lapsed.verdict(space(1), &set(&[1, 2]), &set(&[])), IndexVerdict::Valid);
        let declared = AliasTable::new(1, vec![row(1, 2, None, None, false)]);
        let verdict = declared.verdict(space(1), &set(&[1, 2]), &set(&[]));
        assert_eq!(migration(verdict), (None, None));
    }

    #[test]
    fn a_pair_that_was_declared_and_certified_again_is_open_again() {
        let rows = vec![row(1, 2, Some(2), Some(3), false), row(1, 2, Some(5), None, true)];
        let table = AliasTable::new(5, rows);
        assert_eq!(table.verdict(space(1), &set(&[1, 2]), &set(&[])), IndexVerdict::Valid);
    }

    /// The target is the certified space that covers most, the lowest of several, and none that covers nothing (OQ-36).
    #[test]
    fn the_rebuild_target_covers_most_and_ties_go_to_the_lowest() {
        let rows = vec![row(1, 2, Some(2), Some(4), false), row(2, 3, Some(3), None, true)];
        let table = AliasTable::new(4, rows);
        let target = |certified: &[u8]| migration(table.verdict(space(1), &set(&[1, 2, 3]), &set(certified))).1;
        assert_eq!(
            target(&[1, 2, 3]),
            Some(space(2)),
            "2 and 3 cover two each, 1 covers one"
        );
        assert_eq!(target(&[1, 3]), Some(space(3)));
        assert_eq!(target(&[1, 9]), Some(space(1)));
        assert_eq!(target(&[9]), None);
    }

    #[test]
    fn the_pair_named_is_the_one_retracted_last() {
        let rows = vec![row(1, 2, Some(3), Some(6), false), row(1, 3, Some(4), Some(5), false)];
        let table = AliasTable::new(6, rows);
        let (retracted, _) = migration(table.verdict(space(1), &set(&[2, 3]), &set(&[])));
        assert_eq!(retracted, Some(pair(1, 2)));
    }
}
