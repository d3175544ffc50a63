//! The vectors as they come: a NumPy array file that is filled row by row, in any order.
//!
//! It owns the file, which is locked against a second run for the same output, and a byte a row that says how the row
//! fared. Nothing else of it is in memory. What a job is, and which ids the rows have, is not known here.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use synapse_client::EmbeddedPage;
use synapse_client::wire::Failure;

use super::places::failed;
use crate::error::CliError;

/// How a row fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Nothing has come.
    Missing,
    /// Its vector is there.
    Whole,
    /// Its vector is there, and is of the beginning of the text only.
    Truncated,
    /// It has no vector: NaN stands for it.
    Failed,
}

/// The rows of one job.
#[derive(Debug)]
pub struct Rows {
    path: PathBuf,
    file: File,
    fared: Vec<Row>,
    space: Option<Space>,
    done: u64,
    failures: BTreeMap<u64, Failure>,
}

/// What all rows have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// The numeric space.
    pub fingerprint: String,
    /// The lane that served first.
    pub lane: String,
    /// The length of every vector.
    pub dims: u32,
    /// Bytes of the file before the first row.
    offset: u64,
}

impl Space {
    /// Bytes of one row.
    fn row_bytes(&self) -> u64 {
        u64::from(self.dims) * 4
    }
}

/// The head of a NumPy array file of version 1.0, as its format's definition has it: magic, version, length of the
/// text, and the text, padded so that the numbers begin at a multiple of 64.
fn npy_head(rows: u64, dims: u32) -> Vec<u8> {
    const FIXED: usize = 10;
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {dims}), }}");
    let unpadded = FIXED + text.len() + 1;
    text.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(64) - unpadded));
    text.push('\n');
    let mut head = b"\x93NUMPY\x01\x00".to_vec();
    // Two numbers of at most 20 digits: the text has less than 128 bytes.
    head.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
    head.extend(text.as_bytes());
    head
}

