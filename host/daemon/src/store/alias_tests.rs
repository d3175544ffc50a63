//! The alias table in the database: epochs, restarts, and verdicts that race retractions.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::SystemTime;

use synapse_core::alias::{Migration, Standing};

use super::*;
use crate::task::Tasks;

fn open(path: &Path) -> Store {
    Store::open(path, &Tasks::new(tokio::runtime::Handle::current()), SystemTime::now()).unwrap()
}

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("store.db"));
    (dir, store)
}

fn space(n: u16) -> Sha256Digest {
    let mut bytes = [0; 32];
    bytes[..2].copy_from_slice(&n.to_be_bytes());
    Sha256Digest(bytes)
}

fn pair_of(a: u16, b: u16) -> Pair {
    Pair::new(space(a), space(b)).unwrap()
}

fn new(a: u16, b: u16, origin: Origin) -> NewAlias {
    NewAlias {
        pair: pair_of(a, b),
        lanes: ["m@one:f32".to_owned(), "m@two:f32".to_owned()],
        model: "m".to_owned(),
        shape: ServedShape {
            dims: 384,
            normalized: true,
        },
        origin,
    }
}

fn measure(a: u16, b: u16, passed: bool) -> PairMeasure {
    PairMeasure {
        pair: pair_of(a, b),
        passed,
        figures: r#"{"min_cosine":1}"#.to_owned(),
    }
}

fn certified(store: &Store, machine: &str, a: u16, b: u16) -> AliasTable {
    store
        .measure_aliases(machine.to_owned(), vec![measure(a, b, true)])
        .unwrap()
}

fn standings(table: &AliasTable) -> Vec<Standing> {
    table.rows().iter().map(AliasRow::standing).collect()
}

/// Proves ALIAS-01, ALIAS-02 and ALIAS-03. Each change is one epoch more, also over a restart, and the rows keep the
/// interval in which they held.
#[tokio::test]
async fn every_change_is_an_epoch_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = open(&path);
    assert_eq!(store.alias_table().unwrap(), AliasTable::default());
    let declared = store.declare_aliases(vec![new(1, 2, Origin::Builtin)]).unwrap();
    assert_eq!((declared.epoch(), standings(&declared)), (1, vec![Standing::Declared]));
    let counts = certified(&store, "here", 2, 1);
    assert_eq!((counts.epoch(), standings(&counts)), (2, vec![Standing::Certified]));
    drop(store);
    let store = open(&path);
    assert_eq!(store.alias_table().unwrap(), counts);
    let (over, pairs) = store
        .retract_aliases(vec![pair_of(1, 2), pair_of(1, 3)], "drift".to_owned())
        .unwrap();
    assert_eq!((over.epoch(), pairs), (3, vec![pair_of(1, 2)]));
    let row = &over.rows()[0];
    assert_eq!((row.declared, row.valid_from, row.valid_to), (1, Some(2), Some(3)));
    assert_eq!(row.end_reason.as_deref(), Some("drift"));
}

#[tokio::test]
async fn what_changes_nothing_has_no_epoch() {
    let (_dir, store) = store();
    let pairs = vec![new(1, 2, Origin::Builtin), new(3, 4, Origin::Builtin)];
    assert_eq!(
        store.declare_aliases(pairs.clone()).unwrap().epoch(),
        1,
        "one change, one epoch"
    );
    assert_eq!(store.declare_aliases(pairs).unwrap().epoch(), 1);
    assert_eq!(certified(&store, "here", 1, 2).epoch(), 2);
    assert_eq!(certified(&store, "here", 1, 2).epoch(), 2, "measured again, the same");
    let failed = store
        .measure_aliases("here".to_owned(), vec![measure(3, 4, false)])
        .unwrap();
    assert_eq!(failed.epoch(), 2, "it never counted");
    assert_eq!(standings(&failed), [Standing::Certified, Standing::Declared]);
    let (table, pairs) = store.retract_aliases(vec![pair_of(8, 9)], String::new()).unwrap();
    assert_eq!((table.epoch(), pairs), (2, vec![]));
    assert_eq!(store.settle_aliases("here".to_owned()).unwrap().epoch(), 2);
}

#[tokio::test]
async fn a_retracted_builtin_pair_comes_back_by_an_operator_only() {
    let (_dir, store) = store();
    store.declare_aliases(vec![new(1, 2, Origin::Builtin)]).unwrap();
    store.retract_aliases(vec![pair_of(1, 2)], "no".to_owned()).unwrap();
    assert_eq!(
        store.declare_aliases(vec![new(1, 2, Origin::Builtin)]).unwrap().epoch(),
        2
    );
    let table = store.declare_aliases(vec![new(1, 2, Origin::Operator)]).unwrap();
    assert_eq!(standings(&table), [Standing::Retracted, Standing::Declared]);
    assert_eq!(table.epoch(), 3);
}

