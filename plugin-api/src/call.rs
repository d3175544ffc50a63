//! The host's side of one call: deadline, thread budget, cancellation, checkpoints.
//!
//! Holds borrowed function pointers and an opaque state for the length of one call. The host makes it (in process
//! or in a worker); the plugin only calls it. It knows neither the scheduler nor the protocol behind it.

use std::marker::PhantomData;

use abi_stable::StableAbi;

/// What the host says. An open integer: anything but [`Flow::CONTINUE`] means stop.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, StableAbi)]
pub struct Flow(pub u32);

impl Flow {
    /// Go on.
    pub const CONTINUE: Self = Self(0);
    /// Stop soon and return [`crate::ErrorCode::CANCELLED`].
    pub const CANCEL: Self = Self(1);
}

/// The deadline of a call that has none.
pub const NO_DEADLINE: u64 = u64::MAX;

/// What accompanies every call to an engine. Valid until the call returns.
#[repr(C)]
#[derive(StableAbi)]
pub struct CallContext<'a> {
    request_id: u64,
    threads: u32,
    reserved: u32,
    state: *const (),
    deadline_fn: unsafe extern "C" fn(*const ()) -> u64,
    cancelled_fn: unsafe extern "C" fn(*const ()) -> bool,
    checkpoint_fn: unsafe extern "C" fn(*const (), u64, u64) -> Flow,
    lifetime: PhantomData<&'a ()>,
}

// SAFETY: `new` demands a state and functions that any thread may use at once, except `checkpoint_fn`, whose wrapper
// documents the calling thread; the host's implementation tolerates a call from a wrong thread (it may only park it).
unsafe impl Send for CallContext<'_> {}
// SAFETY: as above.
unsafe impl Sync for CallContext<'_> {}

impl<'a> CallContext<'a> {
    /// Makes a context. For hosts.
    ///
    /// `deadline_fn` gives the deadline in nanoseconds of the clock of [`crate::HostServices::monotonic_ns`], or
    /// [`NO_DEADLINE`]; it may move later during the call, because time held at a checkpoint does not count.
    ///
    /// # Safety
    /// `state` must be valid for the three functions during `'a`, from any thread, several at once. The functions
    /// must not unwind.
    #[must_use]
    pub const unsafe fn new(
        request_id: u64,
        threads: u32,
        state: *const (),
        deadline_fn: unsafe extern "C" fn(*const ()) -> u64,
        cancelled_fn: unsafe extern "C" fn(*const ()) -> bool,
        checkpoint_fn: unsafe extern "C" fn(*const (), u64, u64) -> Flow,
    ) -> Self {
        Self {
            request_id,
            threads,
            reserved: 0,
            state,
            deadline_fn,
            cancelled_fn,
            checkpoint_fn,
            lifetime: PhantomData,
        }
    }

    /// The request's number, for logs.
    #[must_use]
    pub const fn request_id(&self) -> u64 {
        self.request_id
    }

    /// How many threads this call may use, the calling one included; at least 1.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        self.threads
    }

    /// `[any]` The deadline in nanoseconds of the host's monotonic clock, or [`NO_DEADLINE`]. May move later during
    /// the call, never earlier.
    #[must_use]
    pub fn deadline_ns(&self) -> u64 {
        // SAFETY: `new`'s contract: state and function are valid while `self` is.
        unsafe { (self.deadline_fn)(self.state) }
    }

    /// `[any]` Whether the call should end. Never parks, so that other threads of the engine may poll it; they must
    /// be joined or idle before the call returns.
    #[must_use]
    pub fn cancelled(&self) -> bool {
        // SAFETY: as in `deadline_ns`.
        unsafe { (self.cancelled_fn)(self.state) }
    }

    /// Reports completed work out of a fixed total and gives way: the host may hold the call here for a while.
    ///
    /// Calling thread only, with the engine's helper threads free or parked and without any lock that another call
    /// needs. To be called at least every 5 ms of CPU work, and every 100 ms on a device. `done` never decreases.
    #[must_use = "Flow::CANCEL asks the call to end"]
    pub fn checkpoint(&self, done: u64, total: u64) -> Flow {
        // SAFETY: as in `deadline_ns`.
        unsafe { (self.checkpoint_fn)(self.state, done, total) }
    }
}

impl std::fmt::Debug for CallContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallContext")
            .field("request_id", &self.request_id)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}
