//! One call's context as the plugin sees it, over the core's [`CallControl`].
//!
//! State: on the caller's stack for the length of one call. Callers: the adapters. The functions here are called by
//! foreign code, from any of its threads: they never unwind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use synapse_core::engine as core;
use synapse_plugin_api as api;
use synapse_plugin_api::abi_stable::std_types::RSlice;
use synapse_plugin_api::call::NO_DEADLINE;

use super::host::monotonic_ns;

/// What the functions of one call need.
struct CallState<'a> {
    control: &'a dyn core::CallControl,
    /// Moves later by the time that the call is held at a checkpoint.
    deadline_ns: AtomicU64,
}

/// Runs `call` with the plugin's view of `ctx`.
pub(super) fn with_context<R>(ctx: &core::CallContext<'_>, call: impl FnOnce(&api::CallContext<'_>) -> R) -> R {
    let deadline_ns = ctx.remaining.map_or(NO_DEADLINE, |remaining| {
        let remaining = u64::try_from(remaining.as_nanos()).unwrap_or(NO_DEADLINE);
        monotonic_ns().saturating_add(remaining)
    });
    let state = CallState {
        control: ctx.control,
        deadline_ns: AtomicU64::new(deadline_ns),
    };
    let address: *const CallState<'_> = &raw const state;
    // SAFETY: `state` outlives the context, is `Sync` (atomics and a `Sync` control), and none of the functions
    // unwinds.
    let context = unsafe {
        api::CallContext::new(
            ctx.request_id,
            ctx.threads.max(1),
            address.cast(),
            deadline,
            cancelled,
            checkpoint,
        )
    };
    call(&context)
}

/// # Safety
/// `state` is the address that [`with_context`] gave, during its call.
unsafe fn state<'a>(state: *const ()) -> &'a CallState<'a> {
    // SAFETY: the caller's promise.
    unsafe { &*state.cast::<CallState<'a>>() }
}

unsafe extern "C" fn deadline(address: *const ()) -> u64 {
    // SAFETY: the plugin passes back what it was given, during the call.
    let state = unsafe { state(address) };
    state.deadline_ns.load(Ordering::Relaxed)
}

unsafe extern "C" fn cancelled(address: *const ()) -> bool {
    // SAFETY: the plugin passes back what it was given, during the call.
    let state = unsafe { state(address) };
    // A host that fails here cannot use the result: end the call.
    catch_unwind(AssertUnwindSafe(|| state.control.cancelled())).unwrap_or(true)
}

unsafe extern "C" fn checkpoint(address: *const (), done: u64, total: u64) -> api::Flow {
    // SAFETY: the plugin passes back what it was given, during the call.
    let state = unsafe { state(address) };
    let entered = Instant::now();
    let flow = catch_unwind(AssertUnwindSafe(|| state.control.checkpoint(done.min(total), total)));
    let held = u64::try_from(entered.elapsed().as_nanos()).unwrap_or(u64::MAX);
    // Never wraps, and never turns "no deadline" into one.
    let _ = state
        .deadline_ns
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |deadline| {
            Some(deadline.saturating_add(held))
        });
    match flow {
        Ok(core::Flow::Continue) => api::Flow::CONTINUE,
        Ok(core::Flow::Cancel) | Err(_) => api::Flow::CANCEL,
    }
}

/// What the functions of a token sink need.
struct SinkState<'a> {
    sink: &'a mut dyn core::TokenSink,
}