#[tokio::test]
async fn a_pair_that_counted_and_fails_a_later_measurement_is_retracted() {
    let (_dir, store) = store();
    store.declare_aliases(vec![new(1, 2, Origin::Builtin)]).unwrap();
    certified(&store, "here", 1, 2);
    let table = store
        .measure_aliases("here".to_owned(), vec![measure(1, 2, false)])
        .unwrap();
    assert_eq!((table.epoch(), standings(&table)), (3, vec![Standing::Retracted]));
    // It is over: what is measured later finds no open pair.
    assert_eq!(certified(&store, "here", 1, 2).epoch(), 3);
}

/// Proves CERT-08 for aliases: a measurement holds for its machine, and comes back with it.
#[tokio::test]
async fn a_pair_lapses_on_another_machine_and_counts_again_on_the_old_one() {
    let (_dir, store) = store();
    store.declare_aliases(vec![new(1, 2, Origin::Builtin)]).unwrap();
    certified(&store, "here", 1, 2);
    let away = store.settle_aliases("there".to_owned()).unwrap();
    assert_eq!((away.epoch(), standings(&away)), (3, vec![Standing::Lapsed]));
    assert!(!away.equivalent(space(1), space(2)));
    assert_eq!(store.alias_measures("there".to_owned()).unwrap(), []);
    let back = store.settle_aliases("here".to_owned()).unwrap();
    assert_eq!((back.epoch(), standings(&back)), (4, vec![Standing::Certified]));
    assert_eq!(
        back.rows()[0].valid_from,
        Some(2),
        "it held from the first measurement on"
    );
    assert_eq!(store.alias_measures("here".to_owned()).unwrap(), [measure(1, 2, true)]);
}

/// Proves ALIAS-10. 1,000 retractions race checks of indexes over the same pairs: every verdict is the one of the table
/// at the epoch that it reports.
#[tokio::test]
async fn verdicts_that_race_retractions_hold_at_the_epoch_they_report() {
    const PAIRS: u16 = 1_000;
    const THREADS: u16 = 4;
    let (_dir, store) = store();
    // Pair n is (2n, 2n + 1), and is retracted in the epoch after all earlier ones.
    let all = || (0..PAIRS).map(|n| (2 * n, 2 * n + 1));
    store
        .declare_aliases(all().map(|(a, b)| new(a, b, Origin::Operator)).collect())
        .unwrap();
    let open = store
        .measure_aliases("here".to_owned(), all().map(|(a, b)| measure(a, b, true)).collect())
        .unwrap();
    let first = open.epoch();
    assert_eq!(open.rows().len(), usize::from(PAIRS));

    let done = AtomicBool::new(false);
    let checks = thread::scope(|scope| {
        let (store, done) = (&store, &done);
        let checkers: Vec<_> = (0..THREADS)
            .map(|offset| {
                scope.spawn(move || {
                    let mut seen = Vec::new();
                    let mut n = offset * (PAIRS / THREADS);
                    while !done.load(Ordering::Acquire) {
                        let (a, b) = (2 * n, 2 * n + 1);
                        let certified = BTreeSet::from([space(b)]);
                        let check = store
                            .check_index(space(a), BTreeSet::from([space(b)]), certified)
                            .unwrap();
                        seen.push((n, check));
                        n = (n + 37) % PAIRS;
                    }
                    seen
                })
            })
            .collect();
        for (a, b) in all() {
            store.retract_aliases(vec![pair_of(a, b)], "race".to_owned()).unwrap();
        }
        done.store(true, Ordering::Release);
        checkers
            .into_iter()
            .flat_map(|checker| checker.join().unwrap())
            .collect::<Vec<_>>()
    });

    let (mut valid, mut over) = (0, 0);
    for (n, check) in checks {
        let retracted_at = first + u64::from(n) + 1;
        let expected = if check.table_epoch < retracted_at {
            valid += 1;
            IndexVerdict::Valid
        } else {
            over += 1;
            IndexVerdict::MigrationRequired(Migration {
                retracted: Some(pair_of(2 * n, 2 * n + 1)),
                rebuild_target: Some(space(2 * n + 1)),
            })
        };
        assert_eq!(check.verdict, expected, "pair {n} at epoch {}", check.table_epoch);
    }
    assert!(valid > 0 && over > 0, "{valid} before, {over} after: nothing raced");
    assert_eq!(store.alias_table().unwrap().epoch(), first + u64::from(PAIRS));
}
