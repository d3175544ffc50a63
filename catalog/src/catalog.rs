//! The catalog put together: built-in files, the operator's, and those of staged bundles.
//!
//! State: [`Catalog`], built once at start. A file that is refused never takes the others with it and never stops the
//! daemon: it is reported with its problems. Nothing replaces what is there already: a second record with the same id,
//! or a second row for the same lane, is refused, so no file can change what an existing index was made with.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::check::{MAX_FILE_BYTES, Problem, check_as, check_envelopes_as, looks_like_envelopes};
use crate::record::{EnvelopeRow, Origin, Record};
use crate::references;
use crate::selector::ModelSelector;

/// The files in `catalog/models` and `catalog/envelopes`; a test compares the list with the folders.
/// Where a model has lanes in several files, the first file's lane is its default.
const BUILTIN: [(&str, &str); 5] = [
    (
        "models/all-minilm-l6-v2.toml",
        include_str!("../models/all-minilm-l6-v2.toml"),
    ),
    (
        "models/smollm2-135m-instruct.toml",
        include_str!("../models/smollm2-135m-instruct.toml"),
    ),
    ("envelopes/owned.toml", include_str!("../envelopes/owned.toml")),
    ("envelopes/ort.toml", include_str!("../envelopes/ort.toml")),
    ("envelopes/llama-cpp.toml", include_str!("../envelopes/llama-cpp.toml")),
];

/// The most files that are read from one folder.
const MAX_FOLDER_FILES: usize = 4_096;

/// Every known model and lane.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    records: BTreeMap<String, Record>,
    rows: Vec<EnvelopeRow>,
    /// The folder `references` of each record that came from a file.
    references: BTreeMap<String, PathBuf>,
}

/// A file that is not part of the catalog, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedFile {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it; at least one problem.
    pub problems: Vec<Problem>,
}

impl Catalog {
    /// A catalog without entries.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// The built-in catalog.
    ///
    /// # Panics
    /// If a built-in file is refused, which a test of this crate excludes.
    #[must_use]
    pub fn builtin() -> Self {
        let mut catalog = Self::default();
        let files = BUILTIN
            .iter()
            .map(|(name, text)| (PathBuf::from(name), Ok((*text).to_owned())));
        let refused = catalog.absorb(&Origin::Builtin, files.collect());
        assert!(refused.is_empty(), "built-in catalog files are refused: {refused:?}");
        catalog
    }

    /// Adds the operator's `*.toml` from `dir`, `dir/models` and `dir/envelopes`, where these exist.
    pub fn add_dir(&mut self, dir: &Path) -> Vec<RefusedFile> {
        let mut files = Vec::new();
        let mut refused = Vec::new();
        for folder in [dir.to_owned(), dir.join("models"), dir.join("envelopes")] {
            match toml_files(&folder) {
                Ok(list) => files.extend(list.into_iter().map(|path| {
                    let text = read_text(&path);
                    (path, text)
                })),
                Err(problem) => refused.push(RefusedFile {
                    file: folder,
                    problems: vec![problem],
                }),
            }
        }
        refused.extend(self.absorb(&Origin::Operator, files));
        refused
    }

    /// [`Self::add_dir`] in a chain.
    #[must_use]
    pub fn with_dir(mut self, dir: &Path) -> (Self, Vec<RefusedFile>) {
        let refused = self.add_dir(dir);
        (self, refused)
    }

    /// Adds the catalog files that a staged bundle carries. Their ids begin with `bundle/`, and their rows concern
    /// such ids only: a bundle cannot vouch for itself on a model of ours.
    pub fn add_bundle(&mut self, bundle: &str, files: &[PathBuf]) -> Vec<RefusedFile> {
        let files = files.iter().map(|path| (path.clone(), read_text(path))).collect();
        self.absorb(&Origin::Bundle(bundle.to_owned()), files)
    }

    /// The record of a model.
    #[must_use]
    pub fn record(&self, id: &str) -> Option<&Record> {
        self.records.get(id)
    }

    /// Every record, by id.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// The lanes that the catalog allows for a model, best first: in the order of the files.
    #[must_use]
    pub fn lanes(&self, id: &str) -> Vec<&EnvelopeRow> {
        self.rows.iter().filter(|row| row.model == id).collect()
    }

    /// The lanes that a selector asks for, best first.
    #[must_use]
    pub fn select(&self, selector: &ModelSelector) -> Vec<&EnvelopeRow> {
        self.rows.iter().filter(|row| selector.takes(row)).collect()
    }

    /// Every row.
    #[must_use]
    pub fn rows(&self) -> &[EnvelopeRow] {
        &self.rows
    }

