//! The words between the scheduler and its caller: what is offered, what is refused and why, what to do next.
//!
//! State: none. Callers: the scheduler and the daemon's executor. Not known here: any order.

use super::tick::Tick;
use crate::engine::Preempt;

/// A queue class (SCHED-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Someone waits for the answer: queries and small batches.
    Interactive,
    /// Throughput work, one quantum at a time.
    Bulk,
    /// Loads, unloads and probes of this lane's model.
    Control,
}

/// By what the calls of a lane are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By class, deadline and served time: the rules of the module's header.
    #[default]
    Fair,
    /// By arrival alone, whatever the class, and a flow keeps the place of its own arrival: a plain queue, to measure
    /// the rules against. Nothing is held, refused by prediction, or kept free. Benchmarks only.
    Arrival,
}

/// What the whole daemon goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The order of calls.
    pub order: Order,
    /// Compute permits of the daemon, over all lanes and workers: threads that compute at once. At least 1.
    pub permits: u32,
    /// Units of work (tokens) of a quantum before any was measured.
    pub first_quantum: u64,
    /// Nanoseconds of measured work that a quantum aims at (100 to 300 ms, SCHED-04).
    pub quantum_nanos: u64,
    /// Nanoseconds of measured work that a quantum aims at where it cannot give way and queries came of late: a query
    /// may have to wait for its end.
    pub brief_quantum_nanos: u64,
    /// The least share of a lane's time, in percent, that waiting bulk work gets whatever the queries (SCHED-06).
    pub bulk_share: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            order: Order::Fair,
            permits: 1,
            first_quantum: 3_072,
            quantum_nanos: 200_000_000,
            brief_quantum_nanos: 100_000_000,
            bulk_share: 20,
        }
    }
}

impl Policy {
    /// How long a lane may withhold its turn from bulk work at most, in nanoseconds: with a quantum of 200 ms and a
    /// share of 20 percent 800 ms, within the second of OQ-12.
    #[must_use]
    pub const fn patience(&self) -> u64 {
        self.quantum_nanos.saturating_mul(self.withheld_per_work())
    }

    /// What a flow may be behind the others when it comes back, in nanoseconds of compute: two quanta on all permits. As
    /// much as calls that come one at a time fall behind by the gaps between them; a job that pauses claims no more.
    #[must_use]
    pub const fn claim(&self) -> u64 {
        let permits = if self.permits == 0 { 1 } else { self.permits as u64 };
        self.quantum_nanos.saturating_mul(2).saturating_mul(permits)
    }

    /// Nanoseconds for which bulk work may be withheld for each nanosecond that it worked.
    #[must_use]
    pub const fn withheld_per_work(&self) -> u64 {
        let share = match self.bulk_share {
            0 => 1,
            share if share > 100 => 100,
            share => share as u64,
        };
        (100 - share) / share
    }
}

/// The bounds of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneLimits {
    /// Calls that may run at once (the loaded model's `max_concurrency`), at least 1.
    pub slots: u32,
    /// Compute permits of one call: the threads that it may use. At least 1.
    pub threads: u32,
    /// How a bulk call gives way to an interactive one.
    pub preempt: Preempt,
    /// Interactive calls that may wait.
    pub interactive_depth: usize,
    /// Bulk calls that may wait.
    pub bulk_depth: usize,
    /// Control calls that may wait.
    pub control_depth: usize,
    /// Bytes over queued inputs, running calls and results that wait for their readers (SCHED-13).
    pub bytes: u64,
}

impl Default for LaneLimits {
    fn default() -> Self {
        Self {
            slots: 1,
            threads: 1,
            preempt: Preempt::Quantum,
            interactive_depth: 256,
            bulk_depth: 256,
            control_depth: 16,
            bytes: 512 << 20,
        }
    }
}

/// A call offered to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its class.
    pub class: Class,
    /// The last moment at which it may start: receipt + `max_queue_ms`, never after `deadline`.
    pub start_by: Tick,
    /// The end of its caller's interest.
    pub deadline: Tick,
    /// Bytes that it holds until its result is gone: ids, output and the engine's share.
    pub bytes: u64,
    /// Units of work (tokens) of the whole call.
    pub units: u64,
    /// The flow that it belongs to; a bulk call of none is a flow of weight 1 by itself.
    pub flow: Option<FlowId>,
}

/// A flow's number: bulk calls that are served as one, such as those of a job. Never used twice by one scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

/// A lane's number: never used twice by one scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u64);

