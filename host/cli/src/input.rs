//! What a run reads: texts from arguments, from lines, or from JSON lines.
//!
//! No state beyond the stream being read. Texts are handed on one by one, so that a pipe of any length flows through.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::Path;

use serde::Deserialize;
use synapse_client::BatchItem;

use crate::error::CliError;

/// The most bytes of one line of input: what a request could hold anyway.
const MAX_LINE: u64 = 16 * 1024 * 1024;

/// The name of stdin in messages.
const STDIN: &str = "stdin";

/// One line of JSON input.
#[derive(Deserialize)]
#[serde(untagged)]
enum JsonItem {
    Text(String),
    Item { id: JsonId, text: String },
    Anonymous { text: String },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum JsonId {
    Text(String),
    Number(i64),
}

/// Where texts come from.
pub enum Texts {
    /// The command line.
    Given(std::vec::IntoIter<String>, usize),
    /// Lines of a stream.
    Lines(Lines),
}

/// Lines of a stream, with their number.
pub struct Lines {
    reader: Box<dyn BufRead>,
    /// Where it comes from, for messages.
    name: String,
    number: usize,
    jsonl: bool,
}

impl Texts {
    /// The lines of a file, or of stdin for `-`. A file named `*.jsonl` holds JSON lines without being told.
    pub fn from_file(path: &Path, jsonl: bool) -> Result<Self, CliError> {
        if path == Path::new("-") {
            return Ok(Self::lines(Box::new(io::stdin().lock()), STDIN.to_owned(), jsonl));
        }
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| CliError::io(format!("opening {name}"), error))?;
        let jsonl = jsonl || path.extension().is_some_and(|extension| extension == "jsonl");
        Ok(Self::lines(Box::new(BufReader::new(file)), name, jsonl))
    }

    fn lines(reader: Box<dyn BufRead>, name: String, jsonl: bool) -> Self {
        Self::Lines(Lines {
            reader,
            name,
            number: 0,
            jsonl,
        })
    }

    /// The arguments, or stdin for `-` and for no argument with a pipe on stdin.
    pub fn choose(arguments: Vec<String>, jsonl: bool) -> Result<Self, CliError> {
        let piped = !io::stdin().is_terminal();
        Self::from(arguments, jsonl, piped, || Box::new(io::stdin().lock()))
    }

    fn from(
        arguments: Vec<String>,
        jsonl: bool,
        piped: bool,
        stdin: impl FnOnce() -> Box<dyn BufRead>,
    ) -> Result<Self, CliError> {
        let from_stdin = arguments == ["-"] || (arguments.is_empty() && piped);
        if from_stdin {
            return Ok(Self::lines(stdin(), STDIN.to_owned(), jsonl));
        }
        if jsonl {
            return Err(CliError::Usage("--jsonl reads stdin: give `-` and no texts".to_owned()));
        }
        if arguments.is_empty() {
            return Err(CliError::Usage(
                "no text: give one, or `-` to read one per line from stdin".to_owned(),
            ));
        }
        Ok(Self::Given(arguments.into_iter(), 0))
    }

    /// The next text with its id: the one of its JSON line, otherwise its position from 0. Empty lines are skipped in
    /// JSON input and are texts otherwise.
    pub fn next_item(&mut self) -> Result<Option<BatchItem>, CliError> {
        match self {
            Self::Given(texts, position) => Ok(texts.next().map(|text| {
                let item = BatchItem::new(position.to_string(), text);
                *position += 1;
                item
            })),
            Self::Lines(lines) => lines.next_item(),
        }
    }
}

impl Lines {
    fn next_item(&mut self) -> Result<Option<BatchItem>, CliError> {
        loop {
            let Some(line) = read_line(self.reader.as_mut(), &self.name, self.number + 1)? else {
                return Ok(None);
            };
            let position = self.number;
            self.number += 1;
            if !self.jsonl {
                return Ok(Some(BatchItem::new(position.to_string(), line)));
            }
            if line.trim().is_empty() {
                continue;
            }
            return parse_item(&line, &self.name, position).map(Some);
        }
    }
}

/// Reads one line without its end; `None` at the end of the stream.
fn read_line(reader: &mut dyn BufRead, name: &str, number: usize) -> Result<Option<String>, CliError> {
    let mut bytes = Vec::new();
    reader
        .take(MAX_LINE + 1)
        .read_until(b'\n', &mut bytes)
        .map_err(|error| CliError::io(format!("reading {name}"), error))?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    } else if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_LINE) {
        return Err(CliError::Usage(format!(
            "line {number} of {name} is longer than {MAX_LINE} bytes"
        )));
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|error| CliError::Usage(format!("line {number} of {name} is not UTF-8: {}", error.utf8_error())))
}

fn parse_item(line: &str, name: &str, position: usize) -> Result<BatchItem, CliError> {
    let item = serde_json::from_str(line).map_err(|_| {
        CliError::Usage(format!(
            "line {} of {name}: expected a JSON string or an object with `text` and, if you like, `id`",
            position + 1
        ))
    })?;
    Ok(match item {
        JsonItem::Text(text) | JsonItem::Anonymous { text } => BatchItem::new(position.to_string(), text),
        JsonItem::Item { id, text } => {
            let id = match id {
                JsonId::Text(id) => id,
                JsonId::Number(id) => id.to_string(),
            };
            BatchItem::new(id, text)
        }
    })
}

