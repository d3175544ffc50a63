//! One exchange with a worker: when its silence or its length becomes a transport fault.
//!
//! 1. An exchange has a phase, setup or inference, and each phase its own silence budget (WSUP-06).
//! 2. Only progress of this exchange, of this phase, strictly larger than before and at least 1 renews the silence
//!    window; any other progress is a protocol fault (WSUP-04, WSUP-05).
//! 3. `total` is fixed at the first report, and `completed` never exceeds it.
//! 4. Bytes that arrive do not renew the window: a frame that is dripped in runs into it (WSUP-08).
//! 5. A ceiling ends even an exchange that progresses (WSUP-07). The caller's deadline is none of this page's business:
//!    it never makes a fault (WSUP-09).

use crate::schedule::Tick;

/// What an exchange does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Loading a model.
    Setup,
    /// Computing.
    Inference,
}

/// The budgets of one exchange, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Silence that a setup exchange may keep.
    pub setup_silence: u64,
    /// Silence that an inference exchange may keep.
    pub inference_silence: u64,
    /// The whole length of any exchange.
    pub ceiling: u64,
}

impl Default for Budgets {
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        Self {
            setup_silence: 120 * SECOND,
            inference_silence: 30 * SECOND,
            ceiling: 600 * SECOND,
        }
    }
}

/// A progress report as it came over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The exchange that it names.
    pub req_id: u64,
    /// What it counts.
    pub phase: Phase,
    /// Completed units.
    pub completed: u64,
    /// All units, where the worker knows.
    pub total: Option<u64>,
}

/// A report that breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgressFault {
    /// It names another exchange.
    #[error("progress for exchange {found}, {expected} is running")]
    WrongExchange {
        /// The running exchange.
        expected: u64,
        /// The named one.
        found: u64,
    },
    /// It counts another phase.
    #[error("progress of phase {found:?} in a {expected:?} exchange")]
    WrongPhase {
        /// The running phase.
        expected: Phase,
        /// The named one.
        found: Phase,
    },
    /// It does not go beyond the last one: a heartbeat, a repetition, or zero.
    #[error("progress {found} does not advance beyond {last}")]
    NotAdvancing {
        /// The last valid count.
        last: u64,
        /// The reported one.
        found: u64,
    },
    /// The total changed, or was passed.
    #[error("progress {completed} of {total:?} contradicts the total of the first report, {first:?}")]
    TotalChanged {
        /// The total of the first report.
        first: Option<u64>,
        /// The reported total.
        total: Option<u64>,
        /// The reported count.
        completed: u64,
    },
}

/// Why an exchange is given up. Each is a transport fault of the worker's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Expired {
    /// No valid progress for the phase's budget.
    #[error("silent for {silent_ms} ms, at most {budget_ms} ms are allowed in this phase")]
    Silence {
        /// Milliseconds since the last sign of work.
        silent_ms: u64,
        /// The phase's budget.
        budget_ms: u64,
    },
    /// The exchange is longer than any may be.
    #[error("running for {ran_ms} ms, at most {ceiling_ms} ms are allowed for an exchange")]
    Ceiling {
        /// Milliseconds since it began.
        ran_ms: u64,
        /// The ceiling.
        ceiling_ms: u64,
    },
}

/// One exchange under watch.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    req_id: u64,
    phase: Phase,
    budgets: Budgets,
    began: Tick,
    last_work: Tick,
    completed: u64,
    total: Option<u64>,
}

impl Watch {
    /// Starts the watch when the request has been written.
    #[must_use]
    pub const fn begin(req_id: u64, phase: Phase, budgets: Budgets, now: Tick) -> Self {
        Self {
            req_id,
            phase,
            budgets,
            began: now,
            last_work: now,
            completed: 0,
            total: None,
        }
    }

    const fn silence(&self) -> u64 {
        match self.phase {
            Phase::Setup => self.budgets.setup_silence,
            Phase::Inference => self.budgets.inference_silence,
        }
    }

    /// The moment at which the exchange expires unless it progresses.
    #[must_use]
    pub fn expires_at(&self) -> Tick {
        self.last_work
            .after(self.silence())
            .min(self.began.after(self.budgets.ceiling))
    }

    /// Whether the exchange has expired.
    #[must_use]
    pub fn expired(&self, now: Tick) -> Option<Expired> {
        const MILLI: u64 = 1_000_000;
        let (ran, silent) = (now.since(self.began), now.since(self.last_work));
        if ran >= self.budgets.ceiling {
            return Some(Expired::Ceiling {
                ran_ms: ran / MILLI,
                ceiling_ms: self.budgets.ceiling / MILLI,
            });
        }
        (silent >= self.silence()).then(|| Expired::Silence {
            silent_ms: silent / MILLI,
            budget_ms: self.silence() / MILLI,
        })
    }

