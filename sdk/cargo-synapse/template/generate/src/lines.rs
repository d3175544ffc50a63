//! The model's file: lines of words.
//!
//! ```text
//! lines 1
//! a model is a file with a digest
//! …                                   one line a text, words between single blanks
//! ```
//! A word's token id is its place in the file, counted over all lines from 0. The host has verified the file's
//! digest; its content is foreign all the same, so everything is checked before memory is asked for.

use synapse_plugin_sdk::prelude::*;

/// The largest file that is read.
const MAX_BYTES: u64 = 16 << 20;

/// A word as the engine gives it.
#[derive(Debug, PartialEq, Eq)]
pub struct Word {
    /// Its token id.
    pub id: i32,
    /// Its text, with the blank that follows it inside a line.
    pub text: String,
}

/// The lines in memory; at least one, none of them empty.
#[derive(Debug)]
pub struct Lines(Vec<Vec<Word>>);

impl Lines {
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
        if lines.next() != Some("lines 1") {
            return Err(invalid("the first line: expected `lines 1`"));
        }
        let mut all = Vec::new();
        let mut id = 0;
        for (number, line) in lines.enumerate() {
            let mut words = Vec::new();
            for word in line.split_inclusive(' ') {
                if word.trim_end().is_empty() {
                    return Err(invalid(format!(
                        "line {number}: expected words between single blanks"
                    )));
                }
                words.push(Word {
                    id,
                    text: word.to_owned(),
                });
                id += 1;
            }
            if words.is_empty() {
                return Err(invalid(format!(
                    "line {number}: is empty, expected at least one word"
                )));
            }
            all.push(words);
        }
        if all.is_empty() {
            return Err(invalid("no line, expected at least one"));
        }
        Ok(Self(all))
    }

    /// A line that a number chooses.
    pub fn choose(&self, number: u64) -> &[Word] {
        &self.0[(number % self.0.len() as u64) as usize]
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        let words = self.0.iter().flatten();
        let texts: usize = words
            .map(|word| word.text.capacity() + size_of::<Word>())
            .sum();
        (texts + self.0.capacity() * size_of::<Vec<Word>>()) as u64
    }
}

fn invalid(what: impl std::fmt::Display) -> Error {
    Error::artifact_invalid(format!("role `weights`: {what}"))
}

#[cfg(test)]
mod tests {
    use super::Lines;

    /// Whatever a file holds, reading it gives lines or words of refusal, and never a panic.
    #[test]
    fn a_file_without_lines_is_refused_in_words() {
        for (text, words) in [
            ("", "the first line"),
            ("lines 2\na\n", "the first line"),
            ("lines 1\n", "no line"),
            ("lines 1\na\n\nb\n", "line 1: is empty"),
            ("lines 1\na  b\n", "line 0: expected words"),
        ] {
            let error = Lines::parse(text).map(|_| ()).expect_err(text);
            assert!(error.message.contains(words), "{text:?}: {error}");
        }
    }
}
