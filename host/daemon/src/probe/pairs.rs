//! Pairs of lanes that were declared equivalent: measured as soon as both lanes hold a certificate (ALIAS-05).
//!
//! State: none. Caller: `run.rs`, after the last lane of a probe. Not known here: what an equivalence allows
//! (`core::alias`), and where the bound lies (`synapse-certify`).

use std::sync::Arc;

use synapse_certify::{KeptVectors, alias_gate};
use synapse_core::alias::{AliasRow, Standing};
use synapse_core::fingerprint::ServedShape;

use super::findings;
use crate::lane::Lane;
use crate::rpc::error::ServiceError;
use crate::state::Daemon;
use crate::store::{CertificateKey, PairMeasure, StoreError};

/// Measures every open pair that has one of the probed lanes and whose two lanes are certified now, and keeps what came
/// out: a pair that passes counts from then on, one that counted and fails is retracted.
///
/// # Errors
/// The store, or the daemon stops.
pub(super) async fn measure(daemon: &Arc<Daemon>, probed: &[Arc<Lane>]) -> Result<(), ServiceError> {
    let touched = |row: &&AliasRow| {
        row.standing() != Standing::Retracted
            && row
                .lanes
                .iter()
                .any(|name| probed.iter().any(|lane| lane.name == *name))
    };
    let rows: Vec<AliasRow> = daemon.aliases.table().rows().iter().filter(touched).cloned().collect();
    if rows.is_empty() {
        return Ok(());
    }
    let measured = daemon.tasks.blocking("probe-pairs", {
        let daemon = Arc::clone(daemon);
        move || {
            let mut measures = Vec::new();
            for row in rows {
                measures.extend(compare(&daemon, &row)?);
            }
            daemon.aliases.measured(&daemon.store, measures)
        }
    });
    Ok(measured.await??)
}

/// What the pair came to; nothing where one of its lanes is not certified, or is another lane than it was declared for.
fn compare(daemon: &Daemon, row: &AliasRow) -> Result<Option<PairMeasure>, StoreError> {
    let fingerprints = [row.pair.first(), row.pair.second()];
    let lanes = daemon.lanes_of(&row.model);
    let mut kept = Vec::new();
    for (name, fingerprint) in row.lanes.iter().zip(fingerprints) {
        let same = |lane: &&Arc<Lane>| lane.name == *name && lane.fingerprint(row.shape) == fingerprint;
        let certified = |lane: &&Arc<Lane>| daemon.certificates.certification_of(lane).is_certified();
        let Some(lane) = lanes.iter().filter(same).find(certified) else {
            return Ok(None);
        };
        let key = CertificateKey::clone(&daemon.certificates.key_of(lane));
        let bytes = daemon.store.certificate_vectors(key)?;
        let Some(vectors) = bytes.as_deref().and_then(KeptVectors::from_bytes) else {
            return Ok(None);
        };
        kept.push(as_served(vectors, row.shape));
    }
    let [first, second] = kept.as_slice() else {
        return Ok(None);
    };
    let gate = alias_gate(first, second);
    tracing::info!(
        target: "synapse", first = row.lanes[0], second = row.lanes[1], outcome = gate.outcome.name(), "pair measured"
    );
    Ok(Some(PairMeasure {
        pair: row.pair,
        passed: gate.outcome == synapse_certify::Outcome::Passed,
        figures: findings::gate(&gate).to_text(),
    }))
}

/// The first dimensions of each vector, at unit length again: a pair holds for one shape as served. Whether a request
/// normalises does not move a cosine.
fn as_served(kept: KeptVectors, shape: ServedShape) -> KeptVectors {
    let (from, to) = (kept.dims, shape.dims);
    if to == 0 || to >= from {
        return kept;
    }
    let (whole, short) = (from as usize, to as usize);
    let values = kept.values.chunks_exact(whole).flat_map(|row| {
        let row = &row[..short];
        let length = row
            .iter()
            .map(|&value| f64::from(value) * f64::from(value))
            .sum::<f64>()
            .sqrt();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a component of a unit vector, rounded to f32 by intent"
        )]
        let unit = move |value: &f32| {
            if length > 0.0 {
                (f64::from(*value) / length) as f32
            } else {
                *value
            }
        };
        row.iter().map(unit).collect::<Vec<f32>>()
    });
    KeptVectors {
        values: values.collect(),
        dims: to,
        ..kept
    }
}

#[cfg(test)]
mod tests {
    use synapse_core::digest::sha256;

    use super::*;

    #[test]
    fn a_shorter_shape_is_compared_at_its_own_length() {
        let kept = KeptVectors {
            corpus: sha256(b""),
            max_tokens: 8,
            dims: 3,
            values: vec![0.6, 0.0, 0.8, 0.0, 0.0, 1.0],
        };
        let shape = |dims| ServedShape { dims, normalized: true };
        assert_eq!(as_served(kept.clone(), shape(3)), kept);
        let short = as_served(kept, shape(2));
        assert_eq!((short.dims, short.values), (2, vec![1.0, 0.0, 0.0, 0.0]));
    }
}