impl Rows {
    /// Opens the file for so many rows and locks it.
    ///
    /// # Errors
    /// [`CliError::Usage`] where another run has it, [`CliError::Io`].
    pub fn open(path: PathBuf) -> Result<Self, CliError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed("opening", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(CliError::Usage(format!(
                    "another `synapse embed` writes {}; wait for it, or choose another --out",
                    path.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(failed("locking", &path)(error)),
        }
        Ok(Self {
            path,
            file,
            fared: Vec::new(),
            space: None,
            done: 0,
            failures: BTreeMap::new(),
        })
    }

    /// Begins with so many rows, all missing.
    ///
    /// # Errors
    /// [`CliError::Usage`] for more rows than this machine counts.
    pub fn expect(&mut self, items: u64) -> Result<(), CliError> {
        let items = usize::try_from(items).map_err(|_| CliError::Usage(format!("{items} texts are too many")))?;
        self.fared = vec![Row::Missing; items];
        (self.space, self.done) = (None, 0);
        self.failures.clear();
        Ok(())
    }

    /// Rows that are not missing.
    pub const fn done(&self) -> u64 {
        self.done
    }

    /// How each row fared.
    pub fn fared(&self) -> &[Row] {
        &self.fared
    }

    /// What all rows have in common; `None` before the first.
    pub const fn space(&self) -> Option<&Space> {
        self.space.as_ref()
    }

    /// Why rows have no vector.
    pub const fn failures(&self) -> &BTreeMap<u64, Failure> {
        &self.failures
    }

    /// Writes the rows of a page. Its items are named by their rows.
    ///
    /// # Errors
    /// [`CliError::Internal`] for a page that does not belong to these rows, [`CliError::Io`].
    pub fn take(&mut self, embedded: EmbeddedPage) -> Result<(), CliError> {
        let page = embedded.page;
        let space = match &self.space {
            Some(space) => space.clone(),
            None => self.begin(page.fingerprint.clone(), page.provenance.by.lane.clone(), page.dims)?,
        };
        if (&space.fingerprint, space.dims) != (&page.fingerprint, page.dims) {
            return Err(CliError::Internal(format!(
                "the job's pages are of two numeric spaces: {} ({} dims) and {} ({} dims)",
                space.fingerprint, space.dims, page.fingerprint, page.dims
            )));
        }
        let dims = usize::try_from(space.dims).unwrap_or(usize::MAX);
        for (item, vector) in page.items.into_iter().zip(embedded.vectors) {
            let stranger = || {
                CliError::Internal(format!(
                    "the job answers for an item {:?} that it was not given",
                    item.id
                ))
            };
            let row: u64 = item.id.parse().map_err(|_| stranger())?;
            let place = usize::try_from(row).ok().and_then(|row| self.fared.get_mut(row));
            let place = place.ok_or_else(stranger)?;
            if *place != Row::Missing {
                return Err(CliError::Internal(format!("the job answers twice for the row {row}")));
            }
            let bytes: Vec<u8> = match &vector {
                Some(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
                None => std::iter::repeat_n(f32::NAN.to_le_bytes(), dims).flatten().collect(),
            };
            self.file
                .write_all_at(&bytes, space.offset + row * space.row_bytes())
                .map_err(failed("writing", &self.path))?;
            *place = match (&vector, item.truncated) {
                (None, _) => Row::Failed,
                (Some(_), true) => Row::Truncated,
                (Some(_), false) => Row::Whole,
            };
            if vector.is_none() {
                let why = item
                    .error
                    .ok_or_else(|| CliError::Internal(format!("the row {row} has neither a vector nor an error")))?;
                self.failures.insert(row, why);
            }
            self.done += 1;
        }
        Ok(())
    }

    /// Lays out the file, now that the length of a row is known.
    fn begin(&mut self, fingerprint: String, lane: String, dims: u32) -> Result<Space, CliError> {
        let rows = u64::try_from(self.fared.len()).unwrap_or(u64::MAX);
        let head = npy_head(rows, dims);
        let offset = u64::try_from(head.len()).unwrap_or(u64::MAX);
        let space = Space {
            fingerprint,
            lane,
            dims,
            offset,
        };
        let bytes = rows
            .checked_mul(space.row_bytes())
            .and_then(|bytes| bytes.checked_add(offset));
        let bytes = bytes.ok_or_else(|| CliError::Internal(format!("{rows} rows of {dims} numbers are too many")))?;
        // What an interrupted run left is cut off first, so that a row which never comes reads as zeros and not as that.
        self.file
            .set_len(0)
            .and_then(|()| self.file.set_len(bytes))
            .and_then(|()| self.file.write_all_at(&head, 0))
            .map_err(failed("writing", &self.path))?;
        self.space = Some(space.clone());
        Ok(space)
    }

    /// Calls `each` with every row's number, how it fared and its values, in order. Values of a failed row are NaN.
    ///
    /// # Errors
    /// [`CliError::Io`], and what `each` gives.
    pub fn in_order(&self, mut each: impl FnMut(Row, &[f32]) -> Result<(), CliError>) -> Result<(), CliError> {
        let Some(space) = &self.space else { return Ok(()) };
        let mut file = &self.file;
        file.seek(SeekFrom::Start(space.offset))
            .map_err(failed("reading", &self.path))?;
        let mut reader = BufReader::new(file);
        let mut bytes = vec![0; usize::try_from(space.row_bytes()).unwrap_or(usize::MAX)];
        for row in &self.fared {
            reader.read_exact(&mut bytes).map_err(failed("reading", &self.path))?;
            let (values, _) = bytes.as_chunks::<4>();
            let values: Vec<f32> = values.iter().map(|value| f32::from_le_bytes(*value)).collect();
            each(*row, &values)?;
        }
        Ok(())
    }

    /// Gives the file its final name: it is whole and on the disk before it has that name.
    ///
    /// # Errors
    /// [`CliError::Io`].
    pub fn rename(&self, output: &Path) -> Result<(), CliError> {
        self.file.sync_all().map_err(failed("writing", &self.path))?;
        std::fs::rename(&self.path, output).map_err(failed("renaming to", output))
    }

    /// Removes the file.
    ///
    /// # Errors
    /// [`CliError::Io`].
    pub fn discard(&self) -> Result<(), CliError> {
        super::places::remove(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use synapse_client::ErrorCode;
    use synapse_client::wire::{Class, ItemOutcome, JobPage, Placement, Provenance, ServedBy};

    use super::*;

    fn page(fingerprint: &str, dims: u32, rows: &[(&str, Option<&[f32]>)]) -> EmbeddedPage {
        let item = |(id, vector): &(&str, Option<&[f32]>)| ItemOutcome {
            id: (*id).to_owned(),
            submitted_tokens: 9,
            effective_tokens: 9,
            truncated: false,
            error: vector.is_none().then(|| Failure {
                code: ErrorCode::InvalidText,
                message: "half a pair".to_owned(),
                class: Class::Permanent,
                retry_after_ms: None,
                safe_to_retry_same_request: false,
                detail: None,
            }),
        };
        EmbeddedPage {
            vectors: rows.iter().map(|(_, vector)| vector.map(<[f32]>::to_vec)).collect(),
            page: JobPage {
                fingerprint: fingerprint.to_owned(),
                numeric_profile_id: "n".to_owned(),
                table_epoch: 0,
                dims,
                provenance: Provenance {
                    by: ServedBy {
                        fingerprint: fingerprint.to_owned(),
                        engine: "e".to_owned(),
                        engine_version: "1".to_owned(),
                        bundle_digest: String::new(),
                        lane: "m@e:f32".to_owned(),
                        placement: Placement::Worker,
                        model_digest: String::new(),
                        machine_profile_hash: None,
                        certification: None,
                    },
                    role: synapse_client::Role::Document,
                    template_id: None,
                    normalized: true,
                },
                items: rows.iter().map(item).collect(),
                vectors: Vec::new(),
            },
        }
    }

    fn rows(folder: &tempfile::TempDir, items: u64) -> Rows {
        let mut rows = Rows::open(folder.path().join("rows")).unwrap();
        rows.expect(items).unwrap();
        rows
    }

    /// The format is that of NumPy's documentation (numpy.lib.format, version 1.0): magic, version, length, a Python
    /// literal, padding with blanks to a multiple of 64, a newline, and the numbers in C order.
    #[test]
    fn the_file_is_a_numpy_array_in_the_order_of_the_rows() {
        let folder = tempfile::tempdir().unwrap();
        // What an earlier run left is not part of it.
        std::fs::write(folder.path().join("rows"), vec![7; 4096]).unwrap();
        let mut rows = rows(&folder, 3);
        rows.take(page("f", 2, &[("2", Some(&[0.5, -0.25]))])).unwrap();
        rows.take(page("f", 2, &[("1", None), ("0", Some(&[1.0, 2.0]))]))
            .unwrap();
        assert_eq!(rows.done(), 3);
        assert_eq!(rows.fared(), [Row::Whole, Row::Failed, Row::Whole]);
        assert_eq!(rows.failures()[&1].code, ErrorCode::InvalidText);
        let output = folder.path().join("v.npy");
        rows.rename(&output).unwrap();
        let bytes = std::fs::read(&output).unwrap();
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }";
        let mut expected = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        expected.extend(text.as_bytes());
        expected.resize(127, b' ');
        expected.push(b'\n');
        for value in [1.0_f32, 2.0, f32::NAN, f32::NAN, 0.5, -0.25] {
            expected.extend(value.to_le_bytes());
        }
        assert_eq!(bytes, expected);
    }

    #[test]
    fn rows_are_read_back_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let mut rows = rows(&folder, 2);
        let mut long = page("f", 1, &[("1", Some(&[2.0])), ("0", Some(&[1.0]))]);
        long.page.items[0].truncated = true;
        rows.take(long).unwrap();
        let mut seen = Vec::new();
        rows.in_order(|row, values| {
            seen.push((row, values.to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [(Row::Whole, vec![1.0]), (Row::Truncated, vec![2.0])]);
    }

    #[test]
    fn pages_of_other_jobs_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut rows = rows(&folder, 2);
        rows.take(page("f", 1, &[("0", Some(&[1.0]))])).unwrap();
        for (other, words) in [
            (page("f", 1, &[("0", Some(&[1.0]))]), "twice"),
            (page("f", 1, &[("2", Some(&[1.0]))]), "not given"),
            (page("f", 1, &[("-1", Some(&[1.0]))]), "not given"),
            (page("f", 1, &[("x", Some(&[1.0]))]), "not given"),
            (page("g", 1, &[("1", Some(&[1.0]))]), "two numeric spaces"),
            (page("f", 2, &[("1", Some(&[1.0, 1.0]))]), "two numeric spaces"),
        ] {
            let error = rows.take(other).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(rows.fared(), [Row::Whole, Row::Missing]);
    }

    #[test]
    fn two_runs_do_not_write_one_output() {
        let folder = tempfile::tempdir().unwrap();
        let _first = rows(&folder, 1);
        let second = Rows::open(folder.path().join("rows"));
        assert!(matches!(second, Err(CliError::Usage(words)) if words.contains("another")));
    }
}
