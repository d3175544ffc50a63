//! The measures that gates are made of, in f64: cosine, largest difference, overlap of nearest ten, order, percentiles.
//!
//! State: none. Callers: `plan/`, `alias.rs`.

/// How many of a query's nearest texts are compared.
pub const NEAREST: usize = 10;
/// Similarities this near are a tie (OQ-25).
const TIE: f64 = 1e-6;

/// How far a row is from another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deviation {
    /// Largest difference of a value: on unit vectors; relative to the base's length where rows are not normalised; for a
    /// score relative to its size, at least 1.
    pub max_abs: f64,
    /// The cosine of the two; 1 for scores.
    pub cosine: f64,
}

/// How rows are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Vectors that are served with length 1.
    Unit,
    /// Vectors that are served as they are.
    Raw,
    /// Scores: rows of one value.
    Score,
}

fn length(row: &[f32]) -> f64 {
    row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

/// How far `row` is from `base`. Rows of different lengths are as far as can be.
#[must_use]
pub fn deviation(row: &[f32], base: &[f32], scale: Scale) -> Deviation {
    if row.len() != base.len() {
        return Deviation {
            max_abs: f64::INFINITY,
            cosine: -1.0,
        };
    }
    let (of_row, of_base) = (length(row), length(base));
    // A vector of zeros has no direction: it equals another such, and nothing else.
    let cosine = if of_row == 0.0 || of_base == 0.0 {
        if of_row == of_base { 1.0 } else { 0.0 }
    } else {
        let dot: f64 = row.iter().zip(base).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        dot / (of_row * of_base)
    };
    let positive = |length: f64| if length > 0.0 { length } else { 1.0 };
    let (by_row, by_base) = match scale {
        Scale::Unit => (positive(of_row), positive(of_base)),
        Scale::Raw => (positive(of_base), positive(of_base)),
        Scale::Score => (of_base.max(1.0), of_base.max(1.0)),
    };
    let differences = row
        .iter()
        .zip(base)
        .map(|(a, b)| (f64::from(*a) / by_row - f64::from(*b) / by_base).abs());
    Deviation {
        max_abs: differences.fold(0.0, f64::max),
        cosine: if scale == Scale::Score { 1.0 } else { cosine },
    }
}

/// For each query, which share of its nearest ten texts by `b` is among the nearest ten by `a`, ties counted as among
/// them. Cosine; missing rows (`None`) take no part on either side.
#[must_use]
pub fn overlaps(queries: &[RowPair<'_>], texts: &[RowPair<'_>]) -> Vec<f64> {
    let complete: Vec<(&[f32], &[f32])> = texts.iter().filter_map(|(a, b)| Some(((*a)?, (*b)?))).collect();
    queries
        .iter()
        .filter_map(|(a, b)| Some(((*a)?, (*b)?)))
        .map(|(query_a, query_b)| {
            let near_a: Vec<f64> = complete
                .iter()
                .map(|(a, _)| deviation(a, query_a, Scale::Unit).cosine)
                .collect();
            let near_b: Vec<f64> = complete
                .iter()
                .map(|(_, b)| deviation(b, query_b, Scale::Unit).cosine)
                .collect();
            let mut order: Vec<usize> = (0..complete.len()).collect();
            order.sort_by(|x, y| near_b[*y].total_cmp(&near_b[*x]));
            order.truncate(NEAREST);
            let mut sorted = near_a.clone();
            sorted.sort_by(|x, y| y.total_cmp(x));
            let last = sorted.get(order.len().saturating_sub(1)).copied().unwrap_or(0.0);
            let found = order.iter().filter(|text| near_a[**text] >= last - TIE).count();
            ratio(found, order.len())
        })
        .collect()
}

/// The same row of two sides.
pub type RowPair<'a> = (Option<&'a [f32]>, Option<&'a [f32]>);

/// `part / whole`; 1 for nothing of nothing.
#[must_use]
pub fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 {
        return 1.0;
    }
    count(part) / count(whole)
}

/// A count as a figure.
#[must_use]
pub fn count(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}

/// The mean; 0 for nothing.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.iter().sum::<f64>() / count(values.len())
}

/// The mean of the smallest tenth, at least one value; 0 for nothing.
#[must_use]
pub fn worst_decile(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.truncate(values.len().div_ceil(10));
    mean(&sorted)
}

/// The value below which `percent` of all lie, by nearest rank; 0 for nothing.
#[must_use]
pub fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (values.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}

