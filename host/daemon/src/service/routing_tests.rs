//! Which lane serves, on a real daemon with certificates written by hand: what is closed, what is refused with which code,
//! what an alias changes, and what is shown of all that. What a probe finds is not the subject here.

use std::sync::Arc;

use synapse_core::alias::Origin;
use synapse_core::digest::Sha256Digest;
use synapse_core::route::{Certification, Level};
use synapse_wire::client::{
    AliasState, AliasesCheckIndexParams, AliasesDeclareParams, AliasesListParams, AliasesRetractParams, Constraints,
    EmbedBatchParams, EmbedQueryParams, EmbedReply, ErrorCode, HealthParams, IndexState, LaneVerdict, ModelParams,
    ModelsExplainParams,
};

use super::toy::{Bench, Setup, ask, ask_all, batch, query};
use super::{
    ServiceError, aliases_check_index, aliases_declare, aliases_list, aliases_retract, health, model_status,
    models_explain,
};
use crate::config::Config;
use crate::lane::Lane;
use crate::lane::equivalence::pairs_of;
use crate::store::{CertificateKey, CertificateRow, PairMeasure, PerformanceRow, Stamp};

/// A daemon that serves certified lanes only.
async fn strict() -> Bench {
    strict_with(|_| ()).await
}

async fn strict_with(change: impl FnOnce(&mut Config)) -> Bench {
    let mut config = Config::default();
    change(&mut config);
    let setup = Setup {
        config,
        strict: true,
        ..Setup::default()
    };
    Bench::with(setup).await
}

/// One of the two lanes of `toy-pair`, which serve it in two spaces.
fn lane(bench: &Bench, place: usize) -> Arc<Lane> {
    Arc::clone(&bench.daemon.lanes_of("toy-pair")[place])
}

fn space(lane: &Lane) -> Sha256Digest {
    lane.fingerprint(lane.default_shape())
}

/// Writes what a probe would: `None` is a failure.
fn write(bench: &Bench, lane: &Lane, key: CertificateKey, level: Option<Level>, hot_path: bool) {
    let row = CertificateRow {
        key,
        lane: lane.name.clone(),
        model: lane.record.id.clone(),
        level,
        hot_path,
        verdict: String::from("{}"),
        stamp: Stamp::now("test", bench.daemon.generation),
    };
    bench.daemon.store.put_certificate(row, None, Vec::new()).unwrap();
    bench.daemon.certificates.reload(&bench.daemon.store).unwrap();
}

fn key(bench: &Bench, lane: &Lane) -> CertificateKey {
    CertificateKey::clone(&bench.daemon.certificates.key_of(lane))
}

fn certify(bench: &Bench, lane: &Lane) {
    write(bench, lane, key(bench, lane), Some(Level::Consistent), true);
}

/// Declares the two lanes of `toy-pair` equivalent, and measures them so.
fn alias(bench: &Bench) {
    let daemon = &bench.daemon;
    let pairs = pairs_of(&lane(bench, 0), &lane(bench, 1), Origin::Builtin);
    let measures = pairs.iter().map(|new| PairMeasure {
        pair: new.pair,
        passed: true,
        figures: String::from("{}"),
    });
    let measures = measures.collect();
    daemon.aliases.declare(&daemon.store, pairs).unwrap();
    daemon.aliases.measured(&daemon.store, measures).unwrap();
}

fn pair_query(constraints: Constraints) -> EmbedQueryParams {
    EmbedQueryParams::new("toy-pair", "one").with_constraints(constraints)
}

fn required(space: Sha256Digest, allow_equivalent: bool) -> Constraints {
    Constraints {
        required_fingerprint: Some(space.to_string()),
        allow_equivalent,
        ..Constraints::default()
    }
}

/// The code and the reason of a refusal.
fn refusal(outcome: Result<EmbedReply, ServiceError>) -> (ErrorCode, String) {
    let error = outcome.unwrap_err();
    let reason = error.facts().and_then(|facts| facts.reason.clone()).unwrap_or_default();
    (error.code().clone(), reason)
}

