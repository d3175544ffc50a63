//! The one thread that writes `store.db`: a queue of jobs, committed in groups with `synchronous=FULL`.
//!
//! Owns the connection and the bounded queue. `store/*` sends it jobs; nothing else does. Protocol:
//! 1. a caller sends a job and blocks on its answer (never on a tokio worker);
//! 2. the thread takes every job that waits (up to [`GROUP`]), runs each in a savepoint of its own inside one
//!    transaction, so that a failing job undoes only itself;
//! 3. it commits, and only then answers: what was answered is on the disk;
//! 4. a failed commit fails every job of the group, and a damaged database stops the thread;
//! 5. [`Writer::close`] is served after what was sent before it: the log is folded into the file, the connection is
//!    closed, the thread ends;
//! 6. once the thread is gone every call fails with [`StoreError::WriterGone`] (fails closed).
//!
//! Does not know what the jobs write.

use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use rusqlite::{Connection, TransactionBehavior, ffi};

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

/// What the thread is asked for.
enum Ask {
    Run(Box<dyn Job>),
    Close(SyncSender<Result<(), StoreError>>),
}

/// The sending side of the writer thread. Cheap to clone; the thread ends when it is asked to close, or when the last
/// one is dropped.
#[derive(Clone)]
pub(super) struct Writer {
    queue: SyncSender<Ask>,
    stopped: Arc<OnceLock<String>>,
    path: Arc<PathBuf>,
}

impl Writer {
    /// Makes the queue and the body of its thread, which the caller starts.
    pub(super) fn new(connection: Connection, path: &Path) -> (Self, impl FnOnce() + Send + 'static) {
        let (queue, asked) = sync_channel(QUEUE);
        let writer = Self {
            queue,
            stopped: Arc::new(OnceLock::new()),
            path: Arc::new(path.to_path_buf()),
        };
        let (stopped, path) = (Arc::clone(&writer.stopped), Arc::clone(&writer.path));
        let body = move || {
            let (reason, closed) = match catch_unwind(AssertUnwindSafe(|| serve(connection, &path, &asked))) {
                // Nobody is left who could ask.
                Ok(Ok(None)) => return,
                Ok(Ok(Some(closed))) => ("it was closed".to_owned(), Some(closed)),
                Ok(Err(error)) => (error.to_string(), None),
                Err(_) => ("a write panicked".to_owned(), None),
            };
            if closed.is_none() {
                tracing::error!(target: "synapse.maintenance", reason, "the store's writer has ended");
            }
            // Set before the queue closes, so that a caller who finds it closed also finds the reason.
            let _ = stopped.set(reason);
            drop(asked);
            if let Some(Closed { back, outcome }) = closed {
                // The caller may have gone; the file is closed all the same.
                let _ = back.send(outcome);
            }
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
        let job = Box::new(Call {
            work: Some(work),
            value: None,
            back,
            path: Arc::clone(&self.path),
        });
        self.queue.send(Ask::Run(job)).map_err(|_| self.gone())?;
        answer.recv().unwrap_or_else(|_| Err(self.gone()))
    }

    /// Carries out what was asked before, folds the log into the file, closes it and ends the thread. Blocks.
    ///
    /// # Errors
    /// What kept the log from being folded in, which the next open does then; [`StoreError::WriterGone`].
    pub(super) fn close(&self) -> Result<(), StoreError> {
        let (back, answer) = sync_channel(1);
        self.queue.send(Ask::Close(back)).map_err(|_| self.gone())?;
        answer.recv().unwrap_or_else(|_| Err(self.gone()))
    }

    /// Why the thread has ended, while it has.
    pub(super) fn stopped(&self) -> Option<&str> {
        self.stopped.get().map(String::as_str)
    }

    fn gone(&self) -> StoreError {
        let reason = self.stopped().unwrap_or("its thread is gone").to_owned();
        StoreError::WriterGone {
            path: self.path.to_path_buf(),
            reason,
        }
    }
}

/// A file that was closed, and who waits for that.
struct Closed {
    back: SyncSender<Result<(), StoreError>>,
    outcome: Result<(), StoreError>,
}

/// Takes jobs until it is asked to close, every sender is gone, or the database turns out to be damaged.
fn serve(mut connection: Connection, path: &Path, asked: &Receiver<Ask>) -> Result<Option<Closed>, StoreError> {
    while let Ok(first) = asked.recv() {
        let (mut group, mut closing) = (Vec::new(), None);
        for ask in iter::once(first).chain(asked.try_iter()).take(GROUP) {
            match ask {
                Ask::Run(job) => group.push(job),
                Ask::Close(back) => {
                    closing = Some(back);
                    break;
                }
            }
        }
        let outcome = run_group(&mut connection, &mut group).map_err(|error| StoreError::from_sqlite(path, &error));
        for job in group {
            job.answer(outcome.clone());
        }
        if let Err(error) = outcome
            && error.is_fatal()
        {
            return Err(error);
        }
        if let Some(back) = closing {
            let outcome = close(connection).map_err(|error| StoreError::from_sqlite(path, &error));
            return Ok(Some(Closed { back, outcome }));
        }
    }
    Ok(None)
}

/// Folds the log in and closes the file. Where no other process has it open, SQLite then removes the log.
fn close(connection: Connection) -> rusqlite::Result<()> {
    let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
    let busy = connection.query_row(checkpoint, [], |row| row.get::<_, bool>(0));
    connection.close().map_err(|(_, error)| error)?;
    if busy? {
        let busy = ffi::Error::new(ffi::SQLITE_BUSY);
        return Err(rusqlite::Error::SqliteFailure(busy, None));
    }
    Ok(())
}

/// Runs jobs in one transaction, each in its own savepoint, and commits.
fn run_group(connection: &mut Connection, group: &mut [Box<dyn Job>]) -> rusqlite::Result<()> {
    if group.is_empty() {
        return Ok(());
    }
    let mut transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for job in group {
        let savepoint = transaction.savepoint()?;
        let keep = job.run(&savepoint);
        // A full disk makes SQLite undo the whole transaction: what ran before is then lost with it.
        if savepoint.is_autocommit() {
            let aborted = ffi::Error::new(ffi::SQLITE_FULL);
            return Err(rusqlite::Error::SqliteFailure(aborted, None));
        }
        if keep {
            savepoint.commit()?;
        } else {
            savepoint.finish()?;
        }
    }
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn table() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch("CREATE TABLE n (value INTEGER PRIMARY KEY) STRICT")
            .unwrap();
        connection
    }