/// Kendall's tau over the pairs whose difference in `reference` is more than `margin`; 1 where no pair is clear.
#[must_use]
pub fn tau(scores: &[f32], reference: &[f32], margin: f64) -> f64 {
    let (mut agree, mut clear) = (0.0, 0.0);
    let many = scores.len().min(reference.len());
    for i in 0..many {
        for j in 0..i {
            let expected = f64::from(reference[i]) - f64::from(reference[j]);
            if expected.abs() <= margin {
                continue;
            }
            clear += 1.0;
            let found = f64::from(scores[i]) - f64::from(scores[j]);
            agree += if found * expected > 0.0 { 1.0 } else { -1.0 };
        }
    }
    if clear == 0.0 { 1.0 } else { agree / clear }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn deviations() {
        type Row = &'static [f32];
        let table: [(Row, Row, Scale, f64, f64); 8] = [
            (&[3.0, 4.0], &[3.0, 4.0], Scale::Unit, 0.0, 1.0),
            (&[6.0, 8.0], &[3.0, 4.0], Scale::Unit, 0.0, 1.0),
            (&[6.0, 8.0], &[3.0, 4.0], Scale::Raw, 0.8, 1.0),
            (&[4.0, 3.0], &[3.0, 4.0], Scale::Unit, 0.2, 0.96),
            (&[0.0, 0.0], &[0.0, 0.0], Scale::Unit, 0.0, 1.0),
            (&[0.0, 0.0], &[0.0, 1.0], Scale::Unit, 1.0, 0.0),
            (&[11.0], &[10.0], Scale::Score, 0.1, 1.0),
            (&[0.5], &[0.25], Scale::Score, 0.25, 1.0),
        ];
        for (row, base, scale, max_abs, cosine) in table {
            let found = deviation(row, base, scale);
            assert!(
                near(found.max_abs, max_abs) && near(found.cosine, cosine),
                "{row:?} {base:?} {found:?}"
            );
        }
        assert!(deviation(&[1.0], &[1.0, 2.0], Scale::Unit).max_abs.is_infinite());
    }

    /// Twenty texts on a quarter circle; the other side sees them in another order.
    #[test]
    fn overlap_counts_ties_and_moves() {
        let text = |n: u8| {
            let angle = f32::from(n) * 0.05;
            vec![angle.cos(), angle.sin()]
        };
        let rows: Vec<Vec<f32>> = (0..20).map(text).collect();
        let moved: Vec<Vec<f32>> = (0..20).map(|n| text(if n < 12 { 11 - n } else { n })).collect();
        let query = text(0);
        let pairs = |b: &'_ [Vec<f32>]| -> Vec<f64> {
            let texts: Vec<RowPair<'_>> = rows.iter().zip(b).map(|(a, b)| (Some(&**a), Some(&**b))).collect();
            overlaps(&[(Some(&query), Some(&query))], &texts)
        };
        assert_eq!(pairs(&rows), [1.0]);
        assert_eq!(pairs(&moved), [0.8], "two of ten came from outside");
        let same: Vec<RowPair<'_>> = (0..20).map(|_| (Some(&*query), Some(&*query))).collect();
        assert_eq!(overlaps(&[(Some(&query), Some(&query))], &same), [1.0], "all tie");
        assert_eq!(
            overlaps(&[(Some(&query), None)], &same),
            [0.0; 0],
            "a missing row takes no part"
        );
    }

    #[test]
    fn statistics() {
        let values: Vec<f64> = (1..=20).map(f64::from).collect();
        assert!(near(mean(&values), 10.5) && near(worst_decile(&values), 1.5));
        assert!(near(percentile(&values, 50), 10.0) && near(percentile(&values, 95), 19.0));
        assert!(near(percentile(&[7.0], 95), 7.0) && near(percentile(&[], 95), 0.0) && near(mean(&[]), 0.0));
        assert!(near(worst_decile(&[0.5]), 0.5) && near(ratio(0, 0), 1.0));
    }

    #[test]
    fn order_is_judged_where_it_is_clear() {
        assert!(near(tau(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0], 0.1), 1.0));
        assert!(near(tau(&[3.0, 2.0, 1.0], &[1.0, 2.0, 3.0], 0.1), -1.0));
        assert!(
            near(tau(&[1.0, 0.9, 3.0], &[1.0, 1.05, 3.0], 0.1), 1.0),
            "the swapped two are not clear"
        );
        assert!(near(tau(&[1.0, 1.0], &[1.0, 2.0], 0.1), -1.0), "a tie is not an order");
        assert!(near(tau(&[], &[], 0.1), 1.0));
    }
}
