//! Frames: the special tokens that a tokenizer's own post-processor puts around one text, or around two.
//!
//! State: none. Callers: `text/tokenizer.rs`, once at every load. Not known here: which token means what.
//!
//! The post-processor is shown stand-ins instead of texts, so that any post-processor is understood by what it does,
//! and a text never passes through it (it would be searched for nothing and cut by rules that are not ours).

use std::ops::Range;

use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper, Token};

use super::tokenizer::guarded;

/// A special token: id and segment.
pub type Special = (i32, i32);

/// What stands around one text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Before it.
    pub before: Vec<Special>,
    /// After it.
    pub after: Vec<Special>,
}

/// What stands around a query and a document, and in which segment each of them is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairFrame {
    /// Before the query.
    pub before: Vec<Special>,
    /// The query's segment.
    pub query_segment: i32,
    /// Between the two; never empty, or nothing would tell where the document begins.
    pub between: Vec<Special>,
    /// The document's segment.
    pub document_segment: i32,
    /// After the document.
    pub after: Vec<Special>,
}

/// Stand-ins for texts. No vocabulary reaches them: ids end at 2^31.
const FIRST: u32 = u32::MAX;
const SECOND: u32 = u32::MAX - 1;

impl Frame {
    /// Learns what a tokenizer puts around one text.
    ///
    /// # Errors
    /// What its post-processor does wrong, in words.
    pub fn learn(tokenizer: &tokenizers::Tokenizer) -> Result<Self, String> {
        let Some(processor) = tokenizer.get_post_processor() else {
            return Ok(Self::default());
        };
        let framed = Framed::of(processor, false)?;
        let at = framed.only(FIRST)?;
        Ok(Self {
            before: framed.specials(0..at)?,
            after: framed.specials(at + 1..framed.length())?,
        })
    }

    /// How many tokens it adds.
    pub fn tokens(&self) -> usize {
        self.before.len() + self.after.len()
    }
}

impl PairFrame {
    /// Learns what a tokenizer puts around two texts; `None` where it puts nothing between them, or knows no pairs.
    pub fn learn(tokenizer: &tokenizers::Tokenizer) -> Option<Self> {
        let framed = Framed::of(tokenizer.get_post_processor()?, true).ok()?;
        let (query, document) = (framed.only(FIRST).ok()?, framed.only(SECOND).ok()?);
        if document <= query + 1 {
            return None;
        }
        Some(Self {
            before: framed.specials(0..query).ok()?,
            query_segment: framed.segment(query).ok()?,
            between: framed.specials(query + 1..document).ok()?,
            document_segment: framed.segment(document).ok()?,
            after: framed.specials(document + 1..framed.length()).ok()?,
        })
    }

    /// How many tokens it adds.
    pub fn tokens(&self) -> usize {
        self.before.len() + self.between.len() + self.after.len()
    }
}

/// Stand-ins with what a post-processor put around them.
struct Framed(Encoding);

impl Framed {
    fn of(processor: &PostProcessorWrapper, pair: bool) -> Result<Self, String> {
        let stand_in = |id| Encoding::from_tokens(vec![Token::new(id, String::from("x"), (0, 1))], 0);
        let second = pair.then(|| stand_in(SECOND));
        guarded(|| processor.process(stand_in(FIRST), second, true))
            .map(Self)
            .map_err(|reason| format!("the post-processor fails: {reason}"))
    }

    fn length(&self) -> usize {
        self.0.get_ids().len()
    }

    /// The one place of a stand-in.
    fn only(&self, id: u32) -> Result<usize, String> {
        let mut places = self.0.get_ids().iter().enumerate().filter(|(_, found)| **found == id);
        let (at, _) = places.next().ok_or("the post-processor drops the text")?;
        match places.next() {
            None => Ok(at),
            Some(_) => Err(String::from("the post-processor repeats the text")),
        }
    }

    fn segment(&self, index: usize) -> Result<i32, String> {
        i32::try_from(self.0.get_type_ids()[index]).map_err(|_| String::from("a segment is outside 0..2^31"))
    }

    fn specials(&self, range: Range<usize>) -> Result<Vec<Special>, String> {
        range
            .map(|index| {
                let id = i32::try_from(self.0.get_ids()[index])
                    .map_err(|_| String::from("a special id is outside 0..2^31"))?;
                Ok((id, self.segment(index)?))
            })
            .collect()
    }
}
