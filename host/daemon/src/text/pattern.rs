//! What a published tokenizer's patterns may cost: regular expressions and replacements are checked before use.
//!
//! State: none. Callers: `text/sanitise.rs`. Not known here: what the patterns split.
//!
//! A pattern with look-around runs in a backtracking matcher that gives up silently after a million steps, so an
//! ambiguous pattern would be slow and wrong. Patterns that can be ambiguous are refused; every published pattern
//! that we know (GPT-2, cl100k, o200k, Llama 3, Qwen, DeepSeek) passes.

use synapse_core::canon::Value;

use super::json_guard::Fields;

/// The most bytes of one pattern.
const MAX_PATTERN_BYTES: usize = 4096;
/// The most unbounded repetitions of one alternative, where look-around makes the matcher backtrack.
const MAX_UNBOUNDED: u32 = 3;
/// The largest count of a counted repetition.
const MAX_COUNT: u32 = 1000;
/// The most by which all replacements together may lengthen a text.
const MAX_GROWTH: u64 = 16;

/// Checks every pattern of a normalizer, pre-tokenizer or decoder.
///
/// # Errors
/// What is wrong, in words.
pub fn check(component: &Value) -> Result<(), String> {
    let mut growth = 1;
    walk(component, &mut growth)
}

fn walk(value: &Value, growth: &mut u64) -> Result<(), String> {
    match value {
        Value::Object(map) => {
            if let Some(Value::Str(pattern)) = map.get("Regex") {
                check_regex(pattern).map_err(|reason| {
                    let shown: String = pattern.chars().take(80).collect();
                    format!("the pattern {shown:?} {reason}")
                })?;
            }
            if value.member("type").and_then(Fields::as_text) == Some("Replace") {
                *growth = growth.saturating_mul(replace_growth(value));
                if *growth > MAX_GROWTH {
                    return Err(format!(
                        "its replacements could lengthen a text more than {MAX_GROWTH} times"
                    ));
                }
            }
            map.values().try_for_each(|inner| walk(inner, growth))
        }
        Value::Array(items) => items.iter().try_for_each(|inner| walk(inner, growth)),
        _ => Ok(()),
    }
}

/// By how much one `Replace` can lengthen a text, at least 1.
fn replace_growth(replace: &Value) -> u64 {
    let content = replace.member("content").and_then(Fields::as_text).map_or(0, str::len);
    let content = u64::try_from(content).unwrap_or(u64::MAX);
    let fixed = replace
        .member("pattern")
        .and_then(|pattern| pattern.member("String"))
        .and_then(Fields::as_text)
        .and_then(|pattern| u64::try_from(pattern.len()).ok())
        .filter(|&length| length > 0);
    match fixed {
        Some(length) => content.div_ceil(length).max(1),
        // Without a fixed pattern each place between two characters may match.
        None => content.saturating_add(1),
    }
}

/// What one open group holds so far.
#[derive(Clone, Copy, Default)]
struct Group {
    /// A repetition, an optional part or an alternative: with a repetition around it, one text can match in many ways.
    variable: bool,
    /// Unbounded repetitions of the current alternative.
    unbounded: u32,
    /// The most of any alternative.
    most: u32,
}

/// How often the item before may repeat.
struct Repeat {
    variable: bool,
    unbounded: bool,
}

