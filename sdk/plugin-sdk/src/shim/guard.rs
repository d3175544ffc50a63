//! Containment: no panic of the author's code crosses the boundary, and no engine is used after one.
//!
//! Owns the mark "this engine is bad", one per engine, and a thread-local note of where a panic began. A contained
//! panic becomes `EngineError { PANIC, engine_bad }`; afterwards every method of that engine answers the same.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    api::{EngineError, EngineState, ErrorCode, LogLevel, abi_stable::std_types::RResult},
    error::Error,
    host::Host,
};

/// The most bytes of a message that cross the boundary.
const MAX_MESSAGE: usize = 4096;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs the author's code; a panic becomes an error. `method` names it in the message.
pub(crate) fn contain<T>(method: &str, author: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    DEPTH.set(DEPTH.get() + 1);
    // Whatever the closure borrows is not used again after a panic: the engine is marked bad.
    let outcome = catch_unwind(AssertUnwindSafe(author));
    DEPTH.set(DEPTH.get() - 1);
    outcome.unwrap_or_else(|payload| {
        let place = PLACE.take().map_or_else(String::new, |place| format!(" at {place}"));
        let what = describe(payload);
        Err(Error::new(ErrorCode::PANIC, format!("panic in {method}{place}: {what}")).engine_bad())
    })
}

/// The payload's text. Dropping a foreign payload may panic again: that is contained too.
fn describe(payload: Box<dyn Any + Send>) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".to_owned());
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
    text
}

/// Keeps contained panics off stderr and notes where they began. Panics outside the shims go to the former hook.
/// Touches only the plugin's own copy of std; called by the root module, once.
pub(crate) fn install_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if DEPTH.get() == 0 {
                former(info);
            } else {
                PLACE.set(info.location().map(ToString::to_string));
            }
        }));
    });
}

/// The mark of one engine.
#[derive(Debug)]
pub(super) struct Guard {
    host: Host,
    bad: AtomicBool,
}

impl Guard {
    pub(super) const fn new(host: Host) -> Self {
        Self {
            host,
            bad: AtomicBool::new(false),
        }
    }

    /// Runs one method: refuses when the engine is bad, contains panics, and marks the engine when it became bad.
    pub(super) fn run<T>(&self, method: &str, author: impl FnOnce() -> Result<T, Error>) -> RResult<T, EngineError> {
        if self.is_bad() {
            let text = format!("{method}: this engine failed for good earlier and must not be called again");
            return RResult::RErr(Error::new(ErrorCode::PANIC, text).engine_bad().into());
        }
        match contain(method, author) {
            Ok(value) => RResult::ROk(value),
            Err(mut error) => {
                truncate(&mut error.message);
                if error.state == EngineState::ENGINE_BAD {
                    self.bad.store(true, Ordering::Release);
                    self.host.log(LogLevel::ERROR, format_args!("{error}"));
                }
                RResult::RErr(error.into())
            }
        }
    }

    pub(super) fn is_bad(&self) -> bool {
        self.bad.load(Ordering::Acquire)
    }
}

fn truncate(text: &mut String) {
    if text.len() > MAX_MESSAGE {
        text.truncate(
            (0..=MAX_MESSAGE)
                .rev()
                .find(|&at| text.is_char_boundary(at))
                .unwrap_or(0),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::{contain, truncate};
    use crate::api::{EngineState, ErrorCode};

    struct Nasty;

    impl Drop for Nasty {
        fn drop(&mut self) {
            panic!("again");
        }
    }

    #[test]
    fn every_kind_of_payload_becomes_an_error() {
        let text = "formatted";
        for (error, expected) in [
            (contain::<()>("m", || panic!("plain")).unwrap_err(), "plain"),
            (contain::<()>("m", || panic!("{text}")).unwrap_err(), "formatted"),
            (
                contain::<()>("m", || std::panic::panic_any(7_u8)).unwrap_err(),
                "no text",
            ),
            (
                contain::<()>("m", || std::panic::panic_any(Nasty)).unwrap_err(),
                "no text",
            ),
        ] {
            assert_eq!((error.code, error.state), (ErrorCode::PANIC, EngineState::ENGINE_BAD));
            assert!(
                error.message.starts_with("panic in m") && error.message.ends_with(expected),
                "{error}"
            );
        }
        assert_eq!(contain("m", || Ok(3)), Ok(3));
    }

    #[test]
    fn messages_are_cut_at_a_character() {
        let mut text = "é".repeat(3000);
        text.insert(0, 'x');
        truncate(&mut text);
        assert_eq!(text.len(), 4095);
    }
}