/// Runs `call` with the plugin's view of `sink`.
pub(super) fn with_sink<R>(sink: &mut dyn core::TokenSink, call: impl FnOnce(api::TokenSink<'_>) -> R) -> R {
    let mut state = SinkState { sink };
    let address: *mut SinkState<'_> = &raw mut state;
    // SAFETY: `state` outlives the sink, only the calling thread uses it, and `push` does not unwind.
    call(unsafe { api::TokenSink::new(address.cast(), push) })
}

unsafe extern "C" fn push(address: *mut (), ids: RSlice<'_, i32>, bytes: RSlice<'_, u8>) -> api::Flow {
    // SAFETY: the plugin passes back what it was given, during the call, on the calling thread.
    let state = unsafe { &mut *address.cast::<SinkState<'_>>() };
    let flow = catch_unwind(AssertUnwindSafe(|| state.sink.push(ids.as_slice(), bytes.as_slice())));
    match flow {
        Ok(core::Flow::Continue) => api::Flow::CONTINUE,
        Ok(core::Flow::Cancel) | Err(_) => api::Flow::CANCEL,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;

    struct Control {
        seen: Mutex<Vec<(u64, u64)>>,
        flow: core::Flow,
        hold: Duration,
        panics: bool,
    }

    impl Control {
        fn new(flow: core::Flow) -> Self {
            Self {
                seen: Mutex::default(),
                flow,
                hold: Duration::ZERO,
                panics: false,
            }
        }
    }

    impl core::CallControl for Control {
        fn cancelled(&self) -> bool {
            assert!(!self.panics, "asked to panic");
            self.flow == core::Flow::Cancel
        }

        fn checkpoint(&self, done: u64, total: u64) -> core::Flow {
            assert!(!self.panics, "asked to panic");
            self.seen.lock().unwrap().push((done, total));
            let entered = Instant::now();
            while entered.elapsed() < self.hold {
                std::thread::yield_now();
            }
            self.flow
        }
    }

    fn context(control: &Control, remaining: Option<Duration>) -> core::CallContext<'_> {
        core::CallContext {
            request_id: 7,
            remaining,
            threads: 0,
            control,
        }
    }

    #[test]
    fn the_plugin_sees_the_hosts_control() {
        let control = Control::new(core::Flow::Continue);
        with_context(&context(&control, None), |ctx| {
            assert_eq!((ctx.request_id(), ctx.threads()), (7, 1));
            assert_eq!(ctx.deadline_ns(), NO_DEADLINE);
            assert!(!ctx.cancelled());
            assert_eq!(ctx.checkpoint(9, 4), api::Flow::CONTINUE);
            assert_eq!(ctx.deadline_ns(), NO_DEADLINE);
        });
        assert_eq!(*control.seen.lock().unwrap(), [(4, 4)]);
        let control = Control::new(core::Flow::Cancel);
        with_context(&context(&control, None), |ctx| {
            assert!(ctx.cancelled());
            assert_eq!(ctx.checkpoint(1, 4), api::Flow::CANCEL);
        });
    }

    #[test]
    fn time_held_at_a_checkpoint_moves_the_deadline() {
        let control = Control {
            hold: Duration::from_millis(2),
            ..Control::new(core::Flow::Continue)
        };
        with_context(&context(&control, Some(Duration::from_secs(60))), |ctx| {
            let before = ctx.deadline_ns();
            assert_eq!(ctx.checkpoint(1, 2), api::Flow::CONTINUE);
            assert!(ctx.deadline_ns() >= before + 2_000_000);
        });
    }

    #[test]
    fn a_panic_of_the_host_ends_the_call_and_not_the_process() {
        let control = Control {
            panics: true,
            ..Control::new(core::Flow::Continue)
        };
        with_context(&context(&control, None), |ctx| {
            assert!(ctx.cancelled());
            assert_eq!(ctx.checkpoint(1, 2), api::Flow::CANCEL);
        });
    }

    #[test]
    fn tokens_reach_the_hosts_sink() {
        struct Sink(Vec<i32>, Vec<u8>);
        impl core::TokenSink for Sink {
            fn push(&mut self, ids: &[i32], bytes: &[u8]) -> core::Flow {
                self.0.extend(ids);
                self.1.extend(bytes);
                if self.0.len() < 3 {
                    core::Flow::Continue
                } else {
                    core::Flow::Cancel
                }
            }
        }
        let mut sink = Sink(Vec::new(), Vec::new());
        with_sink(&mut sink, |mut sink| {
            assert_eq!(sink.push(&[1, 2], b"ab"), api::Flow::CONTINUE);
            assert_eq!(sink.push(&[3], b""), api::Flow::CANCEL);
        });
        assert_eq!((sink.0, sink.1), (vec![1, 2, 3], b"ab".to_vec()));
    }
}
