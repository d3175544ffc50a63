//! The states of a lane and the events that move it (SCHED-07).
//!
//! State: none here; each [`super::Lane`] holds one [`LaneState`] and asks [`LaneState::on`] for the next. Does not
//! know what a load does.

/// Where a lane stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaneState {
    /// The model is not in memory; a request starts its load.
    Idle,
    /// The model is being loaded.
    Loading,
    /// The model is in memory and serves.
    Ready,
    /// The model is leaving: what runs is finished, nothing new is taken.
    Unloading,
    /// The last load failed. Only an explicit load tries again (ERR-06).
    Failed,
}

/// What happens to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaneEvent {
    /// A load has its turn.
    LoadBegins,
    /// The model is in memory.
    LoadDone,
    /// The load failed for good.
    LoadFailed,
    /// The load was cancelled, or failed for a reason that may pass.
    LoadDropped,
    /// An unload has its turn.
    UnloadBegins,
    /// The model has left.
    UnloadDone,
}

impl LaneState {
    /// Every state.
    pub const ALL: [Self; 5] = [Self::Idle, Self::Loading, Self::Ready, Self::Unloading, Self::Failed];

    /// The state after `event`; `None` where the event cannot happen.
    #[must_use]
    pub const fn on(self, event: LaneEvent) -> Option<Self> {
        match (self, event) {
            (Self::Idle | Self::Failed, LaneEvent::LoadBegins) => Some(Self::Loading),
            (Self::Loading, LaneEvent::LoadDone) => Some(Self::Ready),
            (Self::Loading, LaneEvent::LoadFailed) => Some(Self::Failed),
            (Self::Loading, LaneEvent::LoadDropped) => Some(Self::Idle),
            (Self::Ready, LaneEvent::UnloadBegins) => Some(Self::Unloading),
            (Self::Unloading, LaneEvent::UnloadDone) => Some(Self::Idle),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LaneEvent as E;
    use super::LaneState as S;

    /// Proves SCHED-07.
    #[test]
    fn every_pair_of_state_and_event() {
        let events = [
            E::LoadBegins,
            E::LoadDone,
            E::LoadFailed,
            E::LoadDropped,
            E::UnloadBegins,
            E::UnloadDone,
        ];
        let legal = [
            (S::Idle, E::LoadBegins, S::Loading),
            (S::Failed, E::LoadBegins, S::Loading),
            (S::Loading, E::LoadDone, S::Ready),
            (S::Loading, E::LoadFailed, S::Failed),
            (S::Loading, E::LoadDropped, S::Idle),
            (S::Ready, E::UnloadBegins, S::Unloading),
            (S::Unloading, E::UnloadDone, S::Idle),
        ];
        for state in S::ALL {
            for event in events {
                let expected = legal
                    .iter()
                    .find(|row| row.0 == state && row.1 == event)
                    .map(|row| row.2);
                assert_eq!(state.on(event), expected, "{state:?} on {event:?}");
            }
        }
    }
}
