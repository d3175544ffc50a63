//! The conformance kit: whether a plugin keeps the contract, rule by rule.
//!
//! State: none beyond one run's temporary folder. Callers: `cargo synapse check`, and the tests of this repository. Not
//! known here: the daemon, models of any family, how a bundle is built, who trusts it.
//!
//! Every check has an id, one sentence, the reason and the remedy ([`catalogue()`], [`explain`]). It runs in a process of
//! its own with a time limit, so a plugin that crashes or hangs costs one line of the report. The processes are those of
//! the *runner*: a program whose `main` calls [`hidden`] before it reads its own arguments.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! fn main() -> ExitCode {
//!     if let Some(code) = synapse_conformance::hidden() {
//!         return code;
//!     }
//!     let runner = std::env::current_exe().expect("a program has a path");
//!     let options = synapse_conformance::Options::new("target/bundle/demo", runner);
//!     match synapse_conformance::run(&options, &|_| {}) {
//!         Ok(report) if report.passed() => ExitCode::SUCCESS,
//!         _ => ExitCode::FAILURE,
//!     }
//! }
//! ```
//!
//! | question | file |
//! |---|---|
//! | what is a check, which are there | `catalogue.rs` |
//! | which models are loaded, which tests are the author's own | `subject.rs` |
//! | how is a bundle judged, how are processes started | `run.rs` |
//! | what happens inside such a process | `child.rs`, `bench.rs` |
//! | the host that a plugin sees, and what it notes | `host.rs`, `call.rs`, `sys.rs` |
//! | the checks that read the loader's verdict | `package.rs` |
//! | the checks that call the library | `check/` |
//! | the checks that speak the worker protocol | `protocol/` |
//! | drawn calls, batch by batch | `fuzz/` |
//! | what comes out | `report.rs`, `json.rs`, `junit.rs` |

#![deny(unsafe_code)]

mod bench;
mod call;
mod catalogue;
mod check;
mod child;
pub mod fuzz;
mod host;
mod json;
mod junit;
mod package;
mod process;
mod protocol;
mod report;
mod run;
mod subject;
#[expect(
    unsafe_code,
    reason = "function tables and memory cross the ABI here, and nowhere else in this crate"
)]
mod sys;

pub use catalogue::{Check, Group, Level, Outcome, catalogue, explain, find};
pub use child::hidden;
pub use report::{Line, Report};
pub use run::{Error, Options, run, selected};
