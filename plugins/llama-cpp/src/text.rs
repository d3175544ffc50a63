//! Whole characters and stop texts: what of a generation's bytes may go out, and when.
//!
//! Owns the bytes of one generation that wait. Caller: `generate`. A token may end inside a character, and the start
//! of a stop text looks like any other text.

/// Collects bytes and gives text.
#[derive(Debug)]
pub struct Text<'a> {
    stops: Vec<&'a str>,
    /// The start of a character.
    bytes: Vec<u8>,
    /// Whole characters that may be the start of a stop text.
    held: String,
}

impl<'a> Text<'a> {
    /// Nothing yet. Empty stop texts never stop.
    #[must_use]
    pub fn new(stops: &[&'a str]) -> Self {
        Self {
            stops: stops.iter().copied().filter(|stop| !stop.is_empty()).collect(),
            bytes: Vec::new(),
            held: String::new(),
        }
    }

    /// Takes a token's bytes. Gives what is certainly before any stop text, and whether one was met; what was held is
    /// then dropped with it.
    pub fn push(&mut self, bytes: &[u8]) -> (String, bool) {
        self.bytes.extend_from_slice(bytes);
        let whole = self.whole();
        self.held.push_str(&whole);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let may_begin = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let cut = self
            .held
            .char_indices()
            .map(|(at, _)| at)
            .find(may_begin)
            .unwrap_or(self.held.len());
        let rest = self.held.split_off(cut);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back and is no stop text after all. The start of a character is no text and is dropped.
    #[must_use]
    pub fn finish(self) -> String {
        self.held
    }

    /// Takes the whole characters out of the bytes. Bytes that can never become a character are replaced.
    fn whole(&mut self) -> String {
        let mut out = String::new();
        let mut taken = 0;
        for chunk in self.bytes.utf8_chunks() {
            out.push_str(chunk.valid());
            taken += chunk.valid().len();
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            let at_end = taken + invalid.len() == self.bytes.len();
            if at_end && may_become_a_character(invalid) {
                break;
            }
            out.push(char::REPLACEMENT_CHARACTER);
            taken += invalid.len();
        }
        self.bytes.drain(..taken);
        out
    }
}

/// Whether more bytes could make these a character.
fn may_become_a_character(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(stops: &[&str], pieces: impl IntoIterator<Item = impl AsRef<[u8]>>) -> (String, bool) {
        let mut text = Text::new(stops);
        let mut out = String::new();
        for piece in pieces {
            let (safe, stopped) = text.push(piece.as_ref());
            out.push_str(&safe);
            if stopped {
                return (out, true);
            }
        }
        out.push_str(&text.finish());
        (out, false)
    }

    #[test]
    fn characters_come_whole_whatever_the_pieces() {
        let text = "a é 猫 🦀 z";
        for size in 1..=text.len() {
            assert_eq!(all(&[], text.as_bytes().chunks(size)), (text.to_owned(), false));
        }
    }

    #[test]
    fn a_cut_character_waits_and_a_broken_one_is_replaced() {
        let cat = "猫".as_bytes();
        let mut text = Text::new(&[]);
        assert_eq!(text.push(&cat[..2]), (String::new(), false));
        assert_eq!(text.push(b"x"), ("\u{fffd}x".to_owned(), false));
        assert_eq!(text.push(&[0xff, b'y', cat[0]]), ("\u{fffd}y".to_owned(), false));
        assert_eq!(text.push(&cat[1..]), ("猫".to_owned(), false));
        assert_eq!(text.push(&cat[..1]), (String::new(), false));
        assert_eq!(text.finish(), "", "the start of a character is no text");
    }

    #[test]
    fn stop_texts_are_met_across_pieces_and_are_not_part_of_the_text() {
        for size in 1..=12 {
            let pieces = "a EN d\nEND x".as_bytes().chunks(size);
            assert_eq!(all(&["\n\n", "END"], pieces), ("a EN d\n".to_owned(), true));
        }
        for size in 1..=6 {
            assert_eq!(all(&["猫🦀"], "x猫🦀y".as_bytes().chunks(size)), ("x".to_owned(), true));
        }
        assert_eq!(
            all(&["b", "ab"], ["xab"]),
            ("x".to_owned(), true),
            "the one that begins first"
        );
    }

    #[test]
    fn the_start_of_a_stop_text_is_held_and_given_at_the_end() {
        let mut text = Text::new(&["END"]);
        assert_eq!(text.push(b"an E"), ("an ".to_owned(), false));
        assert_eq!(text.push(b"N"), (String::new(), false));
        assert_eq!(text.push(b"EN"), ("EN".to_owned(), false));
        assert_eq!(text.finish(), "EN");
    }
}
