//! What the host makes of an engine's row: finite check, dimension slice, unit length (DECISIONS, output).
//!
//! State: none. Caller: the embedding path, for every item. An engine returns the output of the last module before
//! Normalize; whether a request wants unit length is not the engine's to know.

use synapse_core::fingerprint::ServedShape;

/// An engine's row holds a number that is not finite, or was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine's output is not finite at position {position}; the text was not embedded")]
pub struct NotFinite {
    /// The first such position, from 0.
    pub position: usize,
}

/// The vector as served: the first `dims` values of `row`, scaled to length 1 where asked.
///
/// The length is summed in f64, so that no f32 overflows or vanishes in its square. A row of zeros has no direction
/// and stays zeros.
///
/// # Errors
/// [`NotFinite`], also for a number beyond `dims`: a row is right as a whole or not at all.
pub fn serve(row: &[f32], shape: ServedShape) -> Result<Vec<f32>, NotFinite> {
    if let Some(position) = row.iter().position(|value| !value.is_finite()) {
        return Err(NotFinite { position });
    }
    let dims = usize::try_from(shape.dims).unwrap_or(usize::MAX).min(row.len());
    let kept = &row[..dims];
    if !shape.normalized {
        return Ok(kept.to_vec());
    }
    let length = kept
        .iter()
        .map(|&value| f64::from(value) * f64::from(value))
        .sum::<f64>()
        .sqrt();
    if length == 0.0 {
        return Ok(kept.to_vec());
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a component of a unit vector, rounded to f32 by intent"
    )]
    let unit = |value: &f32| (f64::from(*value) / length) as f32;
    Ok(kept.iter().map(unit).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: u32, normalized: bool) -> ServedShape {
        ServedShape { dims, normalized }
    }

    #[test]
    fn rows_are_sliced_before_they_are_scaled() {
        // 3-4-5: the slice has its own length.
        assert_eq!(serve(&[3.0, 4.0, 12.0], shape(2, true)), Ok(vec![0.6, 0.8]));
        assert_eq!(serve(&[3.0, 4.0, 12.0], shape(2, false)), Ok(vec![3.0, 4.0]));
        // 2-3-6-7.
        let whole = serve(&[2.0, 3.0, 6.0], shape(3, true)).unwrap();
        assert_eq!(whole, [2.0_f32 / 7.0, 3.0 / 7.0, 6.0 / 7.0]);
    }

    #[test]
    fn extreme_values_neither_overflow_nor_vanish() {
        assert_eq!(serve(&[f32::MAX, 0.0], shape(2, true)), Ok(vec![1.0, 0.0]));
        assert_eq!(serve(&[0.0, f32::from_bits(1)], shape(2, true)), Ok(vec![0.0, 1.0]));
        assert_eq!(serve(&[0.0, -0.0], shape(2, true)), Ok(vec![0.0, -0.0]));
    }

    #[test]
    fn what_is_not_finite_is_named_wherever_it_stands() {
        assert_eq!(serve(&[1.0, f32::NAN], shape(2, true)), Err(NotFinite { position: 1 }));
        assert_eq!(
            serve(&[f32::INFINITY, f32::NAN], shape(2, false)),
            Err(NotFinite { position: 0 })
        );
        // Beyond the slice: the engine's row is still wrong.
        assert_eq!(
            serve(&[1.0, f32::NEG_INFINITY], shape(1, true)),
            Err(NotFinite { position: 1 })
        );
    }
}
