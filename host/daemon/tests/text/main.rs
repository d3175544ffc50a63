//! The text module against other implementations, and against hostile files.
//!
//! State: none. One binary for all, because linking costs more than running.

mod chat;
mod hostile;
mod oracle;
mod pair;
mod prompt;
mod support;
mod vocabulary;