    /// The independent results of a model, as its record names them; `None` where it names none.
    ///
    /// # Errors
    /// Words: the file cannot be read, or is not the one that the record names.
    pub fn references(&self, id: &str) -> Result<Option<Cow<'static, [u8]>>, String> {
        let Some((record, file)) = self
            .records
            .get(id)
            .and_then(|record| Some((record, record.references.as_ref()?)))
        else {
            return Ok(None);
        };
        let bytes = match (&record.origin, self.references.get(id)) {
            (Origin::Builtin, _) => references::builtin(&file.path).map(Cow::Borrowed),
            (_, Some(folder)) => references::read(&folder.join(&file.path), file.size).map(Cow::Owned),
            (_, None) => Err("came from no folder".to_owned()),
        };
        let checked = bytes.and_then(|bytes| references::check(&bytes, file).map(|()| bytes));
        let about = |problem| format!("the references of {id}, {}: {problem}", file.path);
        checked.map(Some).map_err(about)
    }

    /// Takes records first, then rows, since a row needs its record.
    fn absorb(&mut self, origin: &Origin, files: Vec<(PathBuf, Result<String, Problem>)>) -> Vec<RefusedFile> {
        let mut refused = Vec::new();
        let mut envelopes = Vec::new();
        for (file, text) in files {
            let result = match text {
                Err(problem) => Err(vec![problem]),
                Ok(text) if looks_like_envelopes(&text) => {
                    envelopes.push((file, text));
                    continue;
                }
                Ok(text) => check_as(&text, origin).and_then(|record| self.add_record(record, &file)),
            };
            if let Err(problems) = result {
                refused.push(RefusedFile { file, problems });
            }
        }
        for (file, text) in envelopes {
            if let Err(problems) = check_envelopes_as(&text, origin).and_then(|rows| self.add_rows(rows)) {
                refused.push(RefusedFile { file, problems });
            }
        }
        refused
    }

    fn add_record(&mut self, record: Record, file: &Path) -> Result<(), Vec<Problem>> {
        if let Some(before) = self.records.get(&record.id) {
            let message = format!(
                "{} is already known ({:?}); choose another id",
                record.id, before.origin
            );
            return Err(vec![Problem {
                field: "id".to_owned(),
                message,
            }]);
        }
        if record.references.is_some() && record.origin != Origin::Builtin {
            self.references.insert(record.id.clone(), references::folder(file));
        }
        self.records.insert(record.id.clone(), record);
        Ok(())
    }

    /// All rows of a file or none.
    fn add_rows(&mut self, rows: Vec<EnvelopeRow>) -> Result<(), Vec<Problem>> {
        let mut problems = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            let mut wrong = |name: &str, message: String| {
                problems.push(Problem {
                    field: format!("row[{index}].{name}"),
                    message,
                });
            };
            match self.records.get(&row.model) {
                None => wrong("model", format!("no record has the id {:?}", row.model)),
                Some(record) => {
                    if record.format(&row.format, &row.quant).is_none() {
                        wrong(
                            "format",
                            format!("the record has no {} with quant {}", row.format, row.quant),
                        );
                    }
                    if row.bounds.max_tokens > record.context {
                        let (asked, most) = (row.bounds.max_tokens, record.context);
                        wrong(
                            "max_tokens",
                            format!("is {asked}, beyond the model's context of {most}"),
                        );
                    }
                }
            }
            let name = row.lane_name();
            if self
                .rows
                .iter()
                .chain(&rows[..index])
                .any(|other| other.lane_name() == name)
            {
                wrong(
                    "variant",
                    format!("the lane {name} exists; rows are append-only, choose another variant"),
                );
            }
        }
        if problems.is_empty() {
            self.rows.extend(rows);
            Ok(())
        } else {
            Err(problems)
        }
    }
}

fn toml_files(folder: &Path) -> Result<Vec<PathBuf>, Problem> {
    let problem = |message: String| Problem {
        field: String::new(),
        message,
    };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(problem(format!("cannot be listed: {error}"))),
    };
    let mut list = Vec::new();
    for entry in entries {
        let path = entry
            .map_err(|error| problem(format!("cannot be listed: {error}")))?
            .path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            list.push(path);
        }
        if list.len() > MAX_FOLDER_FILES {
            return Err(problem(format!("holds more than {MAX_FOLDER_FILES} catalog files")));
        }
    }
    list.sort();
    Ok(list)
}

/// Reads a regular file of bounded size.
fn read_text(path: &Path) -> Result<String, Problem> {
    use std::io::Read as _;
    let problem = |message: String| Problem {
        field: String::new(),
        message,
    };
    let unreadable = |error: std::io::Error| problem(format!("cannot be read: {error}"));
    // A pipe or a device would block or never end.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(problem("is not a regular file".to_owned()));
    }
    let mut text = String::new();
    let bound = u64::try_from(MAX_FILE_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    std::fs::File::open(path)
        .map_err(unreadable)?
        .take(bound)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    if text.len() > MAX_FILE_BYTES {
        return Err(problem(format!("is larger than {MAX_FILE_BYTES} bytes")));
    }
    Ok(text)
}