/// An argument, or all of stdin for `-`.
pub fn argument_or_stdin(argument: &str) -> Result<String, CliError> {
    if argument == "-" {
        whole(io::stdin().lock(), STDIN, MAX_LINE)
    } else {
        Ok(argument.to_owned())
    }
}

/// All of a file, of at most `limit` bytes.
pub fn whole_file(path: &Path, limit: u64) -> Result<String, CliError> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| CliError::io(format!("opening {name}"), error))?;
    whole(file, &name, limit)
}

fn whole(stream: impl Read, name: &str, limit: u64) -> Result<String, CliError> {
    let mut bytes = Vec::new();
    stream
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| CliError::io(format!("reading {name}"), error))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > limit) {
        return Err(CliError::Usage(format!("{name} is longer than {limit} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| CliError::Usage(format!("{name} is not UTF-8: {}", error.utf8_error())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str], jsonl: bool, stdin: Option<&'static [u8]>) -> Result<Vec<(String, String)>, String> {
        let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
        let piped = stdin.is_some();
        let mut texts = Texts::from(arguments, jsonl, piped, || Box::new(stdin.unwrap_or_default()))
            .map_err(|error| error.to_string())?;
        let mut all = Vec::new();
        while let Some(item) = texts.next_item().map_err(|error| error.to_string())? {
            all.push((item.id, item.text.into_string().unwrap()));
        }
        Ok(all)
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(id, text)| ((*id).to_owned(), (*text).to_owned()))
            .collect()
    }

    #[test]
    fn texts_come_from_arguments_or_stdin() {
        assert_eq!(
            read(&["a", "b"], false, None).unwrap(),
            pairs(&[("0", "a"), ("1", "b")])
        );
        assert_eq!(read(&["a"], false, Some(b"ignored\n")).unwrap(), pairs(&[("0", "a")]));
        let lines = pairs(&[("0", "a"), ("1", ""), ("2", "c")]);
        assert_eq!(read(&["-"], false, Some(b"a\n\r\nc")).unwrap(), lines);
        assert_eq!(read(&[], false, Some(b"a\n\nc\n")).unwrap(), lines);
        assert_eq!(read(&[], false, Some(b"")).unwrap(), []);
        assert!(read(&[], false, None).unwrap_err().contains("no text"));
        assert!(read(&["a"], true, None).unwrap_err().contains("--jsonl"));
    }

    #[test]
    fn json_lines_may_be_objects_or_strings() {
        let stdin = b"{\"id\":\"x\",\"text\":\"a\",\"more\":1}\n\n\"b\"\n{\"text\":\"c\"}\n{\"id\":7,\"text\":\"d\"}\n";
        let expected = pairs(&[("x", "a"), ("2", "b"), ("3", "c"), ("7", "d")]);
        assert_eq!(read(&["-"], true, Some(stdin)).unwrap(), expected);
        let error = read(&["-"], true, Some(b"\"a\"\n{\"id\":1}\n")).unwrap_err();
        assert!(error.contains("line 2"), "{error}");
        let error = read(&["-"], false, Some(b"ok\n\xff\n")).unwrap_err();
        assert!(error.contains("line 2") && error.contains("UTF-8"), "{error}");
    }

    #[test]
    fn a_whole_stream_is_bounded_and_unicode() {
        assert_eq!(whole(&b"ab\n"[..], "f", 3).unwrap(), "ab\n");
        for (bytes, words) in [
            (&b"abcd"[..], "f is longer than 3 bytes"),
            (&b"a\xff"[..], "f is not UTF-8"),
        ] {
            let error = whole(bytes, "f", 3).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_file_is_read_by_lines_and_its_name_says_whether_they_are_json() {
        let folder = tempfile::tempdir().unwrap();
        let all = |name: &str, content: &str, jsonl: bool| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            let mut texts = Texts::from_file(&path, jsonl).map_err(|error| error.to_string())?;
            let mut all = Vec::new();
            while let Some(item) = texts.next_item().map_err(|error| error.to_string())? {
                all.push((item.id, item.text.into_string().unwrap()));
            }
            Ok::<_, String>(all)
        };
        let json = "{\"id\":\"x\",\"text\":\"a\"}\n";
        assert_eq!(
            all("plain.txt", "a\nb\n", false).unwrap(),
            pairs(&[("0", "a"), ("1", "b")])
        );
        assert_eq!(all("lines.jsonl", json, false).unwrap(), pairs(&[("x", "a")]));
        assert_eq!(all("lines.txt", json, true).unwrap(), pairs(&[("x", "a")]));
        let error = all("bad.jsonl", "\"a\"\n{\n", false).unwrap_err();
        assert!(error.contains("line 2") && error.contains("bad.jsonl"), "{error}");
        let error = Texts::from_file(&folder.path().join("absent"), false)
            .map(|_| ())
            .unwrap_err();
        assert!(error.to_string().contains("absent"), "{error}");
    }
}
