//! Where a serving worker's own lines go: errors and warnings to standard error, the rest to standard output. The
//! daemon reads both, forwards them to its log, and decides what is shown.

use tracing::Level;
use tracing_subscriber::fmt::writer::MakeWriterExt as _;

/// Starts the log of this process.
pub(crate) fn start() {
    let severe = std::io::stderr.with_max_level(Level::WARN);
    let rest = std::io::stdout.with_min_level(Level::INFO).with_max_level(Level::DEBUG);
    let lines = tracing_subscriber::fmt()
        .with_writer(severe.and(rest))
        .without_time()
        .with_ansi(false)
        .with_max_level(Level::INFO);
    // A second start in one process keeps the first.
    let _ = lines.try_init();
}
