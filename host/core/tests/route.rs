//! The choice of a lane against a model of the rules that was written from the requirements alone: every combination of
//! two lanes, and chance for more of them (API-06, API-07, API-10, CERT-10, FPR-05, OQ-44).
//!
//! The model knows nothing of bars and orders. It asks of each lane which sentences of the requirements hold for it, and
//! derives the code from those.

use synapse_core::alias::{AliasRow, AliasTable, Origin, Pair};
use synapse_core::digest::Sha256Digest;
use synapse_core::fingerprint::ServedShape;
use synapse_core::route::{
    Candidate, Certification, Demand, Knob, Level, Measured, RefusalCode, Rules, choose, preference,
};

const A: Sha256Digest = Sha256Digest([1; 32]);
const B: Sha256Digest = Sha256Digest([2; 32]);
const C: Sha256Digest = Sha256Digest([3; 32]);
const EPOCH: u64 = 9;

/// What became of the alias of A and B.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Alias {
    Never,
    Declared,
    Certified,
    Lapsed,
    Retracted,
}

const ALIASES: [Alias; 5] = [
    Alias::Never,
    Alias::Declared,
    Alias::Certified,
    Alias::Lapsed,
    Alias::Retracted,
];

fn table(alias: Alias) -> AliasTable {
    let row = AliasRow {
        pair: Pair::new(A, B).unwrap(),
        lanes: ["m@a:f32".to_owned(), "m@b:f16".to_owned()],
        model: "m".to_owned(),
        shape: ServedShape {
            dims: 4,
            normalized: true,
        },
        origin: Origin::Builtin,
        declared: 1,
        valid_from: matches!(alias, Alias::Certified | Alias::Lapsed | Alias::Retracted).then_some(2),
        valid_to: (alias == Alias::Retracted).then_some(EPOCH),
        certified_by: (alias == Alias::Certified).then(|| "here".to_owned()),
        end_reason: None,
    };
    AliasTable::new(EPOCH, if alias == Alias::Never { vec![] } else { vec![row] })
}

const fn certified(level: Level, hot_path: bool) -> Certification {
    Certification::Certified { level, hot_path }
}

const CERTIFICATIONS: [Certification; 6] = [
    certified(Level::Reference, true),
    certified(Level::Reference, false),
    certified(Level::Consistent, true),
    Certification::Failed,
    Certification::Stale,
    Certification::Unprobed,
];

fn lane(name: &str, fingerprint: Sha256Digest, certification: Certification) -> Candidate<'_> {
    Candidate {
        lane: name,
        fingerprint,
        certification,
        minimum: Level::Reference,
        device: "cpu",
        by_name_only: false,
        measured: None,
        measured_batch: None,
    }
}

fn same(alias: Alias, a: Sha256Digest, b: Sha256Digest) -> bool {
    a == b || (alias == Alias::Certified && [a, b] != [C, C] && a != C && b != C)
}

/// Which sentences hold for a lane and a request.
#[derive(Clone, Copy, Debug)]
struct Sentences {
    /// "Served only where named", and neither it nor a space was.
    hidden: bool,
    /// It runs where the request wants it.
    device: bool,
    /// A certificate for exactly this holds, and says enough; or the operator lets uncertified lanes serve.
    may_serve: bool,
    /// What it has is stale, or its probe failed: "probe_required".
    wants_probe: bool,
    /// It may serve this kind of request.
    path: bool,
    /// It serves the space that the request wants.
    space: bool,
}

fn sentences(lane: &Candidate<'_>, demand: &Demand<'_>, lax: bool, alias: Alias) -> Sentences {
    let plain = !demand.pinned && demand.required.is_none() && demand.target.is_none();
    let (holds, hot) = match lane.certification {
        Certification::Certified { level, hot_path } => (level >= lane.minimum || lax, hot_path),
        Certification::Stale | Certification::Unprobed => (lax, true),
        Certification::Failed => (false, true),
    };
    let required = match demand.required {
        None => true,
        Some(space) if demand.allow_equivalent => same(alias, lane.fingerprint, space),
        Some(space) => lane.fingerprint == space,
    };
    Sentences {
        hidden: lane.by_name_only && plain,
        device: demand.device.is_none() || demand.device == Some(lane.device),
        may_serve: holds,
        wants_probe: matches!(lane.certification, Certification::Failed)
            || (matches!(lane.certification, Certification::Stale) && !lax),
        path: hot || !demand.query,
        space: required && demand.target.is_none_or(|space| same(alias, lane.fingerprint, space)),
    }
}

