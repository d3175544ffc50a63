//! Where llama.cpp's lines and its last words go.
//!
//! Owns the host that gets the lines, and each thread's first complaint since it was last asked. Callers: `backend`
//! installs it, `model` and `seat` ask for complaints. llama.cpp's functions answer a failure with a null pointer; what
//! was wrong stands only in the log.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::io::Write;
use std::sync::OnceLock;

use synapse_plugin_sdk::prelude::*;

/// The longest complaint that is kept, in bytes. Names from the file may stand in it.
const COMPLAINT_BYTES: usize = 400;

static HOST: OnceLock<Host> = OnceLock::new();

thread_local! {
    static COMPLAINT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Sends llama.cpp's lines to the host and its last words to standard error. The first host stays.
pub fn install(host: Host) {
    if HOST.set(host).is_err() {
        return;
    }
    // SAFETY: the functions take what llama.cpp passes, keep nothing, and do not unwind; they live as long as the
    // library, which is never unloaded.
    unsafe {
        llama_cpp_sys_2::llama_log_set(Some(line), std::ptr::null_mut());
        llama_cpp_sys_2::ggml_set_abort_callback(Some(last_words));
    }
}

/// Forgets this thread's complaint, before a call whose failure is to be explained.
pub fn clear() {
    COMPLAINT.with_borrow_mut(String::clear);
}

/// What llama.cpp complained of first on this thread since [`clear`], or that it said nothing.
pub fn complaint() -> String {
    let said = COMPLAINT.with_borrow_mut(std::mem::take);
    if said.is_empty() {
        "llama.cpp gives no reason".to_owned()
    } else {
        said
    }
}

/// llama.cpp tells of every tensor, and an error comes back as a typed one besides, so each line is one level less
/// than it says.
const fn level(level: llama_cpp_sys_2::ggml_log_level) -> Option<LogLevel> {
    match level {
        llama_cpp_sys_2::GGML_LOG_LEVEL_ERROR => Some(LogLevel::WARN),
        llama_cpp_sys_2::GGML_LOG_LEVEL_WARN => Some(LogLevel::INFO),
        llama_cpp_sys_2::GGML_LOG_LEVEL_INFO => Some(LogLevel::DEBUG),
        llama_cpp_sys_2::GGML_LOG_LEVEL_DEBUG => Some(LogLevel::TRACE),
        // The rest of a line begun before, which is a row of dots, and what has no level.
        _ => None,
    }
}

unsafe extern "C" fn line(said_at: llama_cpp_sys_2::ggml_log_level, text: *const c_char, _: *mut c_void) {
    let (Some(level), Some(host), false) = (level(said_at), HOST.get(), text.is_null()) else {
        return;
    };
    // SAFETY: llama.cpp passes a text that ends in zero and stays until this returns.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let text = text.trim();
    if said_at == llama_cpp_sys_2::GGML_LOG_LEVEL_ERROR {
        COMPLAINT.with_borrow_mut(|kept| {
            if kept.is_empty() {
                kept.push_str(&text[..text.floor_char_boundary(COMPLAINT_BYTES)]);
            }
        });
    }
    if !text.is_empty() {
        host.log(level, format_args!("llama.cpp: {text}"));
    }
}

/// What ggml says before it ends the process. Standard error, because nothing else is certain to be read any more: a
/// supervisor keeps the end of it. ggml's own way would start a debugger first.
unsafe extern "C" fn last_words(message: *const c_char) {
    if message.is_null() {
        return;
    }
    // SAFETY: ggml passes a text that ends in zero.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    // That nobody reads it is no reason to fail: the process ends next.
    let _ = writeln!(std::io::stderr(), "llama.cpp aborts: {message}");
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use synapse_plugin_sdk::testing::FakeHost;

    /// The first host stays, so the tests of this process share one.
    pub fn host() -> FakeHost {
        static SHARED: OnceLock<FakeHost> = OnceLock::new();
        let host = *SHARED.get_or_init(FakeHost::new);
        install(host.host());
        host
    }

    fn say(level: llama_cpp_sys_2::ggml_log_level, text: &CStr) {
        // SAFETY: the text ends in zero.
        unsafe { line(level, text.as_ptr(), std::ptr::null_mut()) }
    }

    #[test]
    fn lines_reach_the_host_and_the_first_error_explains_a_failure() {
        let host = host();
        clear();
        say(llama_cpp_sys_2::GGML_LOG_LEVEL_INFO, c"print_info: a number\n");
        say(llama_cpp_sys_2::GGML_LOG_LEVEL_CONT, c"....");
        assert_eq!(complaint(), "llama.cpp gives no reason");
        say(llama_cpp_sys_2::GGML_LOG_LEVEL_ERROR, c"load: tensor 'x' not found\n");
        say(llama_cpp_sys_2::GGML_LOG_LEVEL_ERROR, c"failed to load model\n");
        assert_eq!(complaint(), "load: tensor 'x' not found");
        assert_eq!(complaint(), "llama.cpp gives no reason");
        let lines = host.logs();
        let expected = [
            (LogLevel::DEBUG, "llama.cpp: print_info: a number"),
            (LogLevel::WARN, "llama.cpp: load: tensor 'x' not found"),
            (LogLevel::WARN, "llama.cpp: failed to load model"),
        ];
        for (level, text) in expected {
            assert!(lines.contains(&(level, text.to_owned())), "{lines:?}");
        }
    }

    #[test]
    fn a_long_complaint_is_cut_at_a_character() {
        host();
        clear();
        let text = std::ffi::CString::new("é".repeat(COMPLAINT_BYTES)).unwrap();
        say(llama_cpp_sys_2::GGML_LOG_LEVEL_ERROR, &text);
        assert_eq!(complaint().len(), COMPLAINT_BYTES);
    }
}
