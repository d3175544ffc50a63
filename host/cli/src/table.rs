//! Tables and lists of facts, at most 100 columns wide.
//!
//! No state. Commands fill a [`Table`] with plain cells; it measures them as a terminal shows them, gives the last
//! column what is left and wraps it there.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::style::{Style, Tone, clean};

/// The widest line.
pub const WIDTH: usize = 100;
/// Between two columns.
const GAP: usize = 2;
/// The last column is never squeezed below this; earlier ones are cut instead.
const LAST_AT_LEAST: usize = 24;

/// A cell: text with a tone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A cell in a tone.
    pub fn new(tone: Tone, text: &str) -> Self {
        Self {
            text: clean(text),
            tone,
        }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(Tone::Plain, text.as_ref())
    }
}

/// Rows under a heading.
#[derive(Clone, Debug)]
pub struct Table {
    heading: Vec<Cell>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table with a heading.
    pub fn new(heading: &[&str]) -> Self {
        Self {
            heading: heading.iter().map(|text| Cell::new(Tone::Heading, text)).collect(),
            rows: Vec::new(),
        }
    }

    /// A table without heading, for facts.
    pub const fn facts() -> Self {
        Self {
            heading: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// Adds a fact: its name and its value.
    pub fn fact(&mut self, name: &str, value: impl Into<Cell>) {
        self.row(vec![Cell::new(Tone::Quiet, name), value.into()]);
    }

    /// The table as text, each line ended by a newline and none wider than [`WIDTH`].
    pub fn render(&self, style: Style) -> String {
        let rows = || {
            std::iter::once(&self.heading)
                .filter(|row| !row.is_empty())
                .chain(&self.rows)
        };
        let columns = rows().map(Vec::len).max().unwrap_or(0);
        let mut widths = vec![0; columns];
        for row in rows() {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text.width());
            }
        }
        let last = fit(&mut widths);
        let mut text = String::new();
        for row in rows() {
            render_row(&mut text, row, &widths, last, style);
        }
        text
    }
}

/// Cuts the widest of the earlier columns until the last one has room, and returns the last one's width.
fn fit(widths: &mut [usize]) -> usize {
    let Some((last, earlier)) = widths.split_last_mut() else {
        return 0;
    };
    let gaps = GAP * earlier.len();
    let wanted = (*last).min(LAST_AT_LEAST);
    while earlier.iter().sum::<usize>() + gaps + wanted > WIDTH {
        let Some(widest) = earlier.iter_mut().max() else { break };
        if *widest <= 1 {
            break;
        }
        *widest -= 1;
    }
    *last = (*last)
        .min(WIDTH.saturating_sub(earlier.iter().sum::<usize>() + gaps))
        .max(1);
    *last
}

fn render_row(text: &mut String, row: &[Cell], widths: &[usize], last: usize, style: Style) {
    let mut indent = 0;
    for (position, (cell, &width)) in row.iter().zip(widths).enumerate() {
        if position + 1 == widths.len() {
            for (number, line) in wrap(&cell.text, last).iter().enumerate() {
                if number > 0 {
                    text.push('\n');
                    text.extend(std::iter::repeat_n(' ', indent));
                }
                text.push_str(&style.paint(cell.tone, line));
            }
        } else {
            let shown = cut(&cell.text, width);
            text.push_str(&style.paint(cell.tone, &shown));
            text.extend(std::iter::repeat_n(' ', width - shown.width() + GAP));
            indent += width + GAP;
        }
    }
    let end = text.trim_end_matches(' ').len();
    text.truncate(end);
    text.push('\n');
}

/// A text of at most `width` columns, with an ellipsis where something was cut.
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    let mut used = 0;
    for character in text.chars() {
        let wide = character.width().unwrap_or(0);
        if used + wide + 1 > width {
            break;
        }
        used += wide;
        shown.push(character);
    }
    shown.push('…');
    shown
}

/// Breaks a text into lines of at most `width` columns, at spaces where there are any.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split_inclusive(' ') {
        if used > 0 && used + word.trim_end().width() > width {
            lines.push(std::mem::take(&mut line).trim_end().to_owned());
            used = 0;
        }
        for character in word.chars() {
            let wide = character.width().unwrap_or(0);
            if used > 0 && used + wide > width {
                if character == ' ' {
                    continue;
                }
                lines.push(std::mem::take(&mut line).trim_end().to_owned());
                used = 0;
            }
            line.push(character);
            used += wide;
        }
    }
    lines.push(line.trim_end().to_owned());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_as_a_terminal_shows_them() {
        let mut table = Table::new(&["ID", "STATE", "NOTE"]);
        table.row(vec!["日本".into(), "ok".into(), "".into()]);
        table.row(vec!["abc".into(), "loading".into(), "soon".into()]);
        assert_eq!(
            table.render(Style::plain()),
            "ID    STATE    NOTE\n日本  ok\nabc   loading  soon\n"
        );
    }

    #[test]
    fn the_last_column_wraps_and_nothing_is_wider_than_the_limit() {
        let mut table = Table::new(&["ID", "DIRECTORY", "REASON"]);
        let long = "/a/very/long/path".repeat(12);
        table.row(vec![
            "owned".into(),
            long.as_str().into(),
            "the library was built for another target and cannot be loaded here".into(),
        ]);
        table.row(vec!["x".into(), "/d".into(), "word".repeat(60).into()]);
        let text = table.render(Style::plain());
        assert!(text.lines().all(|line| line.width() <= WIDTH), "{text}");
        assert!(text.contains('…'), "{text}");
        let words: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("the library was"), "{text}");
        assert_eq!(
            text.matches("word").count() + text.matches("wor\n").count(),
            60,
            "{text}"
        );
    }

    #[test]
    fn escapes_in_cells_are_shown_not_obeyed() {
        let mut table = Table::facts();
        table.fact("message", "\u{1b}[2J");
        assert_eq!(table.render(Style::plain()), "message  \\u{1b}[2J\n");
    }

    #[test]
    fn words_are_wrapped_at_spaces_and_long_ones_are_broken() {
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrap("abcdefg", 3), ["abc", "def", "g"]);
        assert_eq!(wrap("", 3), [""]);
        assert_eq!(wrap("日本語", 4), ["日本", "語"]);
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("abc", 3), "abc");
    }
}
