//! From the outputs of a plan to its verdict.
//!
//! State: none. Caller: [`super::Plan::finish`].

use super::layout::{Layout, Series};
use super::record::Record;
use super::weigh::{self, Evidence};
use super::{Observation, perf, shape};
use crate::alias::KeptVectors;
use crate::corpus::Corpus;
use crate::figures::Scale;
use crate::subject::Subject;
use crate::verdict::{Level, Verdict};

pub(super) fn verdict(subject: &Subject, layout: &Layout, record: &Record, observation: Observation) -> Verdict {
    let evidence = Evidence::new(subject, layout, record);
    let shapes = if subject.record.kind == synapse_catalog::Kind::Generate {
        shape::of_generator(&evidence)
    } else {
        shape::shapes(&evidence)
    };
    let one_space = matches!(shapes.classes.as_slice(), [only] if only.name.is_none());
    let (rows, varied) = perf::perf(layout, record);
    Verdict {
        level: if subject.references.is_some() {
            Level::Reference
        } else {
            Level::Consistent
        },
        depth: layout.depth(),
        gates: vec![
            weigh::envelope(&evidence),
            weigh::finite(&evidence),
            weigh::quality(&evidence),
            shapes.gate,
            weigh::query_batch(&evidence, one_space),
            weigh::thread_invariance(&evidence),
            weigh::repeatability(&evidence),
            weigh::rerank_order(&evidence),
            weigh::generation(&evidence),
            weigh::placement(subject, observation),
            varied,
        ],
        shapes: shapes.figures,
        classes: shapes.classes,
        batching: shapes.batching,
        perf: rows,
        corpus: Corpus::builtin().digest,
        references: subject.references.as_ref().map(|references| references.digest),
        kept: kept(&evidence),
    }
}

/// The corpus' vectors, where every text has one.
fn kept(evidence: &Evidence<'_>) -> Option<KeptVectors> {
    if evidence.scale == Scale::Score {
        return None;
    }
    let rows = evidence.record.rows(Series::Alone);
    let items = evidence.layout.corpus_items;
    if items == 0 || rows.len() != items {
        return None;
    }
    let values = rows.values().flat_map(|row| unit(row)).collect();
    Some(KeptVectors {
        corpus: Corpus::builtin().digest,
        max_tokens: evidence.layout.item(0).cut,
        dims: evidence.subject.record.dims,
        values,
    })
}

fn unit(row: &[f32]) -> Vec<f32> {
    let length = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    let by = if length > 0.0 { length } else { 1.0 };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "vectors are kept as they are served, in f32"
    )]
    row.iter().map(|value| (f64::from(*value) / by) as f32).collect()
}
