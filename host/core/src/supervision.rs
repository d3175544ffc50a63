//! Judging a worker process: is its exchange alive, may it be started again, is a model quarantined.
//!
//! State: a [`exchange::Watch`] is one exchange's windows, a [`crash::CrashBudget`] one lane's deaths. The daemon's
//! worker room owns both and carries out their verdicts. Not known here: processes, sockets, clocks; time is an
//! argument.

pub mod crash;
pub mod exchange;
pub mod forward;
