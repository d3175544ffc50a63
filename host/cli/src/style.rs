//! Colour and the making of safe, readable text out of values.
//!
//! No state. Everything that may come from a file, an engine or a client goes through [`clean`] before it reaches a
//! terminal, so that it cannot move the cursor or change colours.

use crate::args::ColorWhen;

/// Whether to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    colour: bool,
}

/// What a word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Not quite, or not yet.
    Notice,
    /// Wrong.
    Bad,
    /// A heading.
    Heading,
    /// Of less weight.
    Quiet,
    /// Nothing special.
    Plain,
}

impl Style {
    /// Follows `--color`, `NO_COLOR` (any value that is not empty) and whether the stream is a terminal.
    pub fn decide(when: ColorWhen, no_color: Option<&str>, terminal: bool) -> Self {
        let colour = match when {
            ColorWhen::Always => true,
            ColorWhen::Never => false,
            ColorWhen::Auto => terminal && no_color.is_none_or(str::is_empty),
        };
        Self { colour }
    }

    /// No colour at all.
    pub const fn plain() -> Self {
        Self { colour: false }
    }

    /// A text in a tone.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Notice => "33",
            Tone::Bad => "31",
            Tone::Heading => "1",
            Tone::Quiet => "2",
            Tone::Plain => return text.to_owned(),
        };
        if self.colour && !text.is_empty() {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Replaces control characters (terminal escapes among them) and bidirectional overrides by their escapes.
pub fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for character in text.chars() {
        let hidden = matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if character.is_control() || hidden {
            clean.extend(character.escape_default());
        } else {
            clean.push(character);
        }
    }
    clean
}

/// As [`clean`], but line breaks and tabs stay: for texts of several lines.
pub fn clean_lines(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for piece in text.split_inclusive(['\n', '\t']) {
        let (words, end) = match piece.strip_suffix(['\n', '\t']) {
            Some(words) => (words, &piece[words.len()..]),
            None => (piece, ""),
        };
        shown.push_str(&clean(words));
        shown.push_str(end);
    }
    shown
}

/// Bytes in the unit that reads best, for example `87.3 MiB`.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{count} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Milliseconds in the units that read best, for example `2 h 5 min`.
pub fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..=59 => format!("{seconds} s"),
        60..=3599 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..=86_399 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_follows_the_flag_then_no_color_then_the_stream() {
        use ColorWhen::{Always, Auto, Never};
        for (when, no_color, terminal, expected) in [
            (Auto, None, true, true),
            (Auto, None, false, false),
            (Auto, Some("1"), true, false),
            (Auto, Some(""), true, true),
            (Always, Some("1"), false, true),
            (Never, None, true, false),
        ] {
            let style = Style::decide(when, no_color, terminal);
            assert_eq!(style.colour, expected, "{when:?} {no_color:?} {terminal}");
        }
        assert_eq!(Style { colour: true }.paint(Tone::Bad, "no"), "\u{1b}[31mno\u{1b}[0m");
        assert_eq!(Style::plain().paint(Tone::Bad, "no"), "no");
    }

    #[test]
    fn terminal_escapes_do_not_get_through() {
        assert_eq!(clean("a\u{1b}[2Jb\r\u{7}"), "a\\u{1b}[2Jb\\r\\u{7}");
        assert_eq!(clean("abc\u{202e}def"), "abc\\u{202e}def");
        assert_eq!(clean("Grüße 日本語 😀"), "Grüße 日本語 😀");
    }

    #[test]
    fn amounts_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(90_868_376), "86.7 MiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        for (ms, words) in [
            (999, "999 ms"),
            (1000, "1 s"),
            (61_000, "1 min 1 s"),
            (7_500_000, "2 h 5 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(ms), words);
        }
    }
}
