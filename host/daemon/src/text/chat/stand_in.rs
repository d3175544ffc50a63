//! Stand-ins: what a chat template sees in place of the messages' contents.
//!
//! State: none; every stand-in is made anew for one rendering, from randomness that no template can guess. Callers:
//! [`super::ChatTemplate`]. Not known here: templates.
//!
//! A content never reaches the template, so it cannot be run, measured or altered by it, and afterwards it is known
//! to the byte what was content and what the template wrote. The core of a stand-in holds what an alteration would
//! touch: both cases, quotes, a backslash, HTML's characters, a line end. Around it lies white space that only
//! trimming removes; where the template trims, the content is trimmed.

use uuid::Uuid;

use super::super::prompt::Piece;

/// White space that no template writes: its pattern is random.
const BLANKS: [char; 2] = ['\u{2002}', '\u{2003}'];

/// A content's place in a rendered template.
pub struct StandIn<'c> {
    content: &'c str,
    before: String,
    core: String,
    after: String,
}

impl<'c> StandIn<'c> {
    /// A stand-in for a content; `None` for an empty one, which stands for itself.
    pub fn new(content: &'c str) -> Option<Self> {
        (!content.is_empty()).then(|| Self {
            content,
            before: blanks(),
            core: core(),
            after: blanks(),
        })
    }

    /// What the template sees.
    pub fn text(&self) -> String {
        [&self.before, self.core.as_str(), &self.after].concat()
    }
}

fn core() -> String {
    let nonce = Uuid::new_v4().simple().to_string();
    format!("q{nonce}\"\\<&>'\n{}Q", nonce.to_uppercase())
}

fn blanks() -> String {
    let bits = Uuid::new_v4().as_u128();
    (0..48).map(|bit| BLANKS[usize::from(bits >> bit & 1 == 1)]).collect()
}

/// Takes a rendered template apart.
///
/// # Errors
/// In words, when a stand-in is missing, altered or there twice.
pub fn split(rendered: &str, stand_ins: &[StandIn<'_>]) -> Result<Vec<Piece>, String> {
    let mut places = Vec::with_capacity(stand_ins.len());
    for (index, stand_in) in stand_ins.iter().enumerate() {
        let mut found = rendered.match_indices(&stand_in.core);
        let number = index + 1;
        match (found.next(), found.next()) {
            (Some((at, _)), None) => places.push((at, stand_in)),
            (None, _) => return Err(format!("it drops or alters the content of message {number}")),
            (Some(_), Some(_)) => return Err(format!("it writes the content of message {number} twice")),
        }
    }
    places.sort_by_key(|(at, _)| *at);
    let mut pieces = Vec::with_capacity(2 * places.len() + 1);
    let mut rest = rendered;
    let mut begin = 0;
    for (at, stand_in) in places {
        let (before, from) = rest
            .get(..at - begin)
            .zip(rest.get(at - begin + stand_in.core.len()..))
            .ok_or("it alters a message's content")?;
        let mut content = stand_in.content;
        let written = match before.strip_suffix(&stand_in.before) {
            Some(written) => written,
            None if before.ends_with(BLANKS) => return Err(String::from("it cuts off a part of a message's content")),
            None => {
                content = content.trim_start();
                before
            }
        };
        rest = match from.strip_prefix(&stand_in.after) {
            Some(rest) => rest,
            None if from.starts_with(BLANKS) => return Err(String::from("it cuts off a part of a message's content")),
            None => {
                content = content.trim_end();
                from
            }
        };
        begin = rendered.len() - rest.len();
        push(&mut pieces, Piece::Template(written.to_owned()));
        push(&mut pieces, Piece::Content(content.to_owned()));
    }
    push(&mut pieces, Piece::Template(rest.to_owned()));
    Ok(pieces)
}

fn push(pieces: &mut Vec<Piece>, piece: Piece) {
    if !piece.text().is_empty() {
        pieces.push(piece);
    }
}