/// Proves CERT-10, CERT-11 and CERT-12: a lane serves with a certificate for exactly what runs, and the engine hears of
/// nothing before. A failed probe and a changed key close it; the exact key opens it again.
#[tokio::test]
async fn a_lane_serves_with_the_certificate_of_exactly_what_runs() {
    let bench = strict().await;
    let toy = Arc::clone(&bench.daemon.lanes_of("toy")[0]);
    bench.load("toy").await.unwrap();
    let not_certified = (ErrorCode::NotCertified, "unprobed".to_owned());
    assert_eq!(refusal(ask(&bench, query("one")).await), not_certified);

    // A certificate for something else: another machine, another bundle, another version, other settings, other files.
    let now = key(&bench, &toy);
    let other = || "other".to_owned();
    let stale = (ErrorCode::ProbeRequired, "stale".to_owned());
    for old in [
        CertificateKey {
            machine_profile_hash: other(),
            ..now.clone()
        },
        CertificateKey {
            bundle_digest: other(),
            ..now.clone()
        },
        CertificateKey {
            engine_version: other(),
            ..now.clone()
        },
        CertificateKey {
            runtime_config_hash: other(),
            ..now.clone()
        },
        CertificateKey {
            numeric_profile_id: other(),
            ..now.clone()
        },
    ] {
        write(&bench, &toy, old, Some(Level::Reference), true);
        assert_eq!(refusal(ask(&bench, query("one")).await), stale);
    }
    let failed = (ErrorCode::ProbeRequired, "probe_failed".to_owned());
    write(&bench, &toy, now.clone(), None, false);
    assert_eq!(refusal(ask(&bench, query("one")).await), failed);
    assert_eq!(bench.script.calls().len(), 0, "no engine has heard of it");

    write(&bench, &toy, now.clone(), Some(Level::Consistent), true);
    let reply = ask(&bench, query("one")).await.unwrap();
    assert_eq!(reply.provenance.by.certification.as_deref(), Some("consistent"));
    assert_eq!(
        reply.provenance.by.machine_profile_hash.as_deref(),
        Some(now.machine_profile_hash.as_str())
    );
    assert_eq!(bench.script.calls().len(), 1);
    write(&bench, &toy, now, None, false);
    assert_eq!(
        refusal(ask(&bench, query("one")).await),
        failed,
        "a failed probe closes it again"
    );
    assert_eq!(bench.script.calls().len(), 1);
}

/// What `probe.allow_uncertified` opens, and what it does not.
#[tokio::test]
async fn an_open_gate_serves_uncertified_lanes_but_never_a_failed_one() {
    let bench = strict_with(|config| config.probe.allow_uncertified = true).await;
    let toy = Arc::clone(&bench.daemon.lanes_of("toy")[0]);
    bench.load("toy").await.unwrap();
    let reply = ask(&bench, query("one")).await.unwrap();
    assert_eq!(reply.provenance.by.certification, None);
    write(&bench, &toy, key(&bench, &toy), None, false);
    let failed = (ErrorCode::ProbeRequired, "probe_failed".to_owned());
    assert_eq!(refusal(ask(&bench, query("one")).await), failed);
}

#[tokio::test]
async fn a_certificate_must_say_enough() {
    let bench = strict_with(|config| config.probe.min_certificate_own = Level::Reference).await;
    let toy = Arc::clone(&bench.daemon.lanes_of("toy")[0]);
    bench.load("toy").await.unwrap();
    certify(&bench, &toy);
    let error = ask(&bench, query("one")).await.unwrap_err();
    let facts = error.facts().unwrap();
    assert_eq!(*error.code(), ErrorCode::NotCertified);
    assert_eq!(facts.config.as_deref(), Some("probe.min_certificate_own"));
    write(&bench, &toy, key(&bench, &toy), Some(Level::Reference), true);
    ask(&bench, query("one")).await.unwrap();
}

