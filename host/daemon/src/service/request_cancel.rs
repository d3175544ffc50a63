//! `request.cancel`: cancels a request of the same connection, by the id that the client gave it.
//!
//! State: none; the requests in flight are the connection's. Callers: `rpc/connection.rs` itself, because no other
//! place knows them. Not known here: what the request does; it sees its token and answers `cancelled`, or its result
//! when it was done already.

use synapse_wire::client::{RequestCancelParams, RequestCancelResult};

use crate::rpc::limits::InFlight;

/// Cancels the request, when it is in flight. Never disturbs another.
#[must_use]
pub fn run(in_flight: &InFlight, params: &RequestCancelParams) -> RequestCancelResult {
    RequestCancelResult {
        found: in_flight.cancel(&params.id),
    }
}
