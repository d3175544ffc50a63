//! What a request may ask for: inline caps, the class of a batch, and how long a caller is willing to wait.
//!
//! State: none. Callers: the daemon's service layer, with values from its config. The defaults are those of DECISIONS.
//! Not known here: which error code a refusal becomes.

use crate::schedule::Class;

/// The caps of one inline embed request (API-11). At the cap is inline; one more is too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineCaps {
    /// Items.
    pub max_items: u64,
    /// Tokens over all items, special tokens included, after truncation.
    pub max_tokens: u64,
    /// Bytes of UTF-8 text over all items.
    pub max_text_bytes: u64,
}

impl Default for InlineCaps {
    fn default() -> Self {
        Self {
            max_items: 64,
            max_tokens: 8_192,
            max_text_bytes: 8 << 20,
        }
    }
}

/// The caps of one inline rerank request (API-15). At the cap is inline; one more is too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RerankCaps {
    /// Candidates.
    pub max_candidates: u64,
    /// Tokens over all pairs of query and candidate, special tokens included, after truncation.
    pub max_tokens: u64,
    /// Bytes of UTF-8 text: the query, once, and all candidates.
    pub max_text_bytes: u64,
}

impl Default for RerankCaps {
    fn default() -> Self {
        Self {
            max_candidates: 64,
            max_tokens: 32_768,
            max_text_bytes: 8 << 20,
        }
    }
}

/// One of the inline caps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cap {
    /// [`InlineCaps::max_items`].
    Items,
    /// [`InlineCaps::max_tokens`].
    Tokens,
    /// [`InlineCaps::max_text_bytes`], of reranks too.
    TextBytes,
    /// [`RerankCaps::max_candidates`].
    Candidates,
    /// [`RerankCaps::max_tokens`].
    PairTokens,
}

impl Cap {
    /// The cap's name in config, errors and docs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Items => "inline.max_items",
            Self::Tokens => "inline.max_tokens",
            Self::TextBytes => "inline.max_text_bytes",
            Self::Candidates => "rerank.max_candidates",
            Self::PairTokens => "rerank.max_tokens",
        }
    }

    const fn check(self, limit: u64, found: u64) -> Result<(), CapExceeded> {
        if found > limit {
            return Err(CapExceeded {
                cap: self,
                limit,
                found,
            });
        }
        Ok(())
    }
}

/// A request over one of its caps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: the request has {found}, inline requests take at most {limit}; send less at a time, or name a request_key and it \
     becomes a job",
    cap.name()
)]
pub struct CapExceeded {
    /// The first cap exceeded, in the order items, text bytes, tokens.
    pub cap: Cap,
    /// Its value.
    pub limit: u64,
    /// What the request has.
    pub found: u64,
}

impl InlineCaps {
    /// Checks what is known before tokenization.
    ///
    /// # Errors
    /// [`CapExceeded`] names the cap.
    pub fn check_text(&self, items: u64, text_bytes: u64) -> Result<(), CapExceeded> {
        Cap::Items.check(self.max_items, items)?;
        Cap::TextBytes.check(self.max_text_bytes, text_bytes)
    }

    /// Checks what tokenization found.
    ///
    /// # Errors
    /// [`CapExceeded`] names the cap.
    pub const fn check_tokens(&self, tokens: u64) -> Result<(), CapExceeded> {
        Cap::Tokens.check(self.max_tokens, tokens)
    }
}

impl RerankCaps {
    /// Checks what is known before tokenization.
    ///
    /// # Errors
    /// [`CapExceeded`] names the cap.
    pub fn check_text(&self, candidates: u64, text_bytes: u64) -> Result<(), CapExceeded> {
        Cap::Candidates.check(self.max_candidates, candidates)?;
        Cap::TextBytes.check(self.max_text_bytes, text_bytes)
    }

    /// Checks what tokenization found.
    ///
    /// # Errors
    /// [`CapExceeded`] names the cap.
    pub const fn check_tokens(&self, tokens: u64) -> Result<(), CapExceeded> {
        Cap::PairTokens.check(self.max_tokens, tokens)
    }
}

/// The batch that still counts as interactive: several queries of one retrieval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InteractiveBatch {
    /// The most items.
    pub max_items: usize,
    /// The most tokens of any one item.
    pub max_item_tokens: u32,
}

impl Default for InteractiveBatch {
    fn default() -> Self {
        Self {
            max_items: 8,
            max_item_tokens: 512,
        }
    }
}

impl InteractiveBatch {
    /// The queue class of an inline batch whose items have these token counts.
    #[must_use]
    pub fn class(&self, item_tokens: &[u32]) -> Class {
        let small = item_tokens.len() <= self.max_items;
        if small && item_tokens.iter().all(|tokens| *tokens <= self.max_item_tokens) {
            Class::Interactive
        } else {
            Class::Bulk
        }
    }
}

/// How long a caller waits, resolved from its request and the config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Milliseconds from the complete receipt of the request to the end of the caller's interest.
    pub deadline_ms: u64,
    /// Milliseconds from receipt within which the work must start (SCHED-03).
    pub max_queue_ms: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            deadline_ms: 30_000,
            max_queue_ms: 5_000,
        }
    }
}