fn check_regex(pattern: &str) -> Result<(), String> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!("is longer than {MAX_PATTERN_BYTES} bytes"));
    }
    let backtracks = ["(?=", "(?!", "(?<=", "(?<!", "(?>"]
        .iter()
        .any(|part| pattern.contains(part));
    let mut stack = vec![Group::default()];
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        let group = stack.last_mut().ok_or("has an unopened parenthesis")?;
        let closed: Option<Group> = match c {
            '\\' => {
                let escaped = rest.next().ok_or("ends in a backslash")?;
                if escaped.is_ascii_digit() && escaped != '0' || escaped == 'k' {
                    return Err(String::from("refers back to a group, which cannot be bounded"));
                }
                if matches!(escaped, 'p' | 'P' | 'x' | 'u') && rest.peek() == Some(&'{') {
                    rest.by_ref().take_while(|&c| c != '}').for_each(drop);
                }
                None
            }
            '[' => {
                skip_class(&mut rest)?;
                None
            }
            '(' => {
                stack.push(Group::default());
                if rest.peek() == Some(&'?') {
                    rest.next();
                }
                continue;
            }
            ')' => {
                let mut done = stack.pop().ok_or("has an unopened parenthesis")?;
                done.most = done.most.max(done.unbounded);
                Some(done)
            }
            '|' => {
                group.variable = true;
                group.most = group.most.max(group.unbounded);
                group.unbounded = 0;
                continue;
            }
            _ => None,
        };
        let repeat = take_repeat(&mut rest)?;
        let group = stack.last_mut().ok_or("has an unopened parenthesis")?;
        if let Some(inner) = closed {
            if repeat.unbounded && inner.variable {
                return Err(String::from(
                    "repeats a group that itself varies, which can take exponential time",
                ));
            }
            group.variable |= inner.variable;
            group.unbounded += inner.most;
        }
        group.variable |= repeat.variable;
        group.unbounded += u32::from(repeat.unbounded);
        if backtracks && group.unbounded > MAX_UNBOUNDED {
            return Err(format!(
                "has more than {MAX_UNBOUNDED} unbounded repetitions in one alternative beside look-around"
            ));
        }
    }
    if stack.len() == 1 {
        Ok(())
    } else {
        Err(String::from("has an unclosed parenthesis"))
    }
}

/// Skips a character class, nested classes included.
fn skip_class(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<(), String> {
    let mut depth = 1_u32;
    let mut first = true;
    while let Some(c) = rest.next() {
        match c {
            '\\' => {
                rest.next();
            }
            '^' if first => continue,
            ']' if first => {}
            '[' => depth += 1,
            ']' => {
                depth -= 1;
                if depth == 0 {
                    return Ok(());
                }
            }
            _ => {}
        }
        first = false;
    }
    Err(String::from("has an unclosed class"))
}

/// Takes the repetition that follows an item.
fn take_repeat(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Repeat, String> {
    let repeat = match rest.peek() {
        Some('*' | '+') => Repeat {
            variable: true,
            unbounded: true,
        },
        Some('?') => Repeat {
            variable: true,
            unbounded: false,
        },
        Some('{') => {
            rest.next();
            let counts: String = rest.by_ref().take_while(|&c| c != '}').collect();
            let (low, high) = counts.split_once(',').unwrap_or((&counts, &counts));
            let too_many = |count: &str| count.trim().parse::<u32>().is_ok_and(|count| count > MAX_COUNT);
            if too_many(low) || too_many(high) {
                return Err(format!("repeats an item more than {MAX_COUNT} times"));
            }
            return Ok(Repeat {
                variable: low != high,
                unbounded: high.trim().is_empty(),
            });
        }
        _ => {
            return Ok(Repeat {
                variable: false,
                unbounded: false,
            });
        }
    };
    rest.next();
    if matches!(rest.peek(), Some('?' | '+')) {
        rest.next();
    }
    Ok(repeat)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published patterns of tokenizers in wide use pass; patterns of exponential or high polynomial cost do not.
    #[test]
    fn known_patterns_pass_and_ambiguous_ones_do_not() {
        let good = [
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\s+(?!\S)|\s+",
            r"[!\x22#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r" ?[^(\s|[.,!?…。，、।۔،])]+",
            r"\d{1,3}(?=(?:\d{3})*\b)",
        ];
        for pattern in good {
            assert_eq!(check_regex(pattern), Ok(()), "{pattern}");
        }
        let bad = [
            "(a+)+$",
            "(a|a)*(?=b)",
            "(?:a?)*",
            r"(a)\1",
            "a*a*a*a*(?=b)",
            "a{2000}",
            "(((a",
            "a)",
            "[a",
            "((a{1,9})x)+",
        ];
        for pattern in bad {
            assert!(check_regex(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn replacements_may_not_multiply() {
        let replace = |content: &str| {
            Value::object([
                ("type", Value::text("Replace")),
                ("pattern", Value::object([("String", Value::text("a"))])),
                ("content", Value::text(content)),
            ])
        };
        assert_eq!(check(&Value::Array(vec![replace("\u{2581}"), replace("b")])), Ok(()));
        assert!(check(&Value::Array(vec![replace("aaaaa"); 2])).is_err());
    }
}