/// Proves FPR-05: where queries and batches are apart, the lane has no query path, and its batches are served.
#[tokio::test]
async fn a_lane_without_a_query_path_serves_batches() {
    let bench = strict().await;
    let toy = Arc::clone(&bench.daemon.lanes_of("toy")[0]);
    bench.load("toy").await.unwrap();
    write(&bench, &toy, key(&bench, &toy), Some(Level::Consistent), false);
    let no_path = (ErrorCode::NotCertified, "hot_path".to_owned());
    assert_eq!(refusal(ask(&bench, query("one")).await), no_path);
    assert_eq!(bench.script.calls().len(), 0);
    ask_all(&bench, &bench.ctx(), batch(&["one", "two"])).await.unwrap();
    assert_eq!(bench.script.calls().len(), 1);
}

/// Proves FPR-04: where only single items agree with themselves, a batch reaches the engine item by item, in a space of its
/// own.
#[tokio::test]
async fn a_profile_that_is_split_by_size_serves_its_single_items() {
    let bench = strict().await;
    let toy = Arc::clone(&bench.daemon.lanes_of("toy")[0]);
    bench.load("toy").await.unwrap();
    let whole = space(&toy);
    let mut row = CertificateRow {
        key: key(&bench, &toy),
        lane: toy.name.clone(),
        model: toy.record.id.clone(),
        level: Some(Level::Consistent),
        hot_path: true,
        verdict: r#"{"gates": [], "shapes": [], "classes": [{"name": "items_1", "from_items": 1, "to_items": 1},
            {"name": "items_2_3", "from_items": 2, "to_items": 3}]}"#
            .to_owned(),
        stamp: Stamp::now("test", 1),
    };
    let put = |row: &CertificateRow| {
        let store = &bench.daemon.store;
        store.put_certificate(row.clone(), None, Vec::new()).unwrap();
        bench.daemon.certificates.reload(store).unwrap();
    };
    put(&row);
    let reply = ask_all(&bench, &bench.ctx(), batch(&["one", "two", "three"]))
        .await
        .unwrap();
    let sizes: Vec<usize> = bench.script.calls().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 1, 1]);
    assert_ne!(reply.fingerprint, whole.to_string());
    assert_ne!(reply.numeric_profile_id, toy.profile_id.to_string());
    let query = ask(&bench, query("one")).await.unwrap();
    assert_eq!(
        query.fingerprint, reply.fingerprint,
        "one space for queries and batches"
    );

    row.verdict =
        r#"{"gates": [], "shapes": [], "classes": [{"name": "items_2_3", "from_items": 2, "to_items": 3}]}"#.to_owned();
    put(&row);
    let failed = (ErrorCode::ProbeRequired, "probe_failed".to_owned());
    assert_eq!(
        refusal(ask(&bench, super::toy::query("one")).await),
        failed,
        "nothing can be served of it"
    );
}

