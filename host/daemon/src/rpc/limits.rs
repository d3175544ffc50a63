//! How many requests may be in flight: of one connection, of one client process, and how many there are in all.
//!
//! State: the requests in flight by their ids, and a count per process. Callers: `connection` admits each request and
//! cancels by id. Not known here: what the requests do. An [`Admission`] gives everything back when it is dropped, so
//! no path can leak a slot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use synapse_wire::client::Id;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::error::ServiceError;

/// A client process, as the kernel names it.
pub type ProcessId = i32;

/// The count of slots over all connections, by client process.
#[derive(Debug)]
pub struct ProcessSlots {
    max: usize,
    taken: Mutex<HashMap<ProcessId, usize>>,
    /// Requests of every kind that have no answer yet, for the end of the daemon and the activity sample.
    in_flight: watch::Sender<usize>,
}

impl ProcessSlots {
    /// So many slots for each process.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            taken: Mutex::default(),
            in_flight: watch::channel(0).0,
        })
    }

    /// Requests in flight of all connections.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        *self.in_flight.borrow()
    }

    /// Waits until no request is in flight.
    pub async fn idle(&self) {
        let mut count = self.in_flight.subscribe();
        // The sender lives as long as `self`, so this ends only when the count is zero.
        let _ = count.wait_for(|count| *count == 0).await;
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<ProcessId, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, process: ProcessId) -> bool {
        let mut taken = self.taken();
        let count = taken.entry(process).or_insert(0);
        let free = *count < self.max;
        if free {
            *count += 1;
        } else if *count == 0 {
            taken.remove(&process);
        }
        free
    }

    fn give_back(&self, process: ProcessId) {
        let mut taken = self.taken();
        if let Some(count) = taken.get_mut(&process) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&process);
            }
        }
    }
}

