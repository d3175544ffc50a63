//! What a bundle is checked with: its models, and its author's own tests.
//!
//! State: none. Callers: the checks. The text is `conformance.toml`, in the bundle or beside it; paths in it are relative
//! to its folder. A bundle without one is tried with drawn bytes as its model, which is enough for engines that take any.
//!
//! ```toml
//! schema = 1
//!
//! [[model]]
//! kind = "embed"            # embed, rerank or generate: one row a kind
//! format = "onnx"           # as the descriptor lists them
//! dtype = "f32"
//! pooling = "mean"
//! max_tokens = 128          # the longest item
//! vocabulary = 30522        # ids from 0 up to here, without it, mean something
//! files = [{ role = "weights", path = "model/model.onnx" }]
//!
//! [[test]]
//! name = "hello"
//! kind = "embed"
//! ids = [[101, 7592, 102]]
//! expect = [[0.1, -0.2, 0.3]]
//! tolerance = 1e-5
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The file's name in a bundle.
pub(crate) const FILE_NAME: &str = "conformance.toml";

/// A kind of engine, as the file names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Embed,
    Rerank,
    Generate,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Embed, Self::Rerank, Self::Generate];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Rerank => "rerank",
            Self::Generate => "generate",
        }
    }
}

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelFile {
    pub(crate) role: String,
    pub(crate) path: PathBuf,
}

/// A model to check one kind of engine with.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    pub(crate) kind: Kind,
    pub(crate) format: String,
    pub(crate) dtype: String,
    #[serde(default = "mean")]
    pub(crate) pooling: String,
    pub(crate) max_tokens: u32,
    pub(crate) vocabulary: u32,
    /// The model's graph normalises its vectors itself.
    #[serde(default)]
    pub(crate) output_normalized: bool,
    #[serde(default)]
    pub(crate) extra: BTreeMap<String, String>,
    pub(crate) files: Vec<ModelFile>,
}

fn mean() -> String {
    "mean".to_owned()
}

/// A test of the author's own.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Golden {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) ids: Vec<Vec<i32>>,
    #[serde(default)]
    pub(crate) doc_starts: Vec<u32>,
    /// The segment of each id; without them all are 0.
    #[serde(default)]
    pub(crate) type_ids: Vec<Vec<i32>>,
    /// A vector an item, or a list of one score an item.
    #[serde(default)]
    pub(crate) expect: Vec<Vec<f32>>,
    /// What a generation gives for the first item.
    #[serde(default)]
    pub(crate) expect_ids: Vec<i32>,
    #[serde(default)]
    pub(crate) tolerance: f32,
}

/// The file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u32,
    #[serde(default, rename = "model")]
    models: Vec<Model>,
    #[serde(default, rename = "test")]
    tests: Vec<Golden>,
}

/// What a bundle is checked with.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Subject {
    /// The models that the file names; none where there is no file.
    pub(crate) models: Vec<Model>,
    /// The author's own tests.
    pub(crate) tests: Vec<Golden>,
    /// There is a file, so a model that does not load is a mistake.
    pub(crate) told: bool,
}

impl Subject {
    /// Reads the file; paths become absolute.
    ///
    /// # Errors
    /// What is wrong with the file, in one line.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
        let file: File = toml::from_str(&text).map_err(|error| wrong(&error.message()))?;
        if file.schema != 1 {
            return Err(wrong(&format!("schema {}, expected 1", file.schema)));
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut models = file.models;
        for model in &mut models {
            if model.max_tokens == 0 || model.vocabulary == 0 || model.files.is_empty() {
                return Err(wrong(&"a model has at least one file, one token and one id"));
            }
            for file in &mut model.files {
                file.path = folder.join(&file.path);
            }
        }
        let twice = |kind: Kind| models.iter().filter(|model| model.kind == kind).count() > 1;
        if let Some(kind) = Kind::ALL.into_iter().find(|kind| twice(*kind)) {
            return Err(wrong(&format!("two models of kind {}, expected one", kind.name())));
        }
        if let Some(test) = file.tests.iter().find(|test| {
            test.ids.is_empty()
                || test.ids.iter().any(Vec::is_empty)
                || test.expect.is_empty() && test.expect_ids.is_empty()
        }) {
            return Err(wrong(&format!("test {:?} has no ids or expects nothing", test.name)));
        }
        let uneven = |test: &&Golden| {
            let (starts, ids) = (&test.doc_starts, &test.ids);
            let lengths = |items: &[Vec<i32>]| items.iter().map(Vec::len).collect::<Vec<_>>();
            !starts.is_empty() && starts.len() != ids.len()
                || !test.type_ids.is_empty() && lengths(&test.type_ids) != lengths(ids)
        };
        if let Some(test) = file.tests.iter().find(uneven) {
            return Err(wrong(&format!(
                "test {:?}: doc_starts has one number an item, type_ids one an id",
                test.name
            )));
        }
        let tests = file.tests;
        Ok(Self {
            models,
            tests,
            told: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Subject, String> {
        let dir = tempfile::tempdir().expect("temporary files");
        let path = dir.path().join(FILE_NAME);
        std::fs::write(&path, text).expect("writes");
        Subject::read(&path)
    }

    const MODEL: &str = "[[model]]\nkind = \"embed\"\nformat = \"bin\"\ndtype = \"f32\"\nmax_tokens = 8\n\
                         vocabulary = 100\nfiles = [{ role = \"weights\", path = \"w\" }]\n";

    #[test]
    fn a_mistake_in_the_file_is_named() {
        let good = read(&format!("schema = 1\n{MODEL}")).expect("a good file");
        assert_eq!((good.models[0].pooling.as_str(), good.told), ("mean", true));
        assert!(good.models[0].files[0].path.is_absolute());
        let bad = [
            (format!("schema = 2\n{MODEL}"), "schema 2"),
            (format!("schema = 1\n{MODEL}{MODEL}"), "two models of kind embed"),
            (
                format!("schema = 1\n{}", MODEL.replace("= 8", "= 0")),
                "at least one file",
            ),
            (format!("schema = 1\n{}", MODEL.replace("format", "fromat")), "fromat"),
            (
                "schema = 1\n[[test]]\nname = \"t\"\nkind = \"embed\"\nids = [[1]]\n".to_owned(),
                "expects nothing",
            ),
            (
                "schema = 1\n[[test]]\nname = \"t\"\nkind = \"rerank\"\nids = [[1, 2]]\ntype_ids = [[0]]\n\
                 expect = [[1.0]]\n"
                    .to_owned(),
                "type_ids one an id",
            ),
            (
                "schema = 1\n[[test]]\nname = \"t\"\nkind = \"rerank\"\nids = [[1, 2]]\ndoc_starts = [1, 1]\n\
                 expect = [[1.0]]\n"
                    .to_owned(),
                "doc_starts has one number an item",
            ),
        ];
        for (text, words) in bad {
            let error = read(&text).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
    }
}
