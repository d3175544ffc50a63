//! The only place of the daemon that starts tasks and threads.
//!
//! State: the tracker of running tasks and the token that asks all of them to stop. Callers: everything that works in
//! the background. Not known here: what the tasks do. Every task has a name; a panic in one is caught, logged with
//! that name and handed to whoever waits for the task, and never takes the daemon down.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A task's name, for logs.
pub type TaskName = Cow<'static, str>;

/// Why a task gave no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskFailed {
    /// The task panicked; the log has the place.
    #[error("task {name} panicked: {message}")]
    Panicked {
        /// The task's name.
        name: String,
        /// The panic's message.
        message: String,
    },
    /// The task was aborted, or the runtime is gone.
    #[error("task {name} was stopped before it finished")]
    Stopped {
        /// The task's name.
        name: String,
    },
}

/// Starts and tracks the daemon's tasks and threads. Cheap to clone.
#[derive(Clone)]
pub struct Tasks {
    runtime: Handle,
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks")
            .field("running", &self.tracker.len())
            .finish_non_exhaustive()
    }
}

/// A running task. Dropping it leaves the task running; awaiting it gives the task's result.
#[derive(Debug)]
#[must_use = "a task's failure is seen by its handle; drop it explicitly to detach"]
pub struct TaskHandle<T> {
    name: TaskName,
    join: JoinHandle<Result<T, TaskFailed>>,
}

impl<T> TaskHandle<T> {
    /// Stops the task at its next await point (a blocking call runs to its end).
    pub fn abort(&self) {
        self.join.abort();
    }

    /// A handle that can only abort.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        self.join.abort_handle()
    }
}

impl<T> Future for TaskHandle<T> {
    type Output = Result<T, TaskFailed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.join).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(result)) => Poll::Ready(result),
            Poll::Ready(Err(_)) => Poll::Ready(Err(TaskFailed::Stopped {
                name: self.name.to_string(),
            })),
        }
    }
}

/// A future whose panics become [`TaskFailed::Panicked`], logged once.
struct PanicObserved<F> {
    name: TaskName,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for PanicObserved<F> {
    type Output = Result<F::Output, TaskFailed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = &mut self.future;
        // The future is never polled again after a panic, so no broken state is observed.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(payload) => Poll::Ready(Err(observe(&self.name, payload.as_ref()))),
        }
    }
}

/// `future` with its panics turned into [`TaskFailed::Panicked`], logged under `name`: for work whose failure must be
/// answered by the task that awaits it.
pub fn observed<F: Future>(
    name: impl Into<TaskName>,
    future: F,
) -> impl Future<Output = Result<F::Output, TaskFailed>> {
    PanicObserved {
        name: name.into(),
        future: Box::pin(future),
    }
}

/// Logs a caught panic and names it.
fn observe(name: &str, payload: &(dyn Any + Send)) -> TaskFailed {
    let message = panic_message(payload);
    // Not the message: a library's panic may quote the text that it worked on (LOG-11).
    tracing::error!(target: "synapse", task = name, "task panicked");
    TaskFailed::Panicked {
        name: name.to_owned(),
        message,
    }
}

/// Makes every panic of this process one line of the log that names thread and place, instead of the standard output
/// of its message.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(String::new, ToString::to_string);
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        tracing::error!(target: "synapse", thread, place, "panicked");
    }));
}

/// The words of a panic.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&'static str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| String::from("(no message)"))
}

impl Tasks {
    /// Starts tasks on `runtime`.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        Self {
            runtime,
            tracker: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Fires when the daemon stops; long-running tasks end on it.
    #[must_use]
    pub fn stopping(&self) -> &CancellationToken {
        &self.stop
    }

    /// Starts an asynchronous task.
    pub fn spawn<F>(&self, name: impl Into<TaskName>, future: F) -> TaskHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let name = name.into();
        let observed = PanicObserved {
            name: name.clone(),
            future: Box::pin(future),
        };
        TaskHandle {
            name,
            join: self.tracker.spawn_on(observed, &self.runtime),
        }
    }

    /// Starts blocking work (files, the loader) on the runtime's pool of blocking threads.
    pub fn blocking<W, T>(&self, name: impl Into<TaskName>, work: W) -> TaskHandle<T>
    where
        W: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let name = name.into();
        let inner = name.clone();
        let observed =
            move || catch_unwind(AssertUnwindSafe(work)).map_err(|payload| observe(&inner, payload.as_ref()));
        TaskHandle {
            name,
            join: self.tracker.spawn_blocking_on(observed, &self.runtime),
        }
    }

    /// Starts a thread of its own (compute threads, the store's writer). A panic is logged with the thread's name.
    ///
    /// # Errors
    /// The operating system refused a thread.
    pub fn thread<W>(&self, name: impl Into<TaskName>, work: W) -> std::io::Result<std::thread::JoinHandle<()>>
    where
        W: FnOnce() + Send + 'static,
    {
        let name = name.into();
        std::thread::Builder::new().name(name.to_string()).spawn(move || {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
                observe(&name, payload.as_ref());
            }
        })
    }

    /// Asks every task to stop and waits until all have ended, at most `bound`. True when all ended.
    pub async fn drain(&self, bound: Duration) -> bool {
        self.stop.cancel();
        self.tracker.close();
        tokio::time::timeout(bound, self.tracker.wait()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks() -> Tasks {
        Tasks::new(Handle::current())
    }

    #[tokio::test]
    async fn a_panic_is_handed_to_the_one_who_waits() {
        let tasks = tasks();
        let expected = |name: &str| TaskFailed::Panicked {
            name: name.to_owned(),
            message: String::from("boom 1"),
        };
        let number = 1;
        assert_eq!(
            tasks.spawn("a", async move { panic!("boom {number}") }).await,
            Err::<(), _>(expected("a"))
        );
        assert_eq!(
            tasks.blocking("b", move || panic!("boom {number}")).await,
            Err::<(), _>(expected("b"))
        );
        assert_eq!(
            observed("c", async move { panic!("boom {number}") }).await,
            Err::<(), _>(expected("c"))
        );
        assert_eq!(tasks.spawn("d", async { 4 }).await, Ok(4));
        tasks.thread("e", || panic!("boom")).unwrap().join().unwrap();
    }

    #[tokio::test]
    async fn an_aborted_task_says_so() {
        let handle = tasks().spawn("a", std::future::pending::<()>());
        handle.abort();
        assert_eq!(
            handle.await,
            Err(TaskFailed::Stopped {
                name: String::from("a")
            })
        );
    }

    #[tokio::test(start_paused = true)]
    async fn draining_asks_all_to_stop_and_says_whether_they_did() {
        let tasks = tasks();
        let stopping = tasks.stopping().clone();
        drop(tasks.spawn("polite", async move { stopping.cancelled().await }));
        assert!(tasks.drain(Duration::from_secs(1)).await);
        drop(tasks.spawn("stubborn", std::future::pending::<()>()));
        assert!(!tasks.drain(Duration::from_secs(1)).await);
    }
}