    /// Takes a progress report; a valid one renews the silence window.
    ///
    /// # Errors
    /// [`ProgressFault`]; the window is then as it was.
    pub fn progress(&mut self, report: Report, now: Tick) -> Result<(), ProgressFault> {
        let Report {
            req_id,
            phase,
            completed,
            total,
        } = report;
        if req_id != self.req_id {
            return Err(ProgressFault::WrongExchange {
                expected: self.req_id,
                found: req_id,
            });
        }
        if phase != self.phase {
            return Err(ProgressFault::WrongPhase {
                expected: self.phase,
                found: phase,
            });
        }
        if completed <= self.completed {
            return Err(ProgressFault::NotAdvancing {
                last: self.completed,
                found: completed,
            });
        }
        let first_report = self.completed == 0;
        if (!first_report && total != self.total) || total.is_some_and(|total| completed > total) {
            return Err(ProgressFault::TotalChanged {
                first: self.total,
                total,
                completed,
            });
        }
        self.completed = completed;
        self.total = total;
        self.last_work = now;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const BUDGETS: Budgets = Budgets {
        setup_silence: 100 * MS,
        inference_silence: 30 * MS,
        ceiling: 200 * MS,
    };

    fn report(completed: u64) -> Report {
        Report {
            req_id: 7,
            phase: Phase::Inference,
            completed,
            total: Some(50),
        }
    }

    /// Setup may be silent for longer than inference may.
    ///
    /// Proves WSUP-06.
    #[test]
    fn each_phase_has_its_own_silence_budget() {
        let setup = Watch::begin(7, Phase::Setup, BUDGETS, Tick(0));
        let inference = Watch::begin(7, Phase::Inference, BUDGETS, Tick(0));
        assert_eq!(setup.expired(Tick(31 * MS)), None);
        assert_eq!(inference.expired(Tick(29 * MS)), None);
        assert_eq!(
            inference.expired(Tick(31 * MS)),
            Some(Expired::Silence {
                silent_ms: 31,
                budget_ms: 30
            })
        );
        assert_eq!(
            setup.expired(Tick(100 * MS)),
            Some(Expired::Silence {
                silent_ms: 100,
                budget_ms: 100
            })
        );
    }

    /// Proves TEST-10, WSUP-04, WSUP-07.
    #[test]
    fn validated_progress_renews_silence_window_not_total_budget() {
        let mut watch = Watch::begin(7, Phase::Inference, BUDGETS, Tick(0));
        for step in 1..=9 {
            let now = Tick(step * 20 * MS);
            assert_eq!(watch.expired(now), None);
            watch.progress(report(step), now).unwrap();
        }
        assert_eq!(watch.expires_at(), Tick(200 * MS));
        assert_eq!(watch.expired(Tick(199 * MS)), None);
        assert_eq!(
            watch.expired(Tick(200 * MS)),
            Some(Expired::Ceiling {
                ran_ms: 200,
                ceiling_ms: 200
            })
        );
    }

    /// Proves TEST-11, WSUP-05, WPROTO-28.
    #[test]
    fn stale_duplicate_zero_or_invalid_phase_progress_is_a_protocol_fault() {
        let mut watch = Watch::begin(7, Phase::Inference, BUDGETS, Tick(0));
        assert_eq!(
            watch.progress(report(0), Tick(1)),
            Err(ProgressFault::NotAdvancing { last: 0, found: 0 })
        );
        watch.progress(report(5), Tick(MS)).unwrap();
        let before = watch.expires_at();
        for (bad, fault) in [
            (report(5), ProgressFault::NotAdvancing { last: 5, found: 5 }),
            (report(4), ProgressFault::NotAdvancing { last: 5, found: 4 }),
            (
                Report { req_id: 6, ..report(9) },
                ProgressFault::WrongExchange { expected: 7, found: 6 },
            ),
            (
                Report {
                    phase: Phase::Setup,
                    ..report(9)
                },
                ProgressFault::WrongPhase {
                    expected: Phase::Inference,
                    found: Phase::Setup,
                },
            ),
            (
                Report {
                    total: Some(51),
                    ..report(9)
                },
                ProgressFault::TotalChanged {
                    first: Some(50),
                    total: Some(51),
                    completed: 9,
                },
            ),
            (
                report(51),
                ProgressFault::TotalChanged {
                    first: Some(50),
                    total: Some(50),
                    completed: 51,
                },
            ),
        ] {
            assert_eq!(watch.progress(bad, Tick(20 * MS)), Err(fault));
            assert_eq!(watch.expires_at(), before, "a fault must not renew the window");
        }
    }
}
