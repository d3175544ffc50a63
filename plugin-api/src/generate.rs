//! What goes into a generation and what comes out.
//!
//! Owns no state. Prompt and options are the host's; the sink writes into the host's own buffers.

use std::marker::PhantomData;

use abi_stable::{
    StableAbi,
    std_types::{RSlice, RStr, RString, RVec},
};

use crate::{call::Flow, load::KeyValue};

/// Which field of a [`Prompt`] counts. An open integer: an engine answers a kind that it does not know with
/// [`crate::ErrorCode::UNSUPPORTED`].
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, StableAbi)]
pub struct PromptKind(pub u32);

impl PromptKind {
    /// `ids` counts.
    pub const IDS: Self = Self(1);
    /// `text` counts; only for engines that own their tokenizer.
    pub const TEXT: Self = Self(2);
}

/// What a generation starts from.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct Prompt<'a> {
    /// Which field counts; the other is empty.
    pub kind: PromptKind,
    /// Token ids made by the host, special tokens included.
    pub ids: RSlice<'a, i32>,
    /// Text.
    pub text: RStr<'a>,
}

impl<'a> Prompt<'a> {
    /// A prompt of token ids.
    #[must_use]
    pub fn ids(ids: &'a [i32]) -> Self {
        Self {
            kind: PromptKind::IDS,
            ids: RSlice::from_slice(ids),
            text: RStr::empty(),
        }
    }

    /// A prompt of text.
    #[must_use]
    pub fn text(text: &'a str) -> Self {
        Self {
            kind: PromptKind::TEXT,
            ids: RSlice::EMPTY,
            text: RStr::from_str(text),
        }
    }
}

/// How to generate.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, StableAbi)]
pub struct GenerateOptions {
    /// The most tokens to generate; at least 1.
    pub max_tokens: u32,
    /// 0 is greedy; finite and not negative.
    pub temperature: f32,
    /// Nucleus mass in (0, 1]; 1 keeps everything.
    pub top_p: f32,
    /// The sampler's seed.
    pub seed: u64,
    /// Texts that end the generation and are not part of it; none is empty.
    pub stop: RVec<RString>,
    /// A GBNF grammar, or empty for none.
    pub grammar: RString,
    /// Further settings by key. An engine refuses a key that it does not know with
    /// [`crate::ErrorCode::CONFIG_INVALID`] and names it.
    pub extra: RVec<KeyValue>,
}

/// Why a generation ended. An open integer.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, StableAbi)]
pub struct FinishReason(pub u32);

impl FinishReason {
    /// An end token, a stop text or the end of the grammar.
    pub const STOP: Self = Self(1);
    /// [`GenerateOptions::max_tokens`] or the model's context was reached.
    pub const LENGTH: Self = Self(2);
}

/// What a generation used.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, StableAbi)]
pub struct Generated {
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Generated tokens, the end token not counted.
    pub generated_tokens: u32,
    /// Why it ended.
    pub finish: FinishReason,
}

/// Where generated tokens go: a host function and its state, valid until the call returns. Calling thread only.
#[repr(C)]
#[derive(StableAbi)]
pub struct TokenSink<'a> {
    state: *mut (),
    push_fn: for<'b> unsafe extern "C" fn(*mut (), RSlice<'b, i32>, RSlice<'b, u8>) -> Flow,
    lifetime: PhantomData<&'a mut ()>,
}

impl<'a> TokenSink<'a> {
    /// Makes a sink. For hosts.
    ///
    /// # Safety
    /// `state` must be valid for `push_fn` during `'a`, from the thread that makes the call. `push_fn` must not
    /// unwind.
    #[must_use]
    pub const unsafe fn new(
        state: *mut (),
        push_fn: for<'b> unsafe extern "C" fn(*mut (), RSlice<'b, i32>, RSlice<'b, u8>) -> Flow,
    ) -> Self {
        Self {
            state,
            push_fn,
            lifetime: PhantomData,
        }
    }

    /// Takes token ids and the bytes that they spell: whole UTF-8 sequences only, an unfinished one is held back by
    /// the engine. Either may be empty.
    #[must_use = "Flow::CANCEL asks the call to end"]
    pub fn push(&mut self, ids: &[i32], bytes: &[u8]) -> Flow {
        // SAFETY: `new`'s contract: state and function are valid while `self` is.
        unsafe { (self.push_fn)(self.state, RSlice::from_slice(ids), RSlice::from_slice(bytes)) }
    }
}

impl std::fmt::Debug for TokenSink<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenSink").finish_non_exhaustive()
    }
}