/// Proves API-06, API-07 and ALIAS-04: an alias changes what a request gets only where the request allows it.
#[tokio::test]
async fn an_alias_serves_only_where_the_request_allows_it() {
    let bench = strict().await;
    let (closed, up) = (lane(&bench, 0), lane(&bench, 1));
    certify(&bench, &up);
    bench.load(&up.name).await.unwrap();
    let (a, b) = (space(&closed), space(&up));
    let without = ask(&bench, pair_query(required(a, false))).await.unwrap_err();
    let early = ask(&bench, pair_query(required(a, true))).await.unwrap_err();
    alias(&bench);
    let with = ask(&bench, pair_query(required(a, false))).await.unwrap_err();
    assert_eq!(*with.code(), ErrorCode::SubstitutionRejected);
    assert_eq!(with.failure(), without.failure(), "the same, to the last field");
    assert_eq!(early.failure(), without.failure(), "nothing was equivalent yet");
    assert_eq!(bench.script.calls().len(), 0);

    let served = ask(&bench, pair_query(required(a, true))).await.unwrap();
    assert_eq!(
        (served.fingerprint, served.equivalent_to),
        (b.to_string(), vec![a.to_string()])
    );
    let epoch = bench.daemon.aliases.table().epoch();
    assert_eq!((served.table_epoch, epoch), (2, 2));
    let target = EmbedQueryParams {
        target_fingerprint: Some(a.to_string()),
        ..pair_query(Constraints::default())
    };
    assert_eq!(ask(&bench, target.clone()).await.unwrap().fingerprint, b.to_string());

    // The epoch that the request names is the one it is served under, or it is refused and told the present one.
    let at = |required_epoch| Constraints {
        required_epoch: Some(required_epoch),
        ..Constraints::default()
    };
    assert_eq!(ask(&bench, pair_query(at(2))).await.unwrap().table_epoch, 2);
    let pairs = pairs_of(&closed, &up, Origin::Builtin)
        .iter()
        .map(|new| new.pair)
        .collect();
    let daemon = &bench.daemon;
    daemon.aliases.retract(&daemon.store, pairs, "test".to_owned()).unwrap();
    let moved = ask(&bench, pair_query(at(2))).await.unwrap_err();
    let facts = moved.facts().unwrap();
    assert_eq!(
        (facts.reason.as_deref(), facts.table_epoch),
        (Some("epoch_mismatch"), Some(3))
    );
    for params in [pair_query(required(a, true)), target] {
        assert_eq!(
            *ask(&bench, params).await.unwrap_err().code(),
            ErrorCode::SubstitutionRejected
        );
    }
    // ALIAS-06: the space itself is served as before.
    let alone = ask(&bench, pair_query(required(b, false))).await.unwrap();
    assert_eq!((alone.table_epoch, alone.equivalent_to), (3, vec![]));
}

/// Proves API-10: with no certified lane the code is another one than with a lane of another space.
#[tokio::test]
async fn no_certified_lane_is_another_refusal_than_another_space() {
    let bench = strict().await;
    let (first, second) = (lane(&bench, 0), lane(&bench, 1));
    let target = |space: Sha256Digest| EmbedQueryParams {
        target_fingerprint: Some(space.to_string()),
        ..pair_query(Constraints::default())
    };
    let none = ask(&bench, target(space(&first))).await.unwrap_err();
    assert_eq!(*none.code(), ErrorCode::NotCertified);
    certify(&bench, &second);
    let other = ask(&bench, target(space(&first))).await.unwrap_err();
    assert_eq!(*other.code(), ErrorCode::SubstitutionRejected);
    let facts = other.facts().unwrap();
    assert_eq!(facts.fingerprint, Some(space(&second).to_string()));
    assert_eq!(facts.field.as_deref(), Some("target_fingerprint"));
}

/// A pinned lane never falls back, and a model's name does: to the next lane that is certified. The measured one comes
/// first.
#[tokio::test]
async fn a_name_goes_to_the_preferred_certified_lane_and_a_pin_to_its_own() {
    let bench = strict().await;
    let (first, second) = (lane(&bench, 0), lane(&bench, 1));
    certify(&bench, &second);
    bench.load("toy-pair").await.unwrap();
    let batch = |model: &str| EmbedBatchParams {
        model: model.to_owned(),
        ..batch(&["one"])
    };
    let served = ask_all(&bench, &bench.ctx(), batch("toy-pair")).await.unwrap();
    assert_eq!(served.provenance.by.lane, second.name);
    let pinned = ask_all(&bench, &bench.ctx(), batch(&first.name)).await.unwrap_err();
    assert_eq!(*pinned.code(), ErrorCode::NotCertified);

    certify(&bench, &first);
    bench.load(&first.name).await.unwrap();
    let served = ask_all(&bench, &bench.ctx(), batch("toy-pair")).await.unwrap();
    assert_eq!(served.provenance.by.lane, first.name, "the catalog's order");
    let figures = |lane: &Lane, speed: f64| PerformanceRow {
        key: key(&bench, lane),
        workload: "batch".to_owned(),
        knob: bench.daemon.config.knob.as_str().to_owned(),
        lane: lane.name.clone(),
        model: lane.record.id.clone(),
        speed,
        threads: 1,
        figures: "{}".to_owned(),
        stamp: Stamp::now("test", 1),
    };
    for (lane, speed) in [(&first, 100.0), (&second, 200.0)] {
        let row = CertificateRow {
            key: key(&bench, lane),
            lane: lane.name.clone(),
            model: lane.record.id.clone(),
            level: Some(Level::Consistent),
            hot_path: true,
            verdict: "{}".to_owned(),
            stamp: Stamp::now("test", 1),
        };
        let rows = vec![figures(lane, speed)];
        bench.daemon.store.put_certificate(row, None, rows).unwrap();
    }
    bench.daemon.certificates.reload(&bench.daemon.store).unwrap();
    let served = ask_all(&bench, &bench.ctx(), batch("toy-pair")).await.unwrap();
    assert_eq!(served.provenance.by.lane, second.name, "the measured speed");
    // A query for the same name meets the same space, though nothing was measured for queries.
    let served = ask(&bench, pair_query(Constraints::default())).await.unwrap();
    assert_eq!(served.provenance.by.lane, second.name);
}

