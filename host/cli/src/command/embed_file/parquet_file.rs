//! The output as a Parquet file: a row a text, in the order of the input.
//!
//! No state. Columns: `id` (string), `truncated` (boolean) and `vector` (list of f32, null for a text without a vector).
//! The file's metadata names the lane and the numeric space. Vectors are written plain: they neither
//! repeat nor compress.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::Encoding;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, FloatType};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::rows::Row;
use crate::error::CliError;

/// The columns, in the form of Parquet's own schema language; lists have the three levels that its format demands.
const SCHEMA: &str = "message vectors {
    required binary id (STRING);
    required boolean truncated;
    optional group vector (LIST) { repeated group list { required float element; } }
}";
/// The most numbers of a row group: 64 MiB of them.
const GROUP_VALUES: usize = 16 << 20;
/// The most rows of a row group.
const GROUP_ROWS: usize = 64 << 10;
/// The levels of a number: its list is there, and it is in it.
const PRESENT: i16 = 2;

/// A file being written.
pub struct Writer<'a> {
    file: SerializedFileWriter<&'a mut (dyn Write + Send)>,
    path: &'a Path,
    group: Group,
}

/// The rows of a group, by column.
#[derive(Default)]
struct Group {
    ids: Vec<ByteArray>,
    truncated: Vec<bool>,
    values: Vec<f32>,
    /// Of each number, or of the null that stands for a list.
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl<'a> Writer<'a> {
    /// Begins a file with this metadata; `path` is its name in errors.
    ///
    /// # Errors
    /// [`CliError::Io`].
    pub fn new(
        writer: &'a mut (dyn Write + Send),
        path: &'a Path,
        metadata: &[(&str, &str)],
    ) -> Result<Self, CliError> {
        let pairs = metadata.iter();
        let pairs = pairs.map(|(key, value)| KeyValue::new(format!("synapse.{key}"), (*value).to_owned()));
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::PLAIN)
            .set_key_value_metadata(Some(pairs.collect()));
        let schema = parse_message_type(SCHEMA).map_err(failed(path))?;
        let file = SerializedFileWriter::new(writer, Arc::new(schema), Arc::new(properties.build()));
        Ok(Self {
            file: file.map_err(failed(path))?,
            path,
            group: Group::default(),
        })
    }

    /// Adds a row; the values of a failed one do not count.
    ///
    /// # Errors
    /// [`CliError::Io`].
    pub fn row(&mut self, id: &str, row: Row, values: &[f32]) -> Result<(), CliError> {
        let group = &mut self.group;
        group.ids.push(id.as_bytes().to_vec().into());
        group.truncated.push(row == Row::Truncated);
        if row == Row::Failed {
            group.definition.push(0);
            group.repetition.push(0);
        } else {
            group.values.extend_from_slice(values);
            group.definition.extend(std::iter::repeat_n(PRESENT, values.len()));
            group.repetition.push(0);
            group
                .repetition
                .extend(std::iter::repeat_n(1, values.len().saturating_sub(1)));
        }
        if group.ids.len() >= GROUP_ROWS || group.values.len() >= GROUP_VALUES {
            self.write_group()?;
        }
        Ok(())
    }

    /// Writes what is left, and the end of the file.
    ///
    /// # Errors
    /// [`CliError::Io`].
    pub fn finish(mut self) -> Result<(), CliError> {
        if !self.group.ids.is_empty() {
            self.write_group()?;
        }
        self.file.close().map(drop).map_err(failed(self.path))
    }

    fn write_group(&mut self) -> Result<(), CliError> {
        let group = std::mem::take(&mut self.group);
        self.columns(&group).map_err(failed(self.path))
    }

    fn columns(&mut self, group: &Group) -> Result<(), ParquetError> {
        let mut writer = self.file.next_row_group()?;
        let mut place = 0;
        while let Some(mut column) = writer.next_column()? {
            match place {
                0 => column.typed::<ByteArrayType>().write_batch(&group.ids, None, None)?,
                1 => column.typed::<BoolType>().write_batch(&group.truncated, None, None)?,
                _ => column.typed::<FloatType>().write_batch(
                    &group.values,
                    Some(&group.definition),
                    Some(&group.repetition),
                )?,
            };
            column.close()?;
            place += 1;
        }
        writer.close().map(drop)
    }
}

fn failed(path: &Path) -> impl FnOnce(ParquetError) -> CliError {
    let what = format!("writing {}", path.display());
    move |error| match error {
        ParquetError::External(source) => match source.downcast::<std::io::Error>() {
            Ok(source) => CliError::io(what, *source),
            Err(source) => CliError::io(what, std::io::Error::other(source)),
        },
        error => CliError::io(what, std::io::Error::other(error)),
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::{ListAccessor, RowAccessor};

    use super::*;

    /// Read back by the format's other half, which shares no more with the writer than the crate; and the bytes of the
    /// vectors are there as they are.
    #[test]
    fn rows_are_columns_and_failed_ones_are_null() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.parquet");
        let rows: [(&str, Row, [f32; 2]); 3] = [
            ("a", Row::Whole, [1.0, -0.5]),
            ("é", Row::Failed, [f32::NAN, f32::NAN]),
            ("b", Row::Truncated, [0.25, f32::MIN_POSITIVE]),
        ];
        super::super::places::replace(&path, |file| {
            let mut writer = Writer::new(file, &path, &[("lane", "m@e:v")])?;
            for (id, row, values) in &rows {
                writer.row(id, *row, values)?;
                // A group a row, so that the file has several.
                writer.write_group()?;
            }
            writer.finish()
        })
        .unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
        let first: Vec<u8> = rows[0].2.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert!(bytes.windows(first.len()).any(|window| window == first));
        let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        let metadata = reader.metadata().file_metadata().key_value_metadata().unwrap();
        assert_eq!(
            metadata[0],
            KeyValue::new("synapse.lane".to_owned(), "m@e:v".to_owned())
        );
        assert_eq!(reader.num_row_groups(), 3);
        let mut read = 0;
        for (row, (id, fared, values)) in reader.get_row_iter(None).unwrap().zip(&rows) {
            let row = row.unwrap();
            assert_eq!(row.get_string(0).unwrap(), id);
            assert_eq!(row.get_bool(1).unwrap(), *fared == Row::Truncated);
            match fared {
                Row::Failed => assert!(row.get_list(2).is_err(), "null"),
                _ => {
                    let list = row.get_list(2).unwrap();
                    let found: Vec<f32> = (0..list.len()).map(|at| list.get_float(at).unwrap()).collect();
                    assert_eq!(found, values);
                }
            }
            read += 1;
        }
        assert_eq!(read, rows.len());
    }

    /// A full disk is told with the file's name, and the output does not appear.
    #[test]
    fn what_cannot_be_written_is_an_error_with_the_name() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let mut full = Full;
        let written = Writer::new(&mut full, Path::new("v.parquet"), &[]).and_then(|mut writer| {
            writer.row("a", Row::Whole, &[1.0])?;
            writer.finish()
        });
        let Err(CliError::Io { what, .. }) = written else {
            panic!("{written:?}")
        };
        assert_eq!(what, "writing v.parquet");
    }
}