/// A request whose waits contradict each other or the server's bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatienceError {
    /// `max_queue_ms` is longer than `deadline_ms`.
    #[error("max_queue_ms is {max_queue_ms}, longer than deadline_ms, {deadline_ms}; ask to start before the deadline")]
    QueueBeyondDeadline {
        /// As asked.
        max_queue_ms: u64,
        /// As asked, or the default.
        deadline_ms: u64,
    },
    /// A deadline of 0, or beyond the server's longest.
    #[error("deadline_ms is {found}, expected 1 to {longest}")]
    DeadlineRange {
        /// As asked.
        found: u64,
        /// The longest deadline that the server takes.
        longest: u64,
    },
}

impl Patience {
    /// The longest deadline: one hour. Longer work is a job.
    pub const LONGEST_DEADLINE_MS: u64 = 3_600_000;

    /// Fills in `self` (the server's defaults) where the request says nothing. A default `max_queue_ms` is cut to the
    /// request's deadline; one that the request itself names must not exceed it.
    ///
    /// # Errors
    /// [`PatienceError`] names the field.
    pub fn resolve(self, deadline_ms: Option<u64>, max_queue_ms: Option<u64>) -> Result<Self, PatienceError> {
        let deadline = deadline_ms.unwrap_or(self.deadline_ms);
        if deadline == 0 || deadline > Self::LONGEST_DEADLINE_MS {
            return Err(PatienceError::DeadlineRange {
                found: deadline,
                longest: Self::LONGEST_DEADLINE_MS,
            });
        }
        match max_queue_ms {
            Some(asked) if asked > deadline => Err(PatienceError::QueueBeyondDeadline {
                max_queue_ms: asked,
                deadline_ms: deadline,
            }),
            Some(asked) => Ok(Self {
                deadline_ms: deadline,
                max_queue_ms: asked,
            }),
            None => Ok(Self {
                deadline_ms: deadline,
                max_queue_ms: self.max_queue_ms.min(deadline),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of DECISIONS, each at its cap and one beyond.
    #[test]
    fn inline_caps_at_the_edge() {
        let caps = InlineCaps::default();
        assert_eq!(caps.check_text(64, 8_388_608), Ok(()));
        let over = |cap, limit, found| Err(CapExceeded { cap, limit, found });
        assert_eq!(caps.check_text(65, 0), over(Cap::Items, 64, 65));
        assert_eq!(
            caps.check_text(1, 8_388_609),
            over(Cap::TextBytes, 8_388_608, 8_388_609)
        );
        assert_eq!(caps.check_tokens(8_192), Ok(()));
        assert_eq!(caps.check_tokens(8_193), over(Cap::Tokens, 8_192, 8_193));
        let message = caps.check_text(65, 0).expect_err("over the cap").to_string();
        assert!(
            message.starts_with("inline.max_items: ") && message.contains("65") && message.contains("64"),
            "{message}"
        );
    }

    /// The values of DECISIONS for reranks, each at its cap and one beyond.
    #[test]
    fn rerank_caps_at_the_edge() {
        let caps = RerankCaps::default();
        assert_eq!(caps.check_text(64, 8_388_608), Ok(()));
        let over = |cap, limit, found| Err(CapExceeded { cap, limit, found });
        assert_eq!(caps.check_text(65, 0), over(Cap::Candidates, 64, 65));
        assert_eq!(
            caps.check_text(1, 8_388_609),
            over(Cap::TextBytes, 8_388_608, 8_388_609)
        );
        assert_eq!(caps.check_tokens(32_768), Ok(()));
        assert_eq!(caps.check_tokens(32_769), over(Cap::PairTokens, 32_768, 32_769));
        let message = caps.check_text(65, 0).expect_err("over the cap").to_string();
        assert!(
            message.starts_with("rerank.max_candidates: ") && message.contains("request_key"),
            "{message}"
        );
    }

    #[test]
    fn small_batches_are_interactive() {
        let rule = InteractiveBatch::default();
        assert_eq!(rule.class(&[512; 8]), Class::Interactive);
        assert_eq!(rule.class(&[1; 9]), Class::Bulk);
        assert_eq!(rule.class(&[1, 513]), Class::Bulk);
    }

    #[test]
    fn patience_is_resolved() {
        let server = Patience::default();
        let is = |deadline_ms, max_queue_ms| {
            Ok(Patience {
                deadline_ms,
                max_queue_ms,
            })
        };
        assert_eq!(server.resolve(None, None), is(30_000, 5_000));
        assert_eq!(server.resolve(Some(1_000), None), is(1_000, 1_000));
        assert_eq!(server.resolve(Some(1_000), Some(1_000)), is(1_000, 1_000));
        assert_eq!(server.resolve(None, Some(0)), is(30_000, 0));
        assert_eq!(
            server.resolve(Some(1_000), Some(1_001)),
            Err(PatienceError::QueueBeyondDeadline {
                max_queue_ms: 1_001,
                deadline_ms: 1_000
            })
        );
        for found in [0, 3_600_001] {
            let refused = Err(PatienceError::DeadlineRange {
                found,
                longest: 3_600_000,
            });
            assert_eq!(server.resolve(Some(found), None), refused);
        }
    }
}