/// Proves API-28, ALIAS-03, ALIAS-08, ALIAS-09 and API-23: the gate, the operations behind it, and an index before and
/// after a retraction.
#[tokio::test]
async fn aliases_are_administered_behind_a_gate_and_an_index_is_told() {
    let shut = strict().await;
    let lanes = [lane(&shut, 0).name.clone(), lane(&shut, 1).name.clone()];
    let declare = AliasesDeclareParams { lanes: lanes.clone() };
    let refused = aliases_declare::run(&shut.daemon, &shut.ctx(), declare.clone())
        .await
        .unwrap_err();
    assert_eq!(*refused.code(), ErrorCode::Disabled);
    assert_eq!(refused.facts().unwrap().config.as_deref(), Some("alias_admin_enabled"));
    let retract = AliasesRetractParams {
        pair: lanes.clone(),
        reason: None,
    };
    let refused = aliases_retract::run(&shut.daemon, &shut.ctx(), retract.clone())
        .await
        .unwrap_err();
    assert_eq!(*refused.code(), ErrorCode::Disabled);
    assert_eq!(shut.daemon.aliases.table().epoch(), 0, "nothing has changed");

    let bench = strict_with(|config| config.alias_admin_enabled = true).await;
    let (daemon, ctx) = (&bench.daemon, bench.ctx());
    let (first, second) = (lane(&bench, 0), lane(&bench, 1));
    let (a, b) = (space(&first).to_string(), space(&second).to_string());
    let check = async |written: &[&String]| {
        let params = AliasesCheckIndexParams {
            index_fingerprint: a.clone(),
            provenance_set: written.iter().map(ToString::to_string).collect(),
        };
        aliases_check_index::run(daemon, &ctx, params).await.unwrap()
    };
    let apart = check(&[&a, &b]).await;
    assert_eq!(
        (apart.verdict, apart.retracted_pair),
        (IndexState::MigrationRequired, None)
    );
    assert_eq!(
        (apart.rebuild_target, apart.blocking_reason),
        (None, Some(ErrorCode::ProbeRequired))
    );

    let declared = aliases_declare::run(daemon, &ctx, declare.clone()).await.unwrap();
    assert_eq!(declared.table_epoch, 1);
    assert!(declared.aliases.iter().all(|alias| alias.state == AliasState::Declared));
    assert_eq!(declared.aliases.len(), 2, "at unit length and raw");
    assert_eq!(
        check(&[&a, &b]).await.verdict,
        IndexState::MigrationRequired,
        "not measured yet"
    );
    alias(&bench);
    assert_eq!(check(&[&a, &b]).await.verdict, IndexState::Valid);
    certify(&bench, &second);

    let reason = Some("drift".to_owned());
    let over = aliases_retract::run(
        daemon,
        &ctx,
        AliasesRetractParams {
            reason,
            ..retract.clone()
        },
    )
    .await
    .unwrap();
    assert_eq!((over.table_epoch, over.aliases.len()), (3, 2));
    assert!(
        over.aliases
            .iter()
            .all(|alias| alias.end_reason.as_deref() == Some("drift"))
    );
    let spanning = check(&[&a, &b]).await;
    let mut pair = [a.clone(), b.clone()];
    pair.sort();
    assert_eq!((spanning.table_epoch, spanning.retracted_pair), (3, Some(pair)));
    assert_eq!(
        spanning.rebuild_target,
        Some(b.clone()),
        "the one that is certified now"
    );
    assert_eq!(check(&[&a]).await.verdict, IndexState::Valid, "one side alone");

    let none = aliases_list::run(daemon, &ctx, AliasesListParams::default())
        .await
        .unwrap();
    let all = aliases_list::run(daemon, &ctx, AliasesListParams { retracted: true })
        .await
        .unwrap();
    assert_eq!((none.aliases.len(), all.aliases.len(), all.table_epoch), (0, 2, 3));
    let again = aliases_retract::run(daemon, &ctx, retract).await.unwrap_err();
    assert_eq!(*again.code(), ErrorCode::InvalidRequest, "nothing is open");
    let nonsense = AliasesDeclareParams {
        lanes: [lanes[0].clone(), "toy-two".to_owned()],
    };
    let error = aliases_declare::run(daemon, &ctx, nonsense).await.unwrap_err();
    assert_eq!(error.facts().unwrap().field.as_deref(), Some("lanes"));
}

