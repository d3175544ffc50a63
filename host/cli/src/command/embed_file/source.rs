//! The input: read once to know it, and once to send it.
//!
//! It owns the copy of standard input, which is removed with it. Texts are read one at a time; what is kept of them is
//! a digest and two counts.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use synapse_client::BatchItem;

use super::places::{failed, remove};
use crate::error::CliError;
use crate::input::Texts;

/// Where the texts come from: something that can be read again.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    jsonl: bool,
    /// Whether the file is our copy of standard input.
    spooled: bool,
}

impl Source {
    /// A file, or a copy of standard input for `-`, which is made here.
    ///
    /// # Errors
    /// [`CliError::Io`].
    pub fn new(file: &Path, jsonl: bool, spool: PathBuf) -> Result<Self, CliError> {
        if file != Path::new("-") {
            return Ok(Self {
                path: file.to_owned(),
                jsonl,
                spooled: false,
            });
        }
        let source = Self {
            path: spool,
            jsonl,
            spooled: true,
        };
        source.fill(io::stdin().lock())?;
        Ok(source)
    }

    /// Copies a stream into the file. Only its owner may read it: texts are nobody else's affair.
    fn fill(&self, mut stream: impl Read) -> Result<(), CliError> {
        let mut options = OpenOptions::new();
        let mut copy = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&self.path)
            .map_err(failed("creating", &self.path))?;
        io::copy(&mut stream, &mut copy).map_err(failed("copying standard input to", &self.path))?;
        Ok(())
    }

    /// The name in messages.
    pub fn name(&self) -> String {
        if self.spooled {
            "standard input".to_owned()
        } else {
            self.path.display().to_string()
        }
    }

    /// The texts from the first on.
    ///
    /// # Errors
    /// [`CliError::Io`].
    pub fn texts(&self) -> Result<Texts, CliError> {
        // A folder opens as a file does, and fails later with words that say less.
        let metadata = File::open(&self.path).and_then(|file| file.metadata());
        let metadata = metadata.map_err(failed("opening", &self.path))?;
        if !metadata.is_file() {
            return Err(CliError::Usage(format!(
                "{} is no plain file, and the texts are read twice; use `--file -` for a pipe",
                self.path.display()
            )));
        }
        Texts::from_file(&self.path, self.jsonl)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if self.spooled {
            // A copy that stays behind is written over by the next run.
            let _ = remove(&self.path);
        }
    }
}

/// What is known of an input after it was read: the same ids and texts in the same order give the same digest.
#[derive(Clone, Debug, Default)]
pub struct Measure {
    sha256: Sha256,
    /// Texts so far.
    pub items: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Measure {
    /// Takes the next text into account.
    pub fn take(&mut self, item: &BatchItem) {
        let text = item.text.as_str().unwrap_or_default();
        for field in [item.id.as_bytes(), text.as_bytes()] {
            // The length stands before it, so that no two sequences of fields are the same bytes.
            let length = u64::try_from(field.len()).unwrap_or(u64::MAX);
            self.sha256.update(length.to_le_bytes());
            self.sha256.update(field);
        }
        self.items += 1;
        self.bytes = self.bytes.saturating_add(u64::try_from(text.len()).unwrap_or(u64::MAX));
    }

    /// The digest in lower-case hex.
    pub fn digest(&self) -> String {
        let digest = self.sha256.clone().finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(items: &[(&str, &str)]) -> Measure {
        let mut measure = Measure::default();
        for (id, text) in items {
            measure.take(&BatchItem::new(*id, *text));
        }
        measure
    }

    /// The digest was made by Python: `hashlib.sha256(struct.pack('<Q', 1) + b'0' + struct.pack('<Q', 2) + b'ab')`.
    #[test]
    fn the_digest_tells_inputs_apart() {
        let one = measure(&[("0", "ab")]);
        assert_eq!((one.items, one.bytes), (1, 2));
        assert_eq!(
            one.digest(),
            "f058454200a954a343997fd93e84d91c003e0a021da125eeff24217b620db765"
        );
        let inputs: [&[(&str, &str)]; 5] = [
            &[("0", "ab"), ("1", "c")],
            &[("1", "c"), ("0", "ab")],
            &[("0", "a"), ("1", "bc")],
            &[("0a", "b"), ("1", "c")],
            &[],
        ];
        let digests: std::collections::BTreeSet<String> = inputs.iter().map(|input| measure(input).digest()).collect();
        assert_eq!(digests.len(), inputs.len());
    }

    #[test]
    fn a_copied_stream_is_read_twice_and_then_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("spool");
        let source = Source {
            path: path.clone(),
            jsonl: false,
            spooled: true,
        };
        source.fill(&b"a\nb\n"[..]).unwrap();
        for _ in 0..2 {
            let mut texts = source.texts().unwrap();
            let mut all = Measure::default();
            while let Some(item) = texts.next_item().unwrap() {
                all.take(&item);
            }
            assert_eq!(all.items, 2);
        }
        drop(source);
        assert!(!path.exists());
        let folder = Source::new(folder.path(), false, path).unwrap();
        assert!(matches!(folder.texts(), Err(CliError::Usage(_))));
    }
}
