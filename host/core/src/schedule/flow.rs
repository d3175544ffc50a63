//! Flows: bulk calls that are served as one, such as those of a job, with the time that they were given so far.
//!
//! State: [`Flows`], owned by the scheduler. A flow outlives its calls, so a job that comes quantum by quantum is charged
//! for all of them. Not known here: the calls, their order on a lane.

use std::collections::BTreeMap;

use super::call::FlowId;

/// The flows that are open.
#[derive(Debug, Default)]
pub(super) struct Flows {
    open: BTreeMap<FlowId, Standing>,
    opened: u64,
}

/// What a call takes from its flow when it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) weight: u32,
    /// Nanoseconds of compute that were given, times the threads, over the weight, counted from where the field stood
    /// when the flow came.
    pub(super) virtual_time: u64,
    /// The place in order of arrival.
    pub(super) arrival: u64,
}

impl Flows {
    /// Opens a flow that begins where the field stands. A weight of 0 counts as 1.
    pub(super) fn open(&mut self, weight: u32, field: u64, arrival: u64) -> FlowId {
        let id = FlowId(self.opened);
        self.opened += 1;
        let standing = Standing {
            weight: weight.max(1),
            virtual_time: field,
            arrival,
        };
        self.open.insert(id, standing);
        id
    }

    pub(super) fn close(&mut self, id: FlowId) {
        self.open.remove(&id);
    }

    /// Where a new call stands. One without a flow is a flow of weight 1 by itself, and begins where the field stands. A
    /// flow goes on where it was, at most `claim` behind the field: one that was away for long saves up no more.
    pub(super) fn standing(&mut self, id: Option<FlowId>, field: u64, claim: u64, arrival: u64) -> Standing {
        let Some(flow) = id.and_then(|id| self.open.get_mut(&id)) else {
            return Standing {
                weight: 1,
                virtual_time: field,
                arrival,
            };
        };
        flow.virtual_time = flow.virtual_time.max(field.saturating_sub(claim));
        *flow
    }

    /// Charges a call with nanoseconds of compute, and its flow with it.
    pub(super) fn charge(&mut self, id: Option<FlowId>, call: &mut Standing, compute: u64) {
        let charge = compute / u64::from(call.weight);
        call.virtual_time = call.virtual_time.saturating_add(charge);
        if let Some(flow) = id.and_then(|id| self.open.get_mut(&id)) {
            flow.virtual_time = flow.virtual_time.saturating_add(charge);
            call.virtual_time = flow.virtual_time;
        }
    }
}