/// The lanes that may serve, or the code.
fn model(lanes: &[Candidate<'_>], demand: &Demand<'_>, lax: bool, alias: Alias) -> Result<Vec<usize>, RefusalCode> {
    if demand.required_epoch.is_some_and(|epoch| epoch != EPOCH) {
        return Err(RefusalCode::SubstitutionRejected);
    }
    let all: Vec<Sentences> = lanes
        .iter()
        .map(|lane| sentences(lane, demand, lax, alias))
        .filter(|holds| !holds.hidden && holds.device)
        .collect();
    let fit: Vec<usize> = (0..lanes.len())
        .filter(|&at| {
            let holds = sentences(&lanes[at], demand, lax, alias);
            !holds.hidden && holds.device && holds.may_serve && holds.path && holds.space
        })
        .collect();
    if !fit.is_empty() {
        return Ok(fit);
    }
    Err(if all.iter().any(|holds| holds.may_serve && holds.path) {
        // A lane may serve this kind of request, but in no space that is wanted.
        RefusalCode::SubstitutionRejected
    } else if all.iter().any(|holds| holds.may_serve) {
        // Its queries are not what its batches are.
        RefusalCode::NotCertified
    } else if all.iter().any(|holds| holds.wants_probe) {
        RefusalCode::ProbeRequired
    } else {
        RefusalCode::NotCertified
    })
}

fn check(lanes: &[Candidate<'_>], demand: &Demand<'_>, lax: bool, alias: Alias) -> Result<usize, RefusalCode> {
    let rules = Rules {
        allow_uncertified: lax,
        knob: Knob::Balanced,
    };
    let chosen = choose(lanes, demand, rules, &table(alias)).map_err(|refusal| refusal.code());
    let case = || format!("{lanes:#?}\n{demand:#?}\nlax {lax}, {alias:?}, chosen {chosen:?}");
    match (model(lanes, demand, lax, alias), chosen) {
        (Err(expected), Err(code)) => assert_eq!(code, expected, "{}", case()),
        (Ok(fit), Ok(place)) => {
            assert!(fit.contains(&place), "{}", case());
            // API-06 in one line, whatever else holds.
            if let (Some(space), false) = (demand.required, demand.allow_equivalent) {
                assert_eq!(lanes[place].fingerprint, space, "{}", case());
            }
            if let Some(space) = demand.required.or(demand.target) {
                let has_it = fit.iter().any(|&at| lanes[at].fingerprint == space);
                assert!(!has_it || lanes[place].fingerprint == space, "{}", case());
            }
        }
        (expected, _) => panic!("expected {expected:?}\n{}", case()),
    }
    chosen
}

/// Every demand that two or three spaces allow.
fn demands() -> Vec<Demand<'static>> {
    let spaces = [None, Some(A), Some(B), Some(C)];
    let mut all = Vec::new();
    for (required, target) in spaces.iter().flat_map(|r| spaces.iter().map(move |t| (*r, *t))) {
        for (allow_equivalent, query) in [(false, false), (false, true), (true, false), (true, true)] {
            for required_epoch in [None, Some(EPOCH), Some(EPOCH - 1)] {
                for (device, pinned) in [(None, false), (Some("cpu"), false), (Some("gpu"), false), (None, true)] {
                    all.push(Demand {
                        required,
                        allow_equivalent,
                        target,
                        required_epoch,
                        device,
                        query,
                        pinned,
                    });
                }
            }
        }
    }
    all
}

/// Proves API-06, API-07, API-10 and CERT-10. Every combination of certificates, alias, constraints and gate over two lanes
/// gives the code of the rules, or a lane that the rules allow.
#[test]
fn every_combination_of_two_lanes() {
    let demands = demands();
    let mut cases = 0;
    for first in CERTIFICATIONS {
        for second in CERTIFICATIONS {
            for (alias, lax, hidden) in ALIASES
                .into_iter()
                .flat_map(|alias| [false, true].into_iter().map(move |lax| (alias, lax)))
                .flat_map(|(alias, lax)| [false, true].into_iter().map(move |hidden| (alias, lax, hidden)))
            {
                let mut lanes = [lane("m@a:f32", A, first), lane("m@b:f16", B, second)];
                lanes[1].by_name_only = hidden;
                for demand in &demands {
                    let lanes = if demand.pinned { &lanes[1..] } else { &lanes[..] };
                    // A refusal is all there is: a pinned lane has nobody to fall back on.
                    let _ = check(lanes, demand, lax, alias);
                    cases += 1;
                }
            }
        }
    }
    assert_eq!(cases, 36 * 20 * demands.len());
}

/// Proves API-06. Without the flag the answer is the same with and without an alias, to the last field.
#[test]
fn without_the_flag_an_alias_changes_nothing() {
    let rules = Rules {
        allow_uncertified: false,
        knob: Knob::Balanced,
    };
    let hot = certified(Level::Reference, true);
    let demand = Demand {
        required: Some(A),
        ..Demand::default()
    };
    let up = [lane("m@b:f16", B, hot)];
    let answers = ALIASES.map(|alias| choose(&up, &demand, rules, &table(alias)));
    assert!(answers[0].is_err());
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    let demand = Demand {
        allow_equivalent: true,
        ..demand
    };
    let served = ALIASES.map(|alias| choose(&up, &demand, rules, &table(alias)).is_ok());
    assert_eq!(served, [false, false, true, false, false]);
}

/// A model's name stands for one space: queries and batches meet there, whatever each lane is good at, unless an alias lets
/// a query go to the faster one.
#[test]
fn queries_and_batches_of_a_name_meet_in_one_space() {
    let hot = certified(Level::Reference, true);
    let speed = |speed: f64| Some(Measured { speed, threads: 1 });
    let lanes = |query: bool| {
        let mut lanes = [lane("m@a:f32", A, hot), lane("m@b:f16", B, hot)];
        // A is good at batches, B at queries.
        lanes[0].measured_batch = speed(900.0);
        lanes[1].measured_batch = speed(300.0);
        lanes[0].measured = speed(if query { 100.0 } else { 900.0 });
        lanes[1].measured = speed(if query { 400.0 } else { 300.0 });
        lanes
    };
    let ask = |query: bool, alias: Alias| {
        let demand = Demand {
            query,
            ..Demand::default()
        };
        check(&lanes(query), &demand, false, alias)
    };
    assert_eq!(
        (ask(false, Alias::Retracted), ask(true, Alias::Retracted)),
        (Ok(0), Ok(0))
    );
    assert_eq!(
        (ask(false, Alias::Certified), ask(true, Alias::Certified)),
        (Ok(0), Ok(1))
    );
    // A lane without a query path is nobody's home while another has one (FPR-05).
    let mut cold = lanes(false);
    cold[0].certification = certified(Level::Reference, false);
    for query in [false, true] {
        let demand = Demand {
            query,
            ..Demand::default()
        };
        assert_eq!(check(&cold, &demand, false, Alias::Never), Ok(1));
    }
    // Alone it serves batches and no query.
    let alone = &cold[..1];
    let batch = Demand::default();
    let query = Demand { query: true, ..batch };
    assert_eq!(check(alone, &batch, false, Alias::Never), Ok(0));
    assert_eq!(
        check(alone, &query, false, Alias::Never),
        Err(RefusalCode::NotCertified)
    );
}

/// Chance: up to five lanes of three spaces, with speeds; the choice is also the preference among the lanes that fit.
#[test]
fn chance_finds_no_case_that_the_model_does_not_know() {
    let mut chance = Chance(0x5eed);
    let demands = demands();
    let names = ["m@a:1", "m@b:2", "m@c:3", "m@d:4", "m@e:5"];
    for _ in 0..60_000 {
        let count = chance.below(names.len()) + 1;
        let lanes: Vec<Candidate<'_>> = names[..count]
            .iter()
            .map(|name| {
                let mut lane = lane(name, [A, B, C][chance.below(3)], CERTIFICATIONS[chance.below(6)]);
                lane.by_name_only = chance.below(5) == 0;
                lane.minimum = [Level::Reference, Level::Consistent][chance.below(2)];
                lane.measured = (chance.below(3) > 0).then(|| chance.measured());
                lane.measured_batch = (chance.below(3) > 0).then(|| chance.measured());
                lane
            })
            .collect();
        let demand = &demands[chance.below(demands.len())];
        let lanes = if demand.pinned { &lanes[..1] } else { &lanes[..] };
        let (lax, alias) = (chance.below(2) == 0, ALIASES[chance.below(5)]);
        let Ok(place) = check(lanes, demand, lax, alias) else {
            continue;
        };
        if let (Some(space), Ok(fit)) = (demand.required, model(lanes, demand, lax, alias)) {
            let very: Vec<usize> = fit
                .iter()
                .copied()
                .filter(|&at| lanes[at].fingerprint == space)
                .collect();
            let group = if very.is_empty() { fit } else { very };
            let speeds: Vec<_> = group.iter().map(|&at| lanes[at].measured).collect();
            assert_eq!(place, group[preference(Knob::Balanced, &speeds)[0]]);
        }
    }
}

/// A small generator (xorshift), so that a failure repeats.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound).unwrap()).unwrap()
    }

    fn measured(&mut self) -> Measured {
        let speed = u32::try_from(self.below(1_000) + 1).unwrap();
        Measured {
            speed: f64::from(speed),
            threads: u32::try_from(self.below(4) + 1).unwrap(),
        }
    }
}
