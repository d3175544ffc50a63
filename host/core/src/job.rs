//! The states of a job and the events that move it (JOB-03).
//!
//! State: none here; the daemon's registry holds one [`JobState`] per job and asks [`JobState::on`] for the next.
//! Every slow operation has this one shape. A terminal state is never left.

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobState {
    /// Its input is still being appended.
    Open,
    /// Accepted, not started.
    Queued,
    /// At work.
    Running,
    /// Finished with a result.
    Done,
    /// Failed; the same request would fail again.
    FailedPermanent,
    /// Failed; the same request may succeed later.
    FailedTransient,
    /// Ended by its caller.
    Cancelled,
}

/// What happens to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobEvent {
    /// Its input is complete.
    Seal,
    /// Its turn has come.
    Start,
    /// The work is complete.
    Finish,
    /// The work failed for good.
    FailPermanent,
    /// The work failed for now.
    FailTransient,
    /// Its caller ends it. Asking again, or too late, changes nothing and is no error.
    Cancel,
    /// The daemon started anew (JOB-04): what was accepted and had not ended ends as `failed_transient`; an open job
    /// stays open.
    Restart,
}

/// An event that the state does not allow: a bug of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {} cannot take {event:?}", state.name())]
pub struct IllegalEvent {
    /// The state.
    pub state: JobState,
    /// The event.
    pub event: JobEvent,
}

impl JobState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Open,
        Self::Queued,
        Self::Running,
        Self::Done,
        Self::FailedPermanent,
        Self::FailedTransient,
        Self::Cancelled,
    ];

    /// The state's name on the wire, in logs and in the database.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::FailedPermanent => "failed_permanent",
            Self::FailedTransient => "failed_transient",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing will change it any more.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        !matches!(self, Self::Open | Self::Queued | Self::Running)
    }

    /// The state after `event`.
    ///
    /// # Errors
    /// [`IllegalEvent`] for what the table does not hold.
    pub const fn on(self, event: JobEvent) -> Result<Self, IllegalEvent> {
        match (self, event) {
            (Self::Open, JobEvent::Seal) => Ok(Self::Queued),
            (Self::Open, JobEvent::Cancel) => Ok(Self::Cancelled),
            (Self::Open, JobEvent::Restart) => Ok(Self::Open),
            (Self::Queued, JobEvent::Start) => Ok(Self::Running),
            (Self::Running, JobEvent::Finish) => Ok(Self::Done),
            // A job can fail before its turn: its queue closes, its input proves unusable.
            (Self::Queued | Self::Running, JobEvent::FailPermanent) => Ok(Self::FailedPermanent),
            (Self::Queued | Self::Running, JobEvent::FailTransient | JobEvent::Restart) => Ok(Self::FailedTransient),
            (Self::Queued | Self::Running, JobEvent::Cancel) => Ok(Self::Cancelled),
            (terminal, JobEvent::Cancel | JobEvent::Restart) if terminal.is_terminal() => Ok(terminal),
            (state, event) => Err(IllegalEvent { state, event }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [JobEvent; 7] = [
        JobEvent::Seal,
        JobEvent::Start,
        JobEvent::Finish,
        JobEvent::FailPermanent,
        JobEvent::FailTransient,
        JobEvent::Cancel,
        JobEvent::Restart,
    ];

    /// Proves JOB-03. The whole table; a dash is an illegal event. Columns as in [`EVENTS`].
    #[test]
    fn transition_table() {
        let table = [
            ("open", "queued - - - - cancelled open"),
            (
                "queued",
                "- running - failed_permanent failed_transient cancelled failed_transient",
            ),
            (
                "running",
                "- - done failed_permanent failed_transient cancelled failed_transient",
            ),
            ("done", "- - - - - done done"),
            ("failed_permanent", "- - - - - failed_permanent failed_permanent"),
            ("failed_transient", "- - - - - failed_transient failed_transient"),
            ("cancelled", "- - - - - cancelled cancelled"),
        ];
        for (state, (name, row)) in JobState::ALL.into_iter().zip(table) {
            assert_eq!(state.name(), name);
            for (event, expected) in EVENTS.into_iter().zip(row.split(' ')) {
                let found = state.on(event).map_or("-", JobState::name);
                assert_eq!(found, expected, "{name} on {event:?}");
            }
            let left = EVENTS
                .into_iter()
                .any(|event| state.on(event).is_ok_and(|next| next != state));
            assert_eq!(
                left,
                !state.is_terminal(),
                "{name}: terminal states are never left, others can be"
            );
        }
    }
}
