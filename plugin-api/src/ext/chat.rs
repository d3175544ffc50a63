//! `synapse.chat/1`: streamed chat for engines that own their tokenizer and template.
//!
//! An extension of a generate engine. The host uses it only for engines that take text; where the host renders the
//! template itself, [`crate::GenerateEngine::generate`] is enough.

use abi_stable::std_types::{RResult, RSlice, RStr};

use super::{ExtensionHeader, ExtensionTable};
use crate::{CallContext, EngineError, GenerateOptions, Generated, ModelRef, TokenSink};

/// One message of a conversation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChatMessage<'a> {
    /// `system`, `user` or `assistant`.
    pub role: RStr<'a>,
    /// The text. Text is text: strings that spell control tokens never become control tokens.
    pub content: RStr<'a>,
}

/// Streams the assistant's next message into the sink.
pub type ChatFn = for<'a> unsafe extern "C" fn(
    *const (),
    &'a CallContext<'a>,
    ModelRef,
    RSlice<'a, ChatMessage<'a>>,
    &'a GenerateOptions,
    TokenSink<'a>,
) -> RResult<Generated, EngineError>;

/// The table.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChatTable {
    /// Length and revision.
    pub header: ExtensionHeader,
    /// First argument of the functions; valid as long as the engine.
    pub state: *const (),
    /// `[compute]` Streams the assistant's next message. Errors as [`crate::GenerateEngine::generate`].
    pub chat: ChatFn,
}

// SAFETY: repr(C), header first; whoever makes one promises that state and functions may be used from any thread.
unsafe impl ExtensionTable for ChatTable {
    const ID: &'static str = "synapse.chat/1";
    const REV: u32 = 1;
}
// SAFETY: as above.
unsafe impl Send for ChatTable {}
// SAFETY: as above.
unsafe impl Sync for ChatTable {}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<ChatTable>() == 24 && size_of::<ChatMessage<'_>>() == 32);
    assert!(offset_of!(ChatTable, header) == 0 && offset_of!(ChatTable, state) == 8);
    assert!(offset_of!(ChatTable, chat) == 16);
};
