//! The ticket: the small file beside the output by which the same command finds its job again.
//!
//! It owns the file. It is written when the job is opened, before the first text is sent, and removed with the finished
//! output. What the job does is not known here.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use synapse_client::EmbedJobOptions;

use super::places::{failed, remove, replace};
use crate::error::CliError;

/// The version of the file's form.
const SCHEMA: u32 = 1;
/// A ticket is small; anything larger is none.
const MAX_BYTES: u64 = 64 * 1024;

/// What was begun, and for which input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ticket {
    schema: u32,
    /// The job.
    pub job_id: String,
    /// Whether all texts were sent.
    pub sealed: bool,
    /// The input and what was asked of it.
    pub work: Work,
}

/// What tells one piece of work from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// SHA-256 over the ids and texts in their order, lower-case hex.
    pub input_sha256: String,
    /// How many texts there are.
    pub items: u64,
    /// The model, as the job was opened with it.
    pub model: String,
    /// How the texts are embedded.
    pub options: EmbedJobOptions,
}

impl Ticket {
    /// A ticket for a job that was opened for this work.
    pub fn new(job_id: String, work: Work) -> Self {
        Self {
            schema: SCHEMA,
            job_id,
            sealed: false,
            work,
        }
    }

    /// The ticket at this place, where there is one.
    ///
    /// # Errors
    /// [`CliError::Usage`] for a file that is none.
    pub fn read(path: &Path) -> Result<Option<Self>, CliError> {
        match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            _ => {}
        }
        let no_ticket = |detail: String| {
            CliError::Usage(format!(
                "{} does not tell which job to go on with ({detail}); remove it to start anew",
                path.display()
            ))
        };
        let text = crate::input::whole_file(path, MAX_BYTES)?;
        let ticket: Self = serde_json::from_str(&text).map_err(|error| no_ticket(error.to_string()))?;
        if ticket.schema != SCHEMA {
            return Err(no_ticket(format!("its schema is {}, expected {SCHEMA}", ticket.schema)));
        }
        Ok(Some(ticket))
    }

    /// Whether the ticket is for this work.
    ///
    /// # Errors
    /// [`CliError::Usage`] says what is different, and what to do.
    pub fn check(&self, path: &Path, work: &Work) -> Result<(), CliError> {
        let other = if self.work.input_sha256 != work.input_sha256 {
            format!("another input ({} texts then, {} now)", self.work.items, work.items)
        } else if self.work.model != work.model {
            format!("another model ({} then, {} now)", self.work.model, work.model)
        } else if self.work.options != work.options {
            "other options".to_owned()
        } else {
            return Ok(());
        };
        Err(CliError::Usage(format!(
            "the job {job} was begun for this output with {other}; finish it with the command that began it, or give \
             it up with `synapse jobs cancel {job}` and remove {file}",
            job = self.job_id,
            file = path.display()
        )))
    }
}

/// A ticket in its place.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    ticket: Ticket,
}

impl Kept {
    /// Takes a ticket that stands at this place.
    pub const fn at(path: PathBuf, ticket: Ticket) -> Self {
        Self { path, ticket }
    }

    /// The ticket.
    pub const fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// Changes the ticket and writes it down.
    ///
    /// # Errors
    /// [`CliError::Io`]; the file is as it was then.
    pub fn change(&mut self, change: impl FnOnce(&mut Ticket)) -> Result<(), CliError> {
        change(&mut self.ticket);
        self.write()
    }

    /// Writes the ticket down.
    ///
    /// # Errors
    /// [`CliError::Io`].
    pub fn write(&self) -> Result<(), CliError> {
        let mut text =
            serde_json::to_string_pretty(&self.ticket).map_err(|error| CliError::Internal(error.to_string()))?;
        text.push('\n');
        replace(&self.path, |writer| {
            writer.write_all(text.as_bytes()).map_err(failed("writing", &self.path))
        })
    }

    /// Removes the file: there is nothing to go on with.
    ///
    /// # Errors
    /// [`CliError::Io`].
    pub fn discard(&self) -> Result<(), CliError> {
        remove(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work() -> Work {
        Work {
            input_sha256: "ab".to_owned(),
            items: 3,
            model: "m".to_owned(),
            options: EmbedJobOptions::default(),
        }
    }

    #[test]
    fn a_ticket_is_found_again_with_its_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.npy.job.json");
        assert_eq!(Ticket::read(&path).unwrap(), None);
        let mut kept = Kept::at(path.clone(), Ticket::new("job-1".to_owned(), work()));
        kept.write().unwrap();
        kept.change(|ticket| ticket.sealed = true).unwrap();
        let ticket = Ticket::read(&path).unwrap().unwrap();
        assert_eq!((&ticket, ticket.sealed), (kept.ticket(), true));
        kept.discard().unwrap();
        assert_eq!(Ticket::read(&path).unwrap(), None);
        for text in [
            "",
            "{}",
            &serde_json::to_string(&ticket)
                .unwrap()
                .replace("\"schema\":1", "\"schema\":2"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Ticket::read(&path).unwrap_err();
            assert!(error.to_string().contains("remove it"), "{error}");
        }
    }

    #[test]
    fn other_work_is_refused_in_words() {
        let ticket = Ticket::new("job-1".to_owned(), work());
        let path = Path::new("v.npy.job.json");
        ticket.check(path, &work()).unwrap();
        let mut other = [work(), work(), work()];
        other[0].input_sha256 = "cd".to_owned();
        other[1].model = "n".to_owned();
        other[2].options.dimensions = Some(8);
        for (other, words) in other
            .iter()
            .zip(["another input", "another model (m then, n now)", "other options"])
        {
            let error = ticket.check(path, other).unwrap_err().to_string();
            assert!(
                error.contains(words) && error.contains("jobs cancel job-1") && error.contains("v.npy.job.json"),
                "{error}"
            );
        }
    }
}