/// The requests in flight of one connection.
#[derive(Debug)]
pub struct InFlight {
    max: usize,
    process: Option<ProcessId>,
    slots: Arc<ProcessSlots>,
    table: Mutex<Table>,
    count: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Table {
    requests: HashMap<Id, CancellationToken>,
    slots_taken: usize,
}

/// A request's place among those in flight. Dropping it frees its id and its slots.
#[derive(Debug)]
pub struct Admission {
    in_flight: Arc<InFlight>,
    id: Id,
    takes_slot: bool,
    /// Fires when the request is to stop.
    pub cancel: CancellationToken,
}

impl InFlight {
    /// At most `max` requests, of a client process that may be unknown.
    #[must_use]
    pub fn new(max: usize, process: Option<ProcessId>, slots: Arc<ProcessSlots>) -> Arc<Self> {
        Arc::new(Self {
            max,
            process,
            slots,
            table: Mutex::default(),
            count: watch::channel(0).0,
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up a request. Status operations take no slot (API-03).
    ///
    /// # Errors
    /// -32600 for an id that is in flight already, `queue_full` when no slot is free.
    pub fn admit(
        self: &Arc<Self>,
        id: Id,
        takes_slot: bool,
        parent: &CancellationToken,
    ) -> Result<Admission, ServiceError> {
        let mut table = self.table();
        if table.requests.contains_key(&id) {
            return Err(ServiceError::invalid_request(format!(
                "the id {id} belongs to a request of this connection that has no answer yet; choose another"
            )));
        }
        if takes_slot {
            if table.slots_taken >= self.max {
                return Err(full("connection.max_in_flight", self.max, "this connection"));
            }
            if let Some(process) = self.process
                && !self.slots.take(process)
            {
                return Err(full(
                    "connection.max_in_flight_per_process",
                    self.slots.max,
                    "this client process",
                ));
            }
            table.slots_taken += 1;
        }
        let cancel = parent.child_token();
        table.requests.insert(id.clone(), cancel.clone());
        self.count.send_replace(table.requests.len());
        self.slots.in_flight.send_modify(|count| *count += 1);
        Ok(Admission {
            in_flight: Arc::clone(self),
            id,
            takes_slot,
            cancel,
        })
    }

    /// Cancels the request with this id. False when none is in flight; the request's own answer still comes.
    #[must_use]
    pub fn cancel(&self, id: &Id) -> bool {
        let table = self.table();
        let found = table.requests.get(id);
        if let Some(token) = found {
            token.cancel();
        }
        found.is_some()
    }

    /// Waits until every request of this connection has its answer.
    pub async fn idle(&self) {
        let mut count = self.count.subscribe();
        // The sender lives as long as `self`, so this ends only when the count is zero.
        let _ = count.wait_for(|count| *count == 0).await;
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut table = self.in_flight.table();
        table.requests.remove(&self.id);
        if self.takes_slot {
            table.slots_taken -= 1;
            if let Some(process) = self.in_flight.process {
                self.in_flight.slots.give_back(process);
            }
        }
        self.in_flight.count.send_replace(table.requests.len());
        self.in_flight.slots.in_flight.send_modify(|count| *count -= 1);
    }
}

/// The refusal of one request too many.
fn full(limit: &'static str, max: usize, whose: &str) -> ServiceError {
    let message =
        format!("{max} requests of {whose} are in flight, as many as may be; try again when one has its answer");
    ServiceError::queue_full(message).detail(|detail| {
        detail.limit = Some(limit.to_owned());
        detail.maximum = u64::try_from(max).ok();
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(max: usize, process: Option<ProcessId>, slots: &Arc<ProcessSlots>) -> Arc<InFlight> {
        InFlight::new(max, process, Arc::clone(slots))
    }

    /// Proves API-03.
    #[test]
    fn slots_are_bounded_and_status_operations_are_free() {
        let slots = ProcessSlots::new(10);
        let one = connection(2, Some(1), &slots);
        let stop = CancellationToken::new();
        let first = one.admit(Id::Number(1), true, &stop).unwrap();
        let _second = one.admit(Id::Number(2), true, &stop).unwrap();
        let refused = one.admit(Id::Number(3), true, &stop).unwrap_err();
        assert_eq!(refused.code().as_str(), "queue_full");
        assert_eq!(
            refused.facts().unwrap().limit.as_deref(),
            Some("connection.max_in_flight")
        );
        let _status = one.admit(Id::Number(3), false, &stop).unwrap();
        assert_eq!(slots.in_flight(), 3);
        drop(first);
        assert!(one.admit(Id::Number(1), true, &stop).is_ok());
    }

    #[test]
    fn a_process_has_its_own_bound_over_all_its_connections() {
        let slots = ProcessSlots::new(2);
        let connections = [1, 1, 2].map(|process| connection(2, Some(process), &slots));
        let stop = CancellationToken::new();
        let held = connections[0].admit(Id::Number(1), true, &stop).unwrap();
        let _held = connections[1].admit(Id::Number(1), true, &stop).unwrap();
        let refused = connections[1].admit(Id::Number(2), true, &stop).unwrap_err();
        assert_eq!(
            refused.facts().unwrap().limit.as_deref(),
            Some("connection.max_in_flight_per_process")
        );
        assert!(
            connections[2].admit(Id::Number(1), true, &stop).is_ok(),
            "another process is not concerned"
        );
        assert!(connections[1].admit(Id::Number(2), false, &stop).is_ok());
        drop(held);
        assert!(connections[1].admit(Id::Number(2), true, &stop).is_ok());
        drop(_held);
        assert!(slots.taken().is_empty(), "a process without requests is not remembered");
    }

    #[test]
    fn an_id_in_flight_is_refused_and_free_again_afterwards() {
        let one = connection(4, None, &ProcessSlots::new(1));
        let stop = CancellationToken::new();
        let first = one.admit(Id::from("a"), true, &stop).unwrap();
        assert_eq!(one.admit(Id::from("a"), false, &stop).unwrap_err().integer(), -32_600);
        assert!(
            one.admit(Id::from("b"), true, &stop).is_ok(),
            "an unknown process has the connection's bound only"
        );
        drop(first);
        assert!(one.admit(Id::from("a"), true, &stop).is_ok());
    }

    #[test]
    fn cancelling_one_never_disturbs_another() {
        let one = connection(4, None, &ProcessSlots::new(4));
        let stop = CancellationToken::new();
        let first = one.admit(Id::Number(1), true, &stop).unwrap();
        let second = one.admit(Id::from("1"), true, &stop).unwrap();
        assert!(one.cancel(&Id::Number(1)));
        assert!(first.cancel.is_cancelled() && !second.cancel.is_cancelled());
        assert!(!one.cancel(&Id::Number(2)));
        stop.cancel();
        assert!(second.cancel.is_cancelled());
    }
}