/// Proves CERT-09 and ERR-15 where they are shown beside the report: health, the model's status, `models.explain`.
#[tokio::test]
async fn where_each_lane_stands_is_shown_and_explained() {
    let bench = strict().await;
    let (first, second) = (lane(&bench, 0), lane(&bench, 1));
    let explain = async |params: ModelsExplainParams| models_explain::run(&bench.daemon, &bench.ctx(), params).await;
    let none = explain(ModelsExplainParams::new("toy-pair")).await.unwrap();
    assert_eq!(
        (none.serves, none.refusal.unwrap().code),
        (None, ErrorCode::NotCertified)
    );

    let old = CertificateKey {
        machine_profile_hash: "other".to_owned(),
        ..key(&bench, &first)
    };
    write(&bench, &first, old, Some(Level::Reference), true);
    certify(&bench, &second);
    assert_eq!(bench.daemon.certificates.certification_of(&first), Certification::Stale);
    let shown = explain(ModelsExplainParams::new("toy-pair")).await.unwrap();
    assert_eq!(shown.serves.as_ref(), Some(&second.name));
    let bars: Vec<Option<&str>> = shown.lanes.iter().map(|lane| lane.bar.as_deref()).collect();
    assert_eq!(bars, [Some("stale"), None]);
    assert_eq!(shown.lanes[1].level.as_deref(), Some("consistent"));
    // What a request with these demands would be told.
    let params = ModelsExplainParams {
        required_fingerprint: Some(space(&first).to_string()),
        ..ModelsExplainParams::new("toy-pair")
    };
    let refused = explain(params).await.unwrap().refusal.unwrap();
    let asked = ask(&bench, pair_query(required(space(&first), false)))
        .await
        .unwrap_err();
    assert_eq!(refused, asked.failure());
    let unknown = explain(ModelsExplainParams::new("nobody")).await.unwrap_err();
    assert_eq!(*unknown.code(), ErrorCode::UnknownModel);

    let params = ModelParams {
        model: "toy-pair".to_owned(),
    };
    let status = model_status::run(&bench.daemon, &bench.ctx(), params).await.unwrap();
    let verdicts: Vec<_> = status.model.lanes.iter().map(|lane| lane.certification).collect();
    assert_eq!(verdicts, [Some(LaneVerdict::Stale), Some(LaneVerdict::Certified)]);
    let shown = health::run(&bench.daemon, &bench.ctx(), HealthParams {}).await.unwrap();
    assert!(shown.lanes.is_empty(), "a lane that was only looked at is not in use");
    bench.load(&first.name).await.unwrap();
    let shown = health::run(&bench.daemon, &bench.ctx(), HealthParams {}).await.unwrap();
    assert_eq!(shown.lanes[0].certification, Some(LaneVerdict::Stale));
}
