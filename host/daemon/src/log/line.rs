//! The format of a line: `2026-09-05T10:41:03.123Z DEBUG synapse.perf: activity in_flight=2 queue_depth=1` (LOG-02).
//!
//! State: none. Callers: `log/mod.rs`. Not known here: where lines go. Nothing that is logged can end a line or start
//! another: control characters are escaped.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::Level;

/// A longer line is cut.
const MAX_LINE_BYTES: usize = 16 * 1024;

/// A moment in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Utc {
    /// The day, as `YYYY-MM-DD` is made of it.
    pub(super) date: (i64, u32, u32),
    seconds: u64,
    milliseconds: u32,
}

impl Utc {
    /// The moment; a clock before 1970 counts as 1970.
    pub(super) fn of(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = since.as_secs();
        Self {
            date: civil(i64::try_from(seconds / 86_400).unwrap_or(i64::MAX / 2)),
            seconds: seconds % 86_400,
            milliseconds: since.subsec_millis(),
        }
    }

    /// `YYYY-MM-DD`.
    pub(super) fn day(&self) -> String {
        let (year, month, day) = self.date;
        format!("{year:04}-{month:02}-{day:02}")
    }
}

/// The proleptic Gregorian date of a day counted from 1970-01-01, by eras of 400 years that begin on 1 March.
fn civil(days: i64) -> (i64, u32, u32) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, u32::try_from(month).unwrap_or(1), u32::try_from(day).unwrap_or(1))
}

/// Adds ` name=value`; a value with blanks, quotes or `=` stands in quotes.
pub(super) fn push_field(fields: &mut String, name: &str, value: &str) {
    let plain = !value.is_empty()
        && value
            .chars()
            .all(|c| !c.is_whitespace() && !c.is_control() && c != '"' && c != '=');
    if plain {
        let _ = write!(fields, " {name}={value}");
    } else {
        let _ = write!(fields, " {name}={value:?}");
    }
}

/// One line, its end included.
pub(super) fn format(now: SystemTime, level: Level, logger: &str, message: &str, fields: &str) -> String {
    let utc = Utc::of(now);
    let (hour, minute, second) = (utc.seconds / 3_600, utc.seconds / 60 % 60, utc.seconds % 60);
    let mut line = String::with_capacity(64 + message.len() + fields.len());
    let _ = write!(
        line,
        "{}T{hour:02}:{minute:02}:{second:02}.{:03}Z {level} {logger}: ",
        utc.day(),
        utc.milliseconds
    );
    for character in message.chars().chain(fields.chars()) {
        if character.is_control() {
            let _ = write!(line, "{}", character.escape_default());
        } else {
            line.push(character);
        }
        if line.len() > MAX_LINE_BYTES {
            line.push('…');
            break;
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64, milliseconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(milliseconds)
    }

    /// Proves LOG-02. The example line of the requirement; its seconds are those of `date -u -d … +%s`.
    #[test]
    fn the_format_is_the_documented_one() {
        let mut fields = String::new();
        push_field(&mut fields, "in_flight", "2");
        push_field(&mut fields, "queue_depth", "1");
        let line = format(
            at(1_788_604_863, 123),
            Level::DEBUG,
            "synapse.perf",
            "activity",
            &fields,
        );
        assert_eq!(
            line,
            "2026-09-05T10:41:03.123Z DEBUG synapse.perf: activity in_flight=2 queue_depth=1\n"
        );
        for (level, word) in [
            (Level::ERROR, "ERROR"),
            (Level::WARN, "WARN"),
            (Level::INFO, "INFO"),
            (Level::TRACE, "TRACE"),
        ] {
            let line = format(at(0, 7), level, "synapse", "m", "");
            assert_eq!(line, format!("1970-01-01T00:00:00.007Z {word} synapse: m\n"));
        }
    }

    /// Days from `date -u -d @SECONDS +%F`.
    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, day) in [
            (0, "1970-01-01"),
            (86_399, "1970-01-01"),
            (86_400, "1970-01-02"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_709_164_800, "2024-02-29"),
            (1_735_689_599, "2024-12-31"),
            (1_735_689_600, "2025-01-01"),
            (4_107_542_400, "2100-03-01"),
            (4_107_456_000, "2100-02-28"),
        ] {
            assert_eq!(Utc::of(at(seconds, 0)).day(), day, "{seconds}");
        }
    }

    #[test]
    fn nothing_logged_can_forge_a_line() {
        let mut fields = String::new();
        push_field(
            &mut fields,
            "path",
            "a b\n2026-01-01T00:00:00.000Z ERROR synapse: forged",
        );
        push_field(&mut fields, "empty", "");
        let line = format(at(0, 0), Level::INFO, "synapse", "one\ntwo\x1b[31m", &fields);
        assert_eq!(line.matches('\n').count(), 1);
        assert!(
            line.contains("one\\ntwo\\u{1b}[31m path=\"a b\\n2026") && line.ends_with(" empty=\"\"\n"),
            "{line}"
        );
        let long = format(at(0, 0), Level::INFO, "synapse", &"é".repeat(20_000), "");
        assert!(long.len() < MAX_LINE_BYTES + 16 && long.ends_with("…\n"));
    }
}
