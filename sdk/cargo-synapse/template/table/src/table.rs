//! The model's file: a table of numbers, one row a token.
//!
//! ```text
//! table 1
//! rows 128
//! dims 16
//! 70 20 -71 …        one line a row, each number from -128 to 127
//! ```
//! The values are the numbers divided by 128, so sums of them are exact in f32. A token with the id `t` has the row
//! `t mod rows`. The host has verified the file's digest; its content is foreign all the same, so everything is
//! checked before memory is asked for.

use synapse_plugin_sdk::prelude::*;

/// The largest file that is read.
const MAX_BYTES: u64 = 16 << 20;
/// The most rows.
const MAX_ROWS: usize = 1 << 20;
/// The longest row.
const MAX_DIMS: usize = 4096;

/// A table in memory.
pub struct Table {
    dims: usize,
    /// Row after row; at least one.
    values: Vec<f32>,
}

impl Table {
    /// Reads the file of an artifact.
    ///
    /// # Errors
    /// ARTIFACT_INVALID saying what is wrong and where.
    pub fn read(file: &ArtifactFile) -> Result<Self, Error> {
        if file.size > MAX_BYTES {
            let size = file.size;
            return Err(invalid(format!(
                "{size} bytes, expected at most {MAX_BYTES}"
            )));
        }
        let text =
            std::fs::read_to_string(file.path()).map_err(|error| invalid(error.to_string()))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, Error> {
        let mut lines = text.lines();
        if lines.next() != Some("table 1") {
            return Err(invalid("the first line: expected `table 1`"));
        }
        let rows = count(lines.next(), "rows", MAX_ROWS)?;
        let dims = count(lines.next(), "dims", MAX_DIMS)?;
        // A number takes at least two bytes, so a header cannot ask for more than the file could hold.
        let wanted = rows * dims;
        if wanted > text.len() / 2 {
            return Err(invalid(format!(
                "{rows} rows of {dims} numbers, the file is too short for them"
            )));
        }
        let mut values = Vec::with_capacity(wanted);
        for (number, line) in lines.enumerate() {
            let before = values.len();
            for word in line.split(' ') {
                let value: i8 = word.parse().map_err(|_| {
                    invalid(format!("row {number}: expected numbers from -128 to 127"))
                })?;
                values.push(f32::from(value) / 128.0);
            }
            if values.len() - before != dims || number >= rows {
                return Err(invalid(format!(
                    "row {number}: expected {rows} rows of {dims} numbers"
                )));
            }
        }
        if values.len() != wanted {
            let found = values.len() / dims;
            return Err(invalid(format!("{found} rows, expected {rows}")));
        }
        Ok(Self { dims, values })
    }

    /// The length of a row.
    pub const fn dims(&self) -> usize {
        self.dims
    }

    /// Bytes in memory.
    pub const fn bytes(&self) -> u64 {
        (self.values.len() * size_of::<f32>()) as u64
    }

    fn row(&self, id: i32) -> &[f32] {
        let rows = self.values.len() / self.dims;
        // The remainder is smaller than the number of rows, so it fits.
        let row = i64::from(id).rem_euclid(rows as i64) as usize;
        &self.values[row * self.dims..(row + 1) * self.dims]
    }

    /// The mean of the tokens' rows into `out`, which has `dims` values; zeros for no token.
    pub fn mean(&self, ids: &[i32], out: &mut [f32]) {
        out.fill(0.0);
        for &id in ids {
            for (sum, value) in out.iter_mut().zip(self.row(id)) {
                *sum += value;
            }
        }
        let tokens = ids.len().max(1) as f32;
        for sum in out {
            *sum /= tokens;
        }
    }
}

/// A line `NAME N` with N from 1 to `most`.
fn count(line: Option<&str>, name: &str, most: usize) -> Result<usize, Error> {
    line.and_then(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
        .filter(|count| (1..=most).contains(count))
        .ok_or_else(|| {
            invalid(format!(
                "expected a line `{name} N` with N from 1 to {most}"
            ))
        })
}

fn invalid(what: impl std::fmt::Display) -> Error {
    Error::artifact_invalid(format!("role `weights`: {what}"))
}

#[cfg(test)]
mod tests {
    use super::Table;

    /// Whatever a file holds, reading it gives a table or words, and never a panic.
    #[test]
    fn a_file_that_is_no_table_is_refused_in_words() {
        for (text, words) in [
            ("", "the first line"),
            ("table 2\nrows 1\ndims 1\n1\n", "the first line"),
            ("table 1\nrows 0\ndims 1\n", "`rows N`"),
            ("table 1\nrows 1\ndims 9999999999999999999\n", "`dims N`"),
            ("table 1\nrows 1000000\ndims 4096\n1 2\n", "too short"),
            ("table 1\nrows 1\ndims 2\n1 x\n     ", "from -128 to 127"),
            ("table 1\nrows 1\ndims 2\n1\n        ", "row 0"),
            ("table 1\nrows 1\ndims 1\n1\n2\n", "row 1"),
            ("table 1\nrows 2\ndims 1\n1\n", "1 rows, expected 2"),
        ] {
            let error = Table::parse(text).map(|_| ()).expect_err(text);
            assert!(error.message.contains(words), "{text:?}: {error}");
        }
    }
}