    fn insert(value: i64) -> impl FnOnce(&Connection) -> rusqlite::Result<()> + Send {
        move |connection| {
            connection
                .execute("INSERT INTO n (value) VALUES (?1)", [value])
                .map(drop)
        }
    }

    #[test]
    fn a_failing_job_undoes_only_itself() {
        let (writer, body) = Writer::new(table(), Path::new("store.db"));
        let thread = thread::spawn(body);
        writer.call(insert(1)).unwrap();
        // One job that writes and then fails: its first statement is undone.
        let failed = writer.call(|connection| insert(2)(connection).and_then(|()| insert(1)(connection)));
        assert!(matches!(failed, Err(StoreError::Sql { .. })), "{failed:?}");
        writer.call(insert(3)).unwrap();
        let values: Vec<i64> = writer
            .call(|connection| {
                connection
                    .prepare("SELECT value FROM n ORDER BY value")?
                    .query_map([], |row| row.get(0))?
                    .collect()
            })
            .unwrap();
        assert_eq!(values, [1, 3]);
        drop(writer);
        thread.join().unwrap();
    }

    #[test]
    fn callers_that_wait_together_are_committed_in_one_group() {
        let path = Path::new("store.db");
        let mut connection = table();
        let (back, answers) = sync_channel(4);
        let mut group: Vec<Box<dyn Job>> = [1, 1, 2]
            .map(|value| {
                Box::new(Call {
                    work: Some(insert(value)),
                    value: None,
                    back: back.clone(),
                    path: Arc::new(path.to_path_buf()),
                }) as Box<dyn Job>
            })
            .into();
        run_group(&mut connection, &mut group).unwrap();
        for job in group {
            job.answer(Ok(()));
        }
        let outcomes: Vec<bool> = answers.try_iter().map(|answer| answer.is_ok()).collect();
        assert_eq!(outcomes, [true, false, true]);
    }

    #[test]
    fn a_dead_writer_refuses_everything_and_says_why() {
        let (writer, body) = Writer::new(table(), Path::new("store.db"));
        let thread = thread::spawn(body);
        let panicked = writer.call::<()>(|_| panic!("a defect"));
        assert!(matches!(panicked, Err(StoreError::WriterGone { .. })), "{panicked:?}");
        thread.join().unwrap();
        let later = writer.call(insert(1)).unwrap_err();
        let StoreError::WriterGone { reason, .. } = later else {
            panic!("{later}")
        };
        assert_eq!(reason, "a write panicked");
        assert_eq!(writer.stopped(), Some("a write panicked"));
    }

    #[test]
    fn a_disk_that_fills_up_loses_no_answered_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let connection = Connection::open(&path).unwrap();
        connection
            .execute_batch("PRAGMA page_size = 512; CREATE TABLE n (value INTEGER, body BLOB)")
            .unwrap();
        // A page limit stands for a full disk: SQLite answers both with SQLITE_FULL.
        connection
            .query_row("PRAGMA max_page_count = 40", [], |_| Ok(()))
            .unwrap();
        let (writer, body) = Writer::new(connection, &path);
        let thread = thread::spawn(body);
        let write = |value: i64| {
            writer.call(move |connection| {
                connection
                    .execute("INSERT INTO n (value, body) VALUES (?1, zeroblob(2000))", [value])
                    .map(drop)
            })
        };
        let mut answered = 0;
        let refused = loop {
            match write(answered) {
                Ok(()) => answered += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(refused, StoreError::Full { path: path.clone() });
        let kept: i64 = writer
            .call(|connection| connection.query_row("SELECT count(*) FROM n", [], |row| row.get(0)))
            .unwrap();
        assert_eq!(kept, answered);
        assert!(answered > 0);
        drop(writer);
        thread.join().unwrap();
    }
}
