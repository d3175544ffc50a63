//! Certification: what a lane has to show on this machine before its vectors are served (CERT-01..20, FPR-04, FPR-05).
//!
//! State: none kept; a [`Plan`] is a value that one probe owns. Callers: the daemon's probe drives a plan and stores its
//! [`Verdict`]; the alias table asks [`alias_gate`]. The only I/O is [`machine`] reading the system's own files. Not
//! known here: engines, tokenizers, clocks, the store, sockets. A plan says what to compute, the daemon computes it.
//!
//! | question | file |
//! |---|---|
//! | which machine is this, and has it changed | `machine/` |
//! | which texts are tried | `corpus.rs` |
//! | what should come out, by another implementation | `references.rs` |
//! | what is asked of the engine, one call at a time | `plan/` |
//! | which figures decide, and which bounds they have | `gate.rs`, `figures.rs` |
//! | what is stored of a probe | `verdict.rs` |
//! | may two lanes' vectors stand in one index | `alias.rs` |
//! | did a compiled engine run where it says | `inventory.rs` |
//!
//! The protocol of a probe:
//! 1. [`Plan::new`] from a [`Subject`]: the record, the row, what the engine declares, the references if there are any.
//! 2. [`Plan::next`] gives a [`Step`], one engine call; the daemon runs it as control-class work.
//! 3. [`Plan::answer`] takes what came back, an engine's failure included. Answers may ask for further steps.
//! 4. When `next` gives nothing, [`Plan::finish`] weighs everything into a [`Verdict`]. An unfinished plan finishes too:
//!    what was not run is not passed.

#![forbid(unsafe_code)]

mod alias;
mod corpus;
mod figures;
mod gate;
mod inventory;
pub mod machine;
pub mod plan;
mod references;
mod subject;
mod verdict;

pub use alias::{KeptVectors, alias_gate};
pub use corpus::{Corpus, RerankSet};
pub use gate::{Bound, Figure, Gate, GateResult, Outcome};
pub use inventory::{WorkerObservation, inventory_gate};
pub use plan::{Latencies, Observation, PairItem, Plan, PlanError, Repeated, Step, StepId, StepOutput, TextItem, Work};
pub use references::{BadReferences, ReferenceValues, References};
pub use subject::{Depth, Options, Subject};
pub use verdict::{Level, PerfRow, ShapeClass, ShapeFigure, Verdict, Workload};
