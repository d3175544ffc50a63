//! The one thread that writes `store.db`: a queue of jobs, committed in groups with `synchronous=FULL`.
//!
//! Owns the connection and the bounded queue. `store/*` sends it jobs; nothing else does. Protocol:
//! 1. a caller sends a job and blocks on its answer (never on a tokio worker);
//! 2. the thread takes every job that waits (up to [`GROUP`]), runs each in a savepoint of its own inside one
//!    transaction, so that a failing job undoes only itself;
//! 3. it commits, and only then answers: what was answered is on the disk;
//! 4. a failed commit fails every job of the group, and a damaged database stops the thread;
//! 5. once the thread is gone every call fails with [`StoreError::WriterGone`] (fails closed).
//!
//! Does not know what the jobs write.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use rusqlite::{Connection, TransactionBehavior};

use super::error::StoreError;

/// The most jobs of one commit.
const GROUP: usize = 256;
/// The most jobs that wait; further callers block until there is room.
const QUEUE: usize = 1024;

/// One caller's statements and the way back to it.
trait Job: Send {
    /// Runs the statements; `false` undoes them.
    fn run(&mut self, connection: &Connection) -> bool;
    /// Tells the caller how its job ended, after the commit or its failure.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

/// The job of one [`Writer::call`].
struct Call<T, F> {
    work: Option<F>,
    value: Option<rusqlite::Result<T>>,
    back: SyncSender<Result<T, StoreError>>,
    path: Arc<PathBuf>,
}

impl<T, F> Job for Call<T, F>
where
    T: Send,
    F: FnOnce(&Connection) -> rusqlite::Result<T> + Send,
{
    fn run(&mut self, connection: &Connection) -> bool {
        self.value = self.work.take().map(|work| work(connection));
        matches!(self.value, Some(Ok(_)))
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let outcome = match (committed, self.value) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(Ok(value))) => Ok(value),
            (Ok(()), Some(Err(error))) => Err(StoreError::from_sqlite(&self.path, &error)),
            (Ok(()), None) => Err(StoreError::Sql {
                path: self.path.to_path_buf(),
                detail: "the write was not run".to_owned(),
            }),
        };
        // The caller may have gone; the write stands all the same.
        let _ = self.back.send(outcome);
    }
}

/// The sending side of the writer thread. Cheap to clone; the thread ends when the last one is dropped.
#[derive(Clone)]
pub(super) struct Writer {
    queue: SyncSender<Box<dyn Job>>,
    stopped: Arc<OnceLock<String>>,
    path: Arc<PathBuf>,
}

impl Writer {
    /// Makes the queue and the body of its thread, which the caller starts.
    pub(super) fn new(connection: Connection, path: &Path) -> (Self, impl FnOnce() + Send + 'static) {
        let (queue, jobs) = sync_channel(QUEUE);
        let writer =
            Self { queue, stopped: Arc::new(OnceLock::new()), path: Arc::new(path.to_path_buf()) };
        let (stopped, path) = (Arc::clone(&writer.stopped), Arc::clone(&writer.path));
        let body = move || {
            let reason = match catch_unwind(AssertUnwindSafe(|| serve(connection, &path, &jobs))) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "a write panicked".to_owned(),
            };
            tracing::error!(target: "synapse.maintenance", reason, "the store's writer has ended");
            // Set before the queue closes, so that a caller who finds it closed also finds the reason.
            let _ = stopped.set(reason);
            drop(jobs);
        };
        (writer, body)
    }

    /// Runs `work` on the writer thread and returns its value after the commit. Blocks.
    ///
    /// # Errors
    /// What SQLite reported for `work` or for the commit, or [`StoreError::WriterGone`].
    pub(super) fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (back, answer) = sync_channel(1);
        let job = Box::new(Call { work: Some(work), value: None, back, path: Arc::clone(&self.path) });
        self.queue.send(job).map_err(|_| self.gone())?;
        answer.recv().unwrap_or_else(|_| Err(self.gone()))
    }

    /// Why the thread has ended, while it has.
    pub(super) fn stopped(&self) -> Option<&str> {
        self.stopped.get().map(String::as_str)
    }

    fn gone(&self) -> StoreError {
        let reason = self.stopped().unwrap_or("its thread is gone").to_owned();
        StoreError::WriterGone { path: self.path.to_path_buf(), reason }
    }
}

/// Takes jobs until every sender is gone, or the database turns out to be damaged.
fn serve(mut connection: Connection, path: &Path, jobs: &Receiver<Box<dyn Job>>) -> Result<(), StoreError> {
    while let Ok(first) = jobs.recv() {
        let mut group = vec![first];
        group.extend(jobs.try_iter().take(GROUP - 1));
        let outcome =
            run_group(&mut connection, &mut group).map_err(|error| StoreError::from_sqlite(path, &error));
        for job in group {
            job.answer(outcome.clone());
        }
        if let Err(error) = outcome
            && error.is_fatal()
        {
            return Err(error);
        }
    }
    Ok(())
}

/// Runs jobs in one transaction, each in its own savepoint, and commits.
fn run_group(connection: &mut Connection, group: &mut [Box<dyn Job>]) -> rusqlite::Result<()> {
    let mut transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for job in group {
        let savepoint = transaction.savepoint()?;
        if job.run(&savepoint) {
            savepoint.commit()?;
        }
    }
    transaction.commit()
}
