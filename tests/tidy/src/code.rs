//! Rust text without what is not code: comments, literals and test modules become blanks, lines stay where they are.
//!
//! State: none. A lexer of four shapes is enough, because the rules look for words only.

/// `text` with comments and the contents of string and character literals blanked.
#[must_use]
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let end = if rest.starts_with(b"//") {
            at + rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            at + block_comment(rest)
        } else if let Some(length) = raw_string(bytes, at) {
            at + length
        } else if rest[0] == b'"' {
            at + quoted(rest, b'"')
        } else if rest[0] == b'\'' && is_char_literal(rest) {
            at + quoted(rest, b'\'')
        } else {
            at += 1;
            continue;
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// [`code_only`], and without modules under `#[cfg(test)]`.
#[must_use]
pub fn product_code(text: &str) -> String {
    let mut code = code_only(text).into_bytes();
    let mut from = 0;
    while let Some(found) = find(&code[from..], b"#[cfg(test)]") {
        let start = from + found;
        let tail = &code[start..];
        let brace = tail.iter().position(|b| *b == b'{');
        let semicolon = tail.iter().position(|b| *b == b';');
        let end = match (brace, semicolon) {
            (Some(brace), semicolon) if semicolon.is_none_or(|s| s > brace) => start + matching(tail, brace),
            (_, Some(semicolon)) => start + semicolon + 1,
            _ => code.len(),
        };
        for byte in &mut code[start..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        from = end;
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// The lines (from 1) on which `word` stands as a whole word.
#[must_use]
pub fn lines_with(code: &str, word: &str) -> Vec<usize> {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let whole = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + word.len()..].chars().next();
            let joined_before = part(before) && part(word.chars().next());
            let joined_after = part(after) && part(word.chars().next_back());
            !joined_before && !joined_after
        })
    };
    code.lines()
        .enumerate()
        .filter(|(_, line)| whole(line))
        .map(|(index, _)| index + 1)
        .collect()
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// The position after the brace that closes the one at `open`.
fn matching(code: &[u8], open: usize) -> usize {
    let mut depth = 0usize;
    for (index, byte) in code.iter().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return index + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

fn block_comment(rest: &[u8]) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The length of a raw string that starts at `at`, if one does.
fn raw_string(bytes: &[u8], at: usize) -> Option<usize> {
    let inside_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    let prefix = usize::from(bytes[at] == b'b' || bytes[at] == b'c');
    let body = bytes.get(at + prefix..)?.strip_prefix(b"r").filter(|_| !inside_word)?;
    let hashes = body.iter().take_while(|b| **b == b'#').count();
    let text = body[hashes..].strip_prefix(b"\"")?;
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let length = find(text, &close).map_or(text.len(), |found| found + close.len());
    Some(prefix + 1 + hashes + 1 + length)
}

/// The length of a literal that begins and ends with `quote`.
fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// `'a'` and `'\n'` are literals, `'a` is a lifetime.
fn is_char_literal(rest: &[u8]) -> bool {
    match rest.get(1) {
        Some(b'\\') => true,
        Some(byte) if byte.is_ascii() => rest.get(2) == Some(&b'\''),
        Some(_) => true,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_what_is_not_code() {
        let text = concat!(
            "let a = \"unsafe \\\" unsafe\"; // unsafe\n",
            "/* unsafe /* unsafe */ unsafe */ let b: &'static str = r#\"unsafe \" unsafe\"#;\n",
            "let c = ['\"', '\\'', 'x', 'ü']; unsafe { let d = b\"unsafe\"; }\n",
        );
        let code = code_only(text);
        assert_eq!(code.lines().count(), 3);
        assert_eq!(lines_with(&code, "unsafe"), [3]);
        assert!(code.contains("&'static str"));
        assert_eq!(lines_with("unsafe_code my_unsafe unsafely", "unsafe"), [0usize; 0]);
        assert_eq!(lines_with("x; std::thread::spawn(f)", "thread::spawn"), [1]);
    }

    #[test]
    fn test_modules_are_no_product() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { spawn() }\n}\nfn c() { spawn() }\n#[cfg(test)]\nmod d;\nspawn";
        assert_eq!(lines_with(&product_code(text), "spawn"), [6, 9]);
    }
}