/// A call's number: ascending in order of admission over all lanes, never used twice by one scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Why an offer was not admitted. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// As many calls of the class wait as may.
    #[error("{limit} calls of this class already wait on the lane; retry when some have finished")]
    Depth {
        /// The bound.
        limit: usize,
    },
    /// The lane's byte budget has no room.
    #[error("the call needs {asked} bytes, the lane has {free} of {limit} free; retry when others have finished")]
    Bytes {
        /// Bytes of the offer.
        asked: u64,
        /// Bytes free now.
        free: u64,
        /// The bound.
        limit: u64,
    },
    /// The call could not even run alone.
    #[error("the call needs {asked} bytes, more than the lane's whole budget of {limit}; send less at a time")]
    NeverFits {
        /// Bytes of the offer.
        asked: u64,
        /// The bound.
        limit: u64,
    },
    /// `start_by` has passed.
    #[error("the call's time to start had passed before it reached the lane")]
    Late,
    /// By its measured speed the lane cannot start the call in time.
    #[error(
        "the work ahead takes about {expected_ms} ms, longer than the call may wait; retry later or allow a longer \
         max_queue_ms"
    )]
    TooBusy {
        /// Milliseconds until the call could start.
        expected_ms: u64,
    },
    /// The lane is closed, or was never open.
    #[error("the lane is closed")]
    Closed,
}

/// A refused offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refusal {
    /// The bound.
    pub why: NotAdmitted,
    /// Milliseconds after which the same offer should find room, by the lane's measured speed.
    pub retry_after_ms: u64,
}

/// What the executor does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Start this call, or its next quantum, on this lane now.
    Start(LaneId, Ticket),
    /// Refuse this call: its `start_by` has passed. It is gone from the lane.
    Reject(LaneId, Ticket),
    /// Nothing to do before an offer, a finish or, if given, this moment.
    Wait(Option<Tick>),
}

/// What a bulk call does at its checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtCheckpoint {
    /// It goes on.
    Go,
    /// It is held. Ask again at this moment at the latest, and whenever interactive work has ended.
    Hold(Tick),
}

/// What an engine call was, once it returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Worked {
    /// Units of work (tokens) that it did; 0 when it failed.
    pub units: u64,
    /// Nanoseconds in the engine, time held at checkpoints excluded.
    pub nanos: u64,
}

/// What a withdrawal met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// The call waited and is gone.
    Waiting,
    /// The call runs: cancel it through its context, and finish it when it has returned.
    Running,
    /// No such call: it finished, was rejected or withdrawn before.
    Unknown,
}

/// A lane's load at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneLoad {
    /// Interactive calls waiting.
    pub interactive_waiting: usize,
    /// Bulk calls waiting.
    pub bulk_waiting: usize,
    /// Control calls waiting.
    pub control_waiting: usize,
    /// Interactive calls running.
    pub interactive_running: usize,
    /// Bulk calls running, those that are held included.
    pub bulk_running: usize,
    /// Control calls running.
    pub control_running: usize,
    /// Bytes over waiting and running calls and results that wait for their readers.
    pub bytes: u64,
}

impl LaneLoad {
    /// Calls running, of any class.
    #[must_use]
    pub const fn running(&self) -> usize {
        self.interactive_running + self.bulk_running + self.control_running
    }
}

/// How a lane does, of late and now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneStatus {
    /// Its load.
    pub load: LaneLoad,
    /// Its bounds.
    pub limits: LaneLimits,
    /// No call of the last minute came too late for its start, nor was refused because it would have.
    pub meeting_deadlines: bool,
    /// The median wait of interactive calls for their start, in nanoseconds, over the last minute and at most 64 of
    /// them; `None` where there was none.
    pub start_delay_nanos: Option<u64>,
    /// Units of work (tokens) of the next bulk quantum.
    pub quantum_units: u64,
    /// Units of work (tokens) a second in bulk calls, where it was measured.
    pub units_per_second: Option<u64>,
    /// How long the last bulk quanta took, where there were any.
    pub quantum_times: Option<QuantumTimes>,
}

/// How long the last bulk quanta of a lane took in the engine, time held at checkpoints excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantumTimes {
    /// The median, in nanoseconds: the lower one of two.
    pub p50_nanos: u64,
    /// 95 percent took no longer, in nanoseconds.
    pub p95_nanos: u64,
    /// How many they are, at most 128.
    pub count: usize,
}

/// The pool of compute permits at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitsLoad {
    /// Permits that there are.
    pub pool: u64,
    /// Held by bulk calls, those that are held at a checkpoint included.
    pub bulk: u64,
    /// Held by interactive and control calls; they may overdraw the pool.
    pub others: u64,
}
