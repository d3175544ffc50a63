//! The end: the rows become the output, and the files beside it are written.
//!
//! No state. The output gets its name last, so that where it is there, all of it is there. Ids are read from the file
//! that the first pass wrote, a line a row.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use synapse_client::wire::Failure;

#[cfg(feature = "parquet")]
use super::parquet_file;
use super::places::{Form, Places, failed, remove, replace};
use super::rows::{Row, Rows};
use crate::error::CliError;

/// A row's id, as the first pass keeps it.
#[derive(Debug, Serialize, Deserialize)]
pub struct RowId {
    /// The id, or the position of a text that has none.
    pub id: String,
}

/// A line of the ids beside an array file.
#[derive(Debug, Serialize)]
struct IdLine<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    failed: bool,
}

/// A line of the output in JSON lines.
#[derive(Debug, Serialize)]
struct VectorLine<'a> {
    id: &'a str,
    truncated: bool,
    vector: Option<&'a [f32]>,
}

/// A line of the failures.
#[derive(Debug, Serialize)]
struct FailedLine<'a> {
    row: u64,
    id: &'a str,
    error: &'a Failure,
}

/// Writes a value as a line of JSON.
///
/// # Errors
/// [`CliError::Io`] names the file.
pub fn json_line(writer: &mut dyn Write, path: &Path, value: &impl Serialize) -> Result<(), CliError> {
    let mut line = serde_json::to_vec(value).map_err(|error| CliError::Internal(error.to_string()))?;
    line.push(b'\n');
    writer.write_all(&line).map_err(failed("writing", path))
}

/// The ids of the rows, one after the other.
struct Ids<'a> {
    path: &'a Path,
    reader: BufReader<File>,
}

impl<'a> Ids<'a> {
    fn open(path: &'a Path) -> Result<Self, CliError> {
        let file = File::open(path).map_err(failed("opening", path))?;
        Ok(Self {
            path,
            reader: BufReader::new(file),
        })
    }

    fn next(&mut self) -> Result<String, CliError> {
        let mut line = String::new();
        self.reader.read_line(&mut line).map_err(failed("reading", self.path))?;
        let id: RowId = serde_json::from_str(&line)
            .map_err(|error| CliError::Internal(format!("{} was changed: {error}", self.path.display())))?;
        Ok(id.id)
    }
}

/// Writes everything and gives the output its name.
///
/// # Errors
/// [`CliError::Io`]; the output is not there then, or is the one that was there before.
pub fn finish(places: &Places, rows: &Rows) -> Result<(), CliError> {
    let ids_of_rows = places.ids_of_rows();
    write_failures(places, rows, &ids_of_rows)?;
    match places.form {
        Form::Npy => {
            let path = places.ids();
            replace(&path, |writer| {
                let mut ids = Ids::open(&ids_of_rows)?;
                for row in rows.fared() {
                    let line = IdLine {
                        id: &ids.next()?,
                        truncated: *row == Row::Truncated,
                        failed: *row == Row::Failed,
                    };
                    json_line(writer, &path, &line)?;
                }
                Ok(())
            })?;
            rows.rename(&places.output)?;
        }
        Form::JsonLines => {
            replace(&places.output, |writer| {
                let mut ids = Ids::open(&ids_of_rows)?;
                rows.in_order(|row, values| {
                    let line = VectorLine {
                        id: &ids.next()?,
                        truncated: row == Row::Truncated,
                        vector: (row != Row::Failed).then_some(values),
                    };
                    json_line(writer, &places.output, &line)
                })
            })?;
            rows.discard()?;
        }
        #[cfg(feature = "parquet")]
        Form::Parquet => {
            replace(&places.output, |file| {
                let space = rows.space();
                let metadata = [
                    ("lane", space.map_or("", |space| space.lane.as_str())),
                    ("fingerprint", space.map_or("", |space| space.fingerprint.as_str())),
                ];
                let mut writer = parquet_file::Writer::new(file, &places.output, &metadata)?;
                let mut ids = Ids::open(&ids_of_rows)?;
                rows.in_order(|row, values| writer.row(&ids.next()?, row, values))?;
                writer.finish()
            })?;
            rows.discard()?;
        }
    }
    remove(&ids_of_rows)
}

/// The texts without a vector; no file where there are none.
fn write_failures(places: &Places, rows: &Rows, ids_of_rows: &Path) -> Result<(), CliError> {
    let path = places.failed();
    if rows.failures().is_empty() {
        return remove(&path);
    }
    replace(&path, |writer| {
        let mut ids = Ids::open(ids_of_rows)?;
        let mut read = 0;
        for (&row, error) in rows.failures() {
            while read < row {
                ids.next()?;
                read += 1;
            }
            let id = &ids.next()?;
            read += 1;
            json_line(writer, &path, &FailedLine { row, id, error })?;
        }
        Ok(())
    })
}
