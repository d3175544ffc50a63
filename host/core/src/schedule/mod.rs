//! The order of work in the daemon: which call starts next, which is refused, and when to look again (SCHED-01..17).
//!
//! State: a [`Scheduler`] is the whole daemon's lanes, calls and compute permits; the daemon's executor owns it behind
//! a lock, feeds it and carries out its [`Step`]s. Not known here: threads, engines, clocks; time is the argument
//! `now`.
//!
//! The rules, each proven by the simulation in `tests/schedule`, which breaks when the rule does:
//! 1. A call starts no later than its `start_by`, or it is rejected; it never waits for its deadline. Where the lane's
//!    measured speed says that it cannot start in time, it is refused when it is offered (SCHED-03).
//! 2. Interactive calls start in order of deadline, and before bulk (SCHED-02, SCHED-05).
//! 3. Bulk work shares the daemon's time by weight, measured in compute, and a call that waits ages past those that
//!    come later (SCHED-06). The calls of one job are one flow: the time that they were given counts on from call to
//!    call. A call is given one quantum at a time: about 200 ms of measured work, 100 ms where it cannot give way to the
//!    queries that come (SCHED-04).
//! 4. Interactive work may withhold a lane from its bulk work for 800 ms, and for 4 ns for each ns that bulk works:
//!    then bulk is due, and its turn comes before that of a query. So bulk keeps a fifth of the time (OQ-12).
//! 5. While interactive work is there, on any lane, a running bulk call is held at its checkpoints, within rule 4;
//!    where the engine shares, it runs beside; where it can do neither, the query waits for the end of the quantum.
//! 6. Where a lane runs several calls at once, bulk leaves one slot to interactive calls.
//! 7. Control (load, unload, probe) starts when nothing runs on its lane, before everything else, and alone
//!    (SCHED-07, SCHED-09).
//! 8. All lanes draw from one pool of compute permits. Bulk takes what is free and never overdraws; a query always
//!    starts, and overdraws. The bulk call whose turn it is waits for its permits, and no other bulk call passes it.
//! 9. Depth per class is bounded, and so are the bytes over queued inputs, running calls and results that wait for
//!    their readers; a guard holds each call's bytes, and a refusal says when to come back (SCHED-13).
//! 10. An item that is larger than a quantum runs alone.

mod budget;
mod call;
mod flow;
mod lane;
mod packing;
mod permits;
mod scheduler;
mod speed;
mod starts;
mod tick;

pub use self::budget::{Budget, Reservation};
pub use self::call::{
    AtCheckpoint, Call, Class, FlowId, LaneId, LaneLimits, LaneLoad, LaneStatus, NotAdmitted, Order, PermitsLoad,
    Policy, QuantumTimes, Refusal, Step, Ticket, Withdrawn, Worked,
};
pub use self::packing::{Packing, QuantumBounds, cut};
pub use self::scheduler::Scheduler;
pub use self::tick::Tick;
