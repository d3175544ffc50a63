//! The files of one run: the output, those beside it, and how a file is replaced at once.
//!
//! No state. What stands in the files is known to `ticket`, `rows` and `finish`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::CliError;

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// NumPy's array file: little-endian f32, one row a text.
    Npy,
    /// One JSON object a text.
    JsonLines,
    /// A Parquet file, one row a text.
    #[cfg(feature = "parquet")]
    Parquet,
}

impl Form {
    /// The form that a file's extension names.
    fn named(extension: &str) -> Option<Self> {
        match extension {
            "npy" => Some(Self::Npy),
            "jsonl" => Some(Self::JsonLines),
            #[cfg(feature = "parquet")]
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }
}

/// The names that an output may have.
#[cfg(feature = "parquet")]
const NAMES: &str = ".npy (NumPy, little-endian f32), .jsonl (one object a text) or .parquet (one row a text)";
/// The names that an output may have.
#[cfg(not(feature = "parquet"))]
const NAMES: &str = ".npy (NumPy, little-endian f32) or .jsonl (one object a text); .parquet needs a build with the \
                     feature `parquet`";

/// Where a run writes. Everything unfinished ends in `.part`, so the names without it are whole files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// What the user asked for.
    pub output: PathBuf,
    /// Its form, by the name.
    pub form: Form,
}

impl Places {
    /// The places of an output.
    ///
    /// # Errors
    /// [`CliError::Usage`] where the name tells no form.
    pub fn new(output: &Path) -> Result<Self, CliError> {
        let extension = output.extension().and_then(|extension| extension.to_str());
        let form = extension
            .and_then(Form::named)
            .ok_or_else(|| CliError::Usage(format!("--out {}: the name must end in {NAMES}", output.display())))?;
        Ok(Self {
            output: output.to_owned(),
            form,
        })
    }

    /// What a later run of the same command needs to go on.
    pub fn ticket(&self) -> PathBuf {
        self.beside(".job.json")
    }

    /// Standard input, kept until it was sent: it is read twice.
    pub fn spool(&self) -> PathBuf {
        self.beside(".input.part")
    }

    /// The vectors as they come, by row.
    pub fn rows(&self) -> PathBuf {
        self.beside(".rows.part")
    }

    /// The ids in the order of the rows.
    pub fn ids_of_rows(&self) -> PathBuf {
        self.beside(".ids.part")
    }

    /// The id of each row, beside an array file.
    pub fn ids(&self) -> PathBuf {
        self.output.with_extension("ids.jsonl")
    }

    /// The texts without a vector, and why.
    pub fn failed(&self) -> PathBuf {
        self.output.with_extension("failed.jsonl")
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        with_suffix(&self.output, suffix)
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// An I/O error about a file.
pub fn failed<'a>(doing: &'a str, path: &'a Path) -> impl FnOnce(std::io::Error) -> CliError + 'a {
    move |error| CliError::io(format!("{doing} {}", path.display()), error)
}

/// Puts a whole file in the place of another: after a crash there is the old one or the new one.
pub fn replace(
    path: &Path,
    write: impl FnOnce(&mut (dyn Write + Send)) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let part = with_suffix(path, ".part");
    let file = File::create(&part).map_err(failed("creating", &part))?;
    let mut writer = std::io::BufWriter::new(file);
    write(&mut writer)?;
    let file = writer
        .into_inner()
        .map_err(|error| failed("writing", &part)(error.into_error()))?;
    file.sync_all().map_err(failed("writing", &part))?;
    std::fs::rename(&part, path).map_err(failed("renaming to", path))
}

/// Removes a file that may not be there.
pub fn remove(path: &Path) -> Result<(), CliError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed("removing", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_tells_the_form_and_the_places() {
        let places = Places::new(Path::new("d/v.npy")).unwrap();
        assert_eq!(places.form, Form::Npy);
        assert_eq!(places.ticket(), Path::new("d/v.npy.job.json"));
        assert_eq!(places.ids(), Path::new("d/v.ids.jsonl"));
        assert_eq!(places.failed(), Path::new("d/v.failed.jsonl"));
        assert_eq!(Places::new(Path::new("v.jsonl")).unwrap().form, Form::JsonLines);
        for name in ["v", "v.npz", "v.NPY"] {
            let error = Places::new(Path::new(name)).unwrap_err();
            assert!(error.to_string().contains(".npy"), "{error}");
        }
        let parquet = Places::new(Path::new("v.parquet"));
        assert_eq!(parquet.is_ok(), cfg!(feature = "parquet"));
        assert!(parquet.is_ok_and(|_| true) || NAMES.contains("feature `parquet`"));
    }

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let put = |text: &'static str| {
            replace(&path, move |writer| {
                writer
                    .write_all(text.as_bytes())
                    .map_err(|error| CliError::io("w", error))
            })
        };
        put("one").unwrap();
        let refused = replace(&path, |writer| {
            writer.write_all(b"tw").map_err(|error| CliError::io("w", error))?;
            Err(CliError::Usage("no".to_owned()))
        });
        assert!(refused.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        put("three").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"three");
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists());
    }
}
