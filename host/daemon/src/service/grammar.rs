//! What a grammar must be before any engine sees it: allowed, not empty, not large, not deeply nested (API-18, CONF-10).
//!
//! State: none. Caller: `microllm.oneshot`. Whether it parses is the engine's to say. The parsers of engines recurse, and
//! a stack that overflows ends a process, so depth is bounded here. Not known here: the grammar's rules.

use synapse_wire::client::ErrorCode;
use synapse_wire::client::oneshot::MAX_GRAMMAR_BYTES;

use super::ServiceError;
use super::items::wide;

/// The most parentheses that are open at once.
const MAX_DEPTH: usize = 64;

/// Refuses a grammar that no engine is given.
///
/// # Errors
/// `grammar_disabled`, `limit_exceeded` or `grammar_invalid`.
pub(super) fn check(grammar: &str, enabled: bool) -> Result<(), ServiceError> {
    if !enabled {
        let message = "grammars are switched off; the operator opens the gate with `grammar_enabled` in the user's \
                       configuration, or send the request without `grammar`";
        return Err(ServiceError::new(ErrorCode::GrammarDisabled, message).detail(|detail| {
            detail.config = Some(String::from("grammar_enabled"));
        }));
    }
    if grammar.len() > MAX_GRAMMAR_BYTES {
        let message = format!(
            "`grammar` has {} bytes, at most {MAX_GRAMMAR_BYTES} are taken; shorten it",
            grammar.len()
        );
        return Err(ServiceError::limit_exceeded(message).detail(|detail| {
            detail.field = Some(String::from("grammar"));
            detail.limit = Some(String::from("microllm.max_grammar_bytes"));
            detail.maximum = Some(wide(MAX_GRAMMAR_BYTES));
            detail.actual = Some(wide(grammar.len()));
        }));
    }
    let invalid = |message: String| {
        ServiceError::new(ErrorCode::GrammarInvalid, message)
            .detail(|detail| detail.field = Some(String::from("grammar")))
    };
    if grammar.trim().is_empty() {
        return Err(invalid(String::from(
            "`grammar` is empty: expected GBNF with a rule named `root`; leave the field out for no grammar",
        )));
    }
    // Engines take it as a C string.
    if grammar.contains('\0') {
        return Err(invalid(String::from("`grammar` holds a NUL character; remove it")));
    }
    let depth = depth(grammar);
    if depth > MAX_DEPTH {
        return Err(invalid(format!(
            "`grammar` opens {depth} parentheses inside each other, at most {MAX_DEPTH} are taken; name inner parts as \
             rules of their own"
        )));
    }
    Ok(())
}

/// The most parentheses that are open at once, outside of literals, character classes and comments.
fn depth(grammar: &str) -> usize {
    let (mut open, mut deepest) = (0_usize, 0);
    let mut bytes = grammar.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'(' => {
                open += 1;
                deepest = deepest.max(open);
            }
            b')' => open = open.saturating_sub(1),
            b'"' => skip_to(&mut bytes, b'"'),
            b'[' => skip_to(&mut bytes, b']'),
            b'#' => {
                bytes.find(|byte| matches!(byte, b'\n' | b'\r'));
            }
            _ => {}
        }
    }
    deepest
}

/// Goes on behind the next `end` that no backslash stands before.
fn skip_to(bytes: &mut std::str::Bytes<'_>, end: u8) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            byte if byte == end => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(grammar: &str) -> Option<ErrorCode> {
        check(grammar, true).err().map(|error| error.code().clone())
    }

    /// Proves CONF-10: the gate comes before anything else.
    #[test]
    fn a_closed_gate_refuses_every_grammar_and_names_itself() {
        for grammar in ["root ::= \"a\"", "", &"(".repeat(60_000)] {
            let error = check(grammar, false).unwrap_err();
            assert_eq!(*error.code(), ErrorCode::GrammarDisabled);
            assert_eq!(error.facts().unwrap().config.as_deref(), Some("grammar_enabled"));
        }
    }

    #[test]
    fn what_no_engine_is_given() {
        let nested = |n: usize| format!("root ::= {}\"a\"{}", "(".repeat(n), ")".repeat(n));
        assert_eq!(code("root ::= \"a\""), None);
        assert_eq!(code(&nested(MAX_DEPTH)), None);
        assert_eq!(code(&nested(MAX_DEPTH + 1)), Some(ErrorCode::GrammarInvalid));
        assert_eq!(code(&nested(60_000)), Some(ErrorCode::GrammarInvalid));
        assert_eq!(code(&"(".repeat(60_000)), Some(ErrorCode::GrammarInvalid));
        // Side by side is not inside each other.
        assert_eq!(code(&format!("root ::= {}", "(\"a\") ".repeat(1_000))), None);
        for empty in ["", " ", "\n\t"] {
            assert_eq!(code(empty), Some(ErrorCode::GrammarInvalid), "{empty:?}");
        }
        assert_eq!(code("root ::= \"a\0\""), Some(ErrorCode::GrammarInvalid));
        let full = format!("root ::= \"{}\"", "x".repeat(MAX_GRAMMAR_BYTES - 11));
        assert_eq!((full.len(), code(&full)), (MAX_GRAMMAR_BYTES, None));
        assert_eq!(code(&format!("{full} ")), Some(ErrorCode::LimitExceeded));
    }

    #[test]
    fn parentheses_count_where_they_group() {
        for (grammar, expected) in [
            ("root ::= ((a) (b (c)))", 3),
            (r#"root ::= "((((" a"#, 0),
            (r#"root ::= "\"((" (a)"#, 1),
            ("root ::= [(((] (a)", 1),
            (r"root ::= [\](((] (a)", 1),
            ("# ((((\nroot ::= (a)", 1),
            ("root ::= a)))(b)", 1),
            ("root ::= \"((", 0),
        ] {
            assert_eq!(depth(grammar), expected, "{grammar}");
        }
    }
}
