//! Role templates: the words that a model expects around a text, for example `query: {text}`.
//!
//! State: none. Callers: `text/tokenizer.rs`. Not known here: which role uses which template (the catalog's record).

use super::TextError;

/// A template with exactly one `{text}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    before: String,
    after: String,
}

/// The place of the text.
const TEXT: &str = "{text}";
/// The most bytes of a template.
const MAX_BYTES: usize = 16 * 1024;

impl Template {
    /// Parses a record's template.
    ///
    /// # Errors
    /// [`TextError::Template`] when `{text}` is missing or stands twice, or the template is longer than 16 KiB.
    pub fn parse(template: &str) -> Result<Self, TextError> {
        let refuse = |reason: &str| TextError::Template {
            template: template.chars().take(80).collect(),
            reason: reason.to_owned(),
        };
        if template.len() > MAX_BYTES {
            return Err(refuse("longer than 16384 bytes"));
        }
        let (before, after) = template.split_once(TEXT).ok_or_else(|| refuse("has no {text}"))?;
        if after.contains(TEXT) {
            return Err(refuse("has {text} twice"));
        }
        Ok(Self {
            before: before.to_owned(),
            after: after.to_owned(),
        })
    }

    /// What stands before the text.
    #[must_use]
    pub fn before(&self) -> &str {
        &self.before
    }

    /// What stands after the text.
    #[must_use]
    pub fn after(&self) -> &str {
        &self.after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_place_for_the_text() {
        let template = Template::parse("query: {text}.").expect("parses");
        assert_eq!((template.before(), template.after()), ("query: ", "."));
        assert!(Template::parse("query: ").is_err());
        assert!(Template::parse("{text}{text}").is_err());
        assert!(Template::parse(&format!("{}{{text}}", "x".repeat(MAX_BYTES))).is_err());
    }
}
